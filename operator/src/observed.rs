//! The cluster as the operator's watches tell it: as much of each object as its controllers need.

mod cilium_endpoint;
mod cilium_endpoint_slice;
mod cilium_identity;
mod cilium_node;
mod cluster_pool;
mod meta;
mod namespace;
mod node;
mod pod;
mod store;

pub use cilium_endpoint::CiliumEndpoint;
pub use cilium_endpoint_slice::CiliumEndpointSlice;
pub use cilium_identity::CiliumIdentity;
pub use cilium_node::CiliumNode;
pub use cluster_pool::ClusterPool;
pub use meta::Meta;
pub use namespace::Namespace;
pub use node::{Condition, Node, NodeAddress, Taint};
pub use pod::{Phase, Pod};
pub use store::{Change, Misfit, Observable, Store};

use std::collections::BTreeMap;
use std::time::Duration;

use portway_runtime::kubernetes::WatchEvent;
use serde::Serialize;

use crate::controller::Now;

/// A kind of which nothing was heard for longer may be other than is known. The API server sends a bookmark each minute.
pub const STALE: Duration = Duration::from_secs(90);

/// The kinds that the operator reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    Pod,
    Namespace,
    Node,
    CiliumNode,
    CiliumIdentity,
    CiliumEndpoint,
    CiliumEndpointSlice,
    /// The ConfigMap of that name in the operator's namespace, and no other.
    ClusterPool,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Pod,
        Self::Namespace,
        Self::Node,
        Self::CiliumNode,
        Self::CiliumIdentity,
        Self::CiliumEndpoint,
        Self::CiliumEndpointSlice,
        Self::ClusterPool,
    ];

    /// As `kind:` says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::CiliumNode => "CiliumNode",
            Self::CiliumIdentity => "CiliumIdentity",
            Self::CiliumEndpoint => "CiliumEndpoint",
            Self::CiliumEndpointSlice => "CiliumEndpointSlice",
            Self::ClusterPool => "ConfigMap",
        }
    }

    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::Namespace | Self::Node | Self::ClusterPool => "v1",
            Self::CiliumNode | Self::CiliumIdentity | Self::CiliumEndpoint => "cilium.io/v2",
            Self::CiliumEndpointSlice => "cilium.io/v2alpha1",
        }
    }

    /// The path of an object, or with an empty name of all that are beside it. `object` is `namespace/name`, or the name.
    pub fn path(self, object: &str) -> String {
        let root = match self.api_version() {
            "v1" => "/api/v1".to_owned(),
            version => format!("/apis/{version}"),
        };
        let plural = match self {
            Self::Pod => "pods",
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::CiliumNode => "ciliumnodes",
            Self::CiliumIdentity => "ciliumidentities",
            Self::CiliumEndpoint => "ciliumendpoints",
            Self::CiliumEndpointSlice => "ciliumendpointslices",
            Self::ClusterPool => "configmaps",
        };
        let (namespace, name) = object.split_once('/').unwrap_or(("", object));
        let namespace = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
        let name = if name.is_empty() { String::new() } else { format!("/{name}") };
        format!("{root}{namespace}/{plural}{name}")
    }
}

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub struct Observed {
    pub pods: Store<Pod>,
    pub namespaces: Store<Namespace>,
    pub nodes: Store<Node>,
    pub cilium_nodes: Store<CiliumNode>,
    pub identities: Store<CiliumIdentity>,
    pub endpoints: Store<CiliumEndpoint>,
    pub slices: Store<CiliumEndpointSlice>,
    pub pool: Store<ClusterPool>,
    /// When the watches were last told something, by the monotonic clock.
    heard: BTreeMap<Kind, Duration>,
}

impl Observed {
    /// Takes what the watch of a kind told.
    pub fn take(&mut self, kind: Kind, event: WatchEvent) {
        match kind {
            Kind::Pod => drop(self.pods.take(event)),
            Kind::Namespace => drop(self.namespaces.take(event)),
            Kind::Node => drop(self.nodes.take(event)),
            Kind::CiliumNode => drop(self.cilium_nodes.take(event)),
            Kind::CiliumIdentity => drop(self.identities.take(event)),
            Kind::CiliumEndpoint => drop(self.endpoints.take(event)),
            Kind::CiliumEndpointSlice => drop(self.slices.take(event)),
            Kind::ClusterPool => drop(self.pool.take(event)),
        }
    }

    /// The watch of a kind was told something at `at`, by the monotonic clock. True if that makes the kind fresh, which
    /// calls for a turn of all that look at it.
    pub fn hear(&mut self, kind: Kind, at: Duration, now: Now) -> bool {
        let was_fresh = self.is_fresh(kind, now);
        self.heard.insert(kind, at);
        !was_fresh && self.is_fresh(kind, now)
    }

    /// Whether what is known of the kind is what is: its watch has told everything and lives. Only then does it mean
    /// anything that an object is not known, and only by its name: [`Store::is_there`], [`Store::misfits`].
    pub fn is_fresh(&self, kind: Kind, now: Now) -> bool {
        let heard = self.heard.get(&kind);
        self.is_synced(kind) && heard.is_some_and(|heard| now.monotonic.saturating_sub(*heard) <= STALE)
    }

    /// Whether all of them are.
    pub fn are_fresh(&self, kinds: &[Kind], now: Now) -> bool {
        kinds.iter().all(|kind| self.is_fresh(*kind, now))
    }

    /// Of a cluster in which nothing is, heard of for ever.
    #[cfg(test)]
    pub(crate) fn fresh() -> Self {
        let mut observed =
            Self { heard: Kind::ALL.map(|kind| (kind, Duration::MAX)).into(), ..Self::default() };
        for kind in Kind::ALL {
            observed.take(kind, WatchEvent::ListBegins);
            observed.take(kind, WatchEvent::ListEnds { version: 0 });
        }
        observed
    }

    /// All objects of the kind were told once, and the API server still knows it.
    pub const fn is_synced(&self, kind: Kind) -> bool {
        match kind {
            Kind::Pod => self.pods.is_synced(),
            Kind::Namespace => self.namespaces.is_synced(),
            Kind::Node => self.nodes.is_synced(),
            Kind::CiliumNode => self.cilium_nodes.is_synced(),
            Kind::CiliumIdentity => self.identities.is_synced(),
            Kind::CiliumEndpoint => self.endpoints.is_synced(),
            Kind::CiliumEndpointSlice => self.slices.is_synced(),
            Kind::ClusterPool => self.pool.is_synced(),
        }
    }

    /// The newest version that was told of the kind.
    pub const fn version(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Pod => self.pods.version(),
            Kind::Namespace => self.namespaces.version(),
            Kind::Node => self.nodes.version(),
            Kind::CiliumNode => self.cilium_nodes.version(),
            Kind::CiliumIdentity => self.identities.version(),
            Kind::CiliumEndpoint => self.endpoints.version(),
            Kind::CiliumEndpointSlice => self.slices.version(),
            Kind::ClusterPool => self.pool.version(),
        }
    }

    /// What of an object's metadata is known; `object` is `namespace/name`, or the name.
    pub fn meta(&self, kind: Kind, object: &str) -> Option<&Meta> {
        match kind {
            Kind::Pod => self.pods.get(object).map(|found| found.meta()),
            Kind::Namespace => self.namespaces.get(object).map(|found| found.meta()),
            Kind::Node => self.nodes.get(object).map(|found| found.meta()),
            Kind::CiliumNode => self.cilium_nodes.get(object).map(|found| found.meta()),
            Kind::CiliumIdentity => self.identities.get(object).map(|found| found.meta()),
            Kind::CiliumEndpoint => self.endpoints.get(object).map(|found| found.meta()),
            Kind::CiliumEndpointSlice => self.slices.get(object).map(|found| found.meta()),
            Kind::ClusterPool => self.pool.get(object).map(|found| found.meta()),
        }
    }

    /// Objects of the kind that can be read.
    pub fn len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pod => self.pods.len(),
            Kind::Namespace => self.namespaces.len(),
            Kind::Node => self.nodes.len(),
            Kind::CiliumNode => self.cilium_nodes.len(),
            Kind::CiliumIdentity => self.identities.len(),
            Kind::CiliumEndpoint => self.endpoints.len(),
            Kind::CiliumEndpointSlice => self.slices.len(),
            Kind::ClusterPool => self.pool.len(),
        }
    }

    /// Objects of the kind that cannot be read: they are there, and nothing is known of them.
    pub fn misfits(&self, kind: Kind) -> Vec<&Misfit> {
        match kind {
            Kind::Pod => self.pods.misfits().collect(),
            Kind::Namespace => self.namespaces.misfits().collect(),
            Kind::Node => self.nodes.misfits().collect(),
            Kind::CiliumNode => self.cilium_nodes.misfits().collect(),
            Kind::CiliumIdentity => self.identities.misfits().collect(),
            Kind::CiliumEndpoint => self.endpoints.misfits().collect(),
            Kind::CiliumEndpointSlice => self.slices.misfits().collect(),
            Kind::ClusterPool => self.pool.misfits().collect(),
        }
    }

    /// What is known of all objects of the kind, in the order of their names.
    pub fn metas(&self, kind: Kind) -> Vec<&Meta> {
        match kind {
            Kind::Pod => self.pods.iter().map(|found| found.meta()).collect(),
            Kind::Namespace => self.namespaces.iter().map(|found| found.meta()).collect(),
            Kind::Node => self.nodes.iter().map(|found| found.meta()).collect(),
            Kind::CiliumNode => self.cilium_nodes.iter().map(|found| found.meta()).collect(),
            Kind::CiliumIdentity => self.identities.iter().map(|found| found.meta()).collect(),
            Kind::CiliumEndpoint => self.endpoints.iter().map(|found| found.meta()).collect(),
            Kind::CiliumEndpointSlice => self.slices.iter().map(|found| found.meta()).collect(),
            Kind::ClusterPool => self.pool.iter().map(|found| found.meta()).collect(),
        }
    }
}
