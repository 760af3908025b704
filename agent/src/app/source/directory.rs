//! The directory of manifests, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use portway_model::k8s::{Change, Manifests};
use portway_runtime::directory::{DirectoryError, Event};

use crate::api;

/// What became of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    FirstSync,
    Synced,
    /// It is gone; its last objects are kept.
    Missing,
}

/// What is known of the directory beside the objects.
pub(super) struct Files {
    path: PathBuf,
    state: State,
    has_synced: bool,
    files: BTreeSet<PathBuf>,
    unreadable: BTreeMap<PathBuf, String>,
    /// Why the directory cannot be followed at present.
    trouble: Option<String>,
    last_change: Option<Instant>,
}

/// What an event of the directory comes to.
pub(super) enum Told {
    /// Objects changed, maybe; how many bytes were read.
    Change(Change, usize),
    /// Everything known so far was told.
    Settled,
    /// Nothing that objects depend on.
    Nothing,
}

impl Files {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            state: State::FirstSync,
            has_synced: false,
            files: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            trouble: None,
            last_change: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn has_synced(&self) -> bool {
        self.has_synced
    }

    pub(super) fn take(&mut self, event: Event, manifests: &mut Manifests) -> Told {
        let told = match event {
            Event::File { path, content } => {
                self.unreadable.remove(&path);
                let change = manifests.apply(&path, &content);
                self.files.insert(path);
                Told::Change(change, content.len())
            }
            Event::Removed { path } => {
                self.unreadable.remove(&path);
                self.files.remove(&path);
                Told::Change(manifests.remove(&path), 0)
            }
            Event::Unreadable { path, reason } => {
                tracing::warn!(path = %path.display(), reason, "a file cannot be read; its last objects stay");
                self.unreadable.insert(path, reason);
                return Told::Nothing;
            }
            Event::Missing { reason } => {
                tracing::warn!(path = %self.path.display(), reason, "the directory is missing; its last objects stay");
                self.state = State::Missing;
                return Told::Nothing;
            }
            Event::Settled => {
                self.trouble = None;
                self.has_synced = true;
                Told::Settled
            }
        };
        self.state = if self.has_synced { State::Synced } else { State::FirstSync };
        if matches!(told, Told::Change(..)) {
            self.last_change = Some(Instant::now());
        }
        told
    }

    /// The directory cannot be followed; it is tried again.
    pub(super) fn failed(&mut self, error: &DirectoryError) {
        let trouble = error.to_string();
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(path = %self.path.display(), %error, "the directory cannot be followed; its last objects stay");
        }
        self.trouble = Some(trouble);
    }

    /// Files that nobody knows the objects of. O(files).
    pub(super) fn silent(&self, manifests: &Manifests) -> usize {
        self.unreadable.len() + manifests.problems().count()
    }

    pub(super) fn status(&self, manifests: &Manifests) -> api::Source {
        let objects: usize = self.files.iter().map(|path| manifests.object_count_of(path)).sum();
        let objects = objects as u64;
        let broken = |path: &Path, reason: &str, kept_objects: u64| {
            let (path, reason) = (path.display().to_string(), reason.to_owned());
            (path.clone(), api::BrokenFile { path, reason, kept_objects })
        };
        let unused = manifests.problems();
        let unused =
            unused.map(|problem| broken(&problem.path, &problem.reason, problem.kept_objects as u64));
        let unreadable = self.unreadable.iter();
        let unreadable =
            unreadable.map(|(path, reason)| broken(path, reason, manifests.object_count_of(path) as u64));
        let trouble = self.trouble.iter().map(|trouble| broken(&self.path, trouble, objects));
        // What cannot be read now is newer than what could not be parsed.
        let broken: BTreeMap<String, api::BrokenFile> = unused.chain(unreadable).chain(trouble).collect();
        api::Source {
            kind: api::Source::DIRECTORY.to_owned(),
            path: self.path.display().to_string(),
            state: match self.state {
                State::FirstSync => "first sync",
                State::Synced => "synced",
                State::Missing => "missing",
            }
            .to_owned(),
            files: self.files.len() as u64,
            objects,
            last_change_seconds: self.last_change.map(|at| at.elapsed().as_secs_f64()),
            broken: broken.into_values().collect(),
            api_server: None,
        }
    }
}
