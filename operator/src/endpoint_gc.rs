//! CiliumEndpoints whose pod is gone or over are deleted: their agent did not, because it or its node went first.
//!
//! Rounds are some minutes apart. A pod is there before its endpoint is; but what is known of pods may be older than what is
//! known of endpoints. So an endpoint is judged only by what is known of pods as of its own version or later; and it
//! goes if it is the second round that finds it so, or if it is older than a minute; while nothing is heard of pods, none
//! goes. Its UID and version are the
//! delete's precondition, so that one that comes late never hits the object of a pod that has the name by now
//! (cilium/cilium#27123).

mod metrics;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use metrics::Metrics;

use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{CiliumEndpoint, Kind, Observed};
use crate::write::{Outcome, Write};

/// Younger endpoints are given a second round.
const YOUNG: Duration = Duration::from_secs(60);
/// Deletes at once, and a second: what a node of 250 pods leaves is gone within seconds.
const PACE: Pace = Pace { batch: 50, per_second: 50.0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Between rounds; not zero.
    pub interval: Duration,
}

/// Deletes CiliumEndpoints that no pod has.
pub struct EndpointGc {
    config: Config,
    metrics: Metrics,
    /// When the next round is, by the monotonic clock.
    next: Duration,
    /// Those that the last round found without a pod, by their UIDs.
    suspects: BTreeSet<Arc<str>>,
    /// Those that are to go: their UIDs, by their names.
    condemned: BTreeMap<String, Arc<str>>,
}

impl EndpointGc {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self { config, metrics, next: Duration::ZERO, suspects: BTreeSet::new(), condemned: BTreeMap::new() }
    }

    fn round(&mut self, observed: &Observed, now: Now) {
        let before = std::mem::take(&mut self.suspects);
        for endpoint in observed.endpoints.iter().filter(|endpoint| orphaned(observed, endpoint).is_some()) {
            let uid = &endpoint.meta.uid;
            let age = now.seconds().saturating_sub(endpoint.meta.created);
            if before.contains(uid) || age > YOUNG.as_secs() as i64 {
                self.condemned.insert(endpoint.meta.full_name(), Arc::clone(uid));
            }
            self.suspects.insert(Arc::clone(uid));
        }
    }
}

impl Controller for EndpointGc {
    fn name(&self) -> &'static str {
        "endpoint-gc"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumEndpoint, Kind::Pod]
    }

    fn pace(&self, _: &Observed) -> Pace {
        PACE
    }

    /// O(endpoints) in a round, else O(those that are to go).
    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        if !observed.is_fresh(Kind::Pod, now) {
            return Plan::default();
        }
        if now.monotonic >= self.next {
            self.next = now.monotonic + self.config.interval;
            self.round(observed, now);
        }
        let mut writes = Vec::new();
        self.condemned.retain(|name, uid| {
            let endpoint = observed.endpoints.get(name).filter(|endpoint| endpoint.meta.uid == *uid);
            let Some((endpoint, why)) = endpoint.and_then(|e| Some((e, orphaned(observed, e)?))) else {
                return false;
            };
            writes.push(Write::delete(Kind::CiliumEndpoint, &endpoint.meta, why));
            true
        });
        Plan { writes, again: Some(self.next.saturating_sub(now.monotonic)), ..Plan::default() }
    }

    fn done(&mut self, _: &Write, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => self.metrics.deleted(true),
            Outcome::Failed(_) => self.metrics.deleted(false),
            // Somebody else was first.
            Outcome::Late => {}
        }
    }
}

/// Why no pod has an endpoint; `None` where one has.
fn orphaned(observed: &Observed, endpoint: &CiliumEndpoint) -> Option<&'static str> {
    // Of a node, say; whoever made it takes care of it. And what goes already is not deleted twice.
    if endpoint.is_others || endpoint.meta.is_deleting {
        return None;
    }
    if observed.pods.version() < endpoint.meta.version {
        return None;
    }
    let name = endpoint.meta.full_name();
    let Some(pod) = observed.pods.get(&name) else {
        // One that cannot be read is there all the same.
        return (!observed.pods.is_there(&name)).then_some("its pod is gone");
    };
    if !endpoint.pod_uid.is_empty() && endpoint.pod_uid != pod.meta.uid {
        return Some("its pod is gone, and another one has its name");
    }
    pod.phase.is_over().then_some("its pod is over")
}
