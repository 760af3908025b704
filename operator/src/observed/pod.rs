use std::collections::BTreeMap;
use std::sync::Arc;

use portway_model::k8s::seconds_of;
use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A Pod v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub meta: Meta,
    /// Sorted by their keys.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// `spec.serviceAccountName`.
    pub service_account: Arc<str>,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// `spec.hostNetwork`.
    pub is_host_network: bool,
    pub phase: Phase,
    /// Since when condition `Ready` is `True`, seconds since 1970; since it was made where that is not said.
    pub ready: Option<i64>,
    /// It has a `status.podIP`.
    pub has_address: bool,
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// `Unknown`, or a word of later versions.
    #[serde(other)]
    Unknown,
}

impl Phase {
    /// It will never run again.
    pub const fn is_over(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

impl Observable for Pod {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let labels = raw.metadata.labels.unwrap_or_default().into_iter();
        let meta = Meta::from(raw.metadata.meta);
        let mut conditions = raw.status.conditions.iter();
        let ready = conditions.find(|of| of.kind == "Ready" && of.status == "True");
        Ok(Self {
            labels: labels.map(|(key, value)| (key.into(), value.into())).collect(),
            ready: ready.map(|of| of.since.as_deref().and_then(seconds_of).unwrap_or(meta.created)),
            meta,
            service_account: raw.spec.service_account_name.into(),
            node: raw.spec.node_name.filter(|name| !name.is_empty()).map(Into::into),
            is_host_network: raw.spec.host_network,
            phase: raw.status.phase,
            has_address: !raw.status.pod_ip.is_empty(),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMetadata,
    #[serde(default)]
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawMetadata {
    #[serde(flatten)]
    meta: RawMeta,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    service_account_name: String,
    node_name: Option<String>,
    host_network: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    phase: Phase,
    conditions: Vec<RawCondition>,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(rename = "lastTransitionTime")]
    since: Option<String>,
}
