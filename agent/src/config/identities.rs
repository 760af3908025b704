//! How pods get their identities.

use std::time::Duration;

use portway_claims::config::IdentityScheme;
use portway_runtime::config::{Invalid, Reader, parse_duration};

/// The longest grace that can be asked for: nobody waits so long for other nodes to hear of a change.
const LONGEST_GRACE: Duration = Duration::from_secs(600);

const LONGEST_CRD_WAIT: Duration = Duration::from_secs(3600);
const DEFAULT_CRD_WAIT: Duration = Duration::from_secs(300);

/// Identities, where there is a pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    pub scheme: IdentityScheme,
    /// How long the number that an endpoint had before stays claimed.
    pub change_grace: Duration,
    /// Other nodes' endpoints are read from CiliumEndpointSlices, not from CiliumEndpoints.
    pub endpoint_slices: bool,
    /// How long CustomResourceDefinitions may be missing at a start.
    pub crd_wait: Duration,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Identities {
    let grace = |value: &str| {
        let parsed = parse_duration(value).ok().filter(|duration| *duration <= LONGEST_GRACE);
        parsed.ok_or_else(|| Invalid::new("a duration of at most 10m, such as 5s", "write 5s (the default)"))
    };
    let crd_wait = |value: &str| {
        let parsed = parse_duration(value).ok().filter(|duration| *duration <= LONGEST_CRD_WAIT);
        parsed.ok_or_else(|| Invalid::new("a duration of at most 1h, such as 5m", "write 5m (the default)"))
    };
    Identities {
        scheme: IdentityScheme::read(reader),
        endpoint_slices: reader.bool("enable-cilium-endpoint-slice"),
        crd_wait: reader.parse("crd-wait-timeout", crd_wait).unwrap_or(DEFAULT_CRD_WAIT),
        change_grace: reader.parse("identity-change-grace-period", grace).unwrap_or(Duration::from_secs(5)),
    }
}
