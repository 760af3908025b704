use portway_runtime::config::{Key, Kind};

use super::{key, switch};

const IPAM: &str = "Addresses of pods";

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
    key(
        IPAM,
        "enable-pod-network",
        Kind::OneOf(&["auto", "true", "false"]),
        "auto",
        "Whether agents give pods their network; auto: where ipam is set, but not to delegated-plugin",
    ),
    switch(IPAM, "enable-ipv4", "true", "Give nodes IPv4 prefixes"),
    switch(IPAM, "enable-ipv6", "true", "Give nodes IPv6 prefixes, where there is a range"),
    key(
        IPAM,
        "ipam",
        Kind::Text("cluster-pool, kubernetes or delegated-plugin"),
        "cluster-pool",
        "Where nodes' prefixes for pods come from: the operator's pools, Node.spec.podCIDRs, or another CNI",
    ),
    key(
        IPAM,
        "cluster-pool-ipv4-cidr",
        Kind::Text("prefixes such as 10.0.0.0/8, separated by commas or spaces, or nothing"),
        "10.0.0.0/8",
        "What nodes' IPv4 prefixes are cut from",
    ),
    key(
        IPAM,
        "cluster-pool-ipv4-mask-size",
        Kind::Integer { min: 8, max: 30 },
        "24",
        "Bits of a node's IPv4 prefix",
    ),
    key(
        IPAM,
        "cluster-pool-ipv6-cidr",
        Kind::Text("prefixes such as fd00::/104, separated by commas or spaces, or nothing"),
        "",
        "What nodes' IPv6 prefixes are cut from",
    ),
    key(
        IPAM,
        "cluster-pool-ipv6-mask-size",
        Kind::Integer { min: 8, max: 126 },
        "112",
        "Bits of a node's IPv6 prefix",
    ),
    key(
        IPAM,
        "parallel-alloc-workers",
        Kind::Integer { min: 1, max: 10_000 },
        "50",
        "Nodes whose prefixes are written at once",
    ),
    key(
        IPAM,
        "limit-ipam-api-qps",
        Kind::Integer { min: 1, max: 100_000 },
        "4",
        "Of no matter: no cloud is asked for addresses",
    ),
    key(
        IPAM,
        "limit-ipam-api-burst",
        Kind::Integer { min: 1, max: 100_000 },
        "20",
        "Of no matter: no cloud is asked for addresses",
    ),
];
