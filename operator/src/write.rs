//! What a plan is made of: one write of one object, which can be printed, compared and sent.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::observed::{Kind, Meta};

/// A write of one object. Every one has a precondition: that nothing of the name is there, or that the object is the one
/// that was seen. A late one, of a replica that was frozen meanwhile, changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Write {
    pub kind: Kind,
    /// `namespace/name`, or the name.
    pub object: String,
    pub change: Change,
    /// Why, for people.
    pub reason: String,
}

/// What becomes of the object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The whole object. Fails where one of its name is there.
    Create(Value),
    /// A patch; `metadata` of it names the UID and, but for fields that nobody else writes, the version that was seen.
    Patch {
        patch: Patch,
        /// `status`, or `None` for the object itself.
        subresource: Option<&'static str>,
        body: Value,
    },
    /// Fails unless the object has this UID and this version.
    Delete { uid: Arc<str>, version: u64 },
}

/// How a patch is read by the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Patch {
    /// RFC 7396: a list replaces the list.
    Merge,
    /// Kubernetes' own, of its own kinds alone: elements of lists are merged by their keys.
    Strategic,
}

impl Write {
    pub fn create(kind: Kind, object: impl Into<String>, body: Value, reason: impl Into<String>) -> Self {
        Self { kind, object: object.into(), change: Change::Create(body), reason: reason.into() }
    }

    /// A merge patch of the object as it was seen: of its UID and its version.
    pub fn merge(kind: Kind, seen: &Meta, body: Value, reason: impl Into<String>) -> Self {
        Self::patch(kind, seen, Patch::Merge, None, body, reason)
    }

    pub fn patch(
        kind: Kind,
        seen: &Meta,
        patch: Patch,
        subresource: Option<&'static str>,
        mut body: Value,
        reason: impl Into<String>,
    ) -> Self {
        body["metadata"]["uid"] = Value::from(&*seen.uid);
        body["metadata"]["resourceVersion"] = Value::from(seen.version.to_string());
        let change = Change::Patch { patch, subresource, body };
        Self { kind, object: seen.full_name(), change, reason: reason.into() }
    }

    /// Of the object if nothing has changed in it since it was seen.
    pub fn delete(kind: Kind, seen: &Meta, reason: impl Into<String>) -> Self {
        let change = Change::Delete { uid: Arc::clone(&seen.uid), version: seen.version };
        Self { kind, object: seen.full_name(), change, reason: reason.into() }
    }
}

/// What came of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done; the object's version after it, 0 where it is gone.
    Done { version: u64 },
    /// Its precondition did not hold: the object is not what was seen. Nothing changed.
    Late,
    /// Anything else; whether it is done is not known.
    Failed(String),
}
