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
            complain(&format!("portway-agent: {}", explain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes in one line. Errors of libraries hold their cause in their own text, for logs: what was
/// said already is not said again.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read pw_runs: {0}; stop")]
    struct Outer(#[source] io::Error);

    #[test]
    fn an_error_names_each_cause_once() {
        let cause = || io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(Outer(cause())).context("starting");
        assert_eq!(explain(&error), format!("starting: cannot read pw_runs: {}; stop", cause()));
        let error = anyhow::Error::new(cause()).context("starting");
        assert_eq!(explain(&error), format!("starting: {}", cause()));
    }
}
