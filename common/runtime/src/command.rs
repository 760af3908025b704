//! What a program says to whoever started it, and the code that it ends with.

use std::error::Error;
use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

/// `EX_USAGE` of sysexits.h: the configuration cannot be used.
const USAGE: u8 = 64;

/// Writes what was asked for to standard output.
pub fn say(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The program cannot be started like this.
pub fn refuse(program: &str, problem: impl Display) -> ExitCode {
    complain(&format!("{program}: {problem}"));
    ExitCode::from(USAGE)
}

/// The program failed.
pub fn fail(program: &str, error: &(dyn Error + 'static)) -> ExitCode {
    complain(&format!("{program}: {}", explain(error)));
    ExitCode::FAILURE
}

/// The error and its causes in one line. Errors of libraries hold their cause in their own text, for logs: what was said
/// already is not said again.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
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

    #[derive(Debug, thiserror::Error)]
    #[error("starting")]
    struct Starting<E: Error + 'static>(#[source] E);

    #[test]
    fn an_error_names_each_cause_once() {
        let cause = || io::Error::from_raw_os_error(2);
        let error = Starting(Outer(cause()));
        assert_eq!(explain(&error), format!("starting: cannot read pw_runs: {}; stop", cause()));
        assert_eq!(explain(&Starting(cause())), format!("starting: {}", cause()));
    }
}
