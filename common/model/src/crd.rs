//! The objects that agents and operator write to the API server, and their CustomResourceDefinitions.
//!
//! Kinds, fields and columns are Cilium's, so that objects and definitions of a cluster that had it stay good. Three of
//! the four kinds have no `spec`, which derives for custom resources want: an object is a plain struct here, and
//! [`definitions`] writes what `deploy/crds` has (`cargo xtask crds`).
//!
//! What is *read* of these kinds is in [`crate::k8s`], and small: there is one CiliumEndpoint for each pod of the cluster.

mod definition;
mod endpoint;
mod endpoint_slice;
mod identity;
mod metadata;
mod node;

pub use definition::{Column, Definition, Resource, SCHEMA_VERSION, SCHEMA_VERSION_LABEL, definitions};
pub use endpoint::{
    AddressPair, CiliumEndpoint, Encryption, EndpointIdentity, EndpointNetworking, EndpointStatus,
    ExternalIdentifiers, NamedPort,
};
pub use endpoint_slice::{CiliumEndpointSlice, CoreCiliumEndpoint};
pub use identity::CiliumIdentity;
pub use metadata::{ObjectMeta, OwnerReference};
pub use node::{CiliumNode, HealthAddresses, NodeAddress, NodeIpam, NodeSpec};
