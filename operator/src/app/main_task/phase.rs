//! What a replica does at a time, and what comes of it.

use std::sync::Arc;

use portway_claims::Change;
use portway_runtime::kubernetes::{EventRecorder, Fence};
use tokio::sync::{Notify, watch};

use crate::definitions::Report;
use crate::executor::troubles::Told;
use crate::executor::{Answered, Executor};
use crate::identities::Identities;
use crate::term::Guard;

/// What this replica does.
pub(super) enum Phase {
    Standby,
    Leading(Term),
    /// It leads no more; writes under way go on to their answers.
    Stopping(Term),
}

pub(super) struct Term {
    pub(super) number: u32,
    /// Of its writes.
    pub(super) fence: Fence,
    pub(super) executor: Executor,
    /// Where the operator makes them.
    pub(super) identities: Option<Identities>,
    /// What their controller has told.
    pub(super) told: Told,
    pub(super) events: EventRecorder,
    pub(super) is_stopping: bool,
    pub(super) definitions: tokio::task::JoinHandle<()>,
    /// A kind is gone: definitions are to be made again.
    pub(super) redefine: Arc<Notify>,
    pub(super) defined: watch::Receiver<Report>,
    /// What becomes of writes of earlier terms. `None`: the API server does not take those of this one yet, and nothing is
    /// written.
    pub(super) guard: watch::Receiver<Option<Guard>>,
    pub(super) guarding: tokio::task::JoinHandle<()>,
}

impl Term {
    /// It has begun to write.
    pub(super) fn is_working(&self) -> bool {
        self.guard.borrow().is_some()
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.definitions.abort();
        self.guarding.abort();
    }
}

/// Something came of what this replica does.
pub(super) enum Happened {
    Answered(Box<Answered>),
    Claimed(Change),
    /// It is known what becomes of writes of earlier terms.
    Guarded,
    /// It leads no more, and no write is under way.
    Idle,
}

/// Cancel safe.
pub(super) async fn happens(phase: &mut Phase, fence: &Fence) -> Happened {
    let (Phase::Leading(term) | Phase::Stopping(term)) = phase else { return std::future::pending().await };
    let Term { executor, identities, is_stopping, guard, .. } = term;
    let is_waiting = *is_stopping && executor.is_idle();
    tokio::select! {
        answered = executor.answer() => Happened::Answered(Box::new(answered)),
        change = claim(identities) => Happened::Claimed(change),
        Ok(()) = guard.changed() => Happened::Guarded,
        () = fence.idle(), if is_waiting => Happened::Idle,
    }
}

/// The next change of a claim.
async fn claim(identities: &mut Option<Identities>) -> Change {
    match identities {
        Some(identities) => identities.next().await,
        None => std::future::pending().await,
    }
}

/// Claims' requests that are under way go on to their answers; for ever.
pub(super) async fn run_down(phase: &mut Phase) {
    match phase {
        Phase::Leading(term) | Phase::Stopping(term) => loop {
            claim(&mut term.identities).await;
        },
        Phase::Standby => std::future::pending().await,
    }
}
