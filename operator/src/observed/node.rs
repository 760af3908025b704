use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A Node v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub meta: Meta,
    /// `status.addresses`.
    pub addresses: Box<[NodeAddress]>,
    /// `spec.taints`.
    pub taints: Box<[Taint]>,
    /// Condition `Ready` is `True`: its kubelet tells of its pods.
    pub is_ready: bool,
    /// Condition `NetworkUnavailable`.
    pub network_unavailable: Option<Condition>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Box<[Arc<str>]>,
}

/// An element of `status.addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others.
    #[serde(rename = "type")]
    pub address_type: Arc<str>,
    pub address: Arc<str>,
}

/// An element of `spec.taints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    pub key: Arc<str>,
    #[serde(default, skip_serializing_if = "is_empty")]
    pub value: Arc<str>,
    #[serde(default)]
    pub effect: Arc<str>,
    #[serde(default, rename = "timeAdded", skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Arc<str>>,
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

/// An element of `status.conditions`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Condition {
    #[serde(rename = "type")]
    pub condition_type: Arc<str>,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: Arc<str>,
    #[serde(default)]
    pub reason: Arc<str>,
    #[serde(default)]
    pub message: Arc<str>,
}

impl Observable for Node {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let mut conditions = raw.status.conditions.into_iter();
        let is_ready =
            |condition: &Condition| &*condition.condition_type == "Ready" && &*condition.status == "True";
        Ok(Self {
            meta: raw.metadata.into(),
            addresses: raw.status.addresses.into(),
            taints: raw.spec.taints.into(),
            is_ready: conditions.as_slice().iter().any(is_ready),
            network_unavailable: conditions
                .find(|condition| &*condition.condition_type == "NetworkUnavailable"),
            pod_cidrs: raw.spec.pod_cidrs.into(),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMeta,
    #[serde(default)]
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    taints: Vec<Taint>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<Arc<str>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    addresses: Vec<NodeAddress>,
    conditions: Vec<Condition>,
}
