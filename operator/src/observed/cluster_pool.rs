use std::collections::BTreeMap;

use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// The one ConfigMap of the operator's namespace that says which node has which pod CIDRs: whoever gives a CIDR changes
/// it by compare-and-swap first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPool {
    pub meta: Meta,
    /// `data`.
    pub data: BTreeMap<String, String>,
}

impl Observable for ClusterPool {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        Ok(Self { meta: raw.metadata.into(), data: raw.data.unwrap_or_default() })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMeta,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}
