//! What `portway cleanup` does: takes away everything that the agent left on the node.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::endpoints::{self, RemovalError};
use crate::lock::{Lock, LockError};
use crate::network::{self, NodesRemovalError};
use crate::node::{PortsError, ReservedPorts};
use crate::programs::{ProgramError, attached, detach, detach_filters, detach_pinned, selftest};
use crate::versions;

/// Why something is left. What was done before it stays done; repeating goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// An agent runs, or it cannot be told.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Programs(#[from] ProgramError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error(transparent)]
    Endpoints(#[from] RemovalError),
    #[error(transparent)]
    Nodes(#[from] NodesRemovalError),
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Removes the CNI configuration, detaches the programs, removes the pinned maps and links of every layout version and the
/// network of pods, gives the reserved ports back and removes the sockets. One line for each thing that was done; empty
/// where there was nothing.
///
/// # Errors
/// An agent holds the bpf-root, or something cannot be removed.
pub fn cleanup(bpf_root: &Path, state_dir: &Path, socket_path: &Path) -> Result<Vec<String>, CleanupError> {
    let _lock = Lock::take(bpf_root)?;
    // Before anything else: no runtime starts a pod that would have no network.
    let mut done = endpoints::remove_configuration(state_dir)?;
    let portway = bpf_root.join("portway");
    let all = versions::entries(&portway).map_err(file("read", &portway))?;
    let mut cgroups = BTreeSet::new();
    // Links first, and in their order: a map must not go while a program that uses it is attached.
    for version in &all {
        let links = versions::links(&portway.join(version));
        cgroups.extend(attached(&links)?.into_iter().map(|attached| attached.cgroup));
        for link in detach(&links)? {
            done.push(format!("detached {version}/{link}"));
        }
        for link in detach_pinned(&versions::interfaces(&portway.join(version)))? {
            done.push(format!("detached {version}/{link}"));
        }
    }
    for interface in detach_filters()? {
        done.push(format!("detached the filters of {interface}"));
    }
    for version in &all {
        let path = portway.join(version);
        for map in versions::remove(&path).map_err(file("remove", &path))? {
            done.push(format!("unpinned {version}/{map}"));
        }
    }
    remove_dir(&portway)?;
    // An agent that was killed while it tried the kernel.
    for cgroup in cgroups_by_number(&cgroups) {
        for left in
            selftest::remove_left(&cgroup).map_err(file("remove what a self-test left in", &cgroup))?
        {
            done.push(format!("removed {}", left.display()));
        }
    }
    let ports = ReservedPorts::new(state_dir).restore()?;
    if !ports.is_empty() {
        done.push(format!("gave back the reserved ports {ports}"));
    }
    done.extend(endpoints::remove(state_dir, socket_path)?);
    done.extend(network::remove(state_dir)?);
    match std::fs::remove_file(socket_path) {
        Ok(()) => done.push(format!("removed {}", socket_path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(file("remove", socket_path)(source)),
    }
    // The state directory may be shared with others, or be a mount: it goes only if it is empty and can.
    if std::fs::remove_dir(state_dir).is_ok() {
        done.push(format!("removed {}", state_dir.display()));
    }
    Ok(done)
}

/// The directories of cgroups whose numbers, which are inodes, a link had: looked for in every mounted hierarchy. What
/// cannot be read is not found.
fn cgroups_by_number(numbers: &BTreeSet<u64>) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut left: Vec<PathBuf> = mounts.lines().filter_map(cgroup_mount).collect();
    let mut found = Vec::new();
    while let Some(dir) = left.pop() {
        if found.len() >= numbers.len() {
            break;
        }
        let Ok(about) = std::fs::metadata(&dir) else { continue };
        if numbers.contains(&about.ino()) && !found.contains(&dir) {
            found.push(dir.clone());
        }
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        left.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()),
        );
    }
    found
}

/// `36 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`: where a cgroup v2 hierarchy is mounted.
fn cgroup_mount(line: &str) -> Option<PathBuf> {
    let (head, tail) = line.split_once(" - ")?;
    (tail.split(' ').next()? == "cgroup2").then(|| head.split(' ').nth(4).map(PathBuf::from))?
}

fn remove_dir(dir: &Path) -> Result<(), CleanupError> {
    match std::fs::remove_dir(dir) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(file("remove", dir)(source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CleanupError {
    let path = path.to_owned();
    move |source| CleanupError::File { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bpf-root of plain files; real links go in tests/lifecycle.rs.
    #[test]
    fn everything_goes_and_a_second_time_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (root, state) = (dir.path().join("bpf"), dir.path().join("state"));
        for path in ["portway/v1/links", "portway/v1/learned-1", "portway/v1/maps", "portway/v2/maps"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in ["portway/v1/maps/pw_runs", "portway/v2/maps/pw_new"] {
            std::fs::write(root.join(path), "").unwrap();
        }
        std::fs::create_dir(&state).unwrap();
        let socket = state.join("portway.sock");
        std::fs::write(&socket, "").unwrap();
        std::fs::write(root.join("other"), "").unwrap();

        let done = cleanup(&root, &state, &socket).unwrap();
        assert_eq!(done[..2], ["unpinned v1/pw_runs", "unpinned v2/pw_new"]);
        assert!(!root.join("portway").exists() && !state.exists() && root.join("other").exists());
        assert_eq!(cleanup(&root, &state, &socket).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_mounted_hierarchy_is_told_from_other_mounts() {
        let line = "36 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(cgroup_mount(line), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(cgroup_mount("22 25 0:20 / /sys rw - sysfs sysfs rw"), None);
    }

    #[test]
    fn nothing_is_touched_while_an_agent_runs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("portway/v1/maps")).unwrap();
        let _lock = Lock::take(dir.path()).unwrap();
        let error = cleanup(dir.path(), dir.path(), &dir.path().join("sock")).unwrap_err();
        assert!(matches!(error, CleanupError::Lock(_)), "{error}");
        assert!(dir.path().join("portway/v1/maps").exists());
    }
}
