//! The network namespace of the health endpoint.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, setns, unshare};

use super::listen::listen;

/// A network namespace that nobody has a name for: it ends, and its links with it, with this file, the sockets in it
/// and this process. So nothing of it is left behind by an agent that is killed.
#[derive(Debug)]
pub(super) struct Namespace(OwnedFd);

impl Namespace {
    /// # Errors
    /// The kernel's: no privilege, or no room.
    pub(super) fn new() -> io::Result<Self> {
        let file = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        })?;
        Ok(Self(file.into()))
    }

    /// A listener inside.
    pub(super) fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        on_thread(|| {
            setns(self, CloneFlags::CLONE_NEWNET)?;
            listen(address)
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread that changes its namespace is of no use to anybody else.
fn on_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("health-netns".to_owned()).spawn_scoped(scope, body)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread for a network namespace panicked")))
    })
}

#[cfg(test)]
mod tests {
    use std::os::linux::fs::MetadataExt as _;

    use super::*;

    fn inode(file: impl AsFd) -> u64 {
        File::from(file.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().st_ino()
    }

    #[test]
    fn a_listener_of_the_namespace_is_not_the_nodes() {
        let here = File::open("/proc/thread-self/ns/net").unwrap();
        let namespace = Namespace::new().unwrap();
        assert_ne!(inode(&namespace), inode(&here));
        let address: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let listener = namespace.listen(address).unwrap();
        let inside = listener.local_addr().unwrap();
        // The same port is free here, and taken there.
        listen(inside).unwrap();
        assert_eq!(namespace.listen(inside).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Threads of the process are where they were.
        assert_eq!(inode(File::open("/proc/thread-self/ns/net").unwrap()), inode(here));
    }
}
