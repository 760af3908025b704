use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::kubernetes::events::micro_time;

/// What a Lease says of who leads. Its times are kept as text: they are of another machine's clock, and only that they
/// changed means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) version: u64,
    /// "": nobody.
    pub(super) holder: String,
    /// How long the holder asks others to wait.
    pub(super) duration: Option<Duration>,
    pub(super) acquired: String,
    pub(super) renewed: String,
    pub(super) transitions: u32,
}

impl Record {
    /// Reads a Lease `coordination.k8s.io/v1`.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let raw: Raw = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let version = raw.metadata.resource_version;
        let version =
            version.parse().map_err(|_| format!("metadata.resourceVersion {version:?} is not a number"))?;
        let RawSpec { holder_identity, lease_duration_seconds, acquire_time, renew_time, lease_transitions } =
            raw.spec.unwrap_or_default();
        let seconds = lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Ok(Self {
            version,
            holder: holder_identity.unwrap_or_default(),
            duration: seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
            acquired: acquire_time.unwrap_or_default(),
            renewed: renew_time.unwrap_or_default(),
            transitions: lease_transitions.and_then(|number| u32::try_from(number).ok()).unwrap_or(0),
        })
    }

    /// Whether the holder has done nothing between the two.
    pub(super) fn is_same_sign(&self, other: &Self) -> bool {
        let sign = |record: &Self| (record.holder.clone(), record.renewed.clone(), record.transitions);
        sign(self) == sign(other)
    }
}

/// What a candidate writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// "" releases.
    pub(super) holder: String,
    pub(super) duration: Duration,
    pub(super) transitions: u32,
    /// It was not the holder before.
    pub(super) is_new: bool,
}

impl Claim {
    fn spec(&self, clock: SystemTime) -> Value {
        let now = micro_time(clock);
        let seconds = self.duration.as_millis().div_ceil(1000).max(1);
        let mut spec = json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": seconds as u64,
            "renewTime": now,
            "leaseTransitions": self.transitions,
        });
        if self.is_new {
            spec["acquireTime"] = now.into();
        }
        spec
    }

    /// A new object.
    pub(super) fn object(&self, namespace: &str, name: &str, clock: SystemTime) -> Vec<u8> {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": namespace, "name": name},
            "spec": self.spec(clock),
        });
        object.to_string().into_bytes()
    }

    /// A merge patch of the object at `version`: what else it says stays.
    pub(super) fn patch(&self, version: u64, clock: SystemTime) -> Vec<u8> {
        let patch = json!({"metadata": {"resourceVersion": version.to_string()}, "spec": self.spec(clock)});
        patch.to_string().into_bytes()
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMetadata,
    #[serde(default)]
    spec: Option<RawSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}
