use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portway_model::k8s::time_of;
use serde_json::json;

use super::Config;
use crate::controller::{Now, Plan};
use crate::observed::{Kind, Node, Observed, Taint};
use crate::write::{Patch, Write};

/// Kubelets report their pods within this time of a start.
pub(super) const SETTLED: Duration = Duration::from_secs(120);
/// A pod that was ready is not for so long before its node is tainted.
pub(super) const GRACE: Duration = Duration::from_secs(30);

const UNAVAILABLE: &str = "NetworkUnavailable";
/// Cilium's words (operator/watchers/node_taint.go).
const REASON: &str = "CiliumIsUp";
const MESSAGE: &str = "Cilium is running on this node";

/// What is remembered of a Node.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    uid: Arc<str>,
    /// Its agent was ready once, for all that is known.
    was_ready: bool,
    /// Since when it is not.
    unready: Option<Duration>,
}

impl Seen {
    /// Whether its agent is ready is not known for a while.
    pub(super) const fn begin_anew(&mut self) {
        self.unready = None;
    }
}

pub(super) fn plan(
    config: &Config,
    seen: &mut BTreeMap<Arc<str>, Seen>,
    observed: &Observed,
    now: Now,
) -> Plan {
    let agents = config.agents.by_node(observed);
    let mut before = std::mem::take(seen);
    let mut plan = Plan::default();
    for node in observed.nodes.iter().filter(|node| !node.meta.is_deleting) {
        let name = &node.meta.name;
        let known = before.remove(name).filter(|seen| seen.uid == node.meta.uid);
        let mut of_node = known.unwrap_or_else(|| Seen {
            uid: Arc::clone(&node.meta.uid),
            was_ready: is_up(node) || age(node, now) >= SETTLED,
            unready: None,
        });
        let decision = match agents.get(&**name) {
            Some(Some(ready)) => {
                (of_node.was_ready, of_node.unready) = (true, None);
                when_ready(config, node, ready.created, now)
            }
            Some(None) if config.set_taint && is_sure(node, observed) => {
                let since = *of_node.unready.get_or_insert(now.monotonic);
                let grace = if of_node.was_ready { GRACE } else { Duration::ZERO };
                when_unready(config, node, (since + grace).saturating_sub(now.monotonic))
            }
            Some(None) | None => {
                of_node.unready = None;
                Decision::Nothing
            }
        };
        seen.insert(Arc::clone(name), of_node);
        match decision {
            Decision::Nothing => {}
            Decision::Write(write) => plan.writes.push(write),
            Decision::Wait(left) => plan.again = Some(plan.again.map_or(left, |again| again.min(left))),
        }
    }
    plan
}

/// One write a Node: each names the version that was seen.
enum Decision {
    Nothing,
    Write(Write),
    Wait(Duration),
}

fn when_ready(config: &Config, node: &Node, created: i64, now: Now) -> Decision {
    let wants_condition = config.set_condition && !is_up(node);
    let has_taint = config.remove_taint && node.taints.iter().any(|taint| *taint.key == *config.taint_key);
    if !wants_condition && !has_taint {
        return Decision::Nothing;
    }
    if created < node.meta.created {
        let left = SETTLED.saturating_sub(age(node, now));
        if !left.is_zero() {
            return Decision::Wait(left);
        }
        if !node.is_ready {
            return Decision::Nothing;
        }
    }
    if wants_condition {
        return Decision::Write(condition(node, now));
    }
    let others = node.taints.iter().filter(|taint| *taint.key != *config.taint_key);
    Decision::Write(taints(node, others, "its agent is ready"))
}

fn when_unready(config: &Config, node: &Node, left: Duration) -> Decision {
    if node.taints.iter().any(|taint| *taint.key == *config.taint_key) {
        return Decision::Nothing;
    }
    if !left.is_zero() {
        return Decision::Wait(left);
    }
    let taint = Taint {
        key: config.taint_key.as_str().into(),
        value: "".into(),
        effect: "NoSchedule".into(),
        time_added: None,
    };
    Decision::Write(taints(node, node.taints.iter().chain([&taint]), "its agent is not ready"))
}

/// Whether what is known of the node's pods is its kubelet's word, and no older than what is known of the Node.
fn is_sure(node: &Node, observed: &Observed) -> bool {
    node.is_ready && observed.pods.version() >= node.meta.version
}

/// Since it was made.
fn age(node: &Node, now: Now) -> Duration {
    Duration::from_secs(u64::try_from(now.seconds().saturating_sub(node.meta.created)).unwrap_or(0))
}

/// It says that its agent was ready once.
fn is_up(node: &Node) -> bool {
    let condition = node.network_unavailable.as_ref();
    condition.is_some_and(|condition| &*condition.status == "False" && &*condition.reason == REASON)
}

fn condition(node: &Node, now: Now) -> Write {
    let time = time_of(now.seconds());
    let condition = json!({
        "type": UNAVAILABLE,
        "status": "False",
        "reason": REASON,
        "message": MESSAGE,
        "lastHeartbeatTime": time,
        "lastTransitionTime": time,
    });
    let body = json!({"status": {"conditions": [condition]}});
    Write::patch(Kind::Node, &node.meta, Patch::Strategic, Some("status"), body, "its agent is ready")
}

fn taints<'a>(node: &Node, taints: impl Iterator<Item = &'a Taint>, reason: &str) -> Write {
    let taints: Vec<_> = taints.collect();
    Write::merge(Kind::Node, &node.meta, json!({"spec": {"taints": taints}}), reason)
}
