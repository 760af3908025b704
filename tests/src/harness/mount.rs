//! A BPF file system that only this thread and its children see.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// A BPF file system in a mount namespace of the calling thread's own.
///
/// Processes and threads that this thread starts from here on see it; it goes with the last of them, so that
/// programs pinned in it never outlive the test.
#[derive(Debug)]
pub struct BpfMount {
    path: PathBuf,
}

impl BpfMount {
    /// Mounts at `path`, an empty directory.
    pub fn new(path: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("unshare the mount namespace (needs root)")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .context("make the mounts private")?;
        mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mount a BPF file system at {}", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BpfMount {
    fn drop(&mut self) {
        if let Err(errno) = umount2(&self.path, MntFlags::MNT_DETACH) {
            super::complain(&format!("left behind: the mount {}: {errno}", self.path.display()));
        }
    }
}
