//! Endpoints as files, so that the next agent knows them.

use std::io;
use std::path::{Path, PathBuf};

use super::Endpoint;

/// The directory's name in the state directory.
const DIRECTORY: &str = "endpoints";
/// The extension of a record that is being written.
const UNFINISHED: &str = "tmp";

/// The directory of the records, one file for each endpoint, named by its number.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// A record that says nothing.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// The number in the file's name.
    pub(super) id: Option<u16>,
    pub(super) error: StoreError,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Store {
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let directory = state_dir.join(DIRECTORY);
        std::fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
        Ok(Self { directory })
    }

    /// Every record, by the time it was made, and those that cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn load(&self) -> Result<(Vec<Endpoint>, Vec<Unreadable>), StoreError> {
        let entries = std::fs::read_dir(&self.directory).map_err(failed("read", &self.directory))?;
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for entry in entries {
            let path = entry.map_err(failed("read", &self.directory))?.path();
            match path.extension().and_then(std::ffi::OsStr::to_str) {
                Some("json") => {}
                // Of an agent that ended in the middle of writing it.
                Some(UNFINISHED) => {
                    std::fs::remove_file(&path).map_err(failed("remove", &path))?;
                    continue;
                }
                Some(_) | None => continue,
            }
            let id = path.file_stem().and_then(std::ffi::OsStr::to_str).and_then(|stem| stem.parse().ok());
            match std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Endpoint>(&text)?)) {
                Ok(record) if path == self.path(record.id) => records.push(record),
                Ok(_) => {
                    let source = io::Error::new(
                        io::ErrorKind::InvalidData,
                        "it is of another endpoint than its name says",
                    );
                    unreadable.push(Unreadable { id, error: StoreError { action: "use", path, source } });
                }
                Err(error) => unreadable.push(Unreadable { id, error: failed("read", &path)(error) }),
            }
        }
        records.sort_by_key(|record| (record.created, record.id));
        Ok((records, unreadable))
    }

    /// In one step: a reader finds the old record or the new one. It outlives the agent, not the machine; neither do links.
    pub(super) fn save(&self, endpoint: &Endpoint) -> Result<(), StoreError> {
        let path = self.path(endpoint.id);
        let unfinished = path.with_extension(UNFINISHED);
        let text = serde_json::to_vec(endpoint).map_err(|error| failed("write", &path)(error.into()))?;
        std::fs::write(&unfinished, text).map_err(failed("write", &unfinished))?;
        std::fs::rename(&unfinished, &path).map_err(failed("replace", &path))
    }

    /// That there is none is no error.
    pub(super) fn remove(&self, id: u16) -> Result<(), StoreError> {
        let path = self.path(id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn path(&self, id: u16) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }
}

/// Whether an agent has kept records in a state directory.
pub(super) fn exists(state_dir: &Path) -> bool {
    state_dir.join(DIRECTORY).is_dir()
}

/// Removes every record of a state directory. Where they were.
pub(super) fn remove_all(state_dir: &Path) -> Result<PathBuf, StoreError> {
    let directory = state_dir.join(DIRECTORY);
    std::fs::remove_dir_all(&directory).map_err(failed("remove", &directory))?;
    Ok(directory)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_half_written_is_gone_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let half = dir.path().join(DIRECTORY).join("56.tmp");
        std::fs::write(&half, "{").unwrap();
        let (records, unreadable) = store.load().unwrap();
        assert!(records.is_empty() && unreadable.is_empty());
        assert!(!half.exists());
    }
}
