//! Keys of identities, which there are where there is a pod network.

use portway_runtime::config::values::CLUSTER_NAME;
use portway_runtime::config::{Key, Kind};

use super::key;

const IDENTITIES: &str = "Identities of pods";

/// In the order of the help.
pub(in crate::config) const KEYS: &[Key] = &[
    key(
        IDENTITIES,
        "identity-management-mode",
        Kind::OneOf(&["agent", "operator", "both"]),
        "agent",
        "Who makes CiliumIdentity objects: the agents, the operator, which agents then wait for, or whoever comes first",
    ),
    key(
        IDENTITIES,
        "identity-change-grace-period",
        Kind::Text("a duration of at most 10m, such as 5s"),
        "5s",
        "How long the number that a pod had before its labels changed stays claimed",
    ),
    key(
        IDENTITIES,
        "enable-cilium-endpoint-slice",
        Kind::Bool,
        "false",
        "Addresses of other nodes' pods are read from CiliumEndpointSlices, which the operator gathers them in",
    ),
    key(
        IDENTITIES,
        "crd-wait-timeout",
        Kind::Text("a duration of at most 1h, such as 5m"),
        "5m",
        "How long CustomResourceDefinitions may be missing at a start before that is an error; services are served meanwhile",
    ),
    key(
        IDENTITIES,
        "labels",
        Kind::Text("rules such as k8s:app or k8s:!internal, regular expressions with spaces between them"),
        "",
        "Labels that make a pod's identity, beside those of the default: a rule with `!` leaves labels out, one without leaves \
         out all others",
    ),
    key(
        IDENTITIES,
        "label-prefix-file",
        Kind::Path,
        "",
        "A file of prefixes of labels, as JSON, instead of the default ones",
    ),
    key(
        IDENTITIES,
        "cluster-name",
        Kind::Text(CLUSTER_NAME),
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
];
