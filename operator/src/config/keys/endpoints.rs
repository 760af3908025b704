use portway_runtime::config::{Key, Kind};

use super::{INTERVAL, key, switch};

const ENDPOINTS: &str = "Endpoints";

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
    key(
        ENDPOINTS,
        "cilium-endpoint-gc-interval",
        INTERVAL,
        "5m",
        "How often CiliumEndpoints whose pod is gone are looked for; 0 leaves them",
    ),
    switch(
        ENDPOINTS,
        "enable-cilium-endpoint-slice",
        "false",
        "Gather CiliumEndpoints in CiliumEndpointSlices, which agents then read instead",
    ),
    key(
        ENDPOINTS,
        "ces-max-ciliumendpoints-per-ces",
        Kind::Integer { min: 1, max: 1000 },
        "100",
        "Endpoints of a CiliumEndpointSlice, at most",
    ),
    key(
        ENDPOINTS,
        "ces-slice-mode",
        Kind::OneOf(&["cesSliceModeIdentity", "cesSliceModeFCFS", "identity", "fcfs"]),
        "cesSliceModeIdentity",
        "Which endpoints are gathered: those of one identity, or first come, first served",
    ),
    key(
        ENDPOINTS,
        "ces-rate-limits",
        Kind::Text("a list such as [{\"nodes\":0,\"limit\":10,\"burst\":20}]"),
        "[{\"nodes\":0,\"limit\":10,\"burst\":20}]",
        "Writes of CiliumEndpointSlices a second, and how many at once, from so many nodes on",
    ),
    key(
        ENDPOINTS,
        "ces-write-qps-limit",
        Kind::Text("a number above 0"),
        "10",
        "Writes of CiliumEndpointSlices a second, where ces-rate-limits is not given",
    ),
    key(
        ENDPOINTS,
        "ces-write-qps-burst",
        Kind::Text("a number above 0"),
        "20",
        "Writes of CiliumEndpointSlices at once, where ces-rate-limits is not given",
    ),
];
