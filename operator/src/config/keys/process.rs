use portway_runtime::config::{Key, Kind, values};

use super::{PATIENCE, key, switch};

const API_SERVER: &str = "The API server";
const LEADING: &str = "Which replica leads";
const OBSERVING: &str = "Watching the operator";

const SERVERS: Kind = Kind::Text(values::SERVERS);

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
    key(
        API_SERVER,
        "k8s-kubeconfig-path",
        Kind::Path,
        "",
        "Reach the API server as this kubeconfig says; without it a pod uses its service account",
    ),
    key(
        API_SERVER,
        "k8s-api-server",
        SERVERS,
        "",
        "The API server's address, in place of the kubeconfig's or the pod environment's",
    ),
    key(
        API_SERVER,
        "k8s-api-server-urls",
        SERVERS,
        "",
        "Several API servers of the cluster, tried in turn; wins over k8s-api-server",
    ),
    key(
        API_SERVER,
        "operator-k8s-client-qps",
        Kind::Text("a number from 1 to 100000"),
        "100",
        "Requests a second to the API server, over everything but the lease, which has a client of its own",
    ),
    key(
        API_SERVER,
        "operator-k8s-client-burst",
        Kind::Integer { min: 1, max: 100_000 },
        "200",
        "Requests that may be sent to the API server at once after a quiet while",
    ),
    key(
        API_SERVER,
        "k8s-heartbeat-timeout",
        PATIENCE,
        "30s",
        "A connection to the API server that does not answer for so long is given up; 0 leaves that to the watches",
    ),
    key(
        API_SERVER,
        "k8s-namespace",
        Kind::Text("a name of up to 63 lower-case letters, digits and `-`"),
        "kube-system",
        "Where the lease and the pools' ConfigMap are; else the variable K8S_NAMESPACE",
    ),
    switch(
        API_SERVER,
        "skip-crd-creation",
        "false",
        "Leave CustomResourceDefinitions to somebody else: kinds that are missing are waited for",
    ),
    key(
        API_SERVER,
        "config-dir",
        Kind::Path,
        "",
        "A directory with one file a key, such as a mounted ConfigMap",
    ),
    key(
        LEADING,
        "leader-election-lease-duration",
        PATIENCE,
        "15s",
        "How long the other replica waits for a leader of which nothing is heard",
    ),
    key(
        LEADING,
        "leader-election-renew-deadline",
        PATIENCE,
        "10s",
        "A leader that could not renew its lease for so long leads no more",
    ),
    key(
        LEADING,
        "leader-election-retry-period",
        PATIENCE,
        "2s",
        "How often the lease is renewed, or asked for",
    ),
    key(
        OBSERVING,
        "operator-api-serve-addr",
        Kind::Text("an address and a port, such as localhost:9234, or nothing"),
        "localhost:9234",
        "Where /healthz, /v1/status and /v1/dump are served; nothing is off",
    ),
    switch(OBSERVING, "enable-metrics", "true", "Serve /metrics"),
    key(
        OBSERVING,
        "operator-prometheus-serve-addr",
        Kind::Text("an address and a port, such as :9963 or 127.0.0.1:9963, or nothing"),
        ":9963",
        "Where /metrics is served; nothing is off",
    ),
    switch(OBSERVING, "debug", "false", "Log decisions too"),
    key(
        OBSERVING,
        "log-filter",
        Kind::Text("directives such as info,portway_operator=debug"),
        "",
        "What is logged; wins over debug",
    ),
    key(
        OBSERVING,
        "log-format",
        Kind::OneOf(&["auto", "text", "json"]),
        "auto",
        "How a line looks; auto is text on a terminal and JSON elsewhere",
    ),
];
