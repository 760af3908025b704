//! Services, traffic from outside the node, and the maps of a load balancer that works on packets.

use portway_runtime::config::{Key, Kind, Off};

use super::{dangerous, dangerous_switch, details, lacks, lacks_switch, retired};

pub(super) const KEYS: &[Key] = &[
    dangerous_switch(
        "bpf-lb-external-clusterip",
        "traffic from outside the node is not served yet: set it to false, and reach the service by a NodePort of the \
         node that the client runs on",
    ),
    dangerous_switch(
        "bpf-lb-only",
        "Portway is no load balancer beside a cluster: set it to false, or leave that node to Cilium",
    ),
    dangerous_switch(
        "enable-ipip-termination",
        "tunnelled requests are not unpacked: set it to false and have them sent without a tunnel",
    ),
    dangerous_switch(
        "enable-nat46x64-gateway",
        "addresses are not translated between families: set it to false and use another gateway",
    ),
    dangerous_switch(
        "enable-local-redirect-policy",
        "requests would leave the node that a policy keeps there: set it to false, and give the service \
         internalTrafficPolicy: Local",
    ),
    dangerous_switch(
        "enable-l2-announcements",
        "nobody would answer for the addresses of services: set it to false and announce them with another program",
    ),
    dangerous_switch(
        "enable-l2-pod-announcements",
        "nobody would announce the addresses of pods: set it to false and announce them with another program",
    ),
    dangerous(
        "lb-state-file",
        Kind::Text("a path"),
        &[""],
        "services come from the API server or from --source-dir: write the file's content as manifests there",
    ),
    lacks_switch(
        "enable-health-check-nodeport",
        "true",
        "healthCheckNodePort of services is not answered yet, so a load balancer outside that asks it leaves the node out",
    ),
    lacks_switch(
        "enable-health-check-loadbalancer-ip",
        "false",
        "healthCheckNodePort of services is not answered yet",
    ),
    lacks_switch(
        "bpf-lb-algorithm-annotation",
        "false",
        "services do not choose their algorithm; bpf-lb-algorithm decides for all",
    ),
    lacks_switch(
        "bpf-lb-mode-annotation",
        "false",
        "services do not choose their forwarding mode; bpf-lb-mode decides for all",
    ),
    lacks_switch("enable-sctp", "false", "ports with protocol SCTP are refused, and listed as such"),
    lacks_switch("enable-extended-ip-protocols", "false", "services have TCP and UDP ports alone"),
    lacks_switch(
        "enable-lb-ipam",
        "true",
        "Services of type LoadBalancer get no address from a pool; those in their status are served",
    ),
    lacks_switch("enable-node-ipam", "false", "Services of type LoadBalancer get no addresses of nodes"),
    lacks(
        "loadbalancer-l7",
        Kind::Text("envoy, or nothing"),
        "",
        Off::At(&["", "disabled"]),
        "there is no proxy; services are balanced by connection",
    ),
    lacks(
        "fixed-zone-mapping",
        Kind::Text("zones"),
        "",
        Off::At(&[""]),
        "connections are not counted by zone",
    ),
    lacks_switch("enable-active-connection-tracking", "false", "connections are not counted by zone"),
];

pub(super) const DETAILS: &[Key] = &details(
    "detail of handling traffic from outside the node, which is not offered yet",
    [
        ("bpf-lb-dsr-dispatch", "opt"),
        ("bpf-lb-dsr-l4-xlate", "frontend"),
        ("bpf-lb-dev-ip-addr-inherit", ""),
        ("bpf-lb-rss-ipv4-src-cidr", ""),
        ("bpf-lb-rss-ipv6-src-cidr", ""),
        ("direct-routing-skip-unreachable", "false"),
        ("force-device-detection", "false"),
        ("node-port-nat-range-ext", ""),
        ("enable-dynamic-source-lookup-nodeport", "false"),
        ("enable-no-service-endpoints-routable", "true"),
        ("enable-l2-neigh-discovery", "true"),
        ("enable-pmtu-discovery", "false"),
        ("enable-remote-node-masquerade", "false"),
        ("vlan-bpf-bypass", ""),
        ("default-lb-service-ipam", "lbipam"),
        ("loadbalancer-l7-ports", ""),
        ("loadbalancer-l7-algorithm", "round_robin"),
        ("lrp-address-matcher-cidrs", ""),
        ("l2-announcements-lease-duration", "15s"),
        ("l2-announcements-renew-deadline", "5s"),
        ("l2-announcements-retry-period", "2s"),
        ("l2-pod-announcements-interface", ""),
        ("l2-pod-announcements-interface-pattern", ""),
        ("bpf-ct-stats-map-max", "65536"),
        ("bpf-neigh-global-max", "524288"),
        ("bpf-conntrack-accounting", "false"),
        ("conntrack-gc-interval", "0s"),
        ("conntrack-gc-max-interval", "0s"),
        ("disable-conntrack", "false"),
        ("nat-map-stats-entries", "32"),
        ("nat-map-stats-interval", "30s"),
        ("enable-ipv4-fragment-tracking", "true"),
        ("enable-ipv6-fragment-tracking", "true"),
        ("bpf-map-dynamic-size-ratio", "0.0025"),
        ("preallocate-bpf-maps", "false"),
        ("bpf-distributed-lru", "false"),
    ],
);

pub(super) const RETIRED: &[Key] = &retired(
    "it is always so, or no map or hook has use for it",
    [
        ("bpf-lb-rev-nat-map-max", "0"),
        ("enable-node-port", "true"),
        ("enable-host-reachable-services", "true"),
        ("host-reachable-services-protos", "tcp,udp"),
        ("enable-k8s-endpoint-slice", "true"),
        ("enable-internal-traffic-policy", "true"),
        ("enable-health-datapath", "false"),
        ("arping-refresh-period", "30s"),
        ("ipv4-service-range", "auto"),
        ("ipv6-service-range", "auto"),
        ("k8s-watcher-endpoint-selector", ""),
        ("k8s-watcher-queue-size", "1024"),
        ("sockops-enable", "false"),
        ("enable-recorder", "false"),
        ("lb-retry-backoff-min", "1s"),
        ("lb-retry-backoff-max", "1m"),
        ("lb-pressure-metrics-interval", "5m"),
        ("lb-init-wait-timeout", "1m"),
        ("enable-experimental-lb", "false"),
    ],
);
