use std::sync::Arc;

use portway_datapath::{Addr, Family, NumericIdentity, Port, Protocol};

use super::{Namespace, ObjectKind, Uid};
use crate::labels::Labels;
use crate::node::Prefix;

/// Which object an [`Event::Delete`] means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    /// `namespace/name`; a Node's and a CiliumNode's is its name.
    pub name: Arc<str>,
    /// A pod's UID, "" where it has none and for other kinds. A delete that names another UID than the pod of this
    /// name has is late news of its predecessor, and changes nothing.
    pub uid: Arc<str>,
}

/// An object, validated and with the API's defaults. Cheap to clone; equal if nothing that Portway reads differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Pod(Arc<Pod>),
    Namespace(Arc<Namespace>),
    Node(Arc<Node>),
    CiliumNode(Arc<CiliumNode>),
    CiliumIdentity(Arc<CiliumIdentity>),
    CiliumEndpoint(Arc<CiliumEndpoint>),
    CiliumEndpointSlice(Arc<CiliumEndpointSlice>),
}

impl Object {
    pub const fn kind(&self) -> ObjectKind {
        match self {
            Self::Service(_) => ObjectKind::Service,
            Self::EndpointSlice(_) => ObjectKind::EndpointSlice,
            Self::Pod(_) => ObjectKind::Pod,
            Self::Namespace(_) => ObjectKind::Namespace,
            Self::Node(_) => ObjectKind::Node,
            Self::CiliumNode(_) => ObjectKind::CiliumNode,
            Self::CiliumIdentity(_) => ObjectKind::CiliumIdentity,
            Self::CiliumEndpoint(_) => ObjectKind::CiliumEndpoint,
            Self::CiliumEndpointSlice(_) => ObjectKind::CiliumEndpointSlice,
        }
    }

    pub fn into_identity(self) -> Option<Arc<CiliumIdentity>> {
        match self {
            Self::CiliumIdentity(identity) => Some(identity),
            Self::Service(_)
            | Self::EndpointSlice(_)
            | Self::Pod(_)
            | Self::Namespace(_)
            | Self::Node(_)
            | Self::CiliumNode(_)
            | Self::CiliumEndpoint(_)
            | Self::CiliumEndpointSlice(_) => None,
        }
    }

    /// `namespace/name`; a Node's is its name.
    pub fn name(&self) -> &Arc<str> {
        match self {
            Self::Service(service) => &service.name,
            Self::EndpointSlice(slice) => &slice.name,
            Self::Pod(pod) => &pod.name,
            Self::Namespace(namespace) => &namespace.name,
            Self::Node(node) => &node.name,
            Self::CiliumNode(node) => &node.name,
            Self::CiliumIdentity(identity) => &identity.name,
            Self::CiliumEndpoint(endpoint) => &endpoint.name,
            Self::CiliumEndpointSlice(slice) => &slice.name,
        }
    }

    pub fn key(&self) -> ObjectKey {
        let uid = match self {
            Self::Pod(pod) => Arc::clone(&pod.uid),
            Self::Service(_)
            | Self::EndpointSlice(_)
            | Self::Namespace(_)
            | Self::Node(_)
            | Self::CiliumNode(_)
            | Self::CiliumIdentity(_)
            | Self::CiliumEndpoint(_)
            | Self::CiliumEndpointSlice(_) => Arc::from(""),
        };
        ObjectKey { kind: self.kind(), name: Arc::clone(self.name()), uid }
    }
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Apply(Object),
    Delete(ObjectKey),
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// `spec.loadBalancerSourceRanges`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRanges {
    /// The field is absent or empty: everybody may come.
    Any,
    /// These prefixes of both families: (address with its host bits zero, bits counted in [`Addr`]: IPv4 has 96
    /// more). Sorted, without duplicates. Empty if the field had no usable one: nobody may come.
    Only(Box<[(Addr, u8)]>),
}

/// A Service v1. Headless services and those of type ExternalName have neither addresses nor ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// Label `service.kubernetes.io/service-proxy-name`.
    pub proxy_name: Option<Arc<str>>,
    /// Label `service.kubernetes.io/headless` is present.
    pub labelled_headless: bool,
    pub service_type: ServiceType,
    /// At most one of each family.
    pub cluster_ips: Box<[Addr]>,
    /// Of families that have a cluster IP.
    pub external_ips: Box<[Addr]>,
    /// `status.loadBalancer.ingress[].ip` where `ipMode` is absent or VIP; of families that have a cluster IP.
    pub ingress_ips: Box<[Addr]>,
    pub source_ranges: SourceRanges,
    /// Names are unique for each protocol, and so are ports.
    pub ports: Box<[ServicePort]>,
    /// Session affinity in seconds; 0 is none.
    pub affinity_seconds: u32,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// Annotation `portway.io/keep-stale-sockets`: connections to backends that are gone are not closed.
    pub keep_stale_sockets: bool,
}

/// An element of a Service's `spec.ports`. `targetPort` is not read: EndpointSlices carry its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// "" for an unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
    pub node_port: Option<Port>,
}

/// An EndpointSlice discovery.k8s.io/v1 of IPv4 or IPv6 addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// `namespace/name` of the Service, from the label `kubernetes.io/service-name`.
    pub service: Arc<str>,
    /// Label `service.kubernetes.io/service-proxy-name`.
    pub proxy_name: Option<Arc<str>>,
    /// Label `service.kubernetes.io/headless` is present.
    pub labelled_headless: bool,
    pub family: Family,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[Endpoint]>,
}

/// An element of an EndpointSlice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// "" for an unnamed port. It answers the service port of this name and protocol.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: Port,
}

/// An element of an EndpointSlice's `endpoints`.
///
/// Conditions that are absent mean what the API says: ready, serving, not terminating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The first of `addresses`; no semantics are defined for others (EndpointSlice API).
    pub addr: Addr,
    pub node: Option<Arc<str>>,
    pub hints: Option<Box<Hints>>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

/// `hints`: who should use an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hints {
    pub zones: Box<[Arc<str>]>,
    pub nodes: Box<[Arc<str>]>,
}

/// A Pod v1, as far as its host ports, its own network and its identity are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// "" where it has none.
    pub uid: Arc<str>,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// Its phase is neither Succeeded nor Failed.
    pub live: bool,
    /// `status.podIPs`, at most one of each family.
    pub ips: Box<[Addr]>,
    /// Of containers and of restartable init containers. Empty for a pod in the node's network namespace.
    pub host_ports: Box<[HostPort]>,
    /// Sorted by their keys.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
    /// `spec.serviceAccountName`.
    pub service_account: Option<Arc<str>>,
    /// Annotations of Portway's, with their names, that say how its network is.
    pub annotations: Box<[(&'static str, Arc<str>)]>,
}

/// An element of a container's `ports` that has a `hostPort`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// "" for an unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub host_port: Port,
    pub container_port: Port,
    /// `hostIP`. `None`: every address of the node, of the families that the pod has. `0.0.0.0` and `::` are every
    /// address of one family.
    pub host_ip: Option<Addr>,
}

/// A Node v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    /// "" where it has none.
    pub uid: Arc<str>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// It is being deleted, or has the taint `ToBeDeletedByClusterAutoscaler`: load balancers shall send it nothing new.
    pub leaving: bool,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// `status.addresses` of type InternalIP and ExternalIP.
    pub addresses: Box<[NodeAddress]>,
    /// `spec.podCIDRs`, or `spec.podCIDR`.
    pub pod_cidrs: Box<[Prefix]>,
}

/// An address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// Reached from outside the cluster's network: an ExternalIP.
    pub external: bool,
    pub addr: Addr,
}

/// A CiliumNode cilium.io/v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumNode {
    pub name: Arc<str>,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// `spec.addresses` of type InternalIP and ExternalIP.
    pub addresses: Box<[NodeAddress]>,
    /// `spec.ipam.podCIDRs`.
    pub pod_cidrs: Box<[Prefix]>,
    /// `spec.health`.
    pub health: Box<[Addr]>,
}

/// A CiliumIdentity cilium.io/v2: which labels a number means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumIdentity {
    /// The number in decimal.
    pub name: Arc<str>,
    pub number: NumericIdentity,
    pub uid: Uid,
    /// `metadata.resourceVersion`, for preconditions; 0 where it has none.
    pub version: u64,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// `security-labels`.
    pub labels: Labels,
    /// Annotation `io.cilium.heartbeat`: it is going to be deleted unless somebody uses it.
    pub heartbeat: Option<Arc<str>>,
    /// Annotation `portway.io/claim`: it must not be used yet.
    pub claim: Option<Arc<str>>,
}

/// A CiliumEndpoint cilium.io/v2: who has an address. There is one for each pod of the cluster, so it is small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumEndpoint {
    /// `namespace/name`, which are the pod's.
    pub name: Arc<str>,
    pub uid: Uid,
    /// Of the Pod among `metadata.ownerReferences`.
    pub pod_uid: Uid,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    /// `status.networking`.
    pub addresses: EndpointAddresses,
    /// `status.identity.id`; unknown where there is none yet.
    pub identity: NumericIdentity,
    /// `status.id`, which is the node's own number of it; 0 where it has none.
    pub endpoint_id: u16,
    /// `status.state` is `ready`.
    pub is_ready: bool,
}

/// Where an endpoint is: `networking` of a CiliumEndpoint or of an element of a CiliumEndpointSlice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointAddresses {
    pub ipv4: Option<Addr>,
    pub ipv6: Option<Addr>,
    /// The address of its node.
    pub node: Option<Addr>,
}

impl EndpointAddresses {
    /// The endpoint's own.
    pub fn iter(&self) -> impl Iterator<Item = Addr> {
        self.ipv4.into_iter().chain(self.ipv6)
    }
}

/// A CiliumEndpointSlice cilium.io/v2alpha1: CiliumEndpoints of a namespace, gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CiliumEndpointSlice {
    pub name: Arc<str>,
    /// `metadata.creationTimestamp`, seconds since 1970.
    pub created: Option<i64>,
    pub endpoints: Box<[CoreEndpoint]>,
}

/// An element of a CiliumEndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreEndpoint {
    /// `namespace/name`, which are the pod's.
    pub name: Arc<str>,
    /// Unknown where there is none yet.
    pub identity: NumericIdentity,
    pub addresses: EndpointAddresses,
    /// When the CiliumEndpoint was made, in seconds since 1970, where Portway's operator wrote the slice.
    pub created: Option<i64>,
}
