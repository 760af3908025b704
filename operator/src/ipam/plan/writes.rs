//! A turn's decisions as writes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::seen::Seen;
use super::{Decision, Turn};
use crate::controller::{Plan, Trouble};
use crate::ipam::book::difference;
use crate::ipam::ledger::Taken;
use crate::ipam::metrics::{Figures, PoolFigures};
use crate::ipam::pools::Pool;
use crate::observed::{CiliumNode, Kind};
use crate::write::{Patch, Write};

impl Turn<'_> {
    pub(super) fn decide(mut self, taken: &Taken) -> Decision {
        let mut writes: Vec<_> = self.write_pool().into_iter().collect();
        let mut written = BTreeSet::new();
        for seen in &self.nodes {
            if let Some(write) = self.write_node(seen) {
                written.insert(Box::from(seen.name()));
                writes.push(write);
            }
        }
        for seen in self.nodes.iter().filter(|seen| !written.contains(seen.name())) {
            writes.extend(self.write_status(seen));
        }
        for (node, errors) in &self.errors {
            let uid = self.observed.cilium_nodes.get(node).map_or("", |node| &node.meta.uid);
            self.troubles.extend(errors.iter().map(|error| Trouble {
                kind: Kind::CiliumNode,
                object: (*node).to_owned(),
                uid: uid.to_owned(),
                reason: "PodCidrs",
                message: error.clone(),
            }));
        }
        let is_waiting = self.epoch().is_some() && !self.is_settled;
        let figures = self.figures(taken);
        let waiting = is_waiting.then_some(self.config.patience);
        let again = waiting.into_iter().chain(self.again).min();
        let plan = Plan { writes, again, troubles: self.troubles };
        Decision { plan, figures }
    }

    /// The pool object as it is to be.
    fn write_pool(&self) -> Option<Write> {
        let object = self.config.object();
        let data = self.wanted.data();
        let Some(pool) = self.pool else {
            let body = json!({
                "apiVersion": Kind::ClusterPool.api_version(),
                "kind": Kind::ClusterPool.name(),
                "metadata": {"name": crate::ipam::OBJECT, "namespace": self.config.namespace},
                "data": data,
            });
            let reason = format!("there is none; {} nodes have pod CIDRs", self.wanted.claims.len());
            return Some(Write::create(Kind::ClusterPool, object, body, reason));
        };
        let changes = difference(&pool.data, &data);
        let of_nodes: Vec<_> = changes.keys().filter(|key| !key.starts_with('_')).collect();
        let reason = match of_nodes[..] {
            _ if changes.is_empty() => return None,
            [] => "who has which pod CIDRs is known from here on".to_owned(),
            [node] => format!("the pod CIDRs of {node}"),
            [first, ..] => format!("the pod CIDRs of {first} and {} others", of_nodes.len() - 1),
        };
        Some(Write::merge(Kind::ClusterPool, &pool.meta, json!({"data": changes}), reason))
    }

    /// Gives a node what it has claimed, as the pool object says; or sees to it that nobody else still does.
    fn write_node(&self, seen: &Seen<'_>) -> Option<Write> {
        let epoch = self.epoch()?;
        let lacking: Vec<_> = self.config.pools.iter().filter(|pool| seen.lacks(pool.family())).collect();
        let meta = &seen.node.meta;
        if lacking.is_empty() {
            return None;
        }
        if !seen.is_of(epoch) {
            // One of a later epoch: this is not the pool object that there is.
            let is_later = seen.node.pod_cidrs_epoch.is_some_and(|version| version > epoch.version);
            if is_later && !self.is_patience_over {
                return None;
            }
            let body = json!({"metadata": {"annotations": {CiliumNode::EPOCH: epoch.version.to_string()}}});
            let reason = "so that no CIDR of an earlier pool object is written late";
            return Some(Write::merge(Kind::CiliumNode, meta, body, reason));
        }
        if !self.is_settled {
            return None;
        }
        let new = lacking.iter().filter_map(|pool| self.claimed(&self.book, seen, pool));
        let new: Vec<_> = new.map(|cidr| cidr.to_string()).collect();
        if new.is_empty() {
            return None;
        }
        let reason = format!("{} is claimed for it", new.join(" and "));
        let has = seen.node.spec.ipam.iter().flat_map(|ipam| ipam.pod_cidrs.iter().cloned());
        let cidrs: Vec<_> = has.chain(new).collect();
        Some(Write::merge(Kind::CiliumNode, meta, json!({"spec": {"ipam": {"podCIDRs": cidrs}}}), reason))
    }

    /// What is wrong with a node's CIDRs, or that nothing is.
    fn write_status(&self, seen: &Seen<'_>) -> Option<Write> {
        let errors = self.errors.get(seen.name());
        let error =
            errors.map(|errors| errors.iter().cloned().collect::<Vec<_>>().join("; ")).unwrap_or_default();
        if *error == *seen.node.error || seen.node.meta.is_deleting {
            return None;
        }
        let reason = if error.is_empty() { "nothing is wrong with its pod CIDRs" } else { "its pod CIDRs" };
        let error = if error.is_empty() { Value::Null } else { Value::from(error) };
        let body = json!({"status": {"ipam": {"operator-status": {"error": error}}}});
        let meta = &seen.node.meta;
        Some(Write::patch(Kind::CiliumNode, meta, Patch::Merge, Some("status"), body, reason))
    }

    fn figures(&self, taken: &Taken) -> Figures {
        let at_capacity = self.exhausted.iter().map(|(node, _)| node).collect::<BTreeSet<_>>();
        let of_pool = |pool: &Pool| {
            let (used, needed) =
                (taken.used(pool), self.nodes.iter().filter(|seen| seen.lacks(pool.family())).count());
            PoolFigures {
                family: pool.family(),
                available: (pool.size() - used) * pool.addresses(),
                used: used * pool.addresses(),
                needed: needed as f64 * pool.addresses(),
            }
        };
        Figures {
            nodes: self.nodes.len(),
            in_deficit: self.lacking().count(),
            at_capacity: at_capacity.len(),
            of_pools: self.config.pools.iter().map(of_pool).collect(),
        }
    }
}
