use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{WatchState, WatchStatus};

/// The status that the task writes and everybody reads.
#[derive(Debug)]
pub(super) struct Report(Mutex<Held>);

#[derive(Debug)]
struct Held {
    status: WatchStatus,
    /// When the server last showed that the watch lives.
    lived: Instant,
    /// When it was last told something that makes what is known newer.
    heard: Option<Instant>,
}

impl Report {
    pub(super) fn new(kind: &'static str) -> Self {
        let status = WatchStatus { kind, ..WatchStatus::default() };
        Self(Mutex::new(Held { status, lived: Instant::now(), heard: None }))
    }

    pub(super) fn status(&self) -> WatchStatus {
        let held = self.lock();
        WatchStatus { age_seconds: held.lived.elapsed().as_secs_f64(), ..held.status.clone() }
    }

    pub(super) fn unheard(&self) -> Option<Duration> {
        let held = self.lock();
        let is_quiet = held.status.state == WatchState::Quiet;
        held.heard.map(|heard| if is_quiet { Duration::ZERO } else { heard.elapsed() })
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut WatchStatus)) {
        change(&mut self.lock().status);
    }

    /// The server showed that this watch lives.
    pub(super) fn lives(&self, state: WatchState) {
        let mut held = self.lock();
        held.status.state = state;
        held.lived = Instant::now();
    }

    /// A list was told to its end.
    pub(super) fn listed(&self, version: u64) {
        let mut held = self.lock();
        (held.status.synced, held.status.version) = (true, version);
        held.heard = Some(Instant::now());
    }

    /// Everything up to this version was told.
    pub(super) fn heard(&self, version: u64) {
        let mut held = self.lock();
        held.status.version = version;
        held.heard = Some(Instant::now());
    }

    /// The server does not know the kind. True if that is news.
    pub(super) fn kind_gone(&self) -> bool {
        let mut held = self.lock();
        held.heard = None;
        std::mem::take(&mut held.status.synced)
    }

    /// Counts what ended a watch or a list. True if its text is news.
    pub(super) fn failed(&self, reason: &str, error: &str) -> bool {
        let status = &mut self.lock().status;
        *status.errors.entry(reason.to_owned()).or_default() += 1;
        let is_news = status.last_error.as_deref() != Some(error);
        status.last_error = Some(error.to_owned());
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Plain numbers: a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
