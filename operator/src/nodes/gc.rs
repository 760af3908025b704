//! CiliumNodes whose Nodes are gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{CiliumNode, Kind, Observed, STALE};
use crate::write::Write;

/// Deletes a CiliumNode whose Node has been gone for a whole interval.
///
/// The API server's garbage collector deletes those that name their Node as owner; this is for the others, and for
/// clusters without it. One that is no Node's, of an external workload, is whoever's made it. A Node is gone only for
/// who hears of Nodes all the while, up to what the CiliumNode says last: an agent writes it for a Node that is there,
/// so that a watch that lags does not delete a new node's. Where nothing is told of any Node, it is [`STALE`] more.
pub struct Gc {
    interval: Duration,
    /// UIDs by name, with the first time that there was no Node.
    alone: BTreeMap<Arc<str>, (Arc<str>, Duration)>,
}

impl Gc {
    /// `interval` is above zero.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, alone: BTreeMap::new() }
    }
}

impl Controller for Gc {
    fn name(&self) -> &'static str {
        "node-gc"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::CiliumNode]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 50, per_second: 50.0 }
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let before = std::mem::take(&mut self.alone);
        let mut plan = Plan::default();
        if !observed.are_fresh(self.kinds(), now) {
            return plan;
        }
        for node in observed.cilium_nodes.iter() {
            let meta = &node.meta;
            if meta.is_deleting || is_others(node) || observed.nodes.is_there(&meta.name) {
                continue;
            }
            let is_seen = observed.nodes.version() >= meta.version;
            let wait = if is_seen { self.interval } else { self.interval + STALE };
            let known = before.get(&meta.name).filter(|(uid, _)| *uid == meta.uid);
            let since = known.map_or(now.monotonic, |(_, since)| *since);
            self.alone.insert(Arc::clone(&meta.name), (Arc::clone(&meta.uid), since));
            let left = (since + wait).saturating_sub(now.monotonic);
            if left.is_zero() {
                plan.writes.push(Write::delete(Kind::CiliumNode, meta, "its Node is gone"));
            } else {
                plan.again = plan.again.min(Some(left)).or(Some(left));
            }
        }
        plan
    }
}

/// Somebody else sees to it that it goes.
fn is_others(node: &CiliumNode) -> bool {
    node.is_kept || (!node.owners.is_empty() && node.owners.iter().all(|owner| owner.kind != "Node"))
}
