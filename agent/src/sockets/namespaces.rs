//! Every network namespace of the node, and reading sockets in one.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use nix::sched::{CloneFlags, setns};

use super::diag::{Diag, DiagError};

/// Where container runtimes and `ip netns` mount namespaces, so that they live without a process.
const MOUNTED: [&str; 4] = ["/run/netns", "/var/run/netns", "/var/run/docker/netns", "/var/run/cilium/netns"];

/// The network namespaces that can be found now.
#[derive(Debug)]
pub(super) struct Namespaces {
    own: File,
    /// Of each namespace one path, this process' own first.
    paths: Vec<PathBuf>,
}

/// Why the sockets of a namespace cannot be seen.
#[derive(Debug, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error("cannot {action} a network namespace: {source}")]
    Namespace { action: &'static str, source: io::Error },
    #[error(transparent)]
    Diag(#[from] DiagError),
}

impl Namespaces {
    /// O(processes of the node). What vanishes meanwhile is left out.
    pub(super) fn find() -> Result<Self, NamespaceError> {
        let own_path = PathBuf::from("/proc/thread-self/ns/net");
        let own = File::open(&own_path).map_err(failed("open"))?;
        let nsfs = own.metadata().map_err(failed("look at"))?.dev();
        let mut seen = HashSet::new();
        let mut paths = Vec::new();
        let mut add = |path: PathBuf| {
            // A file that waits for a mount lies elsewhere.
            let is_namespace = |metadata: &Metadata| metadata.dev() == nsfs;
            let metadata = path.metadata().ok().filter(is_namespace);
            if metadata.is_some_and(|metadata| seen.insert(metadata.ino())) {
                paths.push(path);
            }
        };
        add(own_path);
        for dir in MOUNTED {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                add(entry.path());
            }
        }
        for entry in std::fs::read_dir("/proc").map_err(failed("look for"))?.flatten() {
            let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
            if is_process {
                add(entry.path().join("ns/net"));
            }
        }
        Ok(Self { own, paths })
    }

    /// Calls `visit` with a netlink socket in one namespace after the other, until it returns `false`. Returns what
    /// kept it from seeing one.
    pub(super) fn each(
        &self,
        mut visit: impl FnMut(&mut Diag) -> Result<bool, DiagError>,
    ) -> Vec<NamespaceError> {
        let mut errors = Vec::new();
        for path in &self.paths {
            let visited = match File::open(path) {
                Ok(namespace) => self.open_in(&namespace).and_then(|mut diag| Ok(visit(&mut diag)?)),
                // It ended meanwhile, and its sockets with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
                Err(error) => Err(failed("open")(error)),
            };
            match visited {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// A netlink socket belongs to the namespace where it is opened. The thread does not stay there: a namespace that
    /// somebody is in does not end.
    fn open_in(&self, namespace: &File) -> Result<Diag, NamespaceError> {
        setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| failed("enter")(errno.into()))?;
        let diag = Diag::open();
        setns(&self.own, CloneFlags::CLONE_NEWNET).map_err(|errno| failed("leave")(errno.into()))?;
        Ok(diag?)
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> NamespaceError {
    move |source| NamespaceError::Namespace { action, source }
}

/// Whether `/proc` shows every process of the machine: elsewhere a socket that is not found may live in a pod. The number
/// is that of the first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
pub(super) fn sees_every_process() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == 0xefff_fffc)
}
