use portway_claims::config::GROUP as IDENTITIES;
use portway_runtime::config::{Key, Kind};

use super::{DURATION, INTERVAL, PATIENCE, key};

/// In the order of the help, after those that the agents have too.
pub(super) const KEYS: &[Key] = &[
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
