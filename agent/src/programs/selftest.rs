//! Tries the errno contract on the running kernel, before any program of ours is attached for real.
//!
//! A kernel that lacks what `bpf_set_retval` needs, or that turns a denied call into `EPERM`, would make every
//! connection to a service without endpoints fail in a way that no client library retries. So the programs are loaded
//! once more, on small maps of their own, attached to a cgroup of their own, and a child process of its own network
//! namespace makes the calls. The agent's maps, links and sockets are not touched, and no packet leaves: the child's
//! namespace has no interface that is up.
//!
//! ```text
//! parent                                  child (probe_main)
//! load, attach to ROOT/portway-selftest-PID
//! start ────────────────────────────────► new network namespace
//!   ◄───────────────────────────── "namespace COOKIE"
//! fill the maps, move the child into the cgroup
//!   "go" ────────────────────────────────► each check
//!   ◄────────────────────────────── "CHECK ERRNO", …
//! ```

mod check;
mod child;
mod probe;
mod tables;

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub use check::{Check, FrontendUse};
pub use probe::probe_main;

use super::error::ProgramError;
use super::links::open_cgroup;
use super::load::{Loader, load_program};
use super::{hook::Hook, sys};
use child::Child;

/// The hidden subcommand of the agent that calls [`probe_main`].
pub const PROBE_SUBCOMMAND: &str = "errno-probe";

/// Before the process id, in the name of the cgroup.
const CGROUP_PREFIX: &str = "portway-selftest-";

/// How long the child may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hooks that may deny a call.
const HOOKS: [Hook; 6] =
    [Hook::Connect4, Hook::Connect6, Hook::Sendmsg4, Hook::Sendmsg6, Hook::PostBind4, Hook::PostBind6];

/// What the self-test found: every check that the kernel could make had the errno of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub passed: Vec<Check>,
    /// IPv6 checks on a kernel without IPv6.
    pub unsupported: Vec<Check>,
    pub took: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("cannot fill the maps of the self-test: {0}")]
    Tables(#[source] Box<aya::maps::MapError>),
    #[error("cannot {action} {path} for the self-test: {source}", path = .path.display())]
    Cgroup { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {action} the child of the self-test: {source}")]
    Child { action: &'static str, source: io::Error },
    #[error("the child of the self-test said {said:?} instead of {expected}")]
    Protocol { said: String, expected: &'static str },
    #[error(
        "this kernel does not keep the errno contract: {check} ended with {found}, not {expected}; \
         a kernel of 6.1 or later is needed, with nothing else that denies calls attached to the cgroup",
        found = errno_name(*.found), expected = errno_name(.check.expected())
    )]
    Errno { check: Check, found: i32 },
}

/// This very binary as a probe; its `main` must call [`probe_main`] for [`PROBE_SUBCOMMAND`].
pub fn probe_command() -> Command {
    // Also where the file was replaced by an upgrade meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg(PROBE_SUBCOMMAND);
    command
}

/// Makes every check under a new cgroup below `cgroup_root`, which is removed in the end. `probe` starts a process that
/// calls [`probe_main`], with its standard input and output as they come.
///
/// Blocks for some tens of milliseconds.
pub fn run(loader: &mut Loader, cgroup_root: &Path, probe: Command) -> Result<Report, SelfTestError> {
    let start = Instant::now();
    // Before anything is made below it.
    open_cgroup(cgroup_root)?;
    match remove_left(cgroup_root) {
        Ok(left) if left.is_empty() => {}
        Ok(left) => tracing::info!(?left, "removed the cgroups of self-tests that were killed"),
        Err(error) => tracing::warn!(%error, "cannot remove the cgroups of self-tests that were killed"),
    }
    // Dropped in the reverse order: the child must be gone before its cgroup can.
    let cgroup = Cgroup::create(cgroup_root)?;
    // Starts up while the programs are loaded.
    let mut child = Child::spawn(probe)?;
    let mut ebpf = loader.open_private(&tables::SIZES)?;
    let mut programs = Vec::new();
    for hook in HOOKS {
        programs.push((hook, load_program(&mut ebpf, hook.name(), &mut Vec::new())?));
    }
    let dir = open_cgroup(&cgroup.path)?;
    let mut links = Vec::new();
    for (hook, program) in &programs {
        let link = sys::link_create(program.as_fd(), dir.as_fd(), hook.attach_type());
        let attach = |source| ProgramError::Attach { hook: *hook, cgroup: cgroup.path.clone(), source };
        links.push(link.map_err(attach)?);
    }
    let netns = child.namespace()?;
    tables::fill(&mut ebpf, netns).map_err(|e| SelfTestError::Tables(Box::new(e)))?;
    cgroup.add(child.id())?;
    child.go()?;
    let mut report = Report { passed: Vec::new(), unsupported: Vec::new(), took: Duration::ZERO };
    for check in Check::all() {
        let found = child.result(check)?;
        if found == check.expected() {
            report.passed.push(check);
        } else if found == libc::EAFNOSUPPORT && check.needs_ipv6() {
            report.unsupported.push(check);
        } else {
            return Err(SelfTestError::Errno { check, found });
        }
    }
    child.finish()?;
    drop(links);
    cgroup.remove()?;
    report.took = start.elapsed();
    Ok(report)
}

/// `ECONNREFUSED (111)`, as far as checks come by it.
fn errno_name(errno: i32) -> String {
    let name = match errno {
        0 => "success",
        libc::EPERM => "EPERM",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        _ => return format!("errno {errno}"),
    };
    format!("{name} ({errno})")
}

/// Removes the cgroups that self-tests have left whose agents were killed. Which ones.
///
/// # Errors
/// The directory cannot be read, or one of them cannot be removed.
pub(crate) fn remove_left(cgroup_root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(cgroup_root)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(process) = name.strip_prefix(CGROUP_PREFIX).and_then(|id| id.parse::<u32>().ok()) else {
            continue;
        };
        // Another agent may be at it, for a bpf-root of its own. One of another pid namespace has its child in there, and the
        // kernel refuses.
        if Path::new(&format!("/proc/{process}")).exists() {
            continue;
        }
        match std::fs::remove_dir(&path) {
            Ok(()) => removed.push(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
    }
    removed.sort();
    Ok(removed)
}

/// A cgroup that goes when this does; its processes must have ended.
struct Cgroup {
    path: PathBuf,
    removed: bool,
}

impl Cgroup {
    fn create(root: &Path) -> Result<Self, SelfTestError> {
        let path = root.join(format!("{CGROUP_PREFIX}{}", std::process::id()));
        match std::fs::create_dir(&path) {
            // An agent with this process id died in the middle.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(SelfTestError::Cgroup { action: "make", path, source }),
            Ok(()) => {}
        }
        Ok(Self { path, removed: false })
    }

    fn add(&self, process: u32) -> Result<(), SelfTestError> {
        let path = self.path.join("cgroup.procs");
        std::fs::write(&path, process.to_string()).map_err(|source| SelfTestError::Cgroup {
            action: "move the child into",
            path,
            source,
        })
    }

    fn remove(mut self) -> Result<(), SelfTestError> {
        self.removed = true;
        remove_dir_when_empty(&self.path).map_err(|source| SelfTestError::Cgroup {
            action: "remove",
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = remove_dir_when_empty(&self.path)
        {
            tracing::warn!(cgroup = %self.path.display(), %error, "cannot remove the cgroup of the self-test");
        }
    }
}

/// A process that was waited for may still count as a member for a moment.
fn remove_dir_when_empty(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match std::fs::remove_dir(path) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}
