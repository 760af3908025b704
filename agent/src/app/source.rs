//! The directory of manifests as a source of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use portway_model::k8s::{Change, FileProblem, Manifests};
use portway_model::loadbalancer::LoadBalancer;
use portway_runtime::directory::{DirectoryError, Event};

use super::metrics::Metrics;
use crate::api;

/// What became of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    FirstSync,
    Synced,
    /// The directory is gone; its last objects are kept.
    Missing,
}

/// Objects of the directory, and what is wrong with it.
pub(super) struct Source {
    path: PathBuf,
    manifests: Manifests,
    state: State,
    has_synced: bool,
    files: BTreeSet<PathBuf>,
    unreadable: BTreeMap<PathBuf, String>,
    /// Why the directory cannot be followed at present.
    trouble: Option<String>,
    last_change: Option<Instant>,
    /// Bytes that the batch under way has read.
    batch_bytes: usize,
}

impl Source {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            manifests: Manifests::new(),
            state: State::FirstSync,
            has_synced: false,
            files: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            trouble: None,
            last_change: None,
            batch_bytes: 0,
        }
    }

    pub(super) const fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// Takes what the directory told into the model. Returns whether the batch is closed.
    pub(super) fn take(&mut self, event: Event, balancer: &mut LoadBalancer, metrics: &Metrics) -> bool {
        let change = match event {
            Event::File { path, content } => {
                self.unreadable.remove(&path);
                self.batch_bytes += content.len();
                let change = self.manifests.apply(&path, &content);
                self.files.insert(path);
                change
            }
            Event::Removed { path } => {
                self.unreadable.remove(&path);
                self.files.remove(&path);
                self.manifests.remove(&path)
            }
            Event::Unreadable { path, reason } => {
                tracing::warn!(path = %path.display(), reason, "a file cannot be read; its last objects stay");
                self.unreadable.insert(path, reason);
                return false;
            }
            Event::Missing { reason } => {
                tracing::warn!(path = %self.path.display(), reason, "the directory is missing; its last objects stay");
                self.state = State::Missing;
                return false;
            }
            Event::Settled => {
                self.trouble = None;
                self.state = State::Synced;
                self.has_synced = true;
                return true;
            }
        };
        self.state = if self.has_synced { State::Synced } else { State::FirstSync };
        self.last_change = Some(Instant::now());
        self.note(&change);
        for event in change.events {
            metrics.object_changed(&event, balancer);
            balancer.apply(event);
        }
        false
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
    pub(super) fn silent_files(&self) -> usize {
        self.unreadable.len() + self.manifests.problems().count()
    }

    /// When an object was last seen to change.
    pub(super) const fn last_change(&self) -> Option<Instant> {
        self.last_change
    }

    /// The bytes that were read since this was asked last.
    pub(super) fn take_batch_bytes(&mut self) -> usize {
        std::mem::take(&mut self.batch_bytes)
    }

    fn note(&mut self, change: &Change) {
        if let Some(problem) = &change.problem {
            let FileProblem { path, reason, kept_objects } = problem;
            let path = path.display();
            if *kept_objects == 0 {
                tracing::warn!(%path, reason, "a file is not used");
            } else {
                tracing::warn!(%path, reason, kept_objects, "a file is broken; its objects of before are served");
            }
        }
        for reject in &change.rejects {
            let api::Reject { kind, name, field, value, reason } = reject;
            tracing::warn!(kind, name, field, value, reason, "not used");
        }
    }

    pub(super) fn rejects(&self) -> impl Iterator<Item = api::Reject> {
        self.manifests.rejects()
    }

    pub(super) fn status(&self) -> api::Source {
        let objects = self.manifests.object_count() as u64;
        let broken = |path: &Path, reason: &str, kept_objects: u64| {
            let (path, reason) = (path.display().to_string(), reason.to_owned());
            (path.clone(), api::BrokenFile { path, reason, kept_objects })
        };
        let unused = self.manifests.problems();
        let unused =
            unused.map(|problem| broken(&problem.path, &problem.reason, problem.kept_objects as u64));
        let unreadable = self.unreadable.iter();
        let unreadable = unreadable
            .map(|(path, reason)| broken(path, reason, self.manifests.object_count_of(path) as u64));
        let trouble = self.trouble.iter().map(|trouble| broken(&self.path, trouble, objects));
        // What cannot be read now is newer than what could not be parsed.
        let broken: BTreeMap<String, api::BrokenFile> = unused.chain(unreadable).chain(trouble).collect();
        api::Source {
            kind: "directory".to_owned(),
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
        }
    }
}
