pub(super) mod identities;
pub(super) mod pods;

use portway_runtime::config::{Key, Kind, honoured as key, switch, values};
use portway_runtime::kubernetes::ClientOptions;

const NODE: &str = "Where the agent runs";
const SOURCES: &str = "Where objects come from";
const API_SERVER: &str = ClientOptions::GROUP;
const SERVICES: &str = "Services";
const NODE_PORTS: &str = "NodePorts, external addresses, host ports";
const MAPS: &str = "Kernel maps (0: sized for 10,000 services and 150,000 endpoints)";
const OBSERVING: &str = "Watching the agent";

/// Entries that a key may ask for; a service index has 24 bits.
const ENTRIES: Kind = Kind::Integer { min: 0, max: 0x00ff_ffff };

const DURATION: Kind = Kind::Text(values::PATIENCE);

const fn also(aliases: &'static [&'static str], key: Key) -> Key {
    Key { aliases, ..key }
}

/// Keys that the agent honours, in the order of the help.
///
/// Names, meanings and defaults are Cilium's where Cilium has the key. Those of the pod network are in `pods`, those that
/// other programs have too in their crates, keys of other classes in `catalogue`.
pub(super) const KEYS: &[Key] = &[
    // Where the agent runs.
    key(
        NODE,
        "cgroup-root",
        Kind::Path,
        "",
        "The cgroup v2 directory whose processes, and those of the cgroups below, reach services; in a pod \
         /run/portway/cgroupv2, elsewhere required",
    ),
    switch(
        NODE,
        "allow-root-cgroup",
        "false",
        "Attach to the root of a cgroup hierarchy although this is not a pod: every process of the machine is served",
    ),
    key(NODE, "bpf-root", Kind::Path, "/sys/fs/bpf", "The bpf file system that maps and links are pinned in"),
    key(
        NODE,
        "state-dir",
        Kind::Path,
        "/var/run/portway",
        "Where the agent notes what it changed on the node, so that cleanup can put it back",
    ),
    key(
        NODE,
        "node-name",
        Kind::Text("the name of a Node"),
        "",
        "Whose endpoints are local here; else the variable K8S_NODE_NAME, else the machine's name",
    ),
    switch(NODE, "enable-ipv4", "true", "Serve IPv4 frontends"),
    switch(NODE, "enable-ipv6", "true", "Serve IPv6 frontends"),
    key(NODE, "config-dir", Kind::Path, "", "A directory with one file a key, such as a mounted ConfigMap"),
    // Where objects come from.
    key(
        SOURCES,
        "source-dir",
        Kind::Path,
        "",
        "A directory of manifests (*.yaml, *.yml, *.json), followed live with its subdirectories and symlinks; of an \
         object that the API server has too, the file's counts",
    ),
    key(
        API_SERVER,
        "k8s-client-qps",
        Kind::Text("a number from 1 to 100000"),
        "10",
        "Requests a second to the API server, a list with all its pages counted once; those that pods' starts wait for may be five times as many",
    ),
    key(
        API_SERVER,
        "k8s-client-burst",
        Kind::Integer { min: 1, max: 100_000 },
        "20",
        "Requests that may be sent to the API server at once after a quiet while",
    ),
    key(
        API_SERVER,
        "k8s-sync-timeout",
        DURATION,
        "3m",
        "A first list that takes longer shows in status and log; nothing else comes of it, and it is waited for",
    ),
    // Services.
    key(
        SERVICES,
        "kube-proxy-replacement",
        Kind::Text("true or false (or the older strict, partial, probe, disabled)"),
        "true",
        "Serve services in place of kube-proxy",
    ),
    switch(
        SERVICES,
        "bpf-lb-sock",
        "true",
        "Translate at the socket; kube-proxy-replacement=true implies it",
    ),
    switch(
        SERVICES,
        "bpf-lb-sock-hostns-only",
        "false",
        "Translate sockets of the agent's own network namespace only, and leave those of pods to others",
    ),
    also(
        &["node-port-algorithm"],
        key(
            SERVICES,
            "bpf-lb-algorithm",
            Kind::OneOf(&["random", "maglev"]),
            "random",
            "How a backend is chosen for traffic from outside",
        ),
    ),
    key(
        SERVICES,
        "bpf-lb-maglev-table-size",
        Kind::Text("a prime from 251 to 131071"),
        "16381",
        "Slots of a service's Maglev table; about a hundred times the most backends a service has",
    ),
    key(
        SERVICES,
        "bpf-lb-maglev-hash-seed",
        Kind::Text("12 bytes in base64 (16 characters)"),
        "JLfvgnHc2kaSUFaI",
        "Salt of the Maglev tables; the same on every node",
    ),
    also(
        &["node-port-mode"],
        key(
            SERVICES,
            "bpf-lb-mode",
            Kind::Text("snat (dsr and hybrid are not offered yet)"),
            "snat",
            "How traffic from outside reaches a backend on another node",
        ),
    ),
    also(
        &["node-port-acceleration"],
        key(
            SERVICES,
            "bpf-lb-acceleration",
            Kind::Text("disabled (native, best-effort and generic are not offered yet)"),
            "disabled",
            "Handle traffic from outside in XDP",
        ),
    ),
    key(
        SERVICES,
        "service-no-backend-response",
        Kind::Text("reject (drop is not offered yet)"),
        "reject",
        "What a client of a service without backends gets: reject refuses the connection",
    ),
    switch(SERVICES, "enable-session-affinity", "true", "Honour sessionAffinity: ClientIP"),
    switch(SERVICES, "enable-service-topology", "true", "Honour topology hints and trafficDistribution"),
    switch(
        SERVICES,
        "enable-k8s-terminating-endpoint",
        "true",
        "Use endpoints that terminate and still serve where no endpoint is ready",
    ),
    switch(SERVICES, "enable-svc-source-range-check", "true", "Honour loadBalancerSourceRanges"),
    switch(
        SERVICES,
        "bpf-lb-source-range-all-types",
        "false",
        "Apply loadBalancerSourceRanges to every frontend of the service, not to its load-balancer and external \
         addresses alone",
    ),
    key(
        SERVICES,
        "k8s-service-proxy-name",
        Kind::Text("a label value"),
        "",
        "Serve the services whose label service.kubernetes.io/service-proxy-name has this value; empty serves those \
         without the label",
    ),
    // NodePorts, external addresses, host ports.
    key(
        NODE_PORTS,
        "node-port-range",
        Kind::Text("two ports, first,last, from 1 to 65535"),
        "30000,32767",
        "The ports that NodePorts are taken from, as the API server's --service-node-port-range",
    ),
    switch(
        NODE_PORTS,
        "node-port-bind-protection",
        "true",
        "Refuse binds of the node's processes to NodePorts",
    ),
    switch(
        NODE_PORTS,
        "enable-auto-protect-node-port-range",
        "true",
        "Add the NodePorts to ip_local_reserved_ports where they overlap the ephemeral ports",
    ),
    key(
        NODE_PORTS,
        "nodeport-addresses",
        Kind::Text("prefixes such as 10.0.0.0/8,fd00::/8, or auto"),
        "auto",
        "The node's addresses that NodePorts answer on; auto is all of them",
    ),
    switch(
        NODE_PORTS,
        "disable-external-ip-mitigation",
        "false",
        "Translate externalIPs that are not the node's: whoever may write Services can then take any address \
         (CVE-2020-8554)",
    ),
    switch(NODE_PORTS, "enable-external-ips", "true", "Serve spec.externalIPs"),
    switch(NODE_PORTS, "enable-host-port", "true", "Serve hostPort of pods"),
    // Kernel maps.
    key(MAPS, "bpf-lb-map-max", ENTRIES, "0", "Entries of every service map without a key of its own below"),
    key(MAPS, "bpf-lb-service-map-max", ENTRIES, "0", "Service ports, one for each family"),
    key(MAPS, "bpf-lb-service-backend-map-max", ENTRIES, "0", "Backends of all services together"),
    key(MAPS, "bpf-lb-affinity-map-max", ENTRIES, "0", "Clients that session affinity remembers"),
    key(MAPS, "bpf-lb-source-range-map-max", ENTRIES, "0", "Prefixes of loadBalancerSourceRanges"),
    key(
        MAPS,
        "bpf-lb-maglev-map-max",
        ENTRIES,
        "0",
        "Services with Maglev tables; 0 is a budget of 64 MiB, past which backends are chosen at random",
    ),
    key(
        MAPS,
        "bpf-sock-rev-map-max",
        Kind::Integer { min: 1024, max: 0x00ff_ffff },
        "262144",
        "Translated sockets that are remembered: connected ones, and half as many exchanges of unconnected UDP",
    ),
    // Watching the agent.
    key(
        OBSERVING,
        "socket-path",
        Kind::Path,
        "/var/run/portway/portway.sock",
        "The unix socket of the agent's API",
    ),
    key(
        OBSERVING,
        "agent-health-port",
        Kind::Integer { min: 0, max: 65_535 },
        "9879",
        "Port of /healthz (liveness) and /readyz on 127.0.0.1; 0 is off",
    ),
    key(
        OBSERVING,
        "kube-proxy-replacement-healthz-bind-address",
        Kind::Text("an address and a port, such as 0.0.0.0:10256, or nothing"),
        "",
        "Where /healthz and /livez say what kube-proxy's say, for load balancers that probe nodes; nothing is off",
    ),
    key(
        OBSERVING,
        "prometheus-serve-addr",
        Kind::Text("an address and a port, such as :9962 or 127.0.0.1:9962, or nothing"),
        "",
        "Where /metrics is served; nothing is off",
    ),
];
