//! Numbers of label sets: claimed from the API server by agents and by the operator, or given by a node alone where there
//! is none.
//!
//! A label set is held as long as somebody has it: one of an agent's endpoints, one of the operator's pods. What
//! becomes of it is told by [`Allocator::next`]:
//!
//! ```text
//! hold ──► Settled: the number is the label set's, and unmarked; write it into CiliumEndpoints, then `referred`
//!      ──► Held: nobody will take it away
//! ```
//!
//! From `Settled` on the number may be shown to other nodes and used if the CiliumEndpoint is written before a collector
//! deletes what it has marked since: half an hour after the mark, and three minutes where numbers run short, unless
//! `identity-heartbeat-timeout` is shorter. A mark that a watch tells of meanwhile is removed. `Held` waits for no clock.

mod alone;
pub mod config;
mod drive;
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "what fails here fails a test")]
pub mod fake_api;
mod holding;
mod requests;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use portway_datapath::NumericIdentity;
use portway_model::identity::{Identities, NumberRange, Right, Standing};
use portway_model::k8s::{Event, Object, ObjectKind};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::Client;

use alone::Alone;
use drive::{Done, Lists};
use holding::Holding;
use requests::Requests;
use room::Room;

/// Whose pods the cluster itself needs.
pub const SYSTEM_NAMESPACE: &str = "kube-system";

/// How many numbers of a range are left to who goes first, when all others have taken the rest: one in 64, at most 1,024.
/// Agents leave them to [`SYSTEM_NAMESPACE`]; the operator, which knows of more, begins no claim where they would be touched.
/// Claims that look at the same moment may take a few of them.
pub fn reserve(range: NumberRange) -> usize {
    (range.count() / 64).min(1024) as usize
}

/// So many of the range are told of: four of five.
const fn alarming(range: NumberRange) -> usize {
    (range.count() / 5 * 4) as usize
}

fn is_system(labels: &Labels) -> bool {
    labels.namespace().is_some_and(|namespace| **namespace == *SYSTEM_NAMESPACE)
}

/// Where a label set's number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// [`Allocator::next`] will say.
    Pending,
    Settled(NumericIdentity),
    Held(NumericIdentity),
}

/// Something became of a label set that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub labels: Labels,
    pub news: News,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// See [`Place`]. A number may be followed by another one, which takes its place; the old one may be used until then.
    Settled(NumericIdentity),
    Held(NumericIdentity),
    /// Another label set has the number, by somebody's mistake: it must not be used any more. Another one follows.
    Lost(NumericIdentity),
    /// Why there is no number yet, for people. It is tried for ever.
    Obstacle(String),
}

/// What allocation has done since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Label sets that came to their numbers by requests.
    pub allocated: u64,
    /// Seconds from [`Allocator::hold`] to that, added up.
    pub seconds: f64,
    /// Requests that failed or came too late, and were followed by others.
    pub retries: u64,
}

/// The numbers of the label sets that this node holds.
pub struct Allocator {
    source: Source,
    /// Of the numbers that are given.
    room: Room,
    observed: Identities,
    /// All identities were seen once.
    synced: bool,
    /// The API server's were, at least: how many numbers are free is known.
    is_told: bool,
    held: BTreeMap<Labels, Holding>,
    /// Of them those that find no free number.
    exhausted: BTreeSet<Labels>,
    /// How many of them are [`Self::is_refused`].
    refused: usize,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// By the namespace of the label sets.
    lists: BTreeMap<Option<Arc<str>>, Lists>,
    changes: VecDeque<Change>,
    counts: Counts,
    /// Tells one holding of a label set from the next.
    serial: u64,
}

enum Source {
    Api { requests: Requests, role: Role },
    Alone(Alone),
}

/// Whose claims they are.
#[derive(Clone, Copy)]
enum Role {
    /// Of pods that are judged by the numbers.
    User(Right),
    /// See [`Claim::keeper`](portway_model::identity::Claim::keeper).
    Keeper,
}

impl Allocator {
    /// Claims from the API server. With [`Right::Wait`] nothing is created.
    pub fn from_api(client: Client, right: Right, cluster_id: u16) -> Self {
        let source = Source::Api { requests: Requests::new(client), role: Role::User(right) };
        Self::new(source, NumberRange::of_cluster(cluster_id))
    }

    /// Claims numbers from the API server for pods of others: there is nothing to be `referred` to, and what is held is
    /// made again where it vanishes. [`Self::observe`] is to be told of all identities first.
    pub fn keeper(client: Client, range: NumberRange) -> Self {
        Self::new(Source::Api { requests: Requests::new(client), role: Role::Keeper }, range)
    }

    /// Without an API server: the rule that claims begin with, on this node alone. Identities of a directory are honoured.
    pub fn alone(cluster_id: u16) -> Self {
        Self::new(Source::Alone(Alone::new(cluster_id)), NumberRange::of_cluster(cluster_id))
    }

    fn new(source: Source, range: NumberRange) -> Self {
        Self {
            source,
            room: Room::new(range),
            observed: Identities::default(),
            synced: false,
            is_told: false,
            held: BTreeMap::new(),
            exhausted: BTreeSet::new(),
            refused: 0,
            running: FuturesUnordered::new(),
            lists: BTreeMap::new(),
            changes: VecDeque::new(),
            counts: Counts::default(),
            serial: 0,
        }
    }

    /// The CiliumIdentities that were seen.
    pub fn observed(&self) -> &Identities {
        &self.observed
    }

    /// What is to be said early of numbers that come to an end.
    pub fn alarm(&self) -> Option<String> {
        let (taken, range) = (self.observed.len(), self.room.range());
        (taken >= alarming(range)).then(|| {
            format!(
                "{taken} identities of {} that there can be: pods have too many different label sets; \
                 `labels` says which labels count",
                range.count()
            )
        })
    }

    /// How many free numbers the label set leaves to others.
    fn kept_from(&self, labels: &Labels) -> usize {
        match self.source {
            Source::Api { role: Role::User(_), .. } if !is_system(labels) => reserve(self.room.range()),
            // Whose claims a keeper begins it decides itself; numbers of a node alone are nobody else's.
            Source::Api { .. } | Source::Alone(_) => 0,
        }
    }

    /// How many numbers nobody has, as far as is known.
    pub fn free(&self) -> usize {
        self.room.free()
    }

    /// The label set finds no free number, and takes the first that becomes free.
    pub fn is_exhausted(&self, labels: &Labels) -> bool {
        self.exhausted.contains(labels)
    }

    /// The API server keeps on refusing what the label set needs; it is tried for ever, more and more seldom.
    pub fn is_refused(&self, labels: &Labels) -> bool {
        self.held.get(labels).is_some_and(Holding::is_refused)
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// One more endpoint has the label set. `before`: the number that endpoints of it were left with before a restart of
    /// the agent, which they use since.
    pub fn hold(&mut self, labels: &Labels, before: Option<NumericIdentity>) -> Place {
        if let Some(holding) = self.held.get_mut(labels) {
            holding.holders += 1;
            return holding.place();
        }
        self.serial += 1;
        let holding = match &mut self.source {
            Source::Api { role, .. } => {
                Holding::claim(labels, self.room.range(), *role, before, &self.observed, self.serial)
            }
            Source::Alone(alone) => {
                let number = alone.hold(labels, before, &self.observed);
                if number.is_none() {
                    let news = News::Obstacle(holding::exhausted(self.room.range(), 0));
                    self.changes.push_back(Change { labels: labels.clone(), news });
                }
                Holding::given(number, self.serial)
            }
        };
        self.held.insert(labels.clone(), holding);
        self.drive(labels);
        // What is answered here is not told again.
        let place = self.held.get(labels).map_or(Place::Pending, Holding::place);
        if place != Place::Pending {
            self.changes.retain(|change| change.labels != *labels);
        }
        place
    }

    /// The number stands in the CiliumEndpoint of one of the label set's endpoints; to be called once for each endpoint,
    /// and once more after another number has settled.
    pub fn referred(&mut self, labels: &Labels, number: NumericIdentity) {
        if let Some(holding) = self.held.get_mut(labels) {
            holding.refer(number);
            self.drive(labels);
        }
    }

    /// One endpoint of the label set less, and its CiliumEndpoint.
    pub fn release(&mut self, labels: &Labels) {
        let Some(holding) = self.held.get_mut(labels) else { return };
        if holding.leave() {
            self.room.end(holding.serial);
            self.refused -= usize::from(holding.is_refused());
            self.exhausted.remove(labels);
            self.held.remove(labels);
            self.changes.retain(|change| change.labels != *labels);
            if let Source::Alone(alone) = &mut self.source {
                alone.release(labels);
                self.place_pending();
            }
        }
    }

    /// The label sets that are held and have a number, in their order.
    pub fn given(&self) -> impl Iterator<Item = (NumericIdentity, Labels)> {
        self.held.iter().filter_map(|(labels, holding)| match holding.place() {
            Place::Settled(number) | Place::Held(number) => Some((number, labels.clone())),
            Place::Pending => None,
        })
    }

    pub fn place(&self, labels: &Labels) -> Option<Place> {
        self.held.get(labels).map(Holding::place)
    }

    /// Takes note of a change of a CiliumIdentity; other kinds are passed over.
    pub fn observe(&mut self, event: &Event) {
        let before = self.observed.len();
        let changed = match event {
            Event::Apply(Object::CiliumIdentity(identity)) => {
                self.room.set_taken(identity.number, true);
                self.observed.apply(Arc::clone(identity))
            }
            Event::Delete(key) if key.kind == ObjectKind::CiliumIdentity => {
                let Some(number) = key.name.parse().ok().map(NumericIdentity::new) else { return };
                self.room.set_taken(number, false);
                self.observed.remove(number).into_iter().collect()
            }
            Event::Apply(_) | Event::Delete(_) => return,
        };
        if before < alarming(self.room.range())
            && let Some(alarm) = self.alarm()
        {
            tracing::warn!("{alarm}");
        }
        if let Source::Alone(alone) = &mut self.source {
            let concerned = alone.observe(event, &self.observed);
            concerned.iter().chain(&changed).for_each(|labels| self.place_alone(labels));
            if matches!(event, Event::Delete(_)) {
                self.place_pending();
            }
            return;
        }
        for labels in changed {
            let seen = self.observed.seen(&labels);
            if let Some(holding) = self.held.get_mut(&labels) {
                holding.observe(&seen);
                // Somebody else has found a number for it.
                if seen.iter().any(|seen| seen.standing == Standing::Confirmed) {
                    self.wake(&labels);
                }
                self.drive(&labels);
            }
        }
        if matches!(event, Event::Delete(_)) {
            self.retry_exhausted();
        }
    }

    /// Everything up to this version was told to [`Self::observe`], though not each state on the way: what was made and
    /// deleted in between is looked for. O(label sets held).
    pub fn told_up_to(&mut self, version: u64) {
        let mut missed = Vec::new();
        for (labels, holding) in &mut self.held {
            let seen = self.observed.seen(labels);
            if holding.has_missed(version, &seen) {
                holding.observe(&seen);
                missed.push(labels.clone());
            }
        }
        missed.iter().for_each(|labels| self.drive(labels));
        if !std::mem::replace(&mut self.is_told, true) {
            self.drive_all();
        }
    }

    /// All identities were seen. What was held before a restart is looked for among them.
    pub fn set_synced(&mut self) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        self.is_told = true;
        self.drive_all();
    }

    fn drive_all(&mut self) {
        let labels: Vec<_> = self.held.keys().cloned().collect();
        labels.iter().for_each(|labels| self.drive(labels));
    }

    /// The next change. May be dropped and called again.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return change;
            }
            match self.running.next().await {
                Some(done) => self.done(done),
                None => std::future::pending().await,
            }
        }
    }
}
