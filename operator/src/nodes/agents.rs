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

/// When a node's agent is ready, seconds since 1970. It has two pods while one takes over from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// When the newest of those that are ready was made.
    pub(super) created: i64,
    /// Since when one is ready: whatever pod was made since has its network from the agent.
    pub(super) since: i64,
}

impl Agents {
    /// By the names of nodes, `None` where no pod of the agent is ready; those without one are not there. O(pods).
    pub(super) fn by_node<'a>(&self, observed: &'a Observed) -> BTreeMap<&'a str, Option<Ready>> {
        let mut nodes: BTreeMap<&str, Option<Ready>> = BTreeMap::new();
        for pod in observed.pods.iter().filter(|pod| self.are(pod)) {
            let Some(node) = pod.node.as_deref() else { continue };
            let of_node = nodes.entry(node).or_default();
            let Some(since) = pod.ready.filter(|_| !pod.phase.is_over()) else { continue };
            let created = pod.meta.created;
            let ready = of_node.get_or_insert(Ready { created, since });
            *ready = Ready { created: ready.created.max(created), since: ready.since.min(since) };
        }
        nodes
    }

    fn are(&self, pod: &Pod) -> bool {
        *pod.meta.namespace == *self.namespace && !pod.meta.is_deleting && self.labels.selects(&pod.labels)
    }
}
