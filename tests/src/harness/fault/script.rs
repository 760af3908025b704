//! What can go wrong with a request or an event, and what a script is told to decide it.

use std::time::Duration;

use http::{Method, Request};

/// A request of the agent's.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: Method,
    /// `/api/v1/services`.
    pub path: String,
    /// Without the question mark.
    pub query: String,
    /// Asks for the objects' metadata alone.
    pub metadata_only: bool,
}

impl Asked {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let accept = request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            metadata_only: accept.is_some_and(|accept| accept.contains("PartialObjectMetadata")),
        }
    }

    pub fn is_watch(&self) -> bool {
        self.parameter("watch").is_some_and(|value| matches!(value, "1" | "true"))
    }

    /// A list of whole objects.
    pub fn is_list(&self) -> bool {
        self.method == Method::GET && !self.is_watch() && !self.metadata_only
    }

    pub fn is_next_page(&self) -> bool {
        self.parameter("continue").is_some_and(|value| !value.is_empty())
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// An event of a watch, as its line of JSON.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`.
    pub kind: &'a str,
    pub line: &'a str,
}

impl<'a> Event<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        // The API server writes the type first, without spaces.
        let kind = line.strip_prefix("{\"type\":\"").and_then(|rest| rest.split_once('"'));
        Self { kind: kind.map_or("", |(kind, _)| kind), line }
    }
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    None,
    /// An answer of the proxy's own: a `Status` with this code; seconds for `Retry-After` where they are given.
    Status(u16, Option<u32>),
    /// The connection ends instead of an answer.
    Refuse,
    /// No answer, and no end.
    Hang,
    /// The answer, so much later.
    Delay(Duration),
    /// It stays on its way to the API server until [`super::FaultProxy::release`], and gets there then, be it that nobody
    /// waits for the answer any more.
    Hold,
    /// The first half of the answer's body, then the connection ends.
    Half,
    /// As [`Self::Half`], of a body in chunks that does not say how long it is.
    HalfInChunks,
    /// Half of the JSON, as if that were all.
    HalfJson,
}

/// What happens to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFault {
    None,
    /// It never comes.
    Skip,
    /// It comes twice.
    Duplicate,
    /// It comes after the next one.
    Swap,
    Delay(Duration),
    /// Half of its line, then the connection ends.
    HalfLine,
    /// A line that is no JSON in its stead.
    Garbage,
    /// `ERROR` with the code 410 in its stead, then the end.
    Gone,
    /// The connection ends before it.
    Cut,
    /// The answer ends before it, as it does after the API server's own time limit.
    End,
    /// From here on nothing comes, and nothing ends.
    Stall,
}

/// The `Status` object of an error, as the API server writes it.
pub(super) fn status(code: u16) -> String {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let message = if code == 410 { "too old resource version: 1 (2)" } else { "a fault of the test" };
    format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\
         \"message\":\"{message}\",\"reason\":\"{reason}\",\"code\":{code}}}"
    )
}
