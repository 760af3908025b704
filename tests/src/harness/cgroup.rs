//! Control groups of the tests, and what runs that were killed have left.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{PREFIX, eventually, owner_is_dead};

/// A control group of the unified hierarchy that goes away with this guard, with everything that runs in it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes `<unified hierarchy>/portway-tests-<pid>-<name>`.
    pub fn new(name: &str) -> Result<Self> {
        let root = unified_hierarchy()?;
        remove_leftovers(&root)?;
        let path = root.join(format!("{PREFIX}{}-{name}", std::process::id()));
        fs::create_dir(&path)
            .with_context(|| format!("make the control group {} (needs root)", path.display()))?;
        Ok(Self { path })
    }

    /// A group inside this one.
    pub fn child(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        if !path.is_dir() {
            fs::create_dir(&path).with_context(|| format!("make the control group {}", path.display()))?;
        }
        Ok(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `command` run in `group`: its sockets will belong to it.
    pub fn place(group: &Path, command: &mut Command) -> Result<()> {
        let mut procs = fs::OpenOptions::new()
            .write(true)
            .open(group.join("cgroup.procs"))
            .with_context(|| format!("open the control group {}", group.display()))?;
        // SAFETY: between fork and exec only write(2) is called, on a descriptor that the closure owns. "0" means
        // the writer.
        unsafe {
            command.pre_exec(move || procs.write_all(b"0"));
        }
        Ok(())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            super::complain(&format!("left behind: {error:#}"));
        }
    }
}

/// Where the version 2 hierarchy is mounted (`PORTWAY_TESTS_CGROUP` overrides it).
pub fn unified_hierarchy() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PORTWAY_TESTS_CGROUP") {
        return Ok(path.into());
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("read /proc/self/mounts")?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .find(|(_, kind)| *kind == "cgroup2")
        .map(|(path, _)| path.into())
        .context("no cgroup2 hierarchy is mounted; mount one with `mount -t cgroup2 none DIR`")
}

/// Groups of test runs whose process is gone: killed before its guards could run.
pub(super) fn remove_leftovers(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root).with_context(|| format!("list {}", root.display()))? {
        let entry = entry?;
        if owner_is_dead(&entry.file_name()) {
            match remove(&entry.path()) {
                Ok(()) => {}
                // Another test process may be at the same work.
                Err(error) if !entry.path().exists() => drop(error),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Kills what runs in `group` and the groups inside it, and removes them.
pub(super) fn remove(group: &Path) -> Result<()> {
    for entry in fs::read_dir(group).with_context(|| format!("list {}", group.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    let what = format!("the control group {} to be empty", group.display());
    eventually(Duration::from_secs(5), &what, || {
        let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|line| line.parse().ok()) {
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => bail!("kill {pid} in {}: {errno}", group.display()),
            }
        }
        match fs::remove_dir(group) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| format!("remove {}", group.display())),
        }
    })
}
