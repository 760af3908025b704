//! What `portway cleanup` takes away of the pod network's side to other nodes.

use std::io;
use std::path::{Path, PathBuf};

use super::OWNER;
use super::machine::{MachineError, Netlink};
use super::sysctls::{SysctlError, Sysctls};

/// Says that routes of our owner tag are ours: without it nothing is looked for.
const NOTE: &str = "pod-network";

/// Why something is left. Repeating goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum NodesRemovalError {
    #[error(transparent)]
    Sysctls(#[from] SysctlError),
    #[error("{0}")]
    Netlink(String),
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Notes that the pod network is at work in this namespace.
pub(super) fn note(state_dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(state_dir)?;
    std::fs::write(state_dir.join(NOTE), format!("routes of protocol {OWNER}\n"))
}

/// Removes the tunnel device and the routes to other nodes' pods. One line for each thing that was done; empty where no pod
/// network was on. Settings of the namespace stay: whoever gives pods a network now may rely on them.
///
/// # Errors
/// The kernel refuses a part.
pub fn remove_routes(state_dir: &Path) -> Result<Vec<String>, NodesRemovalError> {
    if !state_dir.join(NOTE).exists() {
        return Ok(Vec::new());
    }
    // A thread of its own: the caller's may poll futures already.
    let by_netlink = std::thread::scope(|scope| scope.spawn(on_a_runtime).join());
    by_netlink.unwrap_or_else(|_| Err("the thread panicked".to_owned())).map_err(NodesRemovalError::Netlink)
}

/// As [`remove_routes`], and puts back settings of the namespace.
///
/// # Errors
/// The kernel refuses a part; the note stays.
pub fn remove(state_dir: &Path) -> Result<Vec<String>, NodesRemovalError> {
    let mut done = remove_routes(state_dir)?;
    done.extend(Sysctls::new(state_dir).restore()?.into_iter().map(|setting| format!("put back {setting}")));
    forget(state_dir)?;
    Ok(done)
}

/// From now on routes of our owner tag are somebody else's. For when all of the pod network is gone.
///
/// # Errors
/// The note cannot be removed.
pub(crate) fn forget(state_dir: &Path) -> Result<(), NodesRemovalError> {
    let note = state_dir.join(NOTE);
    match std::fs::remove_file(&note) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(NodesRemovalError::File { action: "remove", path: note, source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn on_a_runtime() -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(by_netlink()).map_err(|error| error.to_string())
}

async fn by_netlink() -> Result<Vec<String>, MachineError> {
    let netlink = Netlink::open()?;
    let machine = netlink.read().await?;
    let mut done = Vec::new();
    for route in &machine.own_routes {
        netlink.remove_route(route).await?;
        done.push(format!("removed the route to {}", route.prefix));
    }
    if netlink.remove_tunnel(&machine).await? {
        done.push(format!("removed {}", super::tunnel::NAME));
    }
    Ok(done)
}
