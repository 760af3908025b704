//! The command line of the agent: `--help`, `--version`, the self-test's probe, or to run.

use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use std::process::ExitCode;

use crate::config::{self, Invocation};
use crate::programs::selftest;
use crate::{app, node};

/// `EX_USAGE` of sysexits.h: the configuration cannot be used.
const USAGE: u8 = 64;

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
        Ok(loaded) => finish(app::run(loaded)),
        Err(problems) => {
            complain(&format!("portway-agent: {problems}"));
            ExitCode::from(USAGE)
        }
    }
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("portway-agent: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn complain(text: &str) {
    // Nobody is left to be told where standard error is closed; the exit code says the rest.
    let _ = writeln!(std::io::stderr(), "{text}");
}
