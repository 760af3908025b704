//! Runs controllers' turns: plans are asked for, their writes sent through the fenced client, and what they wrote is
//! waited for until the watches have seen it. `turns` decides when what is done; here it is done.

mod backoff;
mod bucket;
mod metrics;
mod refusals;
mod send;
#[cfg(test)]
mod tests;
pub(crate) mod troubles;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use portway_runtime::kubernetes::{Client, EventRecorder};
use tokio::sync::Semaphore;
use tokio::task::{Id, JoinSet};

use crate::controller::{Controller, Now};
use crate::observed::{Kind, Observed};
use crate::status;
use crate::write::Write;
use send::Answer;
use troubles::Told;
use turns::Turns;

pub use metrics::Metrics;

/// A leader's controllers at work.
pub struct Executor {
    client: Client,
    controllers: Vec<(Turns, Told)>,
    /// Writes that are inside the client: what waits there for the rate limit counts against the time of its own write.
    room: Arc<Semaphore>,
    under_way: JoinSet<Answer>,
    /// What is under way, and whose it is.
    writes: HashMap<Id, (usize, Arc<Write>)>,
    events: EventRecorder,
    metrics: Metrics,
    is_stopped: bool,
}

/// A write that has its answer.
pub struct Answered {
    controller: usize,
    write: Arc<Write>,
    answer: Answer,
}

impl Executor {
    /// `client` is fenced; it sends `qps` requests a second.
    pub fn new(
        client: Client,
        qps: u32,
        controllers: Vec<Box<dyn Controller>>,
        events: EventRecorder,
        metrics: Metrics,
    ) -> Self {
        let room = usize::try_from(qps.max(1)).unwrap_or(1).min(Semaphore::MAX_PERMITS);
        Self {
            client,
            controllers: controllers.into_iter().map(|of| (Turns::new(of), Told::default())).collect(),
            room: Arc::new(Semaphore::new(room)),
            under_way: JoinSet::new(),
            writes: HashMap::new(),
            events,
            metrics,
            is_stopped: false,
        }
    }

    /// A watch told something of the kind.
    pub fn note(&mut self, kind: Kind) {
        self.controllers.iter_mut().for_each(|(turns, _)| turns.note(kind));
    }

    /// Does what is due. When to come again, unless something is noted or answered before; `None` where there is nothing
    /// to wait for.
    pub fn step(&mut self, observed: &Observed, now: Now) -> Option<Duration> {
        if self.is_stopped {
            return None;
        }
        let mut next: Option<Duration> = None;
        for (index, (turns, told)) in self.controllers.iter_mut().enumerate() {
            if let Some(turn) = turns.step(observed, now) {
                self.metrics.planned(turns.name(), turn.took);
                told.tell(turn.troubles, &self.events);
                for write in turn.writes {
                    tracing::debug!(controller = turns.name(), ?write, "writing");
                    let (client, room) = (self.client.clone(), Arc::clone(&self.room));
                    let write = Arc::new(write);
                    let sent = Arc::clone(&write);
                    let task = self.under_way.spawn(async move {
                        match room.acquire().await {
                            Ok(_permit) => send::send(&client, &sent).await,
                            // The term is over.
                            Err(_) => Answer::Fenced,
                        }
                    });
                    self.writes.insert(task.id(), (index, write));
                }
            }
            next = [next, turns.next()].into_iter().flatten().min();
        }
        next
    }

    /// The next answer; waits for ever where none is due. Cancel safe.
    pub async fn answer(&mut self) -> Answered {
        loop {
            let (id, answer) = match self.under_way.join_next_with_id().await {
                Some(Ok((id, answer))) => (id, answer),
                Some(Err(error)) => {
                    tracing::error!(%error, "a write ended without an answer, which is a defect");
                    (
                        error.id(),
                        Answer::failed(format!("ended without an answer, which is a defect: {error}")),
                    )
                }
                None => std::future::pending().await,
            };
            if let Some((controller, write)) = self.writes.remove(&id) {
                return Answered { controller, write, answer };
            }
        }
    }

    /// Takes note of an answer.
    pub fn take(&mut self, answered: Answered, now: Now) {
        let Answered { controller, write, answer } = answered;
        let Some((turns, _)) = self.controllers.get_mut(controller) else { return };
        self.metrics.wrote(turns.name(), answer.word());
        turns.answered(&write, &answer, now);
    }

    /// No turn from now on. Writes that were sent go on to their answers, those that wait for room are not sent.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.room.close();
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// For people.
    pub fn status(&self, now: Now) -> Vec<status::Controller> {
        self.controllers.iter().map(|(turns, told)| turns.status(told, now)).collect()
    }
}
