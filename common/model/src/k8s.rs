//! Kubernetes objects as Portway reads them: manifests and watch events in, validated objects and a list of what was
//! refused out.
//!
//! The types are our own and hold only what is used: Service, EndpointSlice, Pod (for host ports, its
//! network and its identity), Namespace (for its labels), Node (for its zone, addresses and pod CIDRs), CiliumNode, CiliumIdentity, CiliumEndpoint and
//! CiliumEndpointSlice. Other kinds are skipped, an object that does not say its kind is refused. The API server's defaults are
//! applied here. A value that cannot be used refuses the smallest part of its object that makes sense (one port, one
//! endpoint, one address) and is named by a [`Reject`]; the rest of the object lives.
//!
//! What a refused value falls back to: a traffic policy, an affinity or a timeout to the API's default; a creation
//! time to "unknown"; a source range to *nothing* — a Service that asked for ranges and has no usable one is open to
//! nobody, never to everybody.

mod cilium_endpoint;
mod cilium_endpoint_slice;
mod cilium_identity;
mod cilium_node;
mod decode;
mod document;
mod endpoint_slice;
mod field;
mod kind;
mod labels;
mod manifests;
mod names;
mod namespace;
mod node;
mod object;
mod pod;
mod raw;
mod reject;
mod service;
mod source_ranges;
mod time;
mod uid;
mod yaml;

pub use decode::{Decoded, cilium_identity, decode};
pub use document::{Format, ManifestError};
pub use kind::ObjectKind;
pub use manifests::{Change, FileProblem, Manifests, Watched};
pub use names::Names;
pub use namespace::Namespace;
pub use object::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumNode, CoreEndpoint, Endpoint,
    EndpointAddresses, EndpointSlice, Event, Hints, HostPort, Node, NodeAddress, Object, ObjectKey, Pod,
    Service, ServicePort, ServiceType, SlicePort, SourceRanges,
};
pub use pod::{MIRROR, SOCKET_LB};
pub use reject::Reject;
pub use time::{parse as seconds_of, write as time_of};
pub use uid::Uid;
