//! Log lines on standard error: for people on a terminal, JSON elsewhere.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

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

/// Sets up logging for the process. `filter` has the form of `tracing`'s directives, e.g. `info,portway_agent=debug`.
///
/// # Errors
/// [`LoggingError`].
pub fn init(format: Format, filter: &str) -> Result<(), LoggingError> {
    let parsed = EnvFilter::try_new(filter)
        .map_err(|source| LoggingError::Filter { filter: filter.to_owned(), source })?;
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
