use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `metadata`, as far as it is written or needed for a precondition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// In a request: the object must be this one, and no other of its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// In a request: the object must not have changed since.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// RFC 3339, by the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
}

/// Who owns an object: the garbage collector deletes it when the owner is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl OwnerReference {
    pub fn to_pod(name: &str, uid: &str) -> Self {
        Self::to("Pod", name, uid)
    }

    pub fn to_node(name: &str, uid: &str) -> Self {
        Self::to("Node", name, uid)
    }

    fn to(kind: &str, name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }
}
