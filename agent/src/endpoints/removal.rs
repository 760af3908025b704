//! What `portway cleanup` does with pods: they have no network after it.

use std::path::{Path, PathBuf};

use portway_cni::deletions;
use portway_cni::protocol::SOCKET;

use super::record::is_link_name;
use super::{EndpointError, KernelError, link, store};
use crate::cni::conf::{self, ConfError};

/// What cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot remove {}: {source}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Removes what a runtime finds the plugin by, in a line each.
///
/// # Errors
/// It is there and cannot be removed.
pub fn remove_configuration(state_dir: &Path) -> Result<Vec<String>, RemovalError> {
    let removed = conf::remove(state_dir)?;
    Ok(removed.map(|path| format!("removed {}", path.display())).into_iter().collect())
}

/// Removes the links of every endpoint of this state directory, their records and the plugin's socket, in a line each.
/// Nothing where no agent with a pod network has run.
///
/// # Errors
/// Something is there and cannot be removed.
pub fn remove(state_dir: &Path, socket_path: &Path) -> Result<Vec<String>, RemovalError> {
    let mut done = Vec::new();
    if store::exists(state_dir) {
        let links = link::links().map_err(|error| EndpointError::from(KernelError::from(error)))?;
        for name in links.into_keys().filter(|name| is_link_name(name)) {
            link::delete(&name).map_err(|error| EndpointError::from(KernelError::from(error)))?;
            done.push(format!("removed the pod's link {name}"));
        }
        let path = store::remove_all(state_dir).map_err(EndpointError::from)?;
        done.push(format!("removed {}", path.display()));
    }
    let socket = socket_path.with_file_name(SOCKET);
    let notes = deletions::directory(&socket);
    for (path, removed) in
        [(&socket, std::fs::remove_file(&socket)), (&notes, std::fs::remove_dir_all(&notes))]
    {
        match removed {
            Ok(()) => done.push(format!("removed {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(RemovalError::File { path: path.clone(), source }),
        }
    }
    Ok(done)
}
