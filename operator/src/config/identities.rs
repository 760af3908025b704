use std::time::Duration;

use portway_claims::config::IdentityScheme;
use portway_model::identity::NumberRange;
use portway_runtime::config::{Invalid, Origin, Reader, parse_duration, values};

/// Of `identity-heartbeat-timeout`, but in tests.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Which identities there are, who makes them, and when they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    pub scheme: IdentityScheme,
    /// Of the numbers of identities.
    pub range: NumberRange,
    /// `identity-gc-interval`; zero is off.
    pub gc_interval: Duration,
    /// How long an identity that nobody uses stays.
    pub heartbeat_timeout: Duration,
    /// At most `gc_rate_limit` identities go in each `gc_rate_interval`.
    pub gc_rate_interval: Duration,
    pub gc_rate_limit: u32,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Identities {
    let scheme = IdentityScheme::read(reader);
    let mut time = |name| reader.parse(name, parse_duration).unwrap_or_default();
    let gc_interval = time("identity-gc-interval");
    let heartbeat_timeout = time("identity-heartbeat-timeout");
    let is_of_tests =
        reader.said("identity-range-test-only").is_some_and(|said| said.origin != Origin::Default);
    if heartbeat_timeout < SHORTEST_TIMEOUT && !is_of_tests {
        reader.refuse(
            &["identity-heartbeat-timeout"],
            "at least 1m: an identity is not used for a while whenever its last pod moves",
            "use 30m (the default)",
        );
    }
    let gc_rate_interval = reader.parse("identity-gc-rate-interval", values::patience).unwrap_or_default();
    Identities {
        range: range(reader, scheme.cluster_id),
        scheme,
        gc_interval,
        heartbeat_timeout,
        gc_rate_interval,
        gc_rate_limit: reader.number("identity-gc-rate-limit"),
    }
}

fn range(reader: &mut Reader<'_>, cluster_id: u16) -> NumberRange {
    let part = |value: &str| {
        let (first, last) = value.split_once('-')?;
        NumberRange::narrowed(cluster_id, first.parse().ok()?, last.parse().ok()?)
    };
    let range = reader.parse("identity-range-test-only", |value| {
        part(value).ok_or_else(|| Invalid::new("a part of 256-65535", "write 256-65535 (the default)"))
    });
    range.unwrap_or_else(|| NumberRange::of_cluster(cluster_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Invocation, load};

    fn range(arguments: &[&str]) -> Result<NumberRange, String> {
        Ok(identities(arguments)?.range)
    }

    fn identities(arguments: &[&str]) -> Result<Identities, String> {
        let required = ["--k8s-api-server=http://127.0.0.1:6443", "--cluster-name=a"];
        let arguments = required.iter().chain(arguments).map(Into::into).collect();
        let loaded = load(Invocation { arguments, environment: Vec::new() });
        Ok(loaded.map_err(|problems| problems.to_string())?.config.identities)
    }

    #[test]
    fn an_identity_that_is_not_used_stays_a_minute_at_least_but_in_tests() {
        for short in ["0", "1s", "59s"] {
            let timeout = format!("--identity-heartbeat-timeout={short}");
            let error = identities(&[&timeout]).unwrap_err();
            assert!(error.contains("identity-heartbeat-timeout") && error.contains("at least 1m"), "{error}");
            assert!(identities(&[&timeout, "--identity-range-test-only=256-65535"]).is_ok());
        }
        let least = identities(&["--identity-heartbeat-timeout=1m"]).unwrap();
        assert_eq!(least.heartbeat_timeout, SHORTEST_TIMEOUT);
    }

    #[test]
    fn the_range_is_the_clusters_and_only_tests_make_it_smaller() {
        assert_eq!(range(&["--cluster-id=3"]).unwrap(), NumberRange::of_cluster(3));
        let narrow = range(&["--cluster-id=3", "--identity-range-test-only=256-1279"]).unwrap();
        assert_eq!((narrow.count(), narrow.first().get()), (1024, (3 << 16) + 256));
        for bad in ["255-300", "300-299", "256-65536", "256", "a-b", ""] {
            let error = range(&[&format!("--identity-range-test-only={bad}")]).unwrap_err();
            assert!(error.contains("identity-range-test-only"), "{bad}: {error}");
        }
    }
}
