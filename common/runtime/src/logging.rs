//! Log lines on standard error: for people on a terminal, JSON elsewhere.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::{Invalid, Key, Kind, Reader, Settings, Warning, honoured as key, switch};

const GROUP: &str = "Logging";

/// What [`LogOptions::read`] reads, in the order of the help.
pub const KEYS: &[Key] = &[
    switch(GROUP, "debug", "false", "Log decisions too"),
    key(
        GROUP,
        "log-filter",
        Kind::Text("directives such as info,portway_runtime=debug"),
        "",
        "What is logged; wins over debug",
    ),
    key(
        GROUP,
        "log-format",
        Kind::OneOf(&["auto", "text", "json"]),
        "auto",
        "How a line looks; auto is text on a terminal and JSON elsewhere",
    ),
];

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    pub format: Format,
    /// In the form of `tracing`'s directives, e.g. `info,portway_agent=debug`.
    pub filter: String,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

/// A filter that cannot be read, or a subscriber that is already there.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("log filter {filter:?} cannot be read ({source}); write e.g. info,portway_agent=debug")]
    Filter {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("logging was set up twice in one process")]
    Twice,
}

impl LogOptions {
    /// Reads [`KEYS`], which are part of the reader's table.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let debug = reader.bool("debug");
        Self {
            format: reader.parse("log-format", parse_format).unwrap_or_default(),
            filter: match reader.text("log-filter") {
                filter if !filter.is_empty() => filter,
                _ if debug => "debug".to_owned(),
                _ => "info".to_owned(),
            },
        }
    }
}

fn parse_format(value: &str) -> Result<Format, Invalid> {
    match value {
        "auto" => Ok(Format::Auto),
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err(Invalid::new("", "use auto (the default)")),
    }
}

/// Sets up logging for the process, and tells what a person should know of its configuration.
///
/// # Errors
/// [`LoggingError`].
pub fn begin(options: &LogOptions, settings: &Settings, warnings: &[Warning]) -> Result<(), LoggingError> {
    init(options)?;
    for warning in warnings {
        tracing::warn!(key = warning.key, "{warning}");
    }
    for said in settings.without_effect() {
        tracing::debug!(key = said.key, value = said.value, "this key has no effect");
    }
    Ok(())
}

fn init(options: &LogOptions) -> Result<(), LoggingError> {
    let LogOptions { format, filter } = options;
    let parsed = EnvFilter::try_new(filter)
        .map_err(|source| LoggingError::Filter { filter: filter.clone(), source })?;
    let terminal = std::io::stderr().is_terminal();
    let builder =
        tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr).with_ansi(terminal);
    let json = match format {
        Format::Auto => !terminal,
        Format::Text => false,
        Format::Json => true,
    };
    let result = if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    result.map_err(|_| LoggingError::Twice)
}
