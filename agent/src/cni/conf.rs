//! The CNI configuration that a container runtime finds the plugin by.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

/// The file in the state directory that says where the configuration was written.
const NOTE: &str = "cni-conf";
/// What a runtime without `cniVersions` takes: CHECK came with it, and every runtime that is in use speaks it.
const LEAST_VERSION: &str = "0.4.0";

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct ConfError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What [`write`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Made,
    Unchanged,
}

/// The text of the configuration. A `.conf` is of one plugin, everything else a list.
fn text(path: &Path, socket: &Path) -> String {
    let versions = portway_cni::version::Version::ALL.map(portway_cni::version::Version::name);
    let plugin = json!({ "type": "portway-cni", "socket-path": socket });
    let conf = if path.extension().is_some_and(|extension| extension == "conf") {
        json!({ "cniVersion": LEAST_VERSION, "name": "portway", "type": "portway-cni", "socket-path": socket })
    } else {
        json!({ "cniVersion": LEAST_VERSION, "cniVersions": versions, "name": "portway", "plugins": [plugin] })
    };
    format!("{conf:#}\n")
}

/// Whether the file is there as [`write`] leaves it.
pub(crate) fn is_written(path: &Path, socket: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|found| found == text(path, socket))
}

/// Writes the configuration in one step, and notes where, for [`remove`].
pub(crate) fn write(path: &Path, socket: &Path, state_dir: &Path) -> Result<Written, ConfError> {
    if is_written(path, socket) {
        return Ok(Written::Unchanged);
    }
    let note = state_dir.join(NOTE);
    std::fs::write(&note, path.as_os_str().as_encoded_bytes()).map_err(failed("write", &note))?;
    // Runtimes read every .conf, .conflist and .json of the directory.
    let unfinished = path.with_extension("portway-unfinished");
    std::fs::write(&unfinished, text(path, socket)).map_err(failed("write", &unfinished))?;
    std::fs::rename(&unfinished, path).map_err(failed("replace", path))?;
    Ok(Written::Made)
}

/// Removes the configuration that an agent with this state directory wrote. Its path; `None` where there is none.
///
/// # Errors
/// It cannot be removed.
pub(crate) fn remove(state_dir: &Path) -> Result<Option<PathBuf>, ConfError> {
    let note = state_dir.join(NOTE);
    let path = match std::fs::read(&note) {
        Ok(bytes) => PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &note)(error)),
    };
    let removed = match std::fs::remove_file(&path) {
        Ok(()) => Some(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("remove", &path)(error)),
    };
    std::fs::remove_file(&note).map_err(failed("remove", &note))?;
    Ok(removed)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConfError {
    let path = path.to_owned();
    move |source| ConfError { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_written_once_put_right_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, socket) = (dir.path().join("05-portway.conflist"), dir.path().join("cni.sock"));
        assert_eq!(remove(dir.path()).unwrap(), None);
        assert_eq!(write(&path, &socket, dir.path()).unwrap(), Written::Made);
        assert_eq!(write(&path, &socket, dir.path()).unwrap(), Written::Unchanged);
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(write(&path, &socket, dir.path()).unwrap(), Written::Made);
        let read: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read["plugins"][0]["socket-path"], socket.to_str().unwrap());
        let versions = read["cniVersions"].as_array().unwrap();
        assert!(versions.contains(&json!("1.1.0")) && versions.contains(&read["cniVersion"]), "{read}");
        assert_eq!(remove(dir.path()).unwrap(), Some(path.clone()));
        assert!(!path.exists());
        assert_eq!(remove(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.d/05-portway.conflist");
        let error = write(&path, Path::new("/s"), dir.path()).unwrap_err().to_string();
        assert!(error.contains("net.d/05-portway"), "{error}");
    }
}
