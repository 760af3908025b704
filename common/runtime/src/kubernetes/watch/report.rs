use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{WatchState, WatchStatus};

/// The status that the task writes and everybody reads.
#[derive(Debug)]
pub(super) struct Report(Mutex<(WatchStatus, Instant)>);

impl Report {
    pub(super) fn new(kind: &'static str) -> Self {
        Self(Mutex::new((WatchStatus { kind, ..WatchStatus::default() }, Instant::now())))
    }

    pub(super) fn status(&self) -> WatchStatus {
        let held = self.lock();
        WatchStatus { age_seconds: held.1.elapsed().as_secs_f64(), ..held.0.clone() }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut WatchStatus)) {
        change(&mut self.lock().0);
    }

    /// The server showed that this watch lives.
    pub(super) fn lives(&self, state: WatchState) {
        let mut held = self.lock();
        held.0.state = state;
        held.1 = Instant::now();
    }

    /// Counts what ended a watch or a list. True if its text is news.
    pub(super) fn failed(&self, reason: &str, error: &str) -> bool {
        let status = &mut self.lock().0;
        *status.errors.entry(reason.to_owned()).or_default() += 1;
        let is_news = status.last_error.as_deref() != Some(error);
        status.last_error = Some(error.to_owned());
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, (WatchStatus, Instant)> {
        // Plain numbers: a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
