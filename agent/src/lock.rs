//! One agent for one bpf-root: two would write the same memory.
//!
//! The lock is an exclusive `flock` of the bpf-root directory itself, the only thing that both agents surely share,
//! whatever their state directories, network and mount namespaces. The kernel frees it with the process, so a crash
//! leaves nothing behind.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Held as long as this process may write below the bpf-root.
#[derive(Debug)]
pub struct Lock {
    _held: File,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "another process{} holds bpf-root {}: two agents would write the same maps; stop that one, or give this one a \
         bpf-root of its own", holder(*pid), path.display()
    )]
    Held { path: PathBuf, pid: Option<u32> },
    #[error("cannot lock bpf-root {}: {source}", path.display())]
    Failed {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

impl Lock {
    /// Takes the lock, without waiting.
    ///
    /// # Errors
    /// Someone holds it, or the directory cannot be opened.
    pub fn take(bpf_root: &Path) -> Result<Self, LockError> {
        let path = bpf_root.to_owned();
        let file = match File::open(bpf_root) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Failed { path, source }),
        };
        match file.try_lock() {
            Ok(()) => Ok(Self { _held: file }),
            Err(TryLockError::WouldBlock) => {
                let pid =
                    file.metadata().ok().and_then(|metadata| find_holder(metadata.dev(), metadata.ino()));
                Err(LockError::Held { path, pid })
            }
            Err(TryLockError::Error(source)) => Err(LockError::Failed { path, source }),
        }
    }
}

/// The holder of a `flock` on an inode, by /proc/locks; `None` for one of another pid namespace.
fn find_holder(device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let locked = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        // `3: FLOCK  ADVISORY  WRITE 4242 00:1f:1 0 EOF`; a waiter has `->` as its second word.
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
        if *file != locked {
            return None;
        }
        pid.parse().ok().filter(|pid| *pid != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err();
        let LockError::Held { pid, .. } = &error else { panic!("{error}") };
        assert_eq!(*pid, Some(std::process::id()));
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        drop(lock);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn another_root_is_another_lock() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let _lock = Lock::take(one.path()).unwrap();
        Lock::take(other.path()).unwrap();
        assert!(matches!(Lock::take(Path::new("/nonexistent/bpf")).unwrap_err(), LockError::Failed { .. }));
    }
}
