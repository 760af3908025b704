use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use portway_model::k8s::time_of;
use serde_json::json;

use super::Config;
use crate::controller::{Now, Plan};
use crate::nodes::agents::OfNode;
use crate::observed::{Kind, Node, Observed, Taint};
use crate::write::{Patch, Write};

/// Kubelets report their pods within this time of a start.
pub(super) const SETTLED: Duration = Duration::from_secs(120);
/// A pod is not ready for so long before its node is tainted.
pub(super) const GRACE: Duration = Duration::from_secs(30);

const UNAVAILABLE: &str = "NetworkUnavailable";
/// Cilium's words (operator/watchers/node_taint.go).
const REASON: &str = "CiliumIsUp";
const MESSAGE: &str = "Cilium is running on this node";

pub(super) fn plan(
    config: &Config,
    unready: &mut BTreeMap<Arc<str>, Duration>,
    observed: &Observed,
    now: Now,
) -> Plan {
    let agents = config.agents.by_node(observed);
    let before = std::mem::take(unready);
    let mut plan = Plan::default();
    for node in observed.nodes.iter().filter(|node| !node.meta.is_deleting) {
        let Some(OfNode { ready }) = agents.get(&*node.meta.name) else { continue };
        let decision = match ready {
            Some(ready) => when_ready(config, node, ready.created, now),
            None if config.set_taint && is_sure(node, observed) => {
                let since = before.get(&node.meta.name).copied().unwrap_or(now.monotonic);
                unready.insert(Arc::clone(&node.meta.name), since);
                when_unready(config, node, since, now)
            }
            None => Decision::Nothing,
        };
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
    let age = now.seconds().saturating_sub(node.meta.created);
    let left = SETTLED.saturating_sub(Duration::from_secs(u64::try_from(age).unwrap_or(0)));
    if created < node.meta.created && !left.is_zero() {
        return Decision::Wait(left);
    }
    if wants_condition {
        return Decision::Write(condition(node, now));
    }
    let others = node.taints.iter().filter(|taint| *taint.key != *config.taint_key);
    Decision::Write(taints(node, others, "its agent is ready"))
}

fn when_unready(config: &Config, node: &Node, since: Duration, now: Now) -> Decision {
    if node.taints.iter().any(|taint| *taint.key == *config.taint_key) {
        return Decision::Nothing;
    }
    let left = (since + GRACE).saturating_sub(now.monotonic);
    if is_up(node) && !left.is_zero() {
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

/// Its agent was ready once.
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
