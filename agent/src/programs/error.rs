use std::io;
use std::path::PathBuf;

use super::hook::Hook;

/// What went wrong with the programs, with the way out where there is one.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error(
        "this agent was built without the kernel object; run `cargo xtask build-ebpf`, then build the agent again"
    )]
    NoObject,
    #[error("cannot load the kernel object: {0}")]
    Object(#[source] Box<aya::EbpfError>),
    #[error("the kernel object has no program {name}; the agent and the object are of different versions")]
    NoProgram { name: &'static str },
    /// The source has the verifier's whole log.
    #[error("the kernel refuses program {name}: {}", last_words(.source))]
    Refused { name: &'static str, source: Box<aya::programs::ProgramError> },
    #[error("map {name} is not pinned at {path}", path = .path.display())]
    NoMap { name: &'static str, path: PathBuf },
    #[error("cannot open cgroup {path}: {source}", path = .path.display())]
    Cgroup { path: PathBuf, source: io::Error },
    #[error("{path} is not a directory of a cgroup v2 hierarchy; set cgroup-root to one", path = .path.display())]
    NotCgroup2 { path: PathBuf },
    #[error("cannot attach {hook} to cgroup {cgroup}: {source}", cgroup = .cgroup.display())]
    Attach { hook: Hook, cgroup: PathBuf, source: io::Error },
    #[error("cannot replace the program of the link pinned at {path}: {source}", path = .path.display())]
    Replace { path: PathBuf, source: io::Error },
    #[error("cannot {action} {name} at interface {interface}: {source}")]
    Interface { action: &'static str, name: &'static str, interface: String, source: io::Error },
    #[error(
        "cannot attach {name} at interface {interface}: its qdisc {qdisc}, of another program, is where clsact must be; \
         remove it, or run Linux 6.6 or newer, where this one does without"
    )]
    Qdisc { name: &'static str, interface: String, qdisc: String },
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Pin { action: &'static str, path: PathBuf, source: io::Error },
}

impl ProgramError {
    pub(super) fn interface(
        action: &'static str,
        name: &'static str,
        interface: &str,
        source: io::Error,
    ) -> Self {
        Self::Interface { action, name, interface: interface.to_owned(), source }
    }

    pub(super) fn pin(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Pin { action, path, source }
    }
}

/// The kernel's error and what the verifier said last before its statistics: the reason of a refusal. Its whole log
/// may have a million lines.
fn last_words(error: &aya::programs::ProgramError) -> String {
    let aya::programs::ProgramError::LoadError { io_error, verifier_log } = error else {
        return error.to_string();
    };
    let log = verifier_log.to_string();
    let is_statistic = |line: &&str| {
        ["processed ", "verification time ", "stack depth ", "mark_precise: "]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let reason = log.lines().rev().map(str::trim).find(|line| !line.is_empty() && !is_statistic(line));
    match reason {
        Some(reason) => format!("{io_error}; the verifier says: {reason}"),
        None => io_error.to_string(),
    }
}
