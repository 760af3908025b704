use std::borrow::Cow;

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::list;
use crate::kubernetes::error::chain;
use crate::kubernetes::status::Status;

/// A watch's answer as it comes in: one JSON text a line.
pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// So much of the buffer has no end of line.
    searched: usize,
    max_bytes: usize,
}

/// Why there is no further line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("the watch broke off: {0}")]
    Broken(String),
    #[error("the watch ended within an event, after {0} bytes of it")]
    Half(usize),
    #[error("an event is longer than {0} bytes")]
    TooLong(usize),
}

impl Lines {
    pub(super) fn new(body: Body, max_bytes: usize) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, max_bytes }
    }

    /// The next line that is not empty; `None` at the end. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            let end =
                self.buffer.get(self.searched..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n'));
            if let Some(end) = end {
                let line = self.buffer.split_to(self.searched + end).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > self.max_bytes {
                return Err(LineError::TooLong(self.max_bytes));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(LineError::Broken(chain(&error))),
                None if self.buffer.iter().all(u8::is_ascii_whitespace) => return Ok(None),
                None => return Err(LineError::Half(self.buffer.len())),
            }
        }
    }
}

/// One event of a watch.
#[derive(Debug)]
pub(super) enum Event {
    Applied { object: Box<RawValue>, version: u64 },
    Deleted { object: Box<RawValue>, version: u64 },
    Bookmark { version: u64 },
    Error(Box<Status>),
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    object: Box<RawValue>,
}

/// Of an object, what a watch needs.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "resourceVersion", borrow)]
    version: Cow<'a, str>,
}

impl Event {
    /// What is wrong with a line that is no event.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let Line { kind, object } = serde_json::from_slice(line).map_err(|error| shown(&error, line))?;
        if kind == "ERROR" {
            return Ok(Self::Error(Box::new(Status::read(object.get().as_bytes()))));
        }
        let head: Head<'_> = serde_json::from_str(object.get()).map_err(|error| shown(&error, line))?;
        let version = list::version(&head.metadata.version)?;
        match &*kind {
            "ADDED" | "MODIFIED" => Ok(Self::Applied { object, version }),
            "DELETED" => Ok(Self::Deleted { object, version }),
            "BOOKMARK" => Ok(Self::Bookmark { version }),
            other => Err(format!(
                "an event's type is {other:?}; known are ADDED, MODIFIED, DELETED, BOOKMARK and ERROR"
            )),
        }
    }
}

fn shown(error: &serde_json::Error, line: &[u8]) -> String {
    let begin: String = String::from_utf8_lossy(line).chars().take(120).collect();
    format!("an event is not what it should be: {error}; it begins {begin:?}")
}
