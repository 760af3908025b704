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
    let mut build = workspace::cargo()?;
    build.args(["build", "--package", "portway-agent", "--package", "portway"]);
    build.args(["--package", "portway-tests", "--bin", "portway-demo"]);
    build.args(["--bin", "portway-agent", "--bin", "portway"]);
    run_command(&mut build)?;
    let mut demo = as_root(binary("portway-demo"));
    if keep {
        demo.arg("--keep");
    }
    Ok(demo)
}

/// The object with the kernel programs, where the agent's build finds it.
pub(crate) fn build_object() -> anyhow::Result<()> {
    let object = ebpf::build(workspace::root(), false)?;
    say(format!("kernel programs: {}", object.display()));
    Ok(())
}

/// A binary of the workspace, built for development.
pub(crate) fn binary(name: &str) -> PathBuf {
    workspace::target().join("debug").join(name)
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
