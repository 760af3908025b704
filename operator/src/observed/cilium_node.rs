use std::sync::Arc;

use portway_model::crd::{NodeSpec, OwnerReference};
use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A CiliumNode cilium.io/v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumNode {
    pub meta: Meta,
    /// `metadata.ownerReferences`.
    pub owners: Box<[OwnerReference]>,
    /// [`Self::KEPT`] is `true`.
    pub is_kept: bool,
    pub spec: NodeSpec,
    /// [`Self::EPOCH`].
    pub pod_cidrs_epoch: Option<u64>,
    /// `status.ipam.operator-status.error`; "" where there is none.
    pub error: Arc<str>,
}

impl CiliumNode {
    /// An annotation: the epoch of the pool object ([`crate::ipam`]) that the CiliumNode was touched for.
    pub const EPOCH: &str = "portway.io/pod-cidrs-epoch";
    /// An annotation: somebody else deletes the CiliumNode (Cilium's operator/watchers/cilium_node_gc.go).
    pub const KEPT: &str = "cilium.io/do-not-gc";
}

impl Observable for CiliumNode {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let annotations = raw.metadata.annotations.unwrap_or_default();
        Ok(Self {
            owners: raw.metadata.owner_references.into(),
            is_kept: annotations.kept.is_some_and(|text| text.eq_ignore_ascii_case("true")),
            pod_cidrs_epoch: annotations.epoch.and_then(|text| text.parse().ok()),
            meta: raw.metadata.meta.into(),
            spec: raw.spec,
            error: raw.status.ipam.operator_status.error.into(),
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
    spec: NodeSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawMetadata {
    #[serde(flatten)]
    meta: RawMeta,
    #[serde(default, rename = "ownerReferences")]
    owner_references: Vec<OwnerReference>,
    #[serde(default)]
    annotations: Option<RawAnnotations>,
}

#[derive(Default, Deserialize)]
struct RawAnnotations {
    #[serde(default, rename = "portway.io/pod-cidrs-epoch")]
    epoch: Option<String>,
    #[serde(default, rename = "cilium.io/do-not-gc")]
    kept: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    ipam: RawIpam,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct RawIpam {
    operator_status: RawOperatorStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawOperatorStatus {
    error: String,
}
