use std::collections::BTreeMap;
use std::sync::Arc;

use portway_model::crd::{CoreCiliumEndpoint, EndpointStatus, OwnerReference};
use serde::Deserialize;

use super::meta::RawMeta;
use super::{Meta, Observable};

/// A CiliumEndpoint cilium.io/v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumEndpoint {
    pub meta: Meta,
    /// Of the Pod among `metadata.ownerReferences`; "" where there is none.
    pub pod_uid: Arc<str>,
    /// It has owners, and no Pod among them: it is not a pod's.
    pub is_others: bool,
    /// What others need of it, as a CiliumEndpointSlice has it.
    pub core: CoreCiliumEndpoint,
}

impl Observable for CiliumEndpoint {
    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: Raw = serde_json::from_str(text)?;
        let owners = &raw.metadata.owner_references;
        let pod = owners.iter().find(|owner| owner.kind == "Pod");
        let is_others = pod.is_none() && !owners.is_empty();
        let pod_uid = pod.map_or("", |owner| &owner.uid).into();
        let meta = Meta::from(raw.metadata.meta);
        let EndpointStatus { identity, networking, encryption, named_ports, service_account, .. } =
            raw.status;
        let core = CoreCiliumEndpoint {
            name: meta.name.to_string(),
            id: identity.map_or(0, |identity| identity.id),
            networking,
            encryption,
            named_ports,
            service_account,
            created: (meta.created != 0).then_some(meta.created),
            others: BTreeMap::new(),
        };
        Ok(Self { meta, pod_uid, is_others, core })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[derive(Deserialize)]
struct Raw {
    metadata: RawMetadata,
    #[serde(default)]
    status: EndpointStatus,
}

#[derive(Deserialize)]
struct RawMetadata {
    #[serde(flatten)]
    meta: RawMeta,
    #[serde(default, rename = "ownerReferences")]
    owner_references: Vec<OwnerReference>,
}
