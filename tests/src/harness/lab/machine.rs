//! A machine of a lab: namespaces of its own of every kind that a node's processes see.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Groups;
use crate::harness::{Namespace, Process, eventually};

const INIT: &str = include_str!("machine.sh");
/// That of [`INIT`] when everything is mounted.
const IS_UP: &str = "/run/machine-is-up";

/// Network, mounts, processes, host name, shared memory and control groups of its own. Its process 1 ends with this
/// guard, and everything in it with that.
///
/// `/etc` is the machine's with changes of its own, `/var`, `/run` and `/opt` are its own, in memory.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order: processes, then what they run in.
    init: Process,
    groups: Groups,
    namespace: Namespace,
    name: String,
    /// Process 1, as the test sees it.
    pid: u32,
}

impl Machine {
    /// `test` and `name` make its control groups unique; `dir` is a directory that it makes and uses.
    pub fn start(test: &str, name: &str, namespace: &Namespace, dir: &Path) -> Result<Self> {
        fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
        let groups = Groups::new(&format!("{test}-{name}"))?;
        let mut command = namespace.command("unshare");
        groups.place(&mut command)?;
        command.args(["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation", "private", "--"]);
        command.args(["bash", "-c", INIT, "machine.sh", name]).arg(dir).stdin(Stdio::null());
        let mut init = Process::spawn_logged(name, command)?;
        let pid = eventually(Duration::from_secs(10), "the machine's mounts", || {
            if let Some(status) = init.status()? {
                return Ok(Err(status));
            }
            let pid = child_of(init.id())?;
            ensure!(Path::new(&format!("/proc/{pid}/root{IS_UP}")).exists(), "not all is mounted");
            Ok(Ok(pid))
        })
        .with_context(|| init.log())?;
        match pid {
            Ok(pid) => Ok(Self { init, groups, namespace: namespace.clone(), name: name.to_owned(), pid }),
            Err(status) => bail!("the machine {name} ended with {status}\n{}", init.log()),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// A command on this machine; `program` is found there. It is killed with its guard, as [`Process`] has it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new("nsenter");
        self.groups.place(&mut command)?;
        command.arg(format!("--target={}", self.pid));
        command.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--"]);
        // nsenter stays outside and waits: what it started is to end with it.
        command.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program).stdin(Stdio::null());
        Ok(command)
    }

    /// A file of this machine (an absolute path there), as the test reaches it.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        Path::new(&format!("/proc/{}/root", self.pid)).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Writes a file of this machine, and makes the directories above it.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let there = self.path(path);
        if let Some(dir) = there.parent() {
            fs::create_dir_all(dir).with_context(|| format!("make the directory of {path}"))?;
        }
        fs::write(&there, content).with_context(|| format!("write {path} of {}", self.name))
    }

    /// Puts a program of the test's machine into `dir`.
    pub fn install(&self, program: &Path, dir: &str) -> Result<()> {
        let name = program.file_name().with_context(|| format!("{} has no name", program.display()))?;
        let there = self.path(dir).join(name);
        fs::copy(program, &there)
            .with_context(|| format!("copy {} to {dir} of {}", program.display(), self.name))?;
        Ok(())
    }

    /// How a person enters it while it lives.
    pub fn enter_command(&self) -> String {
        format!("nsenter --target={} --mount --net --pid --uts --ipc --cgroup", self.pid)
    }

    /// What process 1 has said.
    pub fn log(&self) -> String {
        self.init.log()
    }
}

/// The only child of a process with one thread.
fn child_of(pid: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .with_context(|| format!("read the children of {pid}"))?;
    children.trim().parse().with_context(|| format!("the children of {pid} are {children:?}"))
}
