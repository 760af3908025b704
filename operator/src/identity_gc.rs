//! Garbage collection of identities: what nobody has used for long is marked, and what stays marked for long is deleted.
//!
//! Used is what a CiliumEndpoint or a CiliumEndpointSlice names, and, where the operator makes identities, what the label
//! set of a pod has. The clock is on the object (annotation `io.cilium.heartbeat`), so that a collector that restarts, or
//! another one, goes on where the last was.
//!
//! # Why no identity in use goes
//! Who takes an identity into use writes its reference first and reads the identity then: it sees a mark and removes it,
//! and with it the version that the delete names; or none, and any mark is younger than the reference. Agents go further
//! and use a number for a pod that starts before its reference is written: a mark that they hear of meanwhile goes, too.
//! So what a delete rests on is time: from the mark to the delete it takes an agent far less to write the reference (or to
//! hear of the mark), and the watches here to tell of it.
//!
//! That time is the timeout, half an hour unless it is configured otherwise. Where it was shortened for want of numbers it
//! is three minutes at least, which this process must have seen pass by its own clock, and the watches must have told
//! something younger than the mark. While a kind is not heard of, or has an object that cannot be read and may name any
//! number, nothing is marked or deleted.
//!
//! # When numbers run short
//! From four fifths of the range on, rounds come faster, the timeouts fall and more go in each interval (see [`Limits`]).
//! Settings that are lower stay. At its fastest a number that was used for a moment is free again after four to five
//! minutes: one to three until its mark, for which the watches must have told something younger, three until it goes. Of a
//! cluster's 65,280 numbers more than 200 a second come back so, more than deletes are allowed (166 a second by default) and
//! than the operator can make at its usual 100 requests a second; of a range narrowed to 1,024, four a second.

mod metrics;
mod pressure;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use portway_datapath::NumericIdentity;
use portway_model::identity::garbage::{self, Timeouts, Verdict};
use portway_model::identity::{HEARTBEAT, NumberRange, Seen};
use portway_model::k8s::time_of;
use serde_json::json;

use crate::controller::{Controller, Now, Pace, Plan, Trouble};
use crate::observed::{CiliumIdentity, Kind, Misfit, Observed};
use crate::wishes::{Rules, Wishes};
use crate::write::{Change, Outcome, Write};
pub use metrics::Metrics;
use pressure::Budget;
pub use pressure::Limits;

/// Writes of a turn.
const BATCH: usize = 500;
/// What waits for the budget, or for an object that is left alone, is looked at again after this long.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Config {
    /// Between rounds; not zero.
    pub interval: Duration,
    /// How long an identity that nobody uses stays unmarked, and how long marked.
    pub timeout: Duration,
    /// At most `rate_limit` identities are deleted in each `rate_interval`.
    pub rate_interval: Duration,
    pub rate_limit: u32,
    pub range: NumberRange,
    /// Where the operator makes identities: what makes the label sets of pods.
    pub rules: Option<Rules>,
    /// CiliumEndpointSlices name identities, too.
    pub has_slices: bool,
}

/// Marks and deletes identities.
pub struct IdentityGc {
    config: Config,
    wishes: Option<Wishes>,
    metrics: Metrics,
    state: State,
    budget: Budget,
    /// Identities whose writes failed or came too late, and when: the others go first for an interval.
    left_out: BTreeMap<String, Duration>,
    /// Since when this process has seen marks, with the versions that have them; while timeouts are shortened.
    marks: BTreeMap<NumericIdentity, (u64, Duration)>,
    planned_at: Duration,
}

enum State {
    /// The last round ended then.
    Resting(Option<Duration>),
    Round(Round),
}

/// A round is as many turns as it takes. One that lasts for an interval is followed by the next without a rest.
struct Round {
    began: Duration,
    deleted: u64,
    has_failed: bool,
}

/// What a round wants.
struct Judged {
    writes: Vec<Write>,
    /// Deletes that wait for the budget.
    waiting: usize,
}

impl IdentityGc {
    pub fn new(config: Config, metrics: Metrics) -> Self {
        Self {
            wishes: config.rules.clone().map(Wishes::new),
            budget: Budget::new(&config),
            config,
            metrics,
            state: State::Resting(None),
            left_out: BTreeMap::new(),
            marks: BTreeMap::new(),
            planned_at: Duration::ZERO,
        }
    }

    fn limits(&self, observed: &Observed) -> Limits {
        let is_in_range =
            |object: &&std::sync::Arc<CiliumIdentity>| self.config.range.contains(object.identity.number);
        let taken = observed.identities.iter().filter(is_in_range).count();
        Limits::of(&self.config, taken)
    }

    /// Numbers that something names.
    fn used(&mut self, observed: &Observed) -> BTreeSet<NumericIdentity> {
        let endpoints = observed.endpoints.iter().map(|endpoint| endpoint.core.id);
        // Those that are left of another configuration are nobody's.
        let slices = observed.slices.iter().filter(|_| self.config.has_slices);
        let of_slices = slices.flat_map(|slice| slice.endpoints.iter().map(|core| core.id));
        let numbers = endpoints.chain(of_slices).filter_map(|id| u32::try_from(id).ok());
        let mut used: BTreeSet<_> = numbers.map(NumericIdentity::new).collect();
        if let Some(wishes) = &mut self.wishes {
            wishes.update(observed);
            // Of several of a label set the one that counts.
            let mut best: HashMap<_, Seen> = HashMap::new();
            let identities = observed.identities.iter().map(|object| &object.identity);
            for identity in identities.filter(|identity| wishes.get(&identity.labels).is_some()) {
                let seen = Seen::from(&**identity);
                best.entry(&identity.labels)
                    .and_modify(|best| {
                        if seen.rank() < best.rank() {
                            *best = seen;
                        }
                    })
                    .or_insert(seen);
            }
            used.extend(best.values().map(|seen| seen.number));
        }
        used
    }

    /// What is to be written now, unmarks first, then marks, then deletes as far as the budget goes.
    fn judge(&mut self, observed: &Observed, limits: Limits, now: Now) -> Judged {
        let used = self.used(observed);
        self.see_marks(observed, limits, now);
        // A mark is a second's.
        let seconds = |timeout: Duration| i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).max(1);
        let whole = seconds(self.config.timeout);
        let short = Timeouts { young: seconds(limits.young), marked: seconds(limits.marked) };
        let (mut unmarks, mut marks, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
        for object in observed.identities.iter() {
            let meta = &object.meta;
            if meta.is_deleting || self.left_out.contains_key(&*meta.name) {
                continue;
            }
            let mut timeouts = Timeouts::from(whole);
            if self.is_passed(observed, object) {
                let has_seen = self.has_seen_mark(object, limits, now);
                timeouts.young = short.young;
                timeouts.marked = if has_seen { short.marked } else { whole };
            }
            let judged = garbage::plan([&*object.identity], &used, now.seconds(), timeouts);
            let Some(collection) = judged.first() else { continue };
            let mark = |mark: Option<String>| json!({"metadata": {"annotations": {HEARTBEAT: mark}}});
            let kind = Kind::CiliumIdentity;
            match collection.verdict {
                Verdict::Keep => {}
                Verdict::Unmark => unmarks.push(Write::merge(kind, meta, mark(None), "it is used again")),
                Verdict::Mark => {
                    let since = time_of(now.seconds());
                    marks.push(Write::merge(kind, meta, mark(Some(since)), "nothing uses it"));
                }
                Verdict::Delete => {
                    let reason = format!("nothing has used it for {} s and more", timeouts.marked);
                    deletes.push(Write::delete(kind, meta, reason));
                }
            }
        }
        let left = self.budget.left(limits.deletes_per_second, now.monotonic);
        let waiting = deletes.len().saturating_sub(left);
        deletes.truncate(left);
        let writes = unmarks.into_iter().chain(marks).chain(deletes).collect();
        Judged { writes, waiting }
    }

    /// What shows who is used.
    fn evidence(&self) -> impl Iterator<Item = Kind> + use<> {
        self.kinds().iter().copied().filter(|kind| *kind != Kind::CiliumIdentity)
    }

    /// Whether the watches of all evidence have told something younger than the identity's version, which is that of its
    /// mark. Of a kind without objects there is nobody to be late with.
    fn is_passed(&self, observed: &Observed, identity: &CiliumIdentity) -> bool {
        let is_past = |kind| observed.len(kind) == 0 || observed.version(kind) >= identity.meta.version;
        self.evidence().all(is_past)
    }

    /// Objects that cannot be read: they may name any number.
    fn unreadable(&self, observed: &Observed) -> Vec<Trouble> {
        let of_kind = |kind| observed.misfits(kind).into_iter().map(move |misfit| (kind, misfit));
        let trouble = |(kind, misfit): (Kind, &Misfit)| Trouble {
            kind,
            object: misfit.object.clone(),
            uid: misfit.uid.clone(),
            reason: "IdentitiesKept",
            message: format!(
                "no identity goes while it cannot be read, for it may name any: {}; mend it or delete it",
                misfit.problem
            ),
        };
        self.evidence().flat_map(of_kind).map(trouble).collect()
    }

    /// The clock of who marked an identity may be wrong, which half an hour makes up for.
    fn see_marks(&mut self, observed: &Observed, limits: Limits, now: Now) {
        let before = std::mem::take(&mut self.marks);
        if limits.marked >= self.config.timeout {
            return;
        }
        let marked = observed.identities.iter().filter(|object| object.identity.heartbeat.is_some());
        self.marks = marked
            .map(|object| {
                let (number, version) = (object.identity.number, object.meta.version);
                let seen = before.get(&number).filter(|(of, _)| *of == version);
                (number, seen.copied().unwrap_or((version, now.monotonic)))
            })
            .collect();
    }

    fn has_seen_mark(&self, identity: &CiliumIdentity, limits: Limits, now: Now) -> bool {
        let seen = self.marks.get(&identity.identity.number);
        seen.is_some_and(|(_, since)| now.monotonic.saturating_sub(*since) >= limits.marked)
    }
}

impl Controller for IdentityGc {
    fn name(&self) -> &'static str {
        "identity-gc"
    }

    fn kinds(&self) -> &'static [Kind] {
        match (&self.config.rules, self.config.has_slices) {
            (None, false) => &[Kind::CiliumIdentity, Kind::CiliumEndpoint],
            (None, true) => &[Kind::CiliumIdentity, Kind::CiliumEndpoint, Kind::CiliumEndpointSlice],
            (Some(_), false) => &[Kind::CiliumIdentity, Kind::CiliumEndpoint, Kind::Pod, Kind::Namespace],
            (Some(_), true) => &[
                Kind::CiliumIdentity,
                Kind::CiliumEndpoint,
                Kind::CiliumEndpointSlice,
                Kind::Pod,
                Kind::Namespace,
            ],
        }
    }

    /// Marks and deletes: twice what may be deleted.
    fn pace(&self, observed: &Observed) -> Pace {
        Pace { batch: BATCH, per_second: self.limits(observed).deletes_per_second * 2.0 + 1.0 }
    }

    /// O(identities + endpoints) in a round, else O(identities).
    fn plan(&mut self, observed: &Observed, now: Now) -> Plan {
        // A kind that is heard of again calls for a turn.
        if !observed.are_fresh(self.kinds(), now) {
            return Plan::default();
        }
        let troubles = self.unreadable(observed);
        if !troubles.is_empty() {
            return Plan { troubles, ..Plan::default() };
        }
        let limits = self.limits(observed);
        let round = match std::mem::replace(&mut self.state, State::Resting(None)) {
            State::Round(round) => round,
            // What has become short must not wait for what was long.
            State::Resting(Some(last)) if now.monotonic < last + limits.interval => {
                self.state = State::Resting(Some(last));
                let again = (last + limits.interval).saturating_sub(now.monotonic);
                return Plan { again: Some(again), ..Plan::default() };
            }
            State::Resting(_) => Round::new(now.monotonic),
        };
        self.planned_at = now.monotonic;
        self.left_out.retain(|_, at| now.monotonic < *at + limits.interval);
        let Judged { writes, waiting } = self.judge(observed, limits, now);
        let took = now.monotonic.saturating_sub(round.began);
        let is_over = writes.is_empty() && waiting == 0;
        if is_over || took >= limits.interval {
            self.metrics.ended(observed.identities.len(), round.deleted, !round.has_failed, took);
        }
        if is_over {
            self.state = State::Resting(Some(now.monotonic));
            return Plan { again: Some(limits.interval), ..Plan::default() };
        }
        self.state = State::Round(if took < limits.interval { round } else { Round::new(now.monotonic) });
        Plan { writes, again: Some(PAUSE), ..Plan::default() }
    }

    fn done(&mut self, write: &Write, outcome: &Outcome) {
        let is_delete = matches!(write.change, Change::Delete { .. });
        let is_done = matches!(outcome, Outcome::Done { .. });
        if is_done && is_delete {
            self.budget.take();
        }
        if !is_done {
            self.left_out.insert(write.object.clone(), self.planned_at);
        }
        if let State::Round(round) = &mut self.state {
            round.deleted += u64::from(is_done && is_delete);
            round.has_failed |= matches!(outcome, Outcome::Failed(_));
        }
    }
}

/// Who leads no more knows nothing of them.
impl Drop for IdentityGc {
    fn drop(&mut self) {
        self.metrics.clear();
    }
}

impl Round {
    fn new(now: Duration) -> Self {
        Self { began: now, deleted: 0, has_failed: false }
    }
}
