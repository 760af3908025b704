use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// Annotation of namespaces whose endpoints go before others', and its value (Cilium:
/// operator/pkg/ciliumendpointslice/namespace.go).
const PRIORITY: (&str, &str) = ("cilium.io/ces-namespace", "priority");

/// A Namespace v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub meta: Meta,
    /// Sorted by their keys.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// Its endpoints go before others'.
    pub has_priority: bool,
}

impl Observable for Namespace {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let labels = raw.metadata.labels.unwrap_or_default().into_iter();
        let annotations = raw.metadata.annotations.unwrap_or_default();
        Ok(Self {
            labels: labels.map(|(key, value)| (key.into(), value.into())).collect(),
            has_priority: annotations.get(PRIORITY.0).is_some_and(|value| value == PRIORITY.1),
            meta: raw.metadata.meta.into(),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMetadata,
}

#[derive(Deserialize)]
struct RawMetadata {
    #[serde(flatten)]
    meta: RawMeta,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}
