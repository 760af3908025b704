use portway_runtime::config::{Key, Kind};
use portway_runtime::kubernetes::ClientOptions;

use super::{PATIENCE, key, switch};

const API_SERVER: &str = ClientOptions::GROUP;
const LEADING: &str = "Which replica leads";
const OBSERVING: &str = "Watching the operator";

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
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
];
