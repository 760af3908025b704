//! CiliumIdentity, CiliumEndpoint and CiliumEndpointSlice.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::Deserializer;

use super::{List, Metadata, OnlyObjects, Text, only_from_objects};

/// With more than [`Metadata`] has; of the kinds of this file alone, for each field costs every object of a kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumMetadata<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) uid: Option<Text<'a>>,
    #[serde(borrow)]
    creation_timestamp: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) resource_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) owner_references: List<OwnerReference<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) annotations: Option<CiliumAnnotations<'a>>,
}

impl<'a> CiliumMetadata<'a> {
    /// What every kind has, taken out.
    pub(in crate::k8s) fn take_common(&mut self) -> Metadata<'a> {
        Metadata {
            name: self.name.take(),
            namespace: self.namespace.take(),
            creation_timestamp: self.creation_timestamp.take(),
            ..Metadata::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumAnnotations<'a> {
    #[serde(borrow, rename = "io.cilium.heartbeat")]
    pub(in crate::k8s) heartbeat: Option<Text<'a>>,
    #[serde(borrow, rename = "portway.io/claim")]
    pub(in crate::k8s) claim: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct OwnerReference<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) uid: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumIdentity<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<CiliumMetadata<'a>>,
    #[serde(borrow, rename = "security-labels")]
    pub(in crate::k8s) security_labels: Option<BTreeMap<String, Text<'a>>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumEndpoint<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<CiliumMetadata<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) status: Option<CiliumEndpointStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumEndpointStatus<'a> {
    pub(in crate::k8s) id: Option<i64>,
    #[serde(borrow)]
    pub(in crate::k8s) state: Option<Text<'a>>,
    pub(in crate::k8s) identity: Option<CiliumEndpointIdentity>,
    #[serde(borrow)]
    pub(in crate::k8s) networking: Option<CiliumEndpointNetworking<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumEndpointIdentity {
    pub(in crate::k8s) id: Option<i64>,
}

/// Of a CiliumEndpoint and of an element of a CiliumEndpointSlice.
#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumEndpointNetworking<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) addressing: List<AddressPair<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) node: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct AddressPair<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) ipv4: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) ipv6: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumEndpointSlice<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<CiliumMetadata<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) namespace: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) endpoints: List<CoreEndpoint<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CoreEndpoint<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) name: Option<Text<'a>>,
    /// Of the identity, not of the endpoint.
    pub(in crate::k8s) id: Option<i64>,
    /// Seconds since 1970; Portway's alone.
    pub(in crate::k8s) created: Option<i64>,
    #[serde(borrow)]
    pub(in crate::k8s) networking: Option<CiliumEndpointNetworking<'a>>,
}

only_from_objects! {
    CiliumMetadata<'a>, CiliumAnnotations<'a>, OwnerReference<'a>, CiliumIdentity<'a>, CiliumEndpoint<'a>, CiliumEndpointStatus<'a>, CiliumEndpointIdentity,
    CiliumEndpointNetworking<'a>, AddressPair<'a>, CiliumEndpointSlice<'a>, CoreEndpoint<'a>
}
