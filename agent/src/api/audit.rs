use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// What was not as it should be.
    pub found: Vec<Difference>,
    /// What of it is still so; all of it where nothing was to be put right.
    pub remaining: Vec<Difference>,
    /// What a person should look at and the agent does not touch.
    pub warnings: Vec<String>,
    /// What could not be looked at, and why.
    pub skipped: Vec<String>,
    pub seconds: f64,
}

/// Something that is not as the agent made it, or not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `program`, `pin`, the name of a map, `plan` (the agent has not programmed what is wanted), or the kind of an
    /// object that the API server has otherwise.
    pub kind: String,
    pub what: String,
    pub held: String,
    pub wanted: String,
}

/// What the periodic audit did so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditStatus {
    /// Since the kernel was last compared with what the agent wrote; absent before the first time.
    pub look_age_seconds: Option<f64>,
    /// What that took.
    pub look_seconds: f64,
    /// Since it was last compared with what is wanted.
    pub compare_age_seconds: Option<f64>,
    /// Since the objects were last compared with the API server's.
    pub objects_age_seconds: Option<f64>,
    /// Why the last comparison of objects was not whole, e.g. an API server that does not answer.
    #[serde(default)]
    pub objects_trouble: Option<String>,
    /// Differences since the start, by kind.
    pub divergence: BTreeMap<String, u64>,
    /// Those that are not put right yet.
    pub remaining: Vec<Difference>,
    /// How long the oldest of them has been known.
    pub oldest_seconds: Option<f64>,
    /// What was put right last.
    pub last_repair: Option<String>,
    /// Why the last look or list failed.
    pub trouble: Option<String>,
    /// What a person should look at and the agent does not touch.
    pub warnings: Vec<String>,
}
