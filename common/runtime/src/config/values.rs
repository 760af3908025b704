//! Parsers of values that agent and operator have keys for.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{Invalid, parse_duration};
use crate::logging::Format;

/// What [`servers`] reads.
pub const SERVERS: &str = "URLs such as https://192.0.2.1:6443, separated by commas, or nothing";

/// URLs of API servers, separated by commas or spaces; without a scheme it is https.
///
/// # Errors
/// One of them is none; it is named.
pub fn servers(value: &str) -> Result<Vec<String>, Invalid> {
    value.split([',', ' ']).map(str::trim).filter(|text| !text.is_empty()).map(server).collect()
}

fn server(text: &str) -> Result<String, Invalid> {
    let bad = || Invalid::new("", format!("{text:?} is no such URL: write e.g. https://192.0.2.1:6443"));
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).ok_or_else(bad)?;
    let authority = rest.split('/').next().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']' | '_');
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(bad)?;
            host
        }
        Some(_) | None => authority,
    };
    if host.is_empty() || !authority.chars().all(allowed) || rest.contains(['?', '#']) {
        return Err(bad());
    }
    Ok(url)
}

/// Requests a second. Cilium's is a floating-point number; less than one request a second is none.
///
/// # Errors
/// Anything but a number from 1 to 100000.
pub fn qps(value: &str) -> Result<u32, Invalid> {
    const MOST: f64 = 100_000.0;
    let number = value.parse::<f64>().ok().filter(|number| (1.0..=MOST).contains(number));
    // Not more than u32::MAX, and no fraction.
    number.map(|number| number.round() as u32).ok_or_else(|| Invalid::new("", "write e.g. 10"))
}

/// A patience of connections; 0 is off, as in Cilium.
///
/// # Errors
/// As [`patience`], but for 0.
pub fn heartbeat(value: &str) -> Result<Duration, Invalid> {
    match parse_duration(value) {
        Ok(Duration::ZERO) => Ok(Duration::ZERO),
        Ok(_) | Err(_) => patience(value),
    }
}

/// A time that something may take: none at all is a mistake.
///
/// # Errors
/// It is no duration, or less than a second.
pub fn patience(value: &str) -> Result<Duration, Invalid> {
    let bad = || Invalid::new("a duration of at least 1s, such as 30s or 3m", "write e.g. 30s");
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

/// `auto`, `text` or `json`.
///
/// # Errors
/// Any other word.
pub fn log_format(value: &str) -> Result<Format, Invalid> {
    match value {
        "auto" => Ok(Format::Auto),
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err(Invalid::new("", "use auto (the default)")),
    }
}
