//! What a Node says of its network: a condition and a taint.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Agents;
use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{Kind, Observed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub agents: Agents,
    /// `node.cilium.io/agent-not-ready`.
    pub taint_key: String,
    pub remove_taint: bool,
    pub set_taint: bool,
    /// `NetworkUnavailable` is `False` from the first time on that the agent is ready.
    pub set_condition: bool,
    /// Nodes at once.
    pub workers: usize,
}

/// Sets the condition and removes the taint where an agent is ready; where none is, and if it is asked to, sets the
/// taint.
///
/// - An agent is ready where its pod says so. A pod that is older than the Node may say what was before the machine was
///   started anew: it counts once the Node is `plan::SETTLED` old, when its kubelet has had its say, and that is heard.
/// - Nothing is written while nothing is heard of pods or Nodes, nor where a Node has changed since it was seen.
/// - The taint is *set* only on what is surely so: the Node is ready (else it is the node controller, not the
///   kubelet, that calls its pods unready, as after an outage of the API server it does for all), the pods' watch has told
///   something newer than the Node, and all that for `plan::GRACE`, unless the agent was never ready: an agent
///   that is started anew is no reason. Of a Node that is older than `plan::SETTLED` when this operator begins to
///   lead, its agent was.
/// - `spec.taints` is replaced as a whole, in a strategic patch too (its list is atomic), so the patch names the version
///   that was seen.
pub struct Readiness {
    config: Config,
    /// Nodes by their names.
    seen: BTreeMap<Arc<str>, plan::Seen>,
}

impl Readiness {
    pub const fn new(config: Config) -> Self {
        Self { config, seen: BTreeMap::new() }
    }
}

impl Controller for Readiness {
    fn name(&self) -> &'static str {
        "node-readiness"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::Pod]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: self.config.workers, per_second: 50.0 }
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        if !observed.are_fresh(self.kinds(), now) {
            self.seen.values_mut().for_each(plan::Seen::begin_anew);
            return Plan::default();
        }
        plan::plan(&self.config, &mut self.seen, observed, now)
    }
}
