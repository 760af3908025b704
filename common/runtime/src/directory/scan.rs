//! What is in the directory at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::MAX_FILE_BYTES;

/// A file system stamps a change with the time of the last tick: a file younger than this may change once more
/// without another stamp.
const STAMP_GRANULARITY: Duration = Duration::from_millis(20);

/// What tells one content of a file from the next without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Whether the stamps were old enough when this was taken to be trusted.
    settled: bool,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        let age = metadata.modified().ok().and_then(|m| SystemTime::now().duration_since(m).ok());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            settled: age.is_some_and(|age| age > STAMP_GRANULARITY),
        }
    }

    /// Whether a file with this identity surely holds what it held at `before`.
    pub(super) fn is_unchanged_since(&self, before: &Self) -> bool {
        before.settled && self == before
    }
}

/// Everything that a walk found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Manifests by relative path.
    pub(super) files: BTreeMap<PathBuf, Identity>,
    /// Manifests and directories that cannot be looked at, with the reason.
    pub(super) unreadable: BTreeMap<PathBuf, String>,
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let path = Path::new(name);
    !is_hidden(name)
        && path.extension().and_then(OsStr::to_str).is_some_and(|extension| {
            ["yaml", "yml", "json"].iter().any(|known| extension.eq_ignore_ascii_case(known))
        })
}

pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

/// Walks the directory; `enter` is called with each directory's relative path before it is listed, so that a watch
/// set there misses nothing.
///
/// # Errors
/// The directory itself cannot be listed, or `enter` failed.
pub(super) fn walk<E: From<io::Error>>(
    root: &Path,
    mut enter: impl FnMut(&Path) -> Result<(), E>,
) -> Result<Found, E> {
    let mut found = Found::default();
    // Directories yet to list, each with the directories that lead to it: a symlink loop ends there.
    let mut open = vec![(PathBuf::new(), BTreeSet::new())];
    while let Some((dir, mut above)) = open.pop() {
        let metadata = fs::metadata(root.join(&dir));
        let is_root = dir.as_os_str().is_empty();
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) if is_root => return Err(error.into()),
            Err(_) => continue,
        };
        if !above.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        enter(&dir)?;
        let entries = match fs::read_dir(root.join(&dir)) {
            Ok(entries) => entries,
            Err(error) if is_root => return Err(error.into()),
            Err(error) => {
                found.unreadable.insert(dir, error.to_string());
                continue;
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if is_hidden(&name) {
                continue;
            }
            let path = dir.join(&name);
            match fs::metadata(root.join(&path)) {
                Ok(metadata) if metadata.is_dir() => open.push((path, above.clone())),
                Ok(_) if !is_manifest(&name) => {}
                Ok(metadata) if metadata.is_file() => {
                    found.files.insert(path, Identity::of(&metadata));
                }
                Ok(_) => {
                    found.unreadable.insert(path, "not a regular file".to_owned());
                }
                // A link that leads nowhere counts as no file, and what went away since the listing is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if is_manifest(&name) => {
                    found.unreadable.insert(path, error.to_string());
                }
                Err(_) => {}
            }
        }
    }
    Ok(found)
}

/// Reads a manifest.
///
/// # Errors
/// `NotFound` where it is gone; else it cannot be read, is no regular file, or is too large.
pub(super) fn read(path: &Path) -> io::Result<(Identity, Vec<u8>)> {
    // Opening a FIFO without O_NONBLOCK would wait for a writer.
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("{} bytes; at most {MAX_FILE_BYTES} are read", metadata.len())));
    }
    let mut content = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default() + 1);
    file.read_to_end(&mut content)?;
    Ok((Identity::of(&metadata), content))
}
