use std::time::Duration;

use portway_runtime::kubernetes::{Client, Deletion, PatchType, RequestError};
use serde::Deserialize;

use crate::observed::Kind;
use crate::write::{Change, Outcome, Patch, Write};

/// The answer to a write.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Outcome {
        outcome: Outcome,
        /// It failed for what the server is, not for what the object is.
        blames_server: bool,
        /// It failed for who asks, whatever the object is.
        is_refusal: bool,
        /// How long the server asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// It was not sent, or the API server refused it, for the lease is not held.
    Fenced,
}

impl Answer {
    /// It failed for what the write is.
    pub(super) const fn failed(error: String) -> Self {
        plain(Outcome::Failed(error))
    }

    /// For metrics.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Outcome { outcome: Outcome::Done { .. }, .. } => "done",
            Self::Outcome { outcome: Outcome::Late, .. } => "late",
            Self::Outcome { outcome: Outcome::Failed(_), .. } => "failed",
            Self::Fenced => "fenced",
        }
    }
}

/// Sends a write and waits for its answer.
pub(super) async fn send(client: &Client, write: &Write) -> Answer {
    let answer = match &write.change {
        Change::Create(body) => {
            // Of the object beside which it will be.
            let beside = match write.object.rsplit_once('/') {
                Some((namespace, _)) => format!("{namespace}/"),
                None => String::new(),
            };
            client.send(http::Method::POST, &write.kind.path(&beside), body.to_string().into_bytes()).await
        }
        Change::Patch { patch, subresource, body } => {
            let of = subresource.map(|of| format!("/{of}")).unwrap_or_default();
            let path = format!("{}{of}", write.kind.path(&write.object));
            let patch = match patch {
                Patch::Merge => PatchType::Merge,
                Patch::Strategic => PatchType::Strategic,
            };
            client.patch(&path, patch, body.to_string().into_bytes()).await
        }
        Change::Delete { uid, version } => {
            let is_graceful = write.kind == Kind::Pod;
            let deletion = Deletion { uid, version: *version, is_graceful };
            client.delete(&write.kind.path(&write.object), deletion).await
        }
    };
    let is_delete = matches!(write.change, Change::Delete { .. });
    match answer {
        Ok(text) => plain(Outcome::Done { version: if is_delete { 0 } else { version(&text) } }),
        Err(RequestError::Fenced { .. } | RequestError::OtherTerm { .. }) => Answer::Fenced,
        Err(error) => failed(&error, &write.change),
    }
}

fn failed(error: &RequestError, change: &Change) -> Answer {
    match (error.code(), change) {
        // Who wanted it gone has what he wanted.
        (Some(404), Change::Delete { .. }) => plain(Outcome::Done { version: 0 }),
        // The object is gone; where one was to be made it is its namespace or its kind, which no later look mends.
        (Some(404), Change::Patch { .. }) | (Some(409), _) => plain(Outcome::Late),
        // A patch that names another UID than that of the object which has the name now.
        (Some(422), _) if error.to_string().contains("metadata.uid") => plain(Outcome::Late),
        _ => Answer::Outcome {
            outcome: Outcome::Failed(error.to_string()),
            blames_server: error.blames_server() || error.code() == Some(429),
            is_refusal: matches!(error.code(), Some(401 | 403 | 429)),
            retry_after: error.retry_after(),
        },
    }
}

const fn plain(outcome: Outcome) -> Answer {
    Answer::Outcome { outcome, blames_server: false, is_refusal: false, retry_after: None }
}

/// Of the object in an answer; 0 where it has none.
fn version(text: &[u8]) -> u64 {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        resource_version: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Metadata,
    }
    let object: Object = serde_json::from_slice(text).unwrap_or_default();
    object.metadata.resource_version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests;
