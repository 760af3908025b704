use std::fmt;

use portway_datapath::layout::{self as names, PodSizes};
use portway_datapath::{
    Addr, CpuTraffic, DeviceValue, EndpointPolicy, EndpointValue, FlowKey, FlowValue, FragmentKey,
    FragmentValue, IpcacheValue, NatKey, NatValue, NetnsOptions, NodeNetwork, Reason,
};

use crate::maps::layout::{AnyMap, MMAPABLE, MapKind, MapLayout, NO_PREALLOC};

/// A map of the pod network by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodMapId {
    Endpoints,
    EndpointPolicy,
    /// Read by the socket programs too.
    Netns,
    Ipcache,
    Conntrack,
    ConntrackNew,
    Nat,
    NatNew,
    Fragments,
    Network,
    Devices,
    Traffic,
}

impl PodMapId {
    pub const ALL: [Self; 12] = [
        Self::Endpoints,
        Self::EndpointPolicy,
        Self::Netns,
        Self::Ipcache,
        Self::Conntrack,
        Self::ConntrackNew,
        Self::Nat,
        Self::NatNew,
        Self::Fragments,
        Self::Network,
        Self::Devices,
        Self::Traffic,
    ];

    /// The name of the map, of its pin and in the object.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endpoints => names::ENDPOINTS,
            Self::EndpointPolicy => names::ENDPOINT_POLICY,
            Self::Netns => names::NETNS,
            Self::Ipcache => names::IPCACHE,
            Self::Conntrack => names::CONNTRACK,
            Self::ConntrackNew => names::CONNTRACK_NEW,
            Self::Nat => names::NAT,
            Self::NatNew => names::NAT_NEW,
            Self::Fragments => names::FRAGMENTS,
            Self::Network => names::NETWORK,
            Self::Devices => names::DEVICES,
            Self::Traffic => names::TRAFFIC,
        }
    }

    /// The configuration key that makes room in this map; `None` where its size is fixed.
    pub const fn size_key(self) -> Option<&'static str> {
        match self {
            Self::Conntrack => Some("bpf-ct-global-tcp-max"),
            Self::Nat => Some("bpf-nat-global-max"),
            Self::Fragments => Some("bpf-fragments-map-max"),
            Self::Endpoints
            | Self::EndpointPolicy
            | Self::Netns
            | Self::Ipcache
            | Self::ConntrackNew
            | Self::NatNew
            | Self::Network
            | Self::Devices
            | Self::Traffic => None,
        }
    }

    /// What becomes of the entries where the map is made anew.
    pub(super) const fn content(self) -> Content {
        match self {
            Self::Endpoints
            | Self::EndpointPolicy
            | Self::Netns
            | Self::Ipcache
            | Self::Network
            | Self::Devices => Content::Written,
            Self::Conntrack | Self::ConntrackNew | Self::Nat | Self::NatNew => Content::Learned,
            Self::Fragments | Self::Traffic => Content::Passing,
        }
    }

    /// How the map looks with these sizes.
    pub const fn layout(self, sizes: &PodSizes) -> MapLayout {
        const INDEX: usize = size_of::<u32>();
        let (flow, nat) =
            ((size_of::<FlowKey>(), size_of::<FlowValue>()), (size_of::<NatKey>(), size_of::<NatValue>()));
        let (kind, (key, value), entries, flags) = match self {
            Self::Endpoints => {
                (MapKind::Hash, (size_of::<Addr>(), size_of::<EndpointValue>()), sizes.endpoints, NO_PREALLOC)
            }
            // The key is an endpoint's number.
            Self::EndpointPolicy => (
                MapKind::Array,
                (INDEX, size_of::<EndpointPolicy>()),
                names::ENDPOINT_POLICY_ENTRIES,
                MMAPABLE,
            ),
            // The key is a namespace's cookie.
            Self::Netns => {
                (MapKind::Hash, (size_of::<u64>(), size_of::<NetnsOptions>()), sizes.endpoints, NO_PREALLOC)
            }
            // The key is a prefix length and the bits.
            Self::Ipcache => (
                MapKind::LpmTrie,
                (INDEX + size_of::<Addr>(), size_of::<IpcacheValue>()),
                sizes.ipcache,
                NO_PREALLOC,
            ),
            Self::Conntrack => (MapKind::Hash, flow, sizes.conntrack, NO_PREALLOC),
            Self::Nat => (MapKind::Hash, nat, sizes.nat, NO_PREALLOC),
            // The oldest make room: whoever opens flows and never goes on with them costs himself alone.
            Self::ConntrackNew => (MapKind::LruHash, flow, sizes.conntrack_new, 0),
            Self::NatNew => (MapKind::LruHash, nat, sizes.nat_new, 0),
            Self::Fragments => {
                (MapKind::LruHash, (size_of::<FragmentKey>(), size_of::<FragmentValue>()), sizes.fragments, 0)
            }
            Self::Network => (MapKind::Array, (INDEX, size_of::<NodeNetwork>()), 1, MMAPABLE),
            // The key is an interface's number.
            Self::Devices => (MapKind::Hash, (INDEX, size_of::<DeviceValue>()), sizes.devices, NO_PREALLOC),
            Self::Traffic => {
                (MapKind::PerCpuArray, (INDEX, size_of::<CpuTraffic>()), Reason::ALL.len() as u32, 0)
            }
        };
        let id = AnyMap::Pod(self);
        MapLayout { id, kind, key_size: key as u32, value_size: value as u32, entries, flags }
    }
}

/// Who makes the entries of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The agent.
    Written,
    /// Programs.
    Learned,
    /// Programs, and nobody misses them.
    Passing,
}

impl fmt::Display for PodMapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
