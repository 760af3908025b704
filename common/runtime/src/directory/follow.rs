use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio::time::{Instant, sleep_until};

use super::scan::{self, Found, Identity};
use super::{DirectoryError, Event, MISSING_RESCAN, RESCAN, WRITE_PATIENCE};

/// Bytes for events read at once; each takes 16 and its name.
const EVENT_BUFFER: usize = 64 * 1024;
/// A batch takes no further files once it is this old, however fast they come.
const LONGEST_BATCH: Duration = Duration::from_millis(20);

/// What one inotify event may mean for us.
const IN_DIRECTORY: WatchMask = WatchMask::CREATE
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::MODIFY)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::DELETE)
    .union(WatchMask::ATTRIB)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);
/// The directory's own name in its parent.
const IN_PARENT: WatchMask = WatchMask::CREATE
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::DELETE)
    .union(WatchMask::ONLYDIR);

/// A directory and what is known of it.
pub struct Directory {
    root: PathBuf,
    stream: EventStream<Vec<u8>>,
    /// Each watched directory by its relative paths: links may give it several.
    watched: HashMap<WatchDescriptor, BTreeSet<PathBuf>>,
    parent: Option<WatchDescriptor>,
    /// What was yielded, by path.
    known: BTreeMap<PathBuf, Identity>,
    unreadable: BTreeMap<PathBuf, String>,
    missing: bool,
    /// Paths to look at, in order; read one by one as they are yielded.
    queue: VecDeque<PathBuf>,
    /// Events that go before the queue.
    pending: VecDeque<Event>,
    /// When the batch that is under way began. The first one begins with the directory.
    batch: Option<Instant>,
    first_scan_done: bool,
    /// Files that are being written, with the moment they are read though no close came.
    open_files: BTreeMap<PathBuf, Instant>,
    needs_scan: bool,
    next_scan: Instant,
}

impl Directory {
    /// Follows `root`, which may be missing yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// inotify is not to be had.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, DirectoryError> {
        let inotify = Inotify::init().map_err(DirectoryError::Inotify)?;
        let stream = inotify.into_event_stream(vec![0; EVENT_BUFFER]).map_err(DirectoryError::Inotify)?;
        Ok(Self {
            root: root.into(),
            stream,
            watched: HashMap::new(),
            parent: None,
            known: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            missing: false,
            queue: VecDeque::new(),
            pending: VecDeque::new(),
            batch: None,
            first_scan_done: false,
            open_files: BTreeMap::new(),
            needs_scan: true,
            next_scan: Instant::now(),
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The next event. Dropping the future loses nothing.
    ///
    /// # Errors
    /// A watch could not be set; calling again tries again.
    pub async fn next(&mut self) -> Result<Event, DirectoryError> {
        loop {
            if self.needs_scan {
                self.scan()?;
            }
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if let Some(path) = self.queue.pop_front() {
                if let Some(event) = self.look_at(path) {
                    self.batch.get_or_insert_with(Instant::now);
                    return Ok(event);
                }
                continue;
            }
            let is_old = self.batch.is_some_and(|began| began.elapsed() > LONGEST_BATCH);
            if !is_old {
                // Whatever came meanwhile belongs to the same batch.
                self.take_events(false).await;
                self.take_patience();
                if self.needs_scan || !self.queue.is_empty() {
                    continue;
                }
            }
            if self.batch.take().is_some() {
                return Ok(Event::Settled);
            }
            let wake =
                self.open_files.values().copied().chain([self.next_scan]).min().unwrap_or(self.next_scan);
            tokio::select! {
                () = self.take_events(true) => {}
                () = sleep_until(wake) => self.needs_scan = Instant::now() >= self.next_scan,
            }
            self.take_patience();
        }
    }

    /// Sorts the events that are there; with `wait`, at least one.
    async fn take_events(&mut self, mut wait: bool) {
        let mut paths = BTreeSet::new();
        loop {
            let event = poll_fn(|context| {
                let polled = self.stream.poll_next_unpin(context);
                if polled.is_pending() && !wait { Poll::Ready(None) } else { polled }
            })
            .await;
            wait = false;
            match event {
                Some(Ok(event)) => self.sort(&event.wd, event.mask, event.name, &mut paths),
                Some(Err(_)) => self.needs_scan = true,
                None => break,
            }
        }
        self.queue.extend(paths);
    }

    /// What one event asks for: a look at one path, patience, or a scan.
    fn sort(
        &mut self,
        watch: &WatchDescriptor,
        mask: EventMask,
        name: Option<OsString>,
        paths: &mut BTreeSet<PathBuf>,
    ) {
        if self.parent.as_ref() == Some(watch) && self.root.file_name() == name.as_deref() && name.is_some() {
            self.needs_scan = true;
        }
        if mask.contains(EventMask::Q_OVERFLOW) {
            tracing::debug!(root = %self.root.display(), "file events were lost; comparing everything");
            self.needs_scan = true;
            return;
        }
        let Some(dirs) = self.watched.get(watch) else { return };
        let Some(name) = name else {
            self.needs_scan |=
                mask.intersects(EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED);
            return;
        };
        if mask.contains(EventMask::ISDIR) {
            // A directory brings and takes files.
            self.needs_scan |= !scan::is_hidden(&name);
            return;
        }
        if scan::is_hidden(&name) {
            // What visible links lead through is renamed in a mounted ConfigMap (`..data`).
            let leads = name.as_encoded_bytes().starts_with(b"..");
            self.needs_scan |= leads && mask.intersects(EventMask::CREATE | EventMask::MOVED_TO);
            return;
        }
        if !scan::is_manifest(&name) {
            // A link to a directory has the mask of a file and any name.
            let appeared = mask.intersects(EventMask::CREATE | EventMask::MOVED_TO);
            let is_dir = |dir: &PathBuf| self.root.join(dir).join(&name).is_dir();
            let was_dir = |dir: &PathBuf| self.watched.values().any(|paths| paths.contains(&dir.join(&name)));
            self.needs_scan |= if appeared { dirs.iter().any(is_dir) } else { dirs.iter().any(was_dir) };
            return;
        }
        for dir in dirs {
            let path = dir.join(&name);
            if mask.intersects(EventMask::CREATE | EventMask::MODIFY) && self.may_be_open(&path, mask) {
                self.open_files.entry(path).or_insert_with(|| Instant::now() + WRITE_PATIENCE);
                continue;
            }
            if mask.contains(EventMask::ATTRIB) && !self.unreadable.contains_key(&path) {
                continue;
            }
            self.open_files.remove(&path);
            paths.insert(path);
        }
    }

    /// Whether a close may still come: not for links of either kind, which are whole when they appear.
    fn may_be_open(&self, path: &Path, mask: EventMask) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        mask.contains(EventMask::MODIFY)
            || std::fs::symlink_metadata(self.root.join(path)).is_ok_and(|m| m.is_file() && m.nlink() == 1)
    }

    /// Queues the files that have been open for too long.
    fn take_patience(&mut self) {
        let now = Instant::now();
        let due: Vec<_> =
            self.open_files.iter().filter(|(_, at)| **at <= now).map(|(path, _)| path.clone()).collect();
        for path in due {
            self.open_files.remove(&path);
            self.queue.push_back(path);
        }
    }

    /// Looks at one path: its content, its end, or what keeps it from being read.
    fn look_at(&mut self, path: PathBuf) -> Option<Event> {
        match scan::read(&self.root.join(&path)) {
            Ok((identity, content)) => {
                self.unreadable.remove(&path);
                self.known.insert(path.clone(), identity);
                Some(Event::File { path, content })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A file that vanished with the directory's path is not one that was removed.
                if !self.root.is_dir() {
                    self.needs_scan = true;
                    return None;
                }
                let was_unreadable = self.unreadable.remove(&path).is_some();
                let was_known = self.known.remove(&path).is_some();
                (was_known || was_unreadable).then_some(Event::Removed { path })
            }
            Err(error) => self.note_unreadable(path, error.to_string()),
        }
    }

    /// An event where the reason is news.
    fn note_unreadable(&mut self, path: PathBuf, reason: String) -> Option<Event> {
        let news = self.unreadable.insert(path.clone(), reason.clone()).as_ref() != Some(&reason);
        news.then_some(Event::Unreadable { path, reason })
    }

    /// Compares everything with what is known and queues what differs; sets the watches anew.
    fn scan(&mut self) -> Result<(), DirectoryError> {
        self.watch_parent();
        let mut watched: HashMap<WatchDescriptor, BTreeSet<PathBuf>> = HashMap::new();
        let mut watches = self.stream.watches();
        let root = &self.root;
        let found = scan::walk(root, |dir| -> Result<(), WalkError> {
            let path = root.join(dir);
            match watches.add(&path, IN_DIRECTORY) {
                Ok(watch) => {
                    watched.entry(watch).or_default().insert(dir.to_owned());
                    Ok(())
                }
                // Gone since it was listed.
                Err(error) if is_gone(&error) && !dir.as_os_str().is_empty() => Ok(()),
                Err(source) => Err(WalkError::Watch(DirectoryError::Watch { path, source })),
            }
        });
        let found = match found {
            Ok(found) => found,
            Err(WalkError::Watch(DirectoryError::Watch { source, .. })) if is_gone(&source) => {
                self.lost(&source);
                return Ok(());
            }
            Err(WalkError::Watch(error)) => {
                self.next_scan = Instant::now() + MISSING_RESCAN;
                self.needs_scan = false;
                return Err(error);
            }
            Err(WalkError::Root(error)) => {
                self.lost(&error);
                return Ok(());
            }
        };
        for (watch, _) in std::mem::replace(&mut self.watched, watched) {
            if !self.watched.contains_key(&watch) {
                // Fails where the kernel dropped the watch with its directory: then there is nothing to remove.
                let _ = watches.remove(watch);
            }
        }
        self.needs_scan = false;
        self.next_scan = Instant::now() + RESCAN;
        // The first scan, and the return of a directory, are closed even where nothing differs.
        let was_missing = std::mem::replace(&mut self.missing, false);
        let was_first = !std::mem::replace(&mut self.first_scan_done, true);
        if was_missing || was_first {
            self.batch.get_or_insert_with(Instant::now);
        }
        self.compare(found);
        Ok(())
    }

    /// Queues what differs from what is known, in order of the paths.
    fn compare(&mut self, found: Found) {
        let Found { files, unreadable } = found;
        let mut differs: BTreeSet<PathBuf> = files
            .iter()
            .filter(|(path, identity)| {
                self.unreadable.contains_key(*path)
                    || self.known.get(*path).is_none_or(|known| !identity.is_unchanged_since(known))
            })
            .map(|(path, _)| path.clone())
            .collect();
        // Nobody knows what is left below a directory that cannot be listed: it keeps what it had.
        let is_hidden_now = |path: &Path| unreadable.keys().any(|dir| path.starts_with(dir));
        let gone = self.known.keys().chain(self.unreadable.keys());
        differs.extend(gone.filter(|path| !files.contains_key(*path) && !is_hidden_now(path)).cloned());
        // What is looked at anyway is not queued twice.
        self.queue.clear();
        self.queue.extend(differs);
        for (path, reason) in unreadable {
            if let Some(event) = self.note_unreadable(path, reason) {
                self.batch.get_or_insert_with(Instant::now);
                self.pending.push_back(event);
            }
        }
    }

    /// The directory is not there. What it held still counts.
    fn lost(&mut self, error: &io::Error) {
        self.needs_scan = false;
        self.next_scan = Instant::now() + MISSING_RESCAN;
        self.watched.clear();
        self.queue.clear();
        self.open_files.clear();
        if !std::mem::replace(&mut self.missing, true) {
            // What was yielded before the end is a batch of its own; a missing directory is none.
            self.pending.extend(self.batch.take().map(|_| Event::Settled));
            self.pending.push_back(Event::Missing { reason: error.to_string() });
        }
    }

    /// Watches for the directory's own name. Where that fails, the scan each second does.
    fn watch_parent(&mut self) {
        let Some(parent) = self.root.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return };
        self.parent = self.stream.watches().add(parent, IN_PARENT).ok();
    }
}

/// What ends a walk.
enum WalkError {
    Watch(DirectoryError),
    Root(io::Error),
}

impl From<io::Error> for WalkError {
    fn from(error: io::Error) -> Self {
        Self::Root(error)
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
    )
}
