//! Pods that were there before their node's agent, and so have no endpoint: name servers are started anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntGauge, Registry};

use super::{Agents, Selector};
use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{Kind, Observed, Phase, Pod};
use crate::write::{Outcome, Write};

/// A pod that is younger may get its endpoint yet.
const YOUNGEST: Duration = Duration::from_secs(30);
/// So may one of which the endpoints' watch may not have told: a dead one is found out within 65 seconds.
const YOUNGEST_UNSEEN: Duration = Duration::from_secs(120);
/// No pod of one name is deleted again within this time: a StatefulSet's has the name again.
const NAME_RESTS: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub agents: Agents,
    pub selector: Selector,
    /// Between deletions, and how long an agent is ready before; above zero.
    pub interval: Duration,
}

/// Deletes pods that the network does not know, one in an interval.
pub struct Unmanaged {
    config: Config,
    metrics: Metrics,
    /// Since when agents are ready, by the names of nodes.
    ready: BTreeMap<Arc<str>, Duration>,
    /// When pods were deleted, by `namespace/name`.
    deleted: BTreeMap<String, Duration>,
    /// When the deletion under way was planned.
    planned: Duration,
}

/// Clones count together.
#[derive(Clone)]
pub struct Metrics {
    pods: IntGauge,
}

impl Metrics {
    /// # Errors
    /// A metric of the name is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Pods of pod-restart-selector that have no endpoint though their node's agent is ready";
        let pods = IntGauge::new("cilium_operator_unmanaged_pods", help)?;
        registry.register(Box::new(pods.clone()))?;
        Ok(Self { pods })
    }
}

impl Unmanaged {
    pub const fn new(config: Config, metrics: Metrics) -> Self {
        Self { config, metrics, ready: BTreeMap::new(), deleted: BTreeMap::new(), planned: Duration::ZERO }
    }

    /// Takes note of which agents are ready.
    fn note_agents(&mut self, observed: &Observed, now: Now) {
        let before = std::mem::take(&mut self.ready);
        let agents = self.config.agents.by_node(observed);
        let ready = agents.into_iter().filter(|(_, agent)| agent.ready.is_some());
        self.ready = ready
            .map(|(node, _)| {
                before
                    .get_key_value(node)
                    .map_or_else(|| (node.into(), now.monotonic), |(node, since)| (Arc::clone(node), *since))
            })
            .collect();
    }

    /// When a pod without an endpoint may be deleted, on the clock of [`Now::monotonic`]; `None`: not as things are.
    fn due(&self, pod: &Pod, observed: &Observed, now: Now) -> Option<Duration> {
        let ready = *self.ready.get(pod.node.as_deref()?)?;
        let is_seen = observed.endpoints.version() >= pod.meta.version;
        let youngest = if is_seen { YOUNGEST } else { YOUNGEST_UNSEEN };
        let age =
            Duration::from_secs(u64::try_from(now.seconds().saturating_sub(pod.meta.created)).unwrap_or(0));
        let old = now.monotonic + youngest.saturating_sub(age);
        let name = pod.meta.full_name();
        let rested = self.deleted.get(&name).map_or(Duration::ZERO, |at| *at + NAME_RESTS);
        let last = self.deleted.values().max().map_or(Duration::ZERO, |at| *at + self.config.interval);
        Some((ready + self.config.interval).max(old).max(rested).max(last))
    }
}

impl Drop for Unmanaged {
    /// Another replica's is the figure from now on.
    fn drop(&mut self) {
        self.metrics.pods.set(0);
    }
}

impl Controller for Unmanaged {
    fn name(&self) -> &'static str {
        "unmanaged-pods"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Pod, Kind::CiliumEndpoint, Kind::CiliumEndpointSlice]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 1, per_second: 1.0 }
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        self.note_agents(observed, now);
        self.deleted.retain(|_, at| *at + NAME_RESTS > now.monotonic);
        let candidates = observed.pods.iter().filter(|pod| self.is_candidate(pod, observed));
        let candidates: Vec<_> = candidates.collect();
        let sliced = if candidates.is_empty() { BTreeSet::new() } else { sliced(observed) };
        let has_no_slice = |pod: &&&Arc<Pod>| !sliced.contains(&(&*pod.meta.namespace, &*pod.meta.name));
        let mut due: Vec<_> = candidates
            .iter()
            .filter(has_no_slice)
            .filter_map(|pod| Some((self.due(pod, observed, now)?, pod.meta.created, *pod)))
            .collect();
        self.metrics.pods.set(i64::try_from(due.len()).unwrap_or(i64::MAX));
        due.sort_unstable_by_key(|(due, created, pod)| (*due, *created, &pod.meta.name));
        let Some((at, _, pod)) = due.first() else { return Plan::default() };
        let left = at.saturating_sub(now.monotonic);
        if !left.is_zero() {
            return Plan { again: Some(left), ..Plan::default() };
        }
        self.planned = now.monotonic;
        let reason = "it has no endpoint, though its node's agent is ready";
        Plan { writes: vec![Write::delete(Kind::Pod, &pod.meta, reason)], ..Plan::default() }
    }

    fn done(&mut self, write: &Write, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => drop(self.deleted.insert(write.object.clone(), self.planned)),
            Outcome::Late | Outcome::Failed(_) => {}
        }
    }
}

impl Unmanaged {
    fn is_candidate(&self, pod: &Pod, observed: &Observed) -> bool {
        self.config.selector.selects(&pod.labels)
            && pod.phase == Phase::Running
            && pod.has_address
            && !pod.is_host_network
            && !pod.meta.is_deleting
            && !observed.endpoints.is_there(&pod.meta.full_name())
    }
}

/// Namespaces and names of all endpoints of slices.
fn sliced(observed: &Observed) -> BTreeSet<(&str, &str)> {
    let slices = observed.slices.iter();
    slices.flat_map(|slice| slice.endpoints.iter().map(|endpoint| (&*slice.of, &*endpoint.name))).collect()
}
