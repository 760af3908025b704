//! Parsers of values that agent and operator have keys for.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{Invalid, parse_duration};

/// What [`patience`] reads.
pub const PATIENCE: &str = "a duration of at least 1s, such as 30s or 3m";

/// A time that something may take: none at all is a mistake.
///
/// # Errors
/// It is no duration, or less than a second.
pub fn patience(value: &str) -> Result<Duration, Invalid> {
    let bad = || Invalid::new(PATIENCE, "write e.g. 30s");
    parse_duration(value).ok().filter(|duration| *duration >= Duration::from_secs(1)).ok_or_else(bad)
}

/// As Go's listeners take it: without a host it is every address. "" is none.
///
/// # Errors
/// Anything else.
pub fn serve_address(value: &str) -> Result<Option<SocketAddr>, Invalid> {
    let bad = || Invalid::new("", "write e.g. :9962, or leave it out");
    if value.is_empty() {
        return Ok(None);
    }
    let address = match value.strip_prefix(':') {
        Some(port) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port.parse().map_err(|_| bad())?)),
        None => value.replace("localhost:", "127.0.0.1:").parse().map_err(|_| bad())?,
    };
    Ok(Some(address))
}
