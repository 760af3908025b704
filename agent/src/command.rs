//! The command line of the agent: `--help`, `--version`, the self-test's probe, or to run.

use std::env;
use std::ffi::OsStr;
use std::process::ExitCode;

use portway_runtime::command::{fail, refuse, say};

use crate::config::{self, Invocation};
use crate::programs::selftest;
use crate::{app, node};

const NAME: &str = "portway-agent";

/// What the process was asked for, done.
pub fn main() -> ExitCode {
    let invocation = Invocation {
        arguments: env::args_os().skip(1).collect(),
        environment: env::vars_os().collect(),
        host_name: node::host_name(),
    };
    let first = invocation.arguments.first().map(|argument| &**argument);
    if first == Some(OsStr::new(selftest::PROBE_SUBCOMMAND)) {
        return selftest::probe_main();
    }
    if invocation.arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return say(&config::help());
    }
    if invocation.arguments.iter().any(|argument| argument == "--version" || argument == "-V") {
        return say(concat!("portway-agent ", env!("CARGO_PKG_VERSION"), "\n"));
    }
    match config::load(invocation) {
        Ok(loaded) => match app::run(loaded) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(NAME, error.as_ref()),
        },
        Err(problems) => refuse(NAME, problems),
    }
}
