use std::process::Command;

use anyhow::bail;

use super::Need;
use crate::command::{probe, run};
use crate::workspace;

/// A tool that `cargo install` builds.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) krate: &'static str,
    pub(super) why: &'static str,
    pub(super) build_seconds: u32,
    for_need: Need,
    /// The version that is installed.
    version: &'static str,
    /// An installed one will do from this version on.
    at_least: [u32; 3],
    /// Prints the version in its first line.
    ask: &'static [&'static str],
    features: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

/// Tools run for seconds and compile for minutes: compile them for speed of compilation.
const UNOPTIMISED: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
];

/// For a tool that compares every licence text with all that it knows.
const LITTLE_OPTIMISED: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
];

const TOOLS: &[Tool] = &[
    Tool {
        krate: "bpf-linker",
        why: "links the kernel programs",
        build_seconds: 50,
        for_need: Need::EbpfToolchain,
        version: "0.13.0",
        at_least: [0, 13, 0],
        ask: &["bpf-linker", "--version"],
        features: &["--no-default-features", "--features", "llvm-22"],
        env: &[("LLVM_PREFIX", "/usr/lib/llvm-22")],
    },
    Tool {
        krate: "cargo-nextest",
        why: "runs each test in a process of its own",
        build_seconds: 100,
        for_need: Need::Nextest,
        version: "0.9.151",
        at_least: [0, 9, 100],
        ask: &["cargo-nextest", "nextest", "--version"],
        features: &["--no-default-features"],
        env: UNOPTIMISED,
    },
    Tool {
        krate: "cargo-deny",
        why: "checks licences and sources of dependencies",
        build_seconds: 95,
        for_need: Need::Deny,
        version: "0.20.2",
        at_least: [0, 18, 0],
        ask: &["cargo-deny", "--version"],
        features: &["--no-default-features"],
        env: LITTLE_OPTIMISED,
    },
];

/// The tools for `needs` that are not installed, or too old.
pub(super) fn missing(needs: &[Need]) -> anyhow::Result<Vec<&'static Tool>> {
    let mut missing = Vec::new();
    for tool in TOOLS.iter().filter(|tool| needs.contains(&tool.for_need)) {
        if !is_installed(tool)? {
            missing.push(tool);
        }
    }
    Ok(missing)
}

pub(super) fn has_bpf_linker() -> bool {
    TOOLS.iter().filter(|tool| tool.krate == "bpf-linker").all(|tool| is_installed(tool).unwrap_or(false))
}

fn is_installed(tool: &Tool) -> anyhow::Result<bool> {
    let Some((program, args)) = tool.ask.split_first() else {
        bail!("tool {} does not say how to ask for its version", tool.krate);
    };
    let path = workspace::path()?;
    // The child's PATH decides where `env` looks; `Command` itself would use ours.
    let answer = probe(Command::new("env").arg(program).args(args).env("PATH", path));
    Ok(answer.as_deref().and_then(version_in).is_some_and(|version| fits(version, tool.at_least)))
}

/// The first word of the first line that is a version.
fn version_in(answer: &str) -> Option<[u32; 3]> {
    answer.lines().next()?.split_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.').map(str::parse);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Some([major, minor, patch]),
            _ => None,
        }
    })
}

fn fits(version: [u32; 3], at_least: [u32; 3]) -> bool {
    version >= at_least
}

pub(super) fn install(tool: &Tool) -> anyhow::Result<()> {
    let mut cargo = workspace::cargo()?;
    cargo.args(["install", "--locked", "--force", "--version", tool.version]);
    cargo.args(tool.features).arg(tool.krate).envs(tool.env.iter().copied());
    // Not into the project's own target folder: `cargo install` then builds where nothing else waits for the lock.
    cargo.env_remove("CARGO_TARGET_DIR");
    run(&mut cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_tools_print() {
        assert_eq!(version_in("bpf-linker 0.13.0\n"), Some([0, 13, 0]));
        assert_eq!(
            version_in("cargo-nextest 0.9.151 (abcdef 2026-01-01)\nrelease: 1.2.3"),
            Some([0, 9, 151])
        );
        assert_eq!(version_in("no version"), None);
        assert_eq!(version_in(""), None);
    }

    #[test]
    fn an_older_tool_does_not_fit() {
        assert!(fits([0, 9, 151], [0, 9, 100]) && fits([1, 0, 0], [0, 9, 100]));
        assert!(!fits([0, 9, 99], [0, 9, 100]) && !fits([0, 8, 200], [0, 9, 100]));
    }
}
