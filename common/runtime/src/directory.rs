//! A directory of manifests, followed live.
//!
//! [`Directory::next`] yields every file of the first scan in order of its path, then [`Event::Settled`], then what
//! changes, each batch closed by another `Settled`. Only `*.yaml`, `*.yml` and `*.json` count; names with a dot in
//! front (and so the `..data` of a mounted ConfigMap) are skipped, subdirectories and symlinks followed.
//!
//! A rename into the directory, a removal and a closed file are yielded at once. A file that is still being written
//! waits for its close, at most [`WRITE_PATIENCE`]. What inotify cannot tell apart, or lost (overflow), is settled by
//! a scan that compares the identity of every file and reads only what differs; a slow scan of the same sort
//! ([`RESCAN`]) finds changes that no event told, as behind a symlink that leads out of the directory.
//!
//! A directory that vanishes as a whole is taken for a source that failed, not for the removal of all files:
//! [`Event::Missing`] is yielded and the last files stay. When it is back, the difference is yielded.

mod follow;
mod scan;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use follow::Directory;

/// How long a file may stay open for writing, or be new without a close, before it is read as it is.
pub const WRITE_PATIENCE: Duration = Duration::from_millis(300);
/// How often everything is compared though no event came.
pub const RESCAN: Duration = Duration::from_secs(30);
/// How often a missing directory is looked for, where its parent cannot tell.
pub const MISSING_RESCAN: Duration = Duration::from_secs(1);
/// Files past this size are a problem rather than input.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// What happened. Paths are relative to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file is new or may have changed: its whole content.
    File { path: PathBuf, content: Vec<u8> },
    /// A file is gone.
    Removed { path: PathBuf },
    /// A file is there and cannot be read; what it last held still counts.
    Unreadable { path: PathBuf, reason: String },
    /// The directory is not there; what it last held still counts. No `Settled` follows before it is back, so a
    /// directory that was missing from the start never passes for an empty one.
    Missing { reason: String },
    /// Everything known so far was yielded: the first one ends the first scan.
    Settled,
}

/// The watch itself failed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("cannot watch for file changes: {0}; raise fs.inotify.max_user_instances")]
    Inotify(#[source] io::Error),
    #[error("cannot watch {}: {source}; raise fs.inotify.max_user_watches if it is full", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}
