use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// What lets writes through while a lease is held, and no longer. Cheap to clone; clones are of the same fence and of the
/// same term.
///
/// A write passes only if the lease is held for its whole [`Fence::limit`] to come, and is given up after that time:
/// its answer is there, or it is given up, before another may lead. Who was frozen in between is not helped by that:
/// for him are the [`Term`](super::Term), which the API server compares, and a write's own preconditions.
#[derive(Clone, Debug)]
pub struct Fence {
    inner: Arc<Inner>,
    /// The term is over, which no renewal turns back.
    ended: Arc<watch::Sender<bool>>,
}

#[derive(Debug)]
struct Inner {
    base: Instant,
    limit: Duration,
    /// Nanoseconds after `base`; 0: no lease is held.
    until: AtomicU64,
    passed: AtomicU64,
    refused: AtomicU64,
    under_way: AtomicUsize,
    idle: Notify,
}

/// Counts a write as long as it is under way.
pub(super) struct UnderWay(Fence);

impl Fence {
    /// A fence that is closed. `limit` is how long a write may take in whole.
    pub fn new(limit: Duration) -> Self {
        let inner = Inner {
            base: Instant::now(),
            limit,
            until: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            idle: Notify::new(),
        };
        Self { inner: Arc::new(inner), ended: Arc::default() }
    }

    /// The same fence for what is written in one term, which ends alone.
    #[must_use]
    pub fn of_term(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), ended: Arc::default() }
    }

    /// Ends the term: nothing of it passes any more, though the lease is renewed or held again, and what waits for its turn
    /// is refused at once. Writes that have passed go on: see [`Self::idle`].
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns when the term is over.
    pub(super) async fn ended(&self) {
        // The sender is here.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// How long a write may take, from when it is asked for to its whole answer.
    pub fn limit(&self) -> Duration {
        self.inner.limit
    }

    /// Whether a write would pass.
    pub fn is_open(&self) -> bool {
        if *self.ended.borrow() {
            return false;
        }
        let until = Duration::from_nanos(self.inner.until.load(Ordering::Acquire));
        self.inner.base.elapsed() + self.inner.limit <= until
    }

    /// Lets writes through that end before `until`.
    pub(super) fn open_until(&self, until: Instant) {
        let until = until.saturating_duration_since(self.inner.base).as_nanos();
        self.inner.until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Lets nothing through until the lease is held again.
    pub(super) fn close(&self) {
        self.inner.until.store(0, Ordering::Release);
    }

    /// Asked right before a write is sent.
    pub(super) fn pass(&self) -> bool {
        let passes = self.is_open();
        let counter = if passes { &self.inner.passed } else { &self.inner.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        passes
    }

    /// Counts a write until the guard is dropped.
    pub(super) fn enter(&self) -> UnderWay {
        self.inner.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.clone())
    }

    /// Writes that were sent.
    pub fn passed(&self) -> u64 {
        self.inner.passed.load(Ordering::Relaxed)
    }

    /// Writes that were refused.
    pub fn refused(&self) -> u64 {
        self.inner.refused.load(Ordering::Relaxed)
    }

    /// Writes that wait to be sent or for their answers.
    pub fn under_way(&self) -> usize {
        self.inner.under_way.load(Ordering::Acquire)
    }

    /// Returns when no write is under way, which [`Self::limit`] bounds where the fence is closed.
    pub async fn idle(&self) {
        loop {
            let idle = self.inner.idle.notified();
            if self.under_way() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.inner.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.inner.idle.notify_waiters();
        }
    }
}
