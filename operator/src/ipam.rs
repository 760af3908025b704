//! `ipam=cluster-pool`: each CiliumNode gets the CIDRs that its pods' addresses are from.
//!
//! ```text
//! CiliumNodes ──► claims in the pool object ──(seen)──► spec.ipam.podCIDRs of the CiliumNode
//!      └──────────────adopted, when it lacks────────────────┘
//! ```
//!
//! That no CIDR is given twice does not rest on the lease. The ConfigMap `portway-pod-cidrs` says which CiliumNode, by
//! its UID, has claimed which CIDRs, and is changed by compare-and-swap alone; a CIDR is written to a CiliumNode
//! of that UID and version only once its claim was *seen*. So two operators can disagree about nothing but the pool object, where
//! one of them fails.
//!
//! - A claim ends when its CiliumNode and its Node have been gone for a minute, all of which was heard of them. Who ends
//!   it must know CiliumNodes up to `_as-of`, or it might not have seen the one that the claim is for. A node that is
//!   made anew before keeps its CIDRs. The machine may be cut off, with pods that still run: a CIDR that is free
//!   again is given after all others; `_last` is the one that was claimed last.
//! - The object is deleted or edited (`_sum` tells): it is made anew from the CiliumNodes. An operator that was frozen,
//!   or whose watch lags, may then hold claims that nobody else knows of. `_epoch` is the version from which on all
//!   claims are known: a CiliumNode without CIDRs that may be older is marked with it first, so that a write of
//!   earlier claims fails, and nothing is given before all are marked. That no CIDR is given twice rests on this alone;
//!   that the CIDRs of nodes that are gone rest, and come last, on the leader, which writes what the object said into the
//!   new one, so that a claim cannot be taken out by hand as long as its node is there. A leader that has never seen it knows only what CiliumNodes have: it may give at once what a node had
//!   whose CiliumNode went within the minute before.
//! - A claim that somebody else has, too (by hand, or from what a watch told too late), is not written; the node claims
//!   another one, and keeps the first, for it may be on its way.
//! - What CiliumNodes have is adopted, whoever wrote it and whether or not it is of the pool. Where two have the same,
//!   the older CiliumNode keeps it; the other one is not changed either, for its pods have addresses of it, but its
//!   `status.ipam.operator-status.error` says so until somebody drains it and deletes its CiliumNode.
//! - CIDRs with an address of a machine in them are not given; the others of its range are.

mod book;
mod ledger;
mod metrics;
mod plan;
mod pools;
#[cfg(test)]
mod tests;

pub use metrics::Metrics;
pub use pools::{Pool, PoolError};

use std::time::Duration;

use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{Kind, Observed};

/// The name of the pool object.
pub const OBJECT: &str = "portway-pod-cidrs";

/// [`Config::patience`] for an operator: far longer than any write is on its way.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Writes a second: what a new cluster of a thousand nodes needs is done within half a minute.
const PER_SECOND: f64 = 100.0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the pool object.
    pub namespace: String,
    /// At most one of each family: nodes get a CIDR of each.
    pub pools: Vec<Pool>,
    /// Writes at once.
    pub workers: usize,
    /// A CiliumNode that cannot be marked keeps the others waiting for so long; see [`PATIENCE`].
    pub patience: Duration,
}

impl Config {
    fn object(&self) -> String {
        format!("{}/{OBJECT}", self.namespace)
    }
}

/// Gives nodes their CIDRs.
pub struct Ipam {
    config: Config,
    metrics: Metrics,
    memory: plan::Memory,
}

impl Ipam {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self { config, metrics, memory: plan::Memory::default() }
    }
}

impl Drop for Ipam {
    /// Another replica's are the figures from now on.
    fn drop(&mut self) {
        self.metrics.clear();
    }
}

impl Controller for Ipam {
    fn name(&self) -> &'static str {
        "ipam"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::ClusterPool, Kind::CiliumNode, Kind::Node]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: self.config.workers, per_second: PER_SECOND }
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let decision = plan::plan(&self.config, &mut self.memory, observed, now);
        self.metrics.set(&decision.figures);
        decision.plan
    }
}
