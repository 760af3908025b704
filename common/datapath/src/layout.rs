//! The names and sizes of the maps, and the number that all pins stand under.

/// Goes up with every change of a key, a value or the meaning of one. Pins live in `BPF_ROOT/portway/v<number>`.
pub const LAYOUT_VERSION: u32 = 2;

/// Goes up with every change of what programs learn (`pw_sock`, `pw_sock_udp`, `pw_sock_replies`, `pw_affinity`) or of what it
/// refers to by number (`pw_service_names`, `pw_backends`). Agents of other layout versions take over what was learned
/// under the same number. It is the name of a directory beside the pins, `learned-<number>`.
pub const LEARNED_VERSION: u32 = 1;

pub const FRONTENDS: &str = "pw_frontends";
pub const SERVICES: &str = "pw_services";
pub const RUNS: &str = "pw_runs";
pub const MAGLEV: &str = "pw_maglev";
pub const BACKENDS: &str = "pw_backends";
pub const AFFINITY: &str = "pw_affinity";
pub const SOURCE_RANGES: &str = "pw_source_ranges";
pub const SERVICE_NAMES: &str = "pw_service_names";
pub const SOCK: &str = "pw_sock";
pub const SOCK_UDP: &str = "pw_sock_udp";
pub const SOCK_REPLIES: &str = "pw_sock_replies";
pub const LOCAL_ADDRESSES: &str = "pw_local_addresses";
pub const CONFIG: &str = "pw_config";
pub const METRICS: &str = "pw_metrics";

// Of the pod network: maps of an object of its own, which is loaded where there is one.
pub const ENDPOINTS: &str = "pw_endpoints";
/// One element for each number that an endpoint can have.
pub const ENDPOINT_POLICY: &str = "pw_endpoint_policy";
pub const ENDPOINT_POLICY_ENTRIES: u32 = 65_536;
pub const IPCACHE: &str = "pw_ipcache";
pub const CONNTRACK: &str = "pw_conntrack";
/// Flows of which only one direction has been seen.
pub const CONNTRACK_NEW: &str = "pw_ct_new";
pub const NAT: &str = "pw_nat";
pub const NAT_NEW: &str = "pw_nat_new";
pub const FRAGMENTS: &str = "pw_fragments";
pub const NETWORK: &str = "pw_network";
pub const DEVICES: &str = "pw_devices";
pub const TRAFFIC: &str = "pw_traffic";
/// Read by the socket programs too.
pub const NETNS: &str = "pw_netns";

/// What the programs of an earlier agent have learned, while a new one takes over: in the object and as pins, never made.
pub const SOCK_OLD: &str = "pw_sock_old";
pub const SOCK_UDP_OLD: &str = "pw_udp_old";
pub const SOCK_REPLIES_OLD: &str = "pw_replies_old";
pub const AFFINITY_OLD: &str = "pw_affinity_old";

/// Slots of a Maglev table in one element of `pw_maglev`: the kernel rounds elements up to 8 bytes, so an element a
/// slot would take four times the memory.
pub const MAGLEV_SLOTS: u32 = 4;

/// Entries of each map, by default for 10,000 services and 150,000 endpoints with room for a second version of all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub frontends: u32,
    pub services: u32,
    /// Records: each service takes [`crate::RunHeader::RECORDS`] and one for each backend.
    pub runs: u32,
    pub backends: u32,
    /// `u16` slots; 1 where Maglev is off.
    pub maglev: u32,
    pub affinity: u32,
    pub source_ranges: u32,
    pub local_addresses: u32,
    /// Connected sockets that are translated. Entries are allocated as they come.
    pub sockets: u32,
    /// Of `pw_sock_udp` and of `pw_sock_replies`.
    pub exchanges: u32,
}

/// Entries of the maps of the pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSizes {
    /// `pw_endpoints` and, of namespaces, `pw_netns`.
    pub endpoints: u32,
    pub ipcache: u32,
    /// Established flows; entries are allocated as they come.
    pub conntrack: u32,
    /// Half-open flows; allocated at once.
    pub conntrack_new: u32,
    pub nat: u32,
    pub nat_new: u32,
    pub fragments: u32,
    pub devices: u32,
}

impl PodSizes {
    /// `conntrack` is `bpf-ct-global-tcp-max` and `bpf-ct-global-any-max` together.
    pub const DEFAULT: Self = Self {
        endpoints: 4_096,
        ipcache: 524_288,
        conntrack: 786_432,
        conntrack_new: 65_536,
        nat: 524_288,
        nat_new: 65_536,
        fragments: 8_192,
        devices: 256,
    };
}

impl Sizes {
    /// The sizes that the object declares and the agent uses unless told otherwise.
    pub const DEFAULT: Self = Self {
        frontends: 131_072,
        services: 65_536,
        runs: 524_288,
        backends: 262_144,
        maglev: 1,
        affinity: 65_536,
        source_ranges: 65_536,
        local_addresses: 16_384,
        sockets: 262_144,
        exchanges: 131_072,
    };
}
