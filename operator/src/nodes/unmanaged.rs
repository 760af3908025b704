//! Pods that were there before their node's agent, and so have no endpoint: name servers are started anew.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntGauge, Registry};

use super::agents::Ready;
use super::{Agents, Selector};
use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{Kind, Meta, Observed, Phase, Pod, STALE};
use crate::write::{Outcome, Write};

/// A pod may get its endpoint within this time.
const YOUNGEST: Duration = Duration::from_secs(30);
/// So long it has where the endpoints' watch has told nothing since: one that is heard of no more is found out before.
const YOUNGEST_UNSEEN: Duration = Duration::from_secs(YOUNGEST.as_secs() + STALE.as_secs());
/// Pauses between deletions grow up to this while they help nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub agents: Agents,
    pub selector: Selector,
    /// Between deletions, and how long an agent is ready before; above zero.
    pub interval: Duration,
    /// What CiliumEndpointSlices tell counts, too. Where they are off, those that are left tell what was once.
    pub has_slices: bool,
}

/// Deletes pods that the network does not know, one in an interval.
///
/// That a pod has no endpoint says so only where nothing else explains it:
///
/// - It is older than its node's agent is ready: the agent gives later ones their network.
/// - It never had an endpoint since this operator leads, and has had none for `YOUNGEST`.
/// - What is known of endpoints is what is: all kinds are fresh, and every slice can be read where there are to be any.
/// - It has not changed since that was found: a deletion that is late by a change of the pod does nothing.
/// - The node's agent tells of the endpoints that it has surely made, and so does some agent at all: else they
///   refuse to be written, or are about to be after an outage.
///
/// While pods that come after a deletion lack endpoints too, the pause doubles, up to `LONGEST_PAUSE`.
pub struct Unmanaged {
    config: Config,
    metrics: Metrics,
    /// Since when agents are ready, by the names of nodes.
    ready: BTreeMap<Arc<str>, Duration>,
    /// Selected pods by their UIDs.
    seen: BTreeMap<Arc<str>, Seen>,
    last: Option<Deletion>,
    /// The one under way.
    planned: Option<Deletion>,
}

/// What is remembered of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It does not run yet.
    Waiting,
    /// It had an endpoint: the network knows it, whatever became of that.
    Managed,
    /// It has had none since then, when pods were known up to the version.
    Missing { since: Duration, version: u64 },
}

#[derive(Clone, Debug)]
struct Deletion {
    at: Duration,
    /// Before it.
    pause: Duration,
    /// UIDs of the selected pods that were there: others come after it.
    there: BTreeSet<Arc<str>>,
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
        Self { config, metrics, ready: BTreeMap::new(), seen: BTreeMap::new(), last: None, planned: None }
    }

    /// Takes note of which agents are ready.
    fn note_agents(&mut self, agents: &BTreeMap<&str, Ready>, now: Now) {
        self.ready.retain(|node, _| agents.contains_key(&**node));
        for node in agents.keys().filter(|node| !self.ready.contains_key(**node)).collect::<Vec<_>>() {
            self.ready.insert((*node).into(), now.monotonic);
        }
    }

    /// Takes note of which pods have endpoints.
    fn note_pods(&mut self, pods: &[&Arc<Pod>], endpoints: &Endpoints<'_>, now: Now) {
        let before = std::mem::take(&mut self.seen);
        let missing = Seen::Missing { since: now.monotonic, version: endpoints.observed.pods.version() };
        for pod in pods {
            let uid = &pod.meta.uid;
            let seen = match before.get(uid) {
                _ if endpoints.have(pod) => Seen::Managed,
                Some(Seen::Managed) => Seen::Managed,
                _ if !runs(pod) => Seen::Waiting,
                Some(seen @ Seen::Missing { .. }) => *seen,
                Some(Seen::Waiting) | None => missing,
            };
            self.seen.insert(Arc::clone(uid), seen);
        }
    }

    /// When a pod that no network knows may be deleted, on the clock of [`Now::monotonic`]; `None`: it is none.
    fn due(&self, pod: &Pod, agents: &BTreeMap<&str, Ready>, observed: &Observed) -> Option<Duration> {
        let node = pod.node.as_deref()?;
        let Seen::Missing { since, version } = *self.seen.get(&pod.meta.uid)? else { return None };
        let is_older = pod.meta.created <= agents.get(node)?.since;
        let is_told = observed.endpoints.version() >= version;
        let missing = since + if is_told { YOUNGEST } else { YOUNGEST_UNSEEN };
        let ready = *self.ready.get(node)? + self.config.interval;
        is_older.then_some(missing.max(ready))
    }

    /// Before the next deletion, by what has become of the last one.
    fn pause(&self) -> Duration {
        let interval = self.config.interval;
        let Some(last) = &self.last else { return interval };
        let lacks = |(uid, seen): (&Arc<str>, &Seen)| *seen != Seen::Managed && !last.there.contains(uid);
        if self.seen.iter().any(lacks) { (last.pause * 2).min(LONGEST_PAUSE.max(interval)) } else { interval }
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
        if self.config.has_slices {
            &[Kind::Pod, Kind::CiliumEndpoint, Kind::CiliumEndpointSlice]
        } else {
            &[Kind::Pod, Kind::CiliumEndpoint]
        }
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 1, per_second: 1.0 }
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let has_slices = self.config.has_slices;
        let is_unreadable = has_slices && observed.slices.misfits().next().is_some();
        if !observed.are_fresh(self.kinds(), now) || is_unreadable {
            self.seen.retain(|_, seen| *seen == Seen::Managed);
            return Plan::default();
        }
        let agents = self.config.agents.by_node(observed);
        let agents: BTreeMap<_, _> = agents.into_iter().filter_map(|(node, of)| Some((node, of?))).collect();
        self.note_agents(&agents, now);
        let selector = &self.config.selector;
        let pods = observed.pods.iter().filter(|pod| selector.selects(&pod.labels) && needs_endpoint(pod));
        let pods: Vec<_> = pods.collect();
        let endpoints = Endpoints::of(observed, has_slices);
        self.note_pods(&pods, &endpoints, now);
        let lost =
            pods.iter().filter_map(|pod| Some((self.due(pod, &agents, observed)?, pod.meta.created, *pod)));
        let mut lost: Vec<_> = lost.collect();
        self.metrics.pods.set(i64::try_from(lost.len()).unwrap_or(i64::MAX));
        if lost.is_empty() {
            return Plan::default();
        }
        let silent = endpoints.silent(&agents, now);
        if !silent.is_empty() && endpoints.are_none() {
            lost.clear();
        }
        lost.retain(|(_, _, pod)| !pod.node.as_deref().is_some_and(|node| silent.contains(node)));
        lost.sort_unstable_by_key(|(due, created, pod)| (*due, *created, &pod.meta.name));
        let Some((due, _, pod)) = lost.first() else {
            return Plan { again: Some(YOUNGEST), ..Plan::default() };
        };
        let pause = self.pause();
        let rested = self.last.as_ref().map_or(Duration::ZERO, |last| last.at + pause);
        let left = due.max(&rested).saturating_sub(now.monotonic);
        if !left.is_zero() {
            return Plan { again: Some(left), ..Plan::default() };
        }
        self.planned =
            Some(Deletion { at: now.monotonic, pause, there: self.seen.keys().cloned().collect() });
        let reason = "it has no endpoint, though its node's agent is ready";
        Plan { writes: vec![Write::delete(Kind::Pod, &pod.meta, reason)], ..Plan::default() }
    }

    fn done(&mut self, _: &Write, outcome: &Outcome) {
        match outcome {
            Outcome::Done { .. } => self.last = self.planned.take(),
            Outcome::Late | Outcome::Failed(_) => {}
        }
    }
}

/// It is, or will be, one of the network's.
fn needs_endpoint(pod: &Pod) -> bool {
    !pod.is_host_network && !pod.meta.is_deleting && !pod.phase.is_over()
}

fn runs(pod: &Pod) -> bool {
    pod.phase == Phase::Running && pod.has_address
}

/// What is known of endpoints.
struct Endpoints<'a> {
    observed: &'a Observed,
    has_slices: bool,
    sliced: OnceCell<BTreeSet<(&'a str, &'a str)>>,
}

impl<'a> Endpoints<'a> {
    const fn of(observed: &'a Observed, has_slices: bool) -> Self {
        Self { observed, has_slices, sliced: OnceCell::new() }
    }

    /// Namespaces and names of all those of slices; looked at for those alone that have no object of their own.
    fn sliced(&self) -> &BTreeSet<(&'a str, &'a str)> {
        self.sliced.get_or_init(|| {
            let slices = self.observed.slices.iter().filter(|_| self.has_slices);
            slices.flat_map(|slice| slice.endpoints.iter().map(|of| (&*slice.of, &*of.name))).collect()
        })
    }

    fn have(&self, pod: &Pod) -> bool {
        let Meta { namespace, name, .. } = &pod.meta;
        self.observed.endpoints.is_there(&pod.meta.full_name())
            || self.sliced().contains(&(&**namespace, &**name))
    }

    fn are_none(&self) -> bool {
        self.observed.endpoints.is_empty() && self.sliced().is_empty()
    }

    /// Nodes whose agents do not tell of a pod that has its network from them.
    fn silent(&self, agents: &BTreeMap<&str, Ready>, now: Now) -> BTreeSet<&'a str> {
        let latest = now.seconds().saturating_sub(i64::try_from(YOUNGEST.as_secs()).unwrap_or(i64::MAX));
        let lacking = self.observed.pods.iter().filter_map(|pod| {
            let node = pod.node.as_deref()?;
            let is_made = agents.get(node)?.since < pod.meta.created && pod.meta.created <= latest;
            (is_made && needs_endpoint(pod) && runs(pod) && !self.have(pod)).then_some(node)
        });
        lacking.collect()
    }
}
