//! `ces-rate-limits`: how fast slices are written, by the size of the cluster.

use serde::Deserialize;

use crate::controller::Pace;

/// What no configuration exceeds, as with Cilium (operator/pkg/ciliumendpointslice: CESWriteQPSLimitMax, …BurstMax).
const MOST_PER_SECOND: f64 = 50.0;
const MOST_AT_ONCE: u32 = 100;

/// Steps, by the number of nodes from which they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimits(Vec<Step>);

/// Its limits are finite.
impl Eq for RateLimits {}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(alias = "Nodes")]
    nodes: usize,
    /// Writes a second.
    #[serde(alias = "Limit")]
    limit: f64,
    /// Writes at once.
    #[serde(alias = "Burst")]
    burst: u32,
}

/// Rate limits that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    #[error("is no list such as [{{\"nodes\":0,\"limit\":10,\"burst\":20}}]: {0}")]
    Json(#[from] serde_json::Error),
    #[error("is an empty list, which would allow nothing")]
    Empty,
    #[error(
        "limit {limit} and burst {burst} from {nodes} nodes on would allow nothing: both must be above 0"
    )]
    Nothing { nodes: usize, limit: f64, burst: u32 },
    #[error("has two steps for {nodes} nodes")]
    Twice { nodes: usize },
}

impl RateLimits {
    /// # Errors
    /// It is no list of steps, or one of them would allow nothing.
    pub fn parse(text: &str) -> Result<Self, LimitsError> {
        let mut steps: Vec<Step> = serde_json::from_str(text)?;
        steps.sort_by_key(|step| step.nodes);
        for Step { nodes, limit, burst } in steps.iter().copied() {
            if !limit.is_finite() || limit <= 0.0 || burst == 0 {
                return Err(LimitsError::Nothing { nodes, limit, burst });
            }
        }
        if let Some(twice) = steps.windows(2).find(|steps| steps[0].nodes == steps[1].nodes) {
            return Err(LimitsError::Twice { nodes: twice[0].nodes });
        }
        if steps.is_empty() { Err(LimitsError::Empty) } else { Ok(Self(steps)) }
    }

    /// One limit for clusters of every size: what older keys say.
    ///
    /// # Errors
    /// It would allow nothing.
    pub fn flat(limit: f64, burst: u32) -> Result<Self, LimitsError> {
        Self::parse(&format!(r#"[{{"nodes":0,"limit":{limit},"burst":{burst}}}]"#))
    }

    /// With so many nodes. Fewer than the first step asks for have that one, too.
    pub fn pace(&self, nodes: usize) -> Pace {
        let holds = self.0.iter().rfind(|step| step.nodes <= nodes).or_else(|| self.0.first());
        let (limit, burst) = holds.map_or((MOST_PER_SECOND, MOST_AT_ONCE), |step| (step.limit, step.burst));
        Pace { batch: burst.min(MOST_AT_ONCE) as usize, per_second: limit.min(MOST_PER_SECOND) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_that_of_the_largest_step_that_the_cluster_has_reached() {
        let text = r#"[{"nodes": 500, "limit": 90.5, "burst": 1000}, {"nodes": 0, "limit": 10, "burst": 20}, {"Nodes": 100, "Limit": 7.5, "Burst": 14}]"#;
        let limits = RateLimits::parse(text).unwrap();
        let of = |nodes| (limits.pace(nodes).per_second, limits.pace(nodes).batch);
        assert_eq!([of(0), of(99), of(100), of(499)], [(10.0, 20), (10.0, 20), (7.5, 14), (7.5, 14)]);
        assert_eq!([of(500), of(5000)], [(50.0, 100); 2], "no faster than Cilium");
        let late = RateLimits::parse(r#"[{"nodes": 10, "limit": 3, "burst": 4}]"#).unwrap();
        assert_eq!(late.pace(0), Pace { batch: 4, per_second: 3.0 });
        assert_eq!(RateLimits::flat(10.0, 20).unwrap().pace(3), Pace { batch: 20, per_second: 10.0 });
    }

    #[test]
    fn a_list_that_allows_nothing_or_says_something_unknown_is_refused() {
        let refused = [
            ("", "is no list"),
            ("[]", "empty list"),
            (r#"{"nodes": 0}"#, "is no list"),
            (r#"[{"nodes": 0, "limit": 10}]"#, "missing field"),
            (r#"[{"nodes": 0, "limit": 10, "burst": 20, "qps": 3}]"#, "unknown field"),
            (r#"[{"nodes": -1, "limit": 10, "burst": 20}]"#, "is no list"),
            (r#"[{"nodes": 0, "limit": 0, "burst": 20}]"#, "would allow nothing"),
            (r#"[{"nodes": 0, "limit": 10, "burst": 0}]"#, "would allow nothing"),
            (
                r#"[{"nodes": 1, "limit": 1, "burst": 1}, {"nodes": 1, "limit": 2, "burst": 2}]"#,
                "two steps for 1",
            ),
        ];
        for (text, problem) in refused {
            let error = RateLimits::parse(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
