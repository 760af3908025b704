//! Keys of the pod network.

use portway_runtime::config::{Key, Kind};

use super::{DURATION, also, key, switch};

const PODS: &str = "The pod network";
const ROUTING: &str = "The pod network: between nodes";
const MASQUERADING: &str = "The pod network: to the world";
const FLOWS: &str = "The pod network: flows that are followed";
const NODE_HEALTH: &str = "The pod network: whether nodes reach each other";

const PREFIX_V4: Kind = Kind::Text("a prefix such as 10.0.0.0/8, or nothing");
const PREFIX_V6: Kind = Kind::Text("a prefix such as fd00::/48, or nothing");
/// Entries that a map of flows may be told to have: Cilium's bounds.
const FLOW_ENTRIES: Kind = Kind::Integer { min: 1024, max: 0x0100_0000 };
const FRAGMENT_ENTRIES: Kind = Kind::Integer { min: 256, max: 0x0100_0000 };

/// In the order of the help.
pub(in crate::config) const KEYS: &[Key] = &[
    key(
        PODS,
        "enable-pod-network",
        Kind::OneOf(&["auto", "true", "false"]),
        "auto",
        "Give pods their addresses and interfaces, and carry their traffic; auto does so in a Kubernetes pod where ipam is \
         set, but not to delegated-plugin, and all that is asked for is offered",
    ),
    key(
        PODS,
        "ipam",
        Kind::Text("cluster-pool, kubernetes or delegated-plugin"),
        "cluster-pool",
        "Where this node's addresses for pods come from: CiliumNode.spec.ipam.podCIDRs, Node.spec.podCIDRs, or another \
         CNI that does without this one",
    ),
    key(
        PODS,
        "cni-chaining-mode",
        Kind::Text("none or generic-veth"),
        "none",
        "generic-veth takes over the interfaces that another CNI plugin made",
    ),
    key(
        PODS,
        "write-cni-conf-when-ready",
        Kind::Path,
        "",
        "Where the CNI configuration is written once pods can be given a network; nothing writes none",
    ),
    switch(
        PODS,
        "enable-source-ip-verification",
        "true",
        "Drop what a pod sends from an address that is not its own",
    ),
    key(
        PODS,
        "ipv4-service-loopback-address",
        Kind::Text("an IPv4 address"),
        "169.254.42.1",
        "What a pod that reaches itself by a service sees as its client",
    ),
    key(PODS, "ipv6-service-loopback-address", Kind::Text("an IPv6 address"), "fe80::1", "The same in IPv6"),
    key(
        ROUTING,
        "routing-mode",
        Kind::OneOf(&["tunnel", "native"]),
        "tunnel",
        "How pods of other nodes are reached: by a tunnel between nodes, or by the network's own routes",
    ),
    key(
        ROUTING,
        "tunnel",
        Kind::OneOf(&["vxlan", "geneve", "disabled"]),
        "vxlan",
        "The older form of routing-mode and tunnel-protocol; disabled is native",
    ),
    key(
        ROUTING,
        "tunnel-protocol",
        Kind::OneOf(&["vxlan", "geneve"]),
        "vxlan",
        "The tunnel's packets; geneve is not offered yet",
    ),
    key(
        ROUTING,
        "tunnel-port",
        Kind::Integer { min: 0, max: 65_535 },
        "8472",
        "The UDP port of the tunnel, the same on every node; 0 is that of the protocol, 8472",
    ),
    key(
        ROUTING,
        "mtu",
        Kind::Text("0, or a number from 1280 to 65535"),
        "0",
        "Bytes of the largest packet of the network between nodes, of which a tunnel takes 50; 0 is the least of the \
         devices'",
    ),
    switch(
        ROUTING,
        "auto-direct-node-routes",
        "false",
        "With routing-mode=native: install routes to the pods of nodes on the same network",
    ),
    key(
        ROUTING,
        "devices",
        Kind::Text("names of interfaces such as eth0,bond+, or auto"),
        "auto",
        "The interfaces that lead out of the node; auto is those with a default route or the node's address",
    ),
    key(
        ROUTING,
        "direct-routing-device",
        Kind::Text("the name of an interface such as eth0 or bond+, or auto"),
        "auto",
        "The interface to other nodes; auto is that of the node's address",
    ),
    also(
        &["native-routing-cidr"],
        key(
            MASQUERADING,
            "ipv4-native-routing-cidr",
            PREFIX_V4,
            "",
            "What is reached without masquerading beside pods and nodes; with routing-mode=native needed unless \
             masquerading is off",
        ),
    ),
    key(MASQUERADING, "ipv6-native-routing-cidr", PREFIX_V6, "", "The same in IPv6"),
    also(
        &["masquerade"],
        switch(
            MASQUERADING,
            "enable-ipv4-masquerade",
            "true",
            "Give what pods send out of the cluster the node's address",
        ),
    ),
    switch(MASQUERADING, "enable-ipv6-masquerade", "true", "The same in IPv6"),
    key(FLOWS, "bpf-ct-global-tcp-max", FLOW_ENTRIES, "524288", "TCP flows of pods"),
    key(FLOWS, "bpf-ct-global-any-max", FLOW_ENTRIES, "262144", "Other flows of pods"),
    key(FLOWS, "bpf-nat-global-max", FLOW_ENTRIES, "524288", "Masqueraded flows, two entries each"),
    key(FLOWS, "bpf-fragments-map-max", FRAGMENT_ENTRIES, "8192", "Datagrams in fragments"),
    key(
        FLOWS,
        "bpf-ct-timeout-regular-tcp",
        DURATION,
        "2h13m20s",
        "An established TCP flow without a packet is forgotten",
    ),
    key(
        FLOWS,
        "bpf-ct-timeout-regular-tcp-syn",
        DURATION,
        "60s",
        "A TCP flow without an answer is forgotten",
    ),
    key(
        FLOWS,
        "bpf-ct-timeout-regular-tcp-fin",
        DURATION,
        "10s",
        "A TCP flow that was ended is forgotten, unless to a service",
    ),
    key(FLOWS, "bpf-ct-timeout-regular-any", DURATION, "60s", "A flow of another protocol is forgotten"),
    key(
        FLOWS,
        "bpf-ct-timeout-service-tcp",
        DURATION,
        "6h",
        "An established TCP flow to a service is forgotten",
    ),
    key(
        FLOWS,
        "bpf-ct-timeout-service-tcp-grace",
        DURATION,
        "60s",
        "A TCP flow to a service that was ended is forgotten",
    ),
    key(
        FLOWS,
        "bpf-ct-timeout-service-any",
        DURATION,
        "60s",
        "A flow of another protocol to a service is forgotten",
    ),
    switch(NODE_HEALTH, "enable-health-checking", "true", "Probe the other nodes, and answer their probes"),
    switch(
        NODE_HEALTH,
        "enable-endpoint-health-checking",
        "true",
        "Probe an endpoint of each node too, the way to which is that to pods",
    ),
    key(
        NODE_HEALTH,
        "cluster-health-port",
        Kind::Integer { min: 1, max: 65_535 },
        "4240",
        "The TCP port that probes of nodes are answered on",
    ),
];
