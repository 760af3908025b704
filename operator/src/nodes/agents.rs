//! On which nodes an agent is ready, as their pods tell.

use std::collections::BTreeMap;

use super::Selector;
use crate::observed::{Observed, Pod};

/// Which pods are agents'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    pub namespace: String,
    pub labels: Selector,
}

/// The agent's pods of a node; two while one takes over from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfNode {
    /// `None`: none is ready.
    pub(super) ready: Option<Ready>,
}

/// Times, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// When the newest of those that are ready was made.
    pub(super) created: i64,
    /// Since when one is ready: whatever pod was made since has its network from the agent.
    pub(super) since: i64,
}

impl Agents {
    /// By the names of nodes; those without an agent's pod are not among them. O(pods).
    pub(super) fn by_node<'a>(&self, observed: &'a Observed) -> BTreeMap<&'a str, OfNode> {
        let mut nodes: BTreeMap<&str, OfNode> = BTreeMap::new();
        for pod in observed.pods.iter().filter(|pod| self.are(pod)) {
            let Some(node) = pod.node.as_deref() else { continue };
            let of_node = nodes.entry(node).or_insert(OfNode { ready: None });
            let Some(since) = pod.ready.filter(|_| !pod.phase.is_over()) else { continue };
            let created = pod.meta.created;
            let ready = of_node.ready.get_or_insert(Ready { created, since });
            *ready = Ready { created: ready.created.max(created), since: ready.since.min(since) };
        }
        nodes
    }

    fn are(&self, pod: &Pod) -> bool {
        *pod.meta.namespace == *self.namespace && !pod.meta.is_deleting && self.labels.selects(&pod.labels)
    }
}
