//! The one place that writes to the terminal.

use std::io::{ErrorKind, Write as _};

use clap::ValueEnum;
use serde::Serialize;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people
    #[default]
    Text,
    /// JSON, for programs
    Json,
}

/// Writes to standard output. A reader that has gone (`portway … | head -1`) is not an error.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes text and ends the line.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut text = text.trim_end().to_owned();
    text.push('\n');
    write(text.as_bytes())
}

pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Writes a line to standard error; there is nobody to tell if that fails.
pub(crate) fn complain(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}
