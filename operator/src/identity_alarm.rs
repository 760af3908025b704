//! Says long before the numbers of identities come to an end that they will, and which label is to blame.
//!
//! | when | said |
//! |---|---|
//! | half of the range is taken | always |
//! | a tenth is taken, and at the speed of the last ten minutes the rest is gone within two hours | until it is slower |
//!
//! Where label sets come and go, their number goes up and down and gets nowhere: it grows if there were more within the last
//! minute than ever in the minutes before, and its speed is the least of those since any of them.
//!
//! What is said names the label whose values make the identities, how many there would be without it, and the namespace
//! with most of them, on which there is an Event.

mod metrics;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use portway_model::identity::NumberRange;
use portway_model::identity::cardinality::{Cardinality, Key};

use crate::controller::{Controller, Now, Pace, Plan, Trouble};
use crate::observed::{Kind, Observed};
pub use metrics::Metrics;

/// Between two looks, at least: one goes through all labels of all identities.
const REST: Duration = Duration::from_secs(10);
/// Over which the speed is measured.
const WINDOW: Duration = Duration::from_secs(600);
/// The end of it, which is compared with what was before.
const LAST: Duration = Duration::from_secs(60);
/// So many keys are looked at closely.
const SUSPECTS: usize = 5;
/// Whoever hears of it must have time to do something.
const WARNING: Duration = Duration::from_secs(7200);

/// Tells of identities that become too many. Writes nothing.
pub struct IdentityAlarm {
    range: NumberRange,
    metrics: Metrics,
    /// How many there were, and when, the newest last.
    history: VecDeque<(Duration, usize)>,
    last: Option<(Duration, Vec<Trouble>)>,
}

impl IdentityAlarm {
    pub fn new(range: NumberRange, metrics: Metrics) -> Self {
        metrics.capacity(range.count());
        Self { range, metrics, history: VecDeque::new(), last: None }
    }

    /// Why there is an alarm, if there is one.
    fn reason(&self, taken: usize) -> Option<String> {
        let capacity = self.range.count() as usize;
        let percent = taken * 100 / capacity.max(1);
        if taken * 2 >= capacity {
            return Some(format!("{taken} of {capacity} identities are taken ({percent} %)"));
        }
        let left = self.left().filter(|left| taken * 10 >= capacity && *left <= WARNING)?;
        Some(format!(
            "{taken} of {capacity} identities are taken ({percent} %), and at this speed all are within {} minutes",
            left.as_secs().div_ceil(60)
        ))
    }

    /// Until the end, at the speed of the last minutes; `None`: it does not come. O(looks in [`WINDOW`]).
    fn left(&self) -> Option<Duration> {
        let (now, _) = self.history.back()?;
        let ages = self.history.iter().map(|(then, count)| (now.saturating_sub(*then), *count));
        let (before, recent): (Vec<_>, Vec<_>) = ages.partition(|(age, _)| *age >= LAST);
        // A short time tells no speed.
        before.first().filter(|(age, _)| *age >= LAST * 2)?;
        let taken = recent.iter().map(|(_, count)| *count).max()?;
        let free = (self.range.count() as usize).saturating_sub(taken);
        let mut longest = None;
        for (age, count) in before {
            let grown = taken.checked_sub(count).filter(|grown| *grown > 0)?;
            longest = longest.max(Some(age.mul_f64(free as f64 / grown as f64)));
        }
        longest
    }

    fn look(&mut self, observed: &Observed, now: Now) -> Vec<Trouble> {
        let in_range = observed.identities.iter().map(|object| &object.identity);
        let in_range: Vec<_> = in_range.filter(|identity| self.range.contains(identity.number)).collect();
        let taken = in_range.len();
        while self.history.front().is_some_and(|(then, _)| now.monotonic.saturating_sub(*then) > WINDOW) {
            self.history.pop_front();
        }
        self.history.push_back((now.monotonic, taken));
        let reason = self.reason(taken);
        self.metrics.show(observed.identities.len(), reason.is_some());
        let Some(reason) = reason else { return Vec::new() };
        let cardinality = Cardinality::of(in_range.iter().map(|identity| &identity.labels), SUSPECTS);
        vec![trouble(&reason, &cardinality, observed)]
    }
}

fn trouble(reason: &str, cardinality: &Cardinality, observed: &Observed) -> Trouble {
    let mut message = reason.to_owned();
    if let Some(Key { label, values, without, .. }) = cardinality.keys.first() {
        message.push_str(&format!(
            "; label {label} has {values} values, and without it there would be {without}: keep it out of identities \
             (key `labels`: !{})",
            label.split_once(':').map_or(&**label, |(_, key)| key),
        ));
    }
    let largest = cardinality.namespaces.first();
    if let Some((namespace, count)) = largest {
        message.push_str(&format!("; namespace {namespace} has {count} of them"));
    }
    let namespace = largest.map(|(namespace, _)| namespace.to_string()).unwrap_or_default();
    let uid = observed.namespaces.get(&namespace).map(|object| object.meta.uid.to_string());
    Trouble {
        kind: Kind::Namespace,
        object: namespace,
        uid: uid.unwrap_or_default(),
        reason: "IdentitiesRunOut",
        message,
    }
}

/// Who leads no more knows nothing of them.
impl Drop for IdentityAlarm {
    fn drop(&mut self) {
        self.metrics.clear();
    }
}

impl Controller for IdentityAlarm {
    fn name(&self) -> &'static str {
        "identity-alarm"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CiliumIdentity, Kind::Namespace]
    }

    /// It writes nothing.
    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 0, per_second: 0.0 }
    }

    /// O(labels of identities) where there is an alarm, else O(identities); every `REST` at most.
    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        let troubles = match &self.last {
            Some((last, troubles)) if now.monotonic < *last + REST => {
                let again = Some((*last + REST).saturating_sub(now.monotonic));
                return Plan { writes: Vec::new(), again, troubles: troubles.clone() };
            }
            Some(_) | None => self.look(observed, now),
        };
        self.last = Some((now.monotonic, troubles.clone()));
        // The speed is of time, too.
        Plan { writes: Vec::new(), again: Some(WINDOW / 10), troubles }
    }
}
