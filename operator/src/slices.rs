//! CiliumEndpointSlices: the CiliumEndpoints of a namespace gathered in few objects, which agents then watch instead.
//!
//! Everything follows from the objects that are there ([`plan`]): an operator that restarts writes nothing, and one that
//! was killed anywhere is taken over from where it was. A write of a leader that has lost its lease unnoticed fails by
//! the slice's UID and version, or by its name; where nobody has touched that slice since, what it adds is right or is taken
//! out by the next turn.

mod left;
mod limits;
mod metrics;
mod plan;
mod refused;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

pub use left::Left;
pub use limits::{LimitsError, RateLimits};
pub use metrics::Metrics;
pub use plan::{Filling, Mode, Planned, plan};

use self::refused::Refused;
use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{Kind, Observed};
use crate::write::{Outcome, Write};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub filling: Filling,
    pub limits: RateLimits,
}

/// Gathers CiliumEndpoints.
pub struct Slices {
    config: Config,
    metrics: Metrics,
    /// Writes of the last plan, by their objects.
    planned: HashMap<String, Waiting>,
    /// When writes that came through since were first planned.
    done: Vec<Waiting>,
    refused: Refused,
}

/// A write that was planned.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// By the monotonic clock.
    since: Duration,
    has_priority: bool,
    inserted: usize,
    removed: usize,
    left: usize,
}

impl Slices {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self { config, metrics, planned: HashMap::new(), done: Vec::new(), refused: Refused::default() }
    }

    /// Takes note of what is planned, in whose place earlier plans' are.
    fn remember(&mut self, planned: &[Planned], now: Now) {
        for waiting in self.done.drain(..) {
            self.metrics.waited(waiting.has_priority, now.monotonic.saturating_sub(waiting.since));
        }
        let before = std::mem::take(&mut self.planned);
        let waiting = |planned: &Planned| {
            let Planned { write, has_priority, inserted, removed, left } = planned;
            let since = before.get(&write.object).map_or(now.monotonic, |waiting| waiting.since);
            let (has_priority, inserted, removed, left) = (*has_priority, *inserted, *removed, *left);
            (write.object.clone(), Waiting { since, has_priority, inserted, removed, left })
        };
        self.planned = planned.iter().map(waiting).collect();
    }
}

impl Controller for Slices {
    fn name(&self) -> &'static str {
        "endpoint-slices"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumEndpoint, Kind::CiliumEndpointSlice, Kind::Namespace, Kind::CiliumNode]
    }

    fn pace(&self, observed: &Observed) -> Pace {
        self.config.limits.pace(observed.cilium_nodes.len())
    }

    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        self.refused.forget_gone(|name| observed.slices.is_there(name));
        let may_take_out = observed.are_fresh(&[Kind::CiliumEndpoint, Kind::CiliumEndpointSlice], now);
        let is_avoided = |name: &str| self.refused.is_avoided(name);
        let planned = plan(observed, self.config.filling, may_take_out, &is_avoided);
        self.remember(&planned, now);
        Plan { writes: planned.into_iter().map(|planned| planned.write).collect(), ..Plan::default() }
    }

    fn done(&mut self, write: &Write, outcome: &Outcome) {
        self.refused.note(&write.object, outcome);
        let is_done = matches!(outcome, Outcome::Done { .. });
        self.metrics.synced(is_done);
        if is_done && let Some(waiting) = self.planned.remove(&write.object) {
            self.metrics.changed(waiting.inserted, waiting.removed, waiting.left);
            self.done.push(waiting);
        }
    }
}
