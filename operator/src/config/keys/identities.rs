use portway_runtime::config::{Key, Kind, values};

use super::{DURATION, INTERVAL, PATIENCE, key};

const IDENTITIES: &str = "Identities of pods";

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
    key(
        IDENTITIES,
        "identity-management-mode",
        Kind::OneOf(&["agent", "operator", "both"]),
        "agent",
        "Who makes CiliumIdentity objects: the agents, the operator, which agents then wait for, or whoever comes first",
    ),
    key(
        IDENTITIES,
        "labels",
        Kind::Text("rules such as k8s:app or k8s:!internal, regular expressions with spaces between them"),
        "",
        "Labels that make a pod's identity, beside those of the default; the same as the agents'",
    ),
    key(
        IDENTITIES,
        "label-prefix-file",
        Kind::Path,
        "",
        "A file of prefixes of labels, as JSON, instead of the default ones; the same as the agents'",
    ),
    key(
        IDENTITIES,
        "cluster-name",
        Kind::Text(values::CLUSTER_NAME),
        "default",
        "One of the labels of each identity of the cluster's pods",
    ),
    key(
        IDENTITIES,
        "cluster-id",
        Kind::Integer { min: 0, max: 255 },
        "0",
        "The high part of the numbers of the cluster's identities",
    ),
    key(
        IDENTITIES,
        "identity-gc-interval",
        INTERVAL,
        "15m",
        "How often identities that nobody uses are looked for; 0 leaves them",
    ),
    key(
        IDENTITIES,
        "identity-heartbeat-timeout",
        DURATION,
        "30m",
        "How long an identity that nobody uses stays, at least 1m",
    ),
    key(
        IDENTITIES,
        "identity-gc-rate-interval",
        PATIENCE,
        "1m",
        "In this time at most identity-gc-rate-limit identities go",
    ),
    key(
        IDENTITIES,
        "identity-gc-rate-limit",
        Kind::Integer { min: 1, max: 1_000_000 },
        "2500",
        "Identities that go in identity-gc-rate-interval, at most",
    ),
    key(
        IDENTITIES,
        "identity-range-test-only",
        Kind::Text("a part of 256-65535, such as 256-1279"),
        "256-65535",
        "Numbers of identities without cluster-id: a cluster that is soon full",
    ),
];
