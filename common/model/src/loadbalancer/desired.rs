use std::collections::BTreeSet;
use std::sync::Arc;

use portway_datapath::{Addr, Family, FrontendKey, FrontendKind, Port, Protocol, ServiceFlags};

/// Who a service port belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A Service, `namespace/name`.
    Service(Arc<str>),
    /// A pod with host ports, `namespace/name` and UID. The UID keeps a pod apart from its successor of the same name.
    Pod { name: Arc<str>, uid: Arc<str>, container_port: u16 },
}

/// A service port of one family: what has one service index, one affinity and one set of backends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortKey {
    pub owner: Owner,
    /// "" for an unnamed port.
    pub port_name: Arc<str>,
    pub protocol: Protocol,
    pub family: Family,
}

impl ServicePortKey {
    /// `namespace/name` of the service or pod.
    pub fn service(&self) -> &str {
        match &self.owner {
            Owner::Service(name) | Owner::Pod { name, .. } => name,
        }
    }
}

/// What a service port should be on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    /// [`ServiceFlags::SOURCE_RANGES`] is set exactly when `source_ranges` is not empty.
    pub flags: ServiceFlags,
    /// 0 is none.
    pub affinity_seconds: u32,
    /// Prefixes of this family as (address, bits), bits counted in [`Addr`] (IPv4: 96 more). Host bits are zero.
    /// Sorted, without duplicates.
    pub source_ranges: Vec<(Addr, u8)>,
    /// In order of address and port, without duplicates; each is in at least one of the two sets.
    pub backends: Vec<DesiredBackend>,
    /// Traffic from outside the cluster can reach one of its frontends, so Maglev tables are of use.
    pub reached_from_outside: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DesiredBackend {
    pub addr: Addr,
    pub port: Port,
    /// In the set of the Cluster policy.
    pub cluster: bool,
    /// In the set of the Local policy.
    pub local: bool,
}

/// Who a frontend belongs to after clashes were settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredFrontend {
    pub service: ServicePortKey,
    pub kind: FrontendKind,
}

/// What may differ between what is wanted and what the maps hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    pub services: BTreeSet<ServicePortKey>,
    pub frontends: BTreeSet<FrontendKey>,
}

impl Dirty {
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.frontends.is_empty()
    }

    pub fn merge(&mut self, other: Self) {
        self.services.extend(other.services);
        self.frontends.extend(other.frontends);
    }
}

/// The wanted state, as the planner asks for it. [`Self::service`] costs the size of that service.
pub trait Desired {
    /// `None` where no such service port is wanted. One without backends is `Some`.
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService>;

    /// The owner of a frontend, which [`Self::service`] knows; `None` where nobody wants it.
    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend>;

    /// Every frontend that `key` owns after clashes were settled.
    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey>;

    /// Everything that is wanted, for a full comparison.
    fn everything(&self) -> Dirty;
}
