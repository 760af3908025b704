//! What every map looks like: one description, used to create the maps and to check those that are there.

use std::fmt;

use portway_datapath::layout::{self as names, MAGLEV_SLOTS, Sizes};
use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendSlot, Counter, ExchangeKey, ExchangeValue, FrontendKey,
    FrontendValue, LocalAddress, NodeConfig, Record, ReplyKey, ReplyValue, ServiceIndex, ServiceName,
    ServiceWord, SocketTranslation, SourceRange,
};

use super::pods::PodMapId;
use super::sys::MapInfo;

/// `BPF_F_NO_PREALLOC` of include/uapi/linux/bpf.h: memory follows what is in the map.
pub(super) const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: user space writes through mapped memory.
pub(super) const MMAPABLE: u32 = 1 << 10;

/// A map by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapId {
    Frontends,
    Services,
    Runs,
    Maglev,
    Backends,
    SourceRanges,
    ServiceNames,
    Affinity,
    SockUdp,
    SockReplies,
    LocalAddresses,
    Config,
    Metrics,
    Sock,
}

/// A map of the services or of the pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnyMap {
    Service(MapId),
    Pod(PodMapId),
}

/// `enum bpf_map_type` as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
    LruHash = 9,
    LpmTrie = 11,
}

/// Type, sizes and flags of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLayout {
    pub id: AnyMap,
    pub kind: MapKind,
    /// Bytes.
    pub key_size: u32,
    /// Bytes; of one CPU's value.
    pub value_size: u32,
    pub entries: u32,
    /// `BPF_F_*` of include/uapi/linux/bpf.h.
    pub flags: u32,
}

/// What differs between a pinned map and the one that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutDifference {
    pub map: AnyMap,
    pub field: LayoutField,
    /// 0 for the type of something that is not a map.
    pub found: u32,
    pub wanted: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutField {
    Kind,
    KeySize,
    ValueSize,
    Entries,
    Flags,
}

impl MapId {
    pub const ALL: [Self; 14] = [
        Self::Frontends,
        Self::Services,
        Self::Runs,
        Self::Maglev,
        Self::Backends,
        Self::SourceRanges,
        Self::ServiceNames,
        Self::Affinity,
        Self::SockUdp,
        Self::SockReplies,
        Self::LocalAddresses,
        Self::Config,
        Self::Metrics,
        Self::Sock,
    ];

    /// The name of the map, of its pin and in the object. `bpftool map` shows its first 15 bytes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontends => names::FRONTENDS,
            Self::Services => names::SERVICES,
            Self::Runs => names::RUNS,
            Self::Maglev => names::MAGLEV,
            Self::Backends => names::BACKENDS,
            Self::SourceRanges => names::SOURCE_RANGES,
            Self::ServiceNames => names::SERVICE_NAMES,
            Self::Affinity => names::AFFINITY,
            Self::SockUdp => names::SOCK_UDP,
            Self::SockReplies => names::SOCK_REPLIES,
            Self::LocalAddresses => names::LOCAL_ADDRESSES,
            Self::Config => names::CONFIG,
            Self::Metrics => names::METRICS,
            Self::Sock => names::SOCK,
        }
    }

    /// Whether the map is one of those that only make sense together: they refer to each other by number.
    pub const fn is_published(self) -> bool {
        match self {
            Self::Frontends
            | Self::Services
            | Self::Runs
            | Self::Maglev
            | Self::Backends
            | Self::SourceRanges
            | Self::ServiceNames => true,
            Self::Affinity
            | Self::SockUdp
            | Self::SockReplies
            | Self::LocalAddresses
            | Self::Config
            | Self::Metrics
            | Self::Sock => false,
        }
    }

    /// The pin, and the name in the object, of an earlier agent's map of this sort: of those that programs fill.
    pub const fn earlier_name(self) -> Option<&'static str> {
        match self {
            Self::Sock => Some(names::SOCK_OLD),
            Self::SockUdp => Some(names::SOCK_UDP_OLD),
            Self::SockReplies => Some(names::SOCK_REPLIES_OLD),
            Self::Affinity => Some(names::AFFINITY_OLD),
            Self::Frontends
            | Self::Services
            | Self::Runs
            | Self::Maglev
            | Self::Backends
            | Self::SourceRanges
            | Self::ServiceNames
            | Self::LocalAddresses
            | Self::Config
            | Self::Metrics => None,
        }
    }

    /// Whether entries that programs fill name a service or a backend by its number.
    pub const fn refers_by_number(self) -> bool {
        matches!(self, Self::Sock | Self::SockUdp | Self::Affinity)
    }

    /// The configuration key that makes room in this map; `None` where its size is fixed.
    pub const fn size_key(self) -> Option<&'static str> {
        match self {
            Self::Frontends => Some("bpf-lb-map-max"),
            Self::Services | Self::ServiceNames => Some("bpf-lb-service-map-max"),
            Self::Runs | Self::Backends => Some("bpf-lb-service-backend-map-max"),
            Self::Maglev => Some("bpf-lb-maglev-map-max"),
            Self::SourceRanges => Some("bpf-lb-source-range-map-max"),
            Self::Affinity => Some("bpf-lb-affinity-map-max"),
            Self::Sock | Self::SockUdp | Self::SockReplies => Some("bpf-sock-rev-map-max"),
            Self::LocalAddresses | Self::Config | Self::Metrics => None,
        }
    }

    /// How the map looks with these sizes.
    pub const fn layout(self, sizes: &Sizes) -> MapLayout {
        const INDEX: usize = size_of::<u32>();
        let (kind, key, value, entries, flags) = match self {
            Self::Frontends => (
                MapKind::Hash,
                size_of::<FrontendKey>(),
                size_of::<FrontendValue>(),
                sizes.frontends,
                NO_PREALLOC,
            ),
            Self::Services => (MapKind::Array, INDEX, size_of::<ServiceWord>(), sizes.services, MMAPABLE),
            Self::Runs => (MapKind::Array, INDEX, size_of::<Record>(), sizes.runs, MMAPABLE),
            Self::Maglev => (
                MapKind::Array,
                INDEX,
                size_of::<[u16; MAGLEV_SLOTS as usize]>(),
                sizes.maglev.div_ceil(MAGLEV_SLOTS),
                MMAPABLE,
            ),
            Self::Backends => (MapKind::Array, INDEX, size_of::<BackendSlot>(), sizes.backends, MMAPABLE),
            // The key is a prefix length and the bits; that it exists says all, but there must be a value.
            Self::SourceRanges => (
                MapKind::LpmTrie,
                INDEX + size_of::<SourceRange>(),
                size_of::<u32>(),
                sizes.source_ranges,
                NO_PREALLOC,
            ),
            Self::ServiceNames => (
                MapKind::Hash,
                size_of::<ServiceIndex>(),
                size_of::<ServiceName>(),
                sizes.services,
                NO_PREALLOC,
            ),
            // Filled by programs, which can't wait for memory.
            Self::Affinity => {
                (MapKind::LruHash, size_of::<AffinityKey>(), size_of::<AffinityValue>(), sizes.affinity, 0)
            }
            Self::SockUdp => {
                (MapKind::LruHash, size_of::<ExchangeKey>(), size_of::<ExchangeValue>(), sizes.exchanges, 0)
            }
            Self::SockReplies => {
                (MapKind::LruHash, size_of::<ReplyKey>(), size_of::<ReplyValue>(), sizes.exchanges, 0)
            }
            Self::LocalAddresses => (
                MapKind::Hash,
                size_of::<Addr>(),
                size_of::<LocalAddress>(),
                sizes.local_addresses,
                NO_PREALLOC,
            ),
            Self::Config => (MapKind::Array, INDEX, size_of::<NodeConfig>(), 1, MMAPABLE),
            Self::Metrics => (MapKind::PerCpuArray, INDEX, size_of::<u64>(), Counter::ALL.len() as u32, 0),
            // The key is a socket's cookie.
            Self::Sock => {
                (MapKind::Hash, size_of::<u64>(), size_of::<SocketTranslation>(), sizes.sockets, NO_PREALLOC)
            }
        };
        let id = AnyMap::Service(self);
        MapLayout { id, kind, key_size: key as u32, value_size: value as u32, entries, flags }
    }
}

impl AnyMap {
    /// As [`MapId::size_key`].
    pub const fn size_key(self) -> Option<&'static str> {
        match self {
            Self::Service(map) => map.size_key(),
            Self::Pod(map) => map.size_key(),
        }
    }
}

impl From<MapId> for AnyMap {
    fn from(map: MapId) -> Self {
        Self::Service(map)
    }
}

impl From<PodMapId> for AnyMap {
    fn from(map: PodMapId) -> Self {
        Self::Pod(map)
    }
}

impl fmt::Display for AnyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(map) => map.fmt(f),
            Self::Pod(map) => map.fmt(f),
        }
    }
}

impl MapLayout {
    pub(super) const fn info(&self) -> MapInfo {
        MapInfo {
            kind: self.kind as u32,
            key_size: self.key_size,
            value_size: self.value_size,
            entries: self.entries,
            flags: self.flags,
        }
    }

    /// The first difference between this layout and a map that was found.
    pub(super) fn difference(&self, found: MapInfo) -> Option<LayoutDifference> {
        let wanted = self.info();
        let MapInfo { kind, key_size, value_size, entries, flags } = found;
        [
            (LayoutField::Kind, kind, wanted.kind),
            (LayoutField::KeySize, key_size, wanted.key_size),
            (LayoutField::ValueSize, value_size, wanted.value_size),
            (LayoutField::Entries, entries, wanted.entries),
            (LayoutField::Flags, flags, wanted.flags),
        ]
        .into_iter()
        .find(|(_, found, wanted)| found != wanted)
        .map(|(field, found, wanted)| LayoutDifference { map: self.id, field, found, wanted })
    }
}

/// Whether a lookup gives a value for each CPU.
pub(super) const fn is_per_cpu(kind: u32) -> bool {
    kind == MapKind::PerCpuArray as u32
}

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl LayoutField {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kind => "type",
            Self::KeySize => "key size",
            Self::ValueSize => "value size",
            Self::Entries => "entries",
            Self::Flags => "flags",
        }
    }
}

impl fmt::Display for LayoutDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { map, field, found, wanted } = self;
        write!(f, "{map} has {} {found}, wanted {wanted}", field.name())
    }
}
