//! The CiliumIdentities of the label sets that pods have, where `identity-management-mode` says that the operator makes
//! them (`both`, `operator`).
//!
//! It is no [`Controller`](crate::controller::Controller): a claim reads between its writes. It lives as long as this
//! replica leads, on the same fenced client.
//!
//! ```text
//! pods, namespaces ─► wishes ─► queue ─► at most 32 claims under way ─► held as long as a pod has the labels
//! CiliumIdentities ──────────────────────────┘ what the watch has shown is held at once
//! ```
//!
//! What is held is made again, with the same number, where somebody deletes it. What no pod has any more is left to
//! garbage collection, whose timeout is the grace for pods that come back.

mod metrics;
mod preview;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portway_claims::{Allocator, Change, News, Place, reserve};
use portway_model::identity::NumberRange;
use portway_model::k8s::{Event, Object, ObjectKey, ObjectKind};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::Client;

use crate::controller::{Now, Trouble};
use crate::observed::{Kind, Observed};
use crate::status;
use crate::wishes::{Rules, Urgency, Wishes};
pub use metrics::Metrics;
pub use preview::preview;
use queue::{Queue, Rank};

/// Claims under way at once: enough to keep 200 requests a second busy at an answer in a tenth of a second.
const UNDER_WAY: usize = 32;
/// Between two looks at what is observed, at least, and the share of time that they may take.
const REST: Duration = Duration::from_millis(20);
const SHARE: u32 = 10;

/// How identities are made.
#[derive(Clone, Debug)]
pub struct Config {
    pub range: NumberRange,
    pub rules: Rules,
}

/// Makes and keeps identities.
pub struct Identities {
    allocator: Allocator,
    wishes: Wishes,
    /// Numbers that ordinary label sets leave to those that go first.
    reserve: usize,
    /// The version of the identities that were looked at.
    seen: Option<u64>,
    work: HashMap<Labels, Work>,
    queue: Queue,
    under_way: usize,
    not_before: Duration,
    metrics: Metrics,
    last_error: Option<String>,
    failures: u64,
    /// Why those of [`State::Refused`] are.
    refused: BTreeMap<Labels, String>,
    is_stopped: bool,
    /// Something changed since troubles were told.
    is_untold: bool,
}

/// A label set that pods have.
struct Work {
    rank: Rank,
    state: State,
    /// Since when it is so.
    since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the queue.
    Waiting,
    UnderWay,
    /// Its claim found no free number, or lost the one it had, and goes on by itself.
    Stuck,
    /// The API server keeps on refusing it; its claim goes on by itself, and others have its place.
    Refused,
    Held,
}

impl Identities {
    /// `client` is fenced.
    pub fn new(config: Config, client: Client, metrics: Metrics) -> Self {
        let Config { range, rules } = config;
        Self {
            allocator: Allocator::keeper(client, range),
            wishes: Wishes::new(rules),
            reserve: reserve(range),
            seen: None,
            work: HashMap::new(),
            queue: Queue::default(),
            under_way: 0,
            not_before: Duration::ZERO,
            metrics,
            last_error: None,
            failures: 0,
            refused: BTreeMap::new(),
            is_stopped: false,
            is_untold: false,
        }
    }

    /// Looks at what is observed, if anything changed. When to come again. O(1) where nothing changed, else O(pods +
    /// identities).
    pub fn step(&mut self, observed: &Observed, now: Now) -> Option<Duration> {
        let is_synced = KINDS.iter().all(|kind| observed.is_synced(*kind));
        let is_behind = self.wishes.is_behind(observed) || self.seen != Some(observed.identities.version());
        if !is_synced || !is_behind || self.is_stopped {
            return None;
        }
        if now.monotonic < self.not_before {
            return Some(self.not_before);
        }
        let began = Instant::now();
        self.see(observed);
        self.wish(observed, now);
        self.begin(now);
        self.not_before = now.monotonic + REST.max(began.elapsed() * SHARE);
        None
    }

    /// The next change of a claim, to be given to [`Self::take`]; claims go on only while this is waited for. Cancel safe.
    pub async fn next(&mut self) -> Change {
        self.allocator.next().await
    }

    /// Takes note of what became of a claim.
    pub fn take(&mut self, change: Change, now: Now) {
        let Change { labels, news } = change;
        match news {
            News::Held(number) => {
                tracing::debug!(%labels, number = number.get(), "an identity is held");
                self.set(&labels, State::Held, now);
            }
            // A keeper refers to nothing.
            News::Settled(_) => {}
            News::Lost(number) => {
                tracing::warn!(%labels, number = number.get(), "somebody gave the number of a label set to another one");
                self.set(&labels, State::Stuck, now);
            }
            News::Obstacle(reason) => {
                self.failures += 1;
                self.metrics.failed();
                self.last_error = Some(reason.clone());
                if self.allocator.is_exhausted(&labels) {
                    self.set(&labels, State::Stuck, now);
                } else if self.allocator.is_refused(&labels) {
                    self.set(&labels, State::Refused, now);
                    self.refused.insert(labels, reason);
                }
            }
        }
        self.begin(now);
    }

    /// No claim begins from now on; requests under way go on to their answers, while [`Self::next`] is waited for.
    pub const fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// For people.
    pub fn status(&self) -> status::Controller {
        let count = |state: State| self.work.values().filter(|work| work.state == state).count();
        let state = format!(
            "{} label sets of pods: {} have their identity, {} under way, {} wait, {} are refused; {} numbers are free",
            self.work.len(),
            count(State::Held),
            self.under_way,
            count(State::Waiting) + count(State::Stuck),
            self.refused.len(),
            self.allocator.free(),
        );
        status::Controller {
            name: NAME.to_owned(),
            state,
            wanted: self.work.len() as u64,
            done: self.allocator.counts().allocated,
            failed: self.failures,
            last_error: self.last_error.clone(),
            troubles: self.troubles().into_iter().map(Into::into).collect(),
            ..status::Controller::default()
        }
    }

    /// Its troubles, if anything changed since they were asked for so.
    pub fn untold(&mut self) -> Option<Vec<Trouble>> {
        std::mem::take(&mut self.is_untold).then(|| self.troubles())
    }

    /// Namespaces whose pods get no identity.
    pub fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = self.exhausted();
        let mut refused: BTreeMap<Arc<str>, (usize, &str)> = BTreeMap::new();
        for (labels, reason) in &self.refused {
            refused.entry(labels.namespace().cloned().unwrap_or_default()).or_insert((0, reason)).0 += 1;
        }
        troubles.extend(refused.into_iter().map(|(namespace, (count, reason))| Trouble {
            kind: Kind::Namespace,
            object: namespace.to_string(),
            uid: String::new(),
            reason: "IdentitiesRefused",
            message: format!(
                "{count} label sets of its pods get no identity, for the API server refuses it; one was told: {reason}"
            ),
        }));
        troubles
    }

    /// Namespaces whose pods wait for a free number.
    fn exhausted(&self) -> Vec<Trouble> {
        let free = self.allocator.free();
        if free > self.reserve {
            return Vec::new();
        }
        let mut waiting: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        let waits = |work: &Work| matches!(work.state, State::Waiting | State::Stuck);
        for (labels, _) in self.work.iter().filter(|(_, work)| waits(work)) {
            *waiting.entry(labels.namespace().cloned().unwrap_or_default()).or_default() += 1;
        }
        let trouble = |(namespace, count): (Arc<str>, usize)| Trouble {
            kind: Kind::Namespace,
            object: namespace.to_string(),
            uid: String::new(),
            reason: "IdentitiesExhausted",
            message: format!(
                "{count} label sets of its pods wait for a free number of an identity ({free} are free, {} of which are \
                 kept for system namespaces): fewer different label sets are needed (`labels` says which labels count)",
                self.reserve.min(free),
            ),
        };
        waiting.into_iter().map(trouble).collect()
    }

    /// Tells the allocator what changed among the identities.
    fn see(&mut self, observed: &Observed) {
        let version = observed.identities.version();
        if self.seen == Some(version) {
            return;
        }
        self.seen = Some(version);
        let known = self.allocator.observed();
        let gone = known.iter().filter(|identity| observed.identities.get(&identity.name).is_none());
        let mut events: Vec<_> = gone
            .map(|identity| {
                let name = Arc::clone(&identity.name);
                Event::Delete(ObjectKey { kind: ObjectKind::CiliumIdentity, name, uid: Arc::from("") })
            })
            .collect();
        let is_news = |identity: &&Arc<portway_model::k8s::CiliumIdentity>| {
            known.get(identity.number).is_none_or(|before| !Arc::ptr_eq(before, identity))
        };
        let there = observed.identities.iter().map(|object| &object.identity);
        let there = there.filter(is_news).map(|identity| Object::CiliumIdentity(Arc::clone(identity)));
        events.extend(there.map(Event::Apply));
        events.iter().for_each(|event| self.allocator.observe(event));
        self.allocator.told_up_to(version);
        self.allocator.set_synced();
    }

    /// Lets go what no pod has any more, and takes what pods have.
    fn wish(&mut self, observed: &Observed, now: Now) {
        self.wishes.update(observed);
        let gone: Vec<_> =
            self.work.keys().filter(|labels| self.wishes.get(labels).is_none()).cloned().collect();
        for labels in gone {
            self.forget(&labels);
        }
        let mut at_once = Vec::new();
        for (labels, wish) in self.wishes.iter() {
            let rank = Rank { urgency: wish.urgency, since: wish.since };
            let work = self.work.entry(labels.clone()).or_insert_with(|| {
                self.queue.insert(rank, labels);
                Work { rank, state: State::Waiting, since: now.monotonic }
            });
            if work.state == State::Waiting {
                self.queue.set_rank(work.rank, rank, labels);
                // Whatever is free: it needs no number.
                if self.allocator.observed().number_of(labels).is_some() {
                    at_once.push(labels.clone());
                }
            }
            work.rank = rank;
        }
        at_once.iter().for_each(|labels| self.claim(labels, now));
    }

    fn forget(&mut self, labels: &Labels) {
        let Some(work) = self.work.remove(labels) else { return };
        self.refused.remove(labels);
        match work.state {
            State::Waiting => self.queue.remove(work.rank, labels),
            State::UnderWay => self.under_way -= 1,
            State::Stuck | State::Refused | State::Held => {}
        }
        if work.state != State::Waiting {
            self.allocator.release(labels);
        }
    }

    /// Begins claims as long as there is room for them.
    fn begin(&mut self, now: Now) {
        self.is_untold = true;
        while self.under_way < UNDER_WAY
            && !self.is_stopped
            && let Some((rank, labels)) = self.queue.first()
        {
            let free = self.allocator.free();
            let kept = if rank.urgency == Urgency::Ordinary { self.reserve } else { 0 };
            if free <= kept {
                break;
            }
            self.claim(&labels, now);
        }
        self.metrics.show(self.work.len(), self.queue.len());
    }

    fn claim(&mut self, labels: &Labels, now: Now) {
        let place = self.allocator.hold(labels, None);
        let Some(work) = self.work.get_mut(labels) else { return };
        self.queue.remove(work.rank, labels);
        self.metrics.began(now.monotonic.saturating_sub(work.since));
        (work.state, work.since) = (State::UnderWay, now.monotonic);
        self.under_way += 1;
        if let Place::Held(_) | Place::Settled(_) = place {
            self.set(labels, State::Held, now);
        }
    }

    fn set(&mut self, labels: &Labels, state: State, now: Now) {
        let Some(work) = self.work.get_mut(labels) else { return };
        let before = std::mem::replace(&mut work.state, state);
        let since = std::mem::replace(&mut work.since, now.monotonic);
        if before == State::UnderWay {
            self.under_way -= 1;
        }
        if state != State::Refused {
            self.refused.remove(labels);
        }
        if state == State::Held && before != State::Held {
            self.metrics.held(now.monotonic.saturating_sub(since));
        }
    }
}

/// Who leads no more knows nothing of them.
impl Drop for Identities {
    fn drop(&mut self) {
        self.metrics.show(0, 0);
    }
}

/// In status and logs.
pub const NAME: &str = "identities";

/// What it looks at.
pub const KINDS: &[Kind] = &[Kind::Pod, Kind::Namespace, Kind::CiliumIdentity];
