//! Keys of identities, which there are where there is a pod network, beside those that the operator has too.

use portway_claims::config::GROUP as IDENTITIES;
use portway_runtime::config::{Key, Kind};

use super::key;

/// In the order of the help, after those of [`portway_claims::config`].
pub(in crate::config) const KEYS: &[Key] = &[
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
];
