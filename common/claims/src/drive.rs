//! Requests of claims, from the claim to the API server and back.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use portway_model::identity::{Action, Outcome, Standing};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::RequestError;
use tokio::time::sleep;

use crate::holding::may_have_happened;
use crate::requests::Found;
use crate::{Allocator, Change, News, Source};

/// A label set that finds no free number looks again so often; a number that becomes free is taken at once.
const EXHAUSTED_PAUSE: Duration = Duration::from_secs(30);

/// From so many on that are refused each is tried less often.
const MANY_REFUSED: usize = 100;

/// Something that was waited for came to its end.
pub(crate) enum Done {
    Pause(Labels, u64),
    Request {
        labels: Labels,
        serial: u64,
        action: Action,
        result: Result<Outcome, RequestError>,
    },
    /// The identities of a namespace.
    List {
        namespace: Option<Arc<str>>,
        result: Result<Found, RequestError>,
    },
}

/// Label sets of a namespace that want to know which identities they have. One list tells many of them, if it was asked for
/// after they wanted it.
#[derive(Default)]
pub(crate) struct Lists {
    is_under_way: bool,
    /// Whom the list under way tells.
    asked: Vec<(Labels, u64)>,
    /// Whom the next one tells.
    waiting: Vec<(Labels, u64)>,
}

impl Allocator {
    pub(crate) fn done(&mut self, done: Done) {
        match done {
            Done::Pause(labels, serial) => {
                if let Some(holding) = self.held.get_mut(&labels).filter(|holding| holding.serial == serial) {
                    holding.pause_is_over(&self.observed.seen(&labels), serial);
                    self.drive(&labels);
                }
            }
            Done::Request { labels, serial, action, result } => self.answer(&labels, serial, action, result),
            Done::List { namespace, result } => self.listed(&namespace, result),
        }
    }

    fn answer(
        &mut self,
        labels: &Labels,
        serial: u64,
        action: Action,
        result: Result<Outcome, RequestError>,
    ) {
        let Some(holding) = self.held.get_mut(labels).filter(|holding| holding.serial == serial) else {
            return;
        };
        holding.is_busy = false;
        let was_refused = holding.is_refused();
        match result {
            Ok(outcome) => {
                self.refused -= usize::from(was_refused);
                if matches!(outcome, Outcome::Refused | Outcome::Unknown) {
                    self.counts.retries += 1;
                    if matches!(action, Action::Create { .. }) {
                        self.room.end(serial);
                    }
                }
                holding.succeeded();
                holding.tell(action, outcome);
                holding.end(&self.observed.seen(labels));
                self.drive(labels);
            }
            Err(error) => {
                self.counts.retries += 1;
                let pause = holding.failed(action, &error, self.refused > MANY_REFUSED);
                self.refused += usize::from(holding.is_refused() && !was_refused);
                if matches!(action, Action::Create { .. }) && !may_have_happened(&error) {
                    self.room.end(serial);
                }
                self.changes.push_back(Change {
                    labels: labels.clone(),
                    news: News::Obstacle(format!("CiliumIdentities: {error}")),
                });
                self.pause(labels, pause);
            }
        }
    }

    /// Sets going what is due for a label set, and tells what it came to.
    pub(crate) fn drive(&mut self, labels: &Labels) {
        let kept = self.kept_from(labels);
        let Source::Api { requests, .. } = &self.source else { return };
        let Some(holding) = self.held.get_mut(labels).filter(|holding| !holding.is_busy) else { return };
        if holding.is_restored(self.synced, &self.observed.seen(labels)) {
            return;
        }
        let serial = holding.serial;
        let has_room = self.room.has_more_for(serial, kept);
        let action = holding.next(|number| !has_room || self.room.is_taken_for(number, serial));
        if action == Action::Exhausted {
            self.exhausted.insert(labels.clone());
        } else {
            self.exhausted.remove(labels);
        }
        let news = holding.news(action, self.room.range(), kept);
        if let Some(seconds) = holding.settled_in(action) {
            self.counts.allocated += 1;
            self.counts.seconds += seconds;
        }
        let mut pause = None;
        match action {
            Action::List => {
                holding.begin();
                self.list(labels.clone(), serial);
            }
            // How many are free is known from the first list on.
            Action::Create { standing: Standing::New, .. } if kept > 0 && !self.is_told => {}
            Action::Create { .. } | Action::Delete { .. } | Action::Confirm { .. } | Action::Get { .. } => {
                holding.begin();
                if let Action::Create { number, .. } = action {
                    self.room.attempt(number, serial);
                }
                let (request, labels) = (requests.send(labels, action), labels.clone());
                self.running.push(Box::pin(async move {
                    Done::Request { labels, serial, action, result: request.await }
                }));
            }
            Action::Refer { number } | Action::Hold { number } => self.room.end_but(number, serial),
            Action::Wait => {}
            Action::Exhausted => {
                self.room.end(serial);
                pause = Some(EXHAUSTED_PAUSE);
            }
        }
        self.changes.extend(news.into_iter().map(|news| Change { labels: labels.clone(), news }));
        if let Some(pause) = pause {
            self.pause(labels, pause);
        }
    }

    fn list(&mut self, labels: Labels, serial: u64) {
        let namespace = labels.namespace().cloned();
        let lists = self.lists.entry(namespace.clone()).or_default();
        lists.waiting.push((labels, serial));
        if !lists.is_under_way {
            self.next_list(namespace);
        }
    }

    fn next_list(&mut self, namespace: Option<Arc<str>>) {
        let Source::Api { requests, .. } = &self.source else { return };
        let Some(lists) = self.lists.get_mut(&namespace) else { return };
        lists.asked = std::mem::take(&mut lists.waiting);
        lists.is_under_way = true;
        if lists.asked.is_empty() {
            self.lists.remove(&namespace);
            return;
        }
        let wanted = lists.asked.iter().map(|(labels, _)| labels.clone()).collect();
        let request = requests.list(namespace.as_deref(), wanted);
        self.running.push(Box::pin(async move { Done::List { namespace, result: request.await } }));
    }

    fn listed(&mut self, namespace: &Option<Arc<str>>, result: Result<Found, RequestError>) {
        let asked = self.lists.get_mut(namespace).map(|lists| std::mem::take(&mut lists.asked));
        for (labels, serial) in asked.into_iter().flatten() {
            let result = match &result {
                Ok(found) => Ok(Outcome::Listed(found.get(&labels).cloned().unwrap_or_default())),
                Err(error) => Err(error.clone()),
            };
            self.answer(&labels, serial, Action::List, result);
        }
        self.next_list(namespace.clone());
    }

    fn pause(&mut self, labels: &Labels, pause: Duration) {
        let Some(holding) = self.held.get_mut(labels) else { return };
        holding.is_busy = true;
        let (labels, serial) = (labels.clone(), holding.serial);
        self.running.push(Box::pin(async move {
            sleep(pause).await;
            Done::Pause(labels, serial)
        }));
    }

    /// A number is free again: as many label sets that had found none look again as there are numbers
    /// for them. O(label sets that had found none), where numbers are kept from them, and else what is looked for.
    pub(crate) fn retry_exhausted(&mut self) {
        let mut next = self.exhausted.first().cloned();
        while let Some(labels) = next.filter(|_| self.room.free() > 0) {
            if self.room.free() > self.kept_from(&labels) {
                self.wake(&labels);
            }
            let after = (Bound::Excluded(&labels), Bound::Unbounded);
            next = self.exhausted.range(after).next().cloned();
        }
    }

    /// One that had found no number looks again before its pause is over.
    pub(crate) fn wake(&mut self, labels: &Labels) {
        if !self.exhausted.contains(labels) {
            return;
        }
        let Some(holding) = self.held.get_mut(labels) else { return };
        // Its pause goes on, for nothing.
        self.serial += 1;
        holding.pause_is_over(&self.observed.seen(labels), self.serial);
        self.drive(labels);
    }
}
