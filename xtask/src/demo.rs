//! The demo: builds the agent, the command and the demo itself, and becomes the demo.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::command::{run as run_command, say, shown};
use crate::{ebpf, setup, workspace};

/// `cargo xtask demo`: does not return where the demo could be started.
pub(crate) fn run(keep: bool) -> anyhow::Result<()> {
    let mut demo = prepare(keep)?;
    say(format!("$ {}", shown(&demo)));
    // Ctrl-C then reaches the demo alone, which cleans up before the prompt comes back.
    let error = demo.exec();
    Err(error).with_context(|| format!("cannot start {}", shown(&demo)))
}

/// Builds what the demo needs; the command that runs it.
pub(crate) fn prepare(keep: bool) -> anyhow::Result<Command> {
    setup::run(setup::Scope::Demo)?;
    build_object()?;
    run_command(&mut build_binaries()?)?;
    let mut demo = as_root(binaries().join("portway-demo"));
    if keep {
        demo.arg("--keep");
    }
    Ok(demo)
}

/// The objects with the kernel programs, where the agent's build finds it.
pub(crate) fn build_object() -> anyhow::Result<()> {
    for object in ebpf::build(workspace::root(), false)? {
        say(format!("kernel programs: {}", object.display()));
    }
    Ok(())
}

/// Builds the agent, the command, the plugin and the programs of the tests, which expect to find each other in one folder.
pub(crate) fn build_binaries() -> anyhow::Result<Command> {
    let mut build = workspace::cargo()?;
    build.args(["build", "--bins", "--package", "portway-agent", "--package", "portway"]);
    build.args(["--package", "portway-cni", "--package", "portway-operator", "--package", "portway-tests"]);
    Ok(build)
}

/// Where [`build_binaries`] leaves them.
pub(crate) fn binaries() -> PathBuf {
    workspace::target().join("debug")
}

/// The command with the privileges to load programs and make namespaces.
pub(crate) fn as_root(program: PathBuf) -> Command {
    if workspace::is_root() {
        return Command::new(program);
    }
    say(NEEDS_ROOT);
    let mut sudo = Command::new("sudo");
    sudo.arg(program);
    sudo
}

/// Lets cargo build as the user and start what it built as root.
pub(crate) fn run_tests_as_root(cargo: &mut Command) {
    if !workspace::is_root() {
        say(NEEDS_ROOT);
        cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "sudo --preserve-env");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "sudo --preserve-env");
    }
}

const NEEDS_ROOT: &str =
    "loading programs into the kernel and making network namespaces needs root: using sudo";
