//! Numbers of label sets: claimed from the API server by agents and by the operator, or given by a node alone where there
//! is none.
//!
//! A label set is held as long as somebody has it: one of an agent's endpoints, one of the operator's pods. What becomes of it is told by [`Allocator::next`]:
//!
//! ```text
//! hold ──► Settled: the number is the label set's, and unmarked; write it into CiliumEndpoints, then `referred`
//!      ──► Held: nobody will take it away
//! ```
//!
//! From `Settled` on the number may be shown to other nodes and used if the CiliumEndpoint is written within the timeout of
//! garbage collection (half an hour), which begins then. `Held` waits for no clock.

mod alone;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), expect(clippy::unwrap_used, reason = "what fails here fails a test"))]
pub mod fake_api;
mod holding;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use portway_datapath::NumericIdentity;
use portway_model::identity::{Action, Identities, Outcome, Right};
use portway_model::k8s::{Event, Object, ObjectKind};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::{Client, RequestError};
use tokio::time::sleep;

use alone::Alone;
use holding::Holding;
use requests::Requests;

/// A label set that finds no free number looks again so often; a number that becomes free is taken at once.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(30);

/// Identities that a cluster can have.
const NUMBERS: usize = 65_280;
/// So many are told of: four of five.
const ALARMING: usize = NUMBERS / 5 * 4;

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
    cluster_id: u16,
    observed: Identities,
    /// All identities were seen once.
    synced: bool,
    held: BTreeMap<Labels, Holding>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    changes: VecDeque<Change>,
    counts: Counts,
    /// Tells one holding of a label set from the next.
    serial: u64,
}

enum Source {
    Api { requests: Requests, right: Right },
    Alone(Alone),
}

/// A request ended, or a pause.
struct Done {
    labels: Labels,
    serial: u64,
    /// `None`: a pause.
    request: Option<(Action, Result<Outcome, RequestError>)>,
}

impl Allocator {
    /// Claims from the API server. With [`Right::Wait`] nothing is created.
    pub fn from_api(client: Client, right: Right, cluster_id: u16) -> Self {
        Self::new(Source::Api { requests: Requests::new(client), right }, cluster_id)
    }

    /// Without an API server: the rule that claims begin with, on this node alone. Identities of a directory are honoured.
    pub fn alone(cluster_id: u16) -> Self {
        Self::new(Source::Alone(Alone::new(cluster_id)), cluster_id)
    }

    fn new(source: Source, cluster_id: u16) -> Self {
        Self {
            source,
            cluster_id,
            observed: Identities::default(),
            synced: false,
            held: BTreeMap::new(),
            running: FuturesUnordered::new(),
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
        let taken = self.observed.len();
        (taken >= ALARMING).then(|| {
            format!(
                "{taken} identities of {NUMBERS} that there can be: pods have too many different label sets; \
                 `labels` says which labels count"
            )
        })
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
            Source::Api { right, .. } => {
                Holding::claim(labels, self.cluster_id, *right, before, &self.observed, self.serial)
            }
            Source::Alone(alone) => {
                let number = alone.hold(labels, before, &self.observed);
                if number.is_none() {
                    let news = News::Obstacle(holding::EXHAUSTED.to_owned());
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
            Event::Apply(Object::CiliumIdentity(identity)) => self.observed.apply(Arc::clone(identity)),
            Event::Delete(key) if key.kind == ObjectKind::CiliumIdentity => {
                let number = key.name.parse().ok().map(NumericIdentity::new);
                number.and_then(|number| self.observed.remove(number)).into_iter().collect()
            }
            Event::Apply(_) | Event::Delete(_) => return,
        };
        if before < ALARMING
            && let Some(alarm) = self.alarm()
        {
            tracing::warn!("{alarm}");
        }
        if matches!(event, Event::Delete(_)) {
            self.retry_exhausted();
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
                self.drive(&labels);
            }
        }
    }

    /// All identities were seen. What was held before a restart is looked for among them.
    pub fn set_synced(&mut self) {
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
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

    fn done(&mut self, done: Done) {
        let Done { labels, serial, request } = done;
        let Some(holding) = self.held.get_mut(&labels).filter(|holding| holding.serial == serial) else {
            return;
        };
        holding.is_busy = false;
        match request {
            None => holding.pause_is_over(),
            Some((action, Ok(outcome))) => {
                if matches!(outcome, Outcome::Refused | Outcome::Unknown) {
                    self.counts.retries += 1;
                }
                holding.failures = 0;
                holding.tell(action, outcome);
                holding.end(&self.observed.seen(&labels));
            }
            Some((action, Err(error))) => {
                self.counts.retries += 1;
                let pause = holding.failed(action, &error);
                self.changes.push_back(Change {
                    labels: labels.clone(),
                    news: News::Obstacle(format!("CiliumIdentities: {error}")),
                });
                self.pause(&labels, pause);
                return;
            }
        }
        self.drive(&labels);
    }

    /// Sets going what is due for a label set, and tells what it came to.
    fn drive(&mut self, labels: &Labels) {
        let Source::Api { requests, .. } = &self.source else { return };
        let Some(holding) = self.held.get_mut(labels).filter(|holding| !holding.is_busy) else { return };
        if holding.is_restored(self.synced, &self.observed.seen(labels)) {
            return;
        }
        let action = holding.next(|number| self.observed.is_taken(number));
        let news = holding.news(action);
        if let Some(seconds) = holding.settled_in(action) {
            self.counts.allocated += 1;
            self.counts.seconds += seconds;
        }
        let serial = holding.serial;
        let pause = match action {
            Action::List
            | Action::Create { .. }
            | Action::Delete { .. }
            | Action::Confirm { .. }
            | Action::Get { .. } => {
                holding.begin();
                let (request, labels) = (requests.send(labels, action), labels.clone());
                self.running.push(Box::pin(async move {
                    Done { labels, serial, request: Some((action, request.await)) }
                }));
                None
            }
            Action::Refer { .. } | Action::Hold { .. } | Action::Wait => None,
            Action::Exhausted => Some(EXHAUSTED_PAUSE),
        };
        self.changes.extend(news.into_iter().map(|news| Change { labels: labels.clone(), news }));
        if let Some(pause) = pause {
            self.pause(labels, pause);
        }
    }

    fn pause(&mut self, labels: &Labels, pause: Duration) {
        let Some(holding) = self.held.get_mut(labels) else { return };
        holding.is_busy = true;
        let (labels, serial) = (labels.clone(), holding.serial);
        self.running.push(Box::pin(async move {
            sleep(pause).await;
            Done { labels, serial, request: None }
        }));
    }

    /// A number is free again.
    fn retry_exhausted(&mut self) {
        let exhausted = self.held.iter_mut().filter(|(_, holding)| holding.is_exhausted);
        let exhausted: Vec<_> = exhausted.map(|(labels, _)| labels.clone()).collect();
        for labels in exhausted {
            if let Some(holding) = self.held.get_mut(&labels) {
                holding.pause_is_over();
                holding.is_busy = false;
                // Its pause goes on, for nothing.
                self.serial += 1;
                holding.serial = self.serial;
            }
            self.drive(&labels);
        }
    }

    fn place_alone(&mut self, labels: &Labels) {
        let Source::Alone(alone) = &mut self.source else { return };
        let Some(holding) = self.held.get_mut(labels) else { return };
        let before = holding.place();
        let number = alone.place(labels, &self.observed);
        if !holding.give(number) {
            return;
        }
        let news = match (number, before) {
            (Some(number), _) => vec![News::Held(number)],
            // It is used until there is another one, unless it is another label set's.
            (None, Place::Held(before)) if self.observed.is_taken(before) => {
                vec![News::Lost(before), News::Obstacle(holding::EXHAUSTED.to_owned())]
            }
            (None, _) => vec![News::Obstacle(holding::EXHAUSTED.to_owned())],
        };
        self.changes.extend(news.into_iter().map(|news| Change { labels: labels.clone(), news }));
    }

    /// Without an API server: a number is free again.
    fn place_pending(&mut self) {
        let pending = self.held.iter().filter(|(_, holding)| holding.place() == Place::Pending);
        let pending: Vec<_> = pending.map(|(labels, _)| labels.clone()).collect();
        pending.iter().for_each(|labels| self.place_alone(labels));
    }
}
