//! Encryption, a key-value store, several clusters, and routes to the world outside.

use portway_runtime::config::{Key, Kind, Off};

use super::{dangerous, dangerous_switch, details, lacks, lacks_switch};

const PLAIN: &str =
    "traffic would travel in the clear: set it to false, and encrypt below (in the network) or above (TLS)";

pub(super) const KEYS: &[Key] = &[
    dangerous_switch("enable-ipsec", PLAIN),
    dangerous_switch("enable-wireguard", PLAIN),
    dangerous_switch("enable-ztunnel", PLAIN),
    dangerous_switch("enable-encryption-strict-mode", PLAIN),
    dangerous_switch("enable-encryption-strict-mode-egress", PLAIN),
    dangerous_switch("enable-encryption-strict-mode-ingress", PLAIN),
    dangerous(
        "kvstore",
        Kind::Text("nothing"),
        &[""],
        "state is kept in Kubernetes objects alone: leave out kvstore and kvstore-opt",
    ),
    dangerous_switch("join-cluster", "nodes outside Kubernetes cannot join: set it to false"),
    dangerous(
        "clustermesh-config",
        Kind::Text("nothing"),
        &[""],
        "services of other clusters would lose their backends: leave it out, and reach them by their addresses",
    ),
    lacks_switch(
        "clustermesh-enable-mcs-api",
        "false",
        "ServiceImport and ServiceExport have no effect: services have backends of this cluster alone",
    ),
    lacks_switch(
        "clustermesh-enable-endpoint-sync",
        "false",
        "EndpointSlices of other clusters are not made: services have backends of this cluster alone",
    ),
    dangerous_switch(
        "enable-bgp-control-plane",
        "routes to services and pods would vanish: set it to false and announce them with another BGP speaker",
    ),
    dangerous_switch(
        "bgp-announce-lb-ip",
        "routes to services would vanish: set it to false and announce them with another BGP speaker",
    ),
    dangerous_switch(
        "bgp-announce-pod-cidr",
        "routes to pods would vanish: set it to false and announce them with another BGP speaker",
    ),
    dangerous_switch(
        "enable-ipv4-egress-gateway",
        "pods would leave with another source address: set it to false and route through a gateway of the network",
    ),
    dangerous_switch(
        "enable-egress-gateway",
        "pods would leave with another source address: set it to false and route through a gateway of the network",
    ),
    dangerous_switch(
        "enable-srv6",
        "VRFs would not be kept apart: set it to false, or leave the node to Cilium",
    ),
    dangerous_switch(
        "enable-vtep",
        "pods would not reach the networks behind VTEPs: set it to false, or leave the node to Cilium",
    ),
    lacks(
        "enable-external-workloads",
        Kind::Bool,
        "false",
        Off::At(&["false"]),
        "machines outside the cluster are not served",
    ),
];

pub(super) const DETAILS: &[Key] = &details(
    "detail of encryption, of a store, of other clusters or of routes outside, which are not offered",
    [
        ("encrypt-interface", ""),
        ("encrypt-node", "false"),
        ("encryption-strict-mode-allow-remote-node-identities", "false"),
        ("encryption-strict-mode-cidr", ""),
        ("encryption-strict-egress-allow-remote-node-identities", "false"),
        ("encryption-strict-egress-cidr", ""),
        ("enable-ipsec-encrypted-overlay", "false"),
        ("enable-ipsec-key-watcher", "true"),
        ("enable-ipsec-xfrm-state-caching", "true"),
        ("enable-wireguard-userspace-fallback", "false"),
        ("wireguard-encapsulate", "false"),
        ("wireguard-persistent-keepalive", "0s"),
        ("ipsec-key-file", ""),
        ("ipsec-key-rotation-duration", "5m"),
        ("ipv4-pod-subnets", ""),
        ("ipv6-pod-subnets", ""),
        ("kvstore-opt", ""),
        ("etcd-config", ""),
        ("kvstore-connectivity-timeout", "2m"),
        ("kvstore-lease-ttl", "15m"),
        ("kvstore-max-consecutive-quorum-errors", "2"),
        ("kvstore-periodic-sync", "5m"),
        ("kvstore-pod-network-support", "false"),
        ("max-connected-clusters", "255"),
        ("clustermesh-cache-ttl", "0s"),
        ("clustermesh-ip-identities-sync-timeout", "1m"),
        ("clustermesh-mcs-api-install-crds", "true"),
        ("clustermesh-sync-timeout", "1m"),
        ("bgp-config-path", "/var/lib/cilium/bgp/config.yaml"),
        ("bgp-router-id-allocation-ip-pool", ""),
        ("bgp-router-id-allocation-mode", "default"),
        ("bgp-secrets-namespace", ""),
        ("enable-bgp-control-plane-status-report", "true"),
        ("enable-bgp-legacy-origin-attribute", "false"),
        ("egress-gateway-healthcheck-timeout", "2s"),
        ("egress-gateway-policy-map-max", "16384"),
        ("egress-gateway-reconciliation-trigger-interval", "1s"),
        ("install-egress-gateway-routes", "false"),
        ("enable-egress-gateway-ha", "false"),
        ("srv6-encap-mode", "reduced"),
        ("vtep-cidr", ""),
        ("vtep-endpoint", ""),
        ("vtep-mac", ""),
        ("vtep-mask", ""),
        ("vtep-sync-interval", "1m"),
    ],
);
