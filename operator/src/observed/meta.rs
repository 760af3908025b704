use std::sync::Arc;

use portway_model::k8s::seconds_of;
use serde::Deserialize;

/// `metadata` of an object, as far as preconditions and clocks need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// "" for kinds without namespaces.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// `resourceVersion`.
    pub version: u64,
    /// `creationTimestamp`, seconds since 1970; 0 where it has none.
    pub created: i64,
    /// It has a `deletionTimestamp`.
    pub is_deleting: bool,
}

impl Meta {
    /// `namespace/name`, or the name.
    pub fn full_name(&self) -> String {
        if self.namespace.is_empty() {
            self.name.to_string()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }
}

/// As the API server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawMeta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) creation_timestamp: Option<String>,
    pub(super) deletion_timestamp: Option<String>,
}

impl From<RawMeta> for Meta {
    fn from(raw: RawMeta) -> Self {
        Self {
            namespace: raw.namespace.into(),
            name: raw.name.into(),
            uid: raw.uid.into(),
            version: raw.resource_version.parse().unwrap_or(0),
            created: raw.creation_timestamp.as_deref().and_then(seconds_of).unwrap_or(0),
            is_deleting: raw.deletion_timestamp.is_some(),
        }
    }
}
