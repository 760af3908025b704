use std::time::Duration;

use serde::Deserialize;

use super::error::RequestError;

/// What the API server says of a failure: `meta/v1` Status.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    code: Option<u16>,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: Option<u64>,
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
}

impl Status {
    /// The status of a body; one that is none is its own message, cut.
    pub(super) fn read(text: &[u8]) -> Self {
        serde_json::from_slice(text).unwrap_or_else(|_| {
            let message = String::from_utf8_lossy(text).chars().take(200).collect();
            Self { message, ..Self::default() }
        })
    }

    pub(super) fn into_error(
        self,
        url: String,
        code: http::StatusCode,
        retry_after: Option<Duration>,
    ) -> RequestError {
        let reason = if self.reason.is_empty() {
            code.canonical_reason().unwrap_or("unknown status").to_owned()
        } else {
            self.reason
        };
        RequestError::Status {
            url,
            code: code.as_u16(),
            reason,
            message: self.message.trim().to_owned(),
            retry_after: retry_after.or(self.details.retry_after_seconds.map(Duration::from_secs)),
            version_ahead: self.details.causes.iter().any(|cause| cause.reason == "ResourceVersionTooLarge"),
        }
    }

    /// The status of an `ERROR` event. One without a code is an error of the server.
    pub(super) fn into_event_error(self, url: String) -> RequestError {
        let code = self.code.and_then(|code| http::StatusCode::from_u16(code).ok());
        self.into_error(url, code.unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR), None)
    }
}
