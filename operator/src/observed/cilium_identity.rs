use std::sync::Arc;

use portway_model::k8s::{self, cilium_identity};
use serde::Deserialize;
use serde::de::Error as _;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A CiliumIdentity cilium.io/v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumIdentity {
    pub meta: Meta,
    /// As claims and their garbage collection know it.
    pub identity: Arc<k8s::CiliumIdentity>,
}

impl Observable for CiliumIdentity {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let identity = cilium_identity(text).map_err(|rejects| {
            let problems: Vec<_> = rejects.iter().map(ToString::to_string).collect();
            serde_json::Error::custom(problems.join("; "))
        })?;
        Ok(Self { meta: raw.metadata.into(), identity })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMeta,
}
