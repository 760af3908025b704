use std::sync::Arc;

use portway_model::crd::CoreCiliumEndpoint;
use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A CiliumEndpointSlice cilium.io/v2alpha1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumEndpointSlice {
    pub meta: Meta,
    /// The namespace of all its endpoints.
    pub of: Arc<str>,
    pub endpoints: Box<[CoreCiliumEndpoint]>,
}

impl Observable for CiliumEndpointSlice {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        // As agents read it.
        let namespace = if raw.namespace.is_empty() { "default" } else { &raw.namespace };
        Ok(Self { meta: raw.metadata.into(), of: namespace.into(), endpoints: raw.endpoints.into() })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMeta,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    endpoints: Vec<CoreCiliumEndpoint>,
}
