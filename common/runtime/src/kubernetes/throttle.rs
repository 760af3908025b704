use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A return after an outage is over by then.
const CALM: Duration = Duration::from_secs(60);

/// A token bucket over all requests of a client.
///
/// While the server fails and for [`CALM`] after, the bucket holds one token at most: the burst is for a start, and the
/// return after an outage keeps within `qps`.
#[derive(Debug)]
pub(super) struct Throttle {
    qps: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Below zero: that many requests wait.
    tokens: f64,
    filled: Instant,
    failing: bool,
    /// Since when the server has not failed; `None`: it never did.
    calm_since: Option<Instant>,
    waited: Duration,
}

impl Throttle {
    pub(super) fn new(qps: u32, burst: u32) -> Self {
        let (qps, burst) = (f64::from(qps.max(1)), f64::from(burst.max(1)));
        let bucket = Bucket {
            tokens: burst,
            filled: Instant::now(),
            failing: false,
            calm_since: None,
            waited: Duration::ZERO,
        };
        Self { qps, burst, bucket: Mutex::new(bucket) }
    }

    /// Returns when a request may be sent; those that wait go in turn. Who gives up waiting gives its turn back.
    pub(super) async fn take(&self) {
        let wait = {
            let mut bucket = self.filled();
            bucket.tokens -= 1.0;
            let wait = Duration::from_secs_f64((-bucket.tokens).max(0.0) / self.qps);
            bucket.waited += wait;
            wait
        };
        if !wait.is_zero() {
            let turn = Turn(self);
            sleep(wait).await;
            std::mem::forget(turn);
        }
    }

    /// Whether a request could be sent at once and would leave a token for others, where the bucket holds more than one.
    pub(super) fn has_spare(&self) -> bool {
        let bucket = self.filled();
        bucket.tokens >= 2.0_f64.min(self.cap(&bucket, bucket.filled))
    }

    /// Says whether the server answers.
    pub(super) fn set_failing(&self, failing: bool) {
        let mut bucket = self.filled();
        if failing {
            bucket.tokens = bucket.tokens.min(1.0);
        } else if bucket.failing {
            bucket.calm_since = Some(bucket.filled);
        }
        bucket.failing = failing;
    }

    /// The time that requests waited, added up.
    pub(super) fn waited(&self) -> Duration {
        self.lock().waited
    }

    fn filled(&self) -> MutexGuard<'_, Bucket> {
        let mut bucket = self.lock();
        let now = Instant::now();
        let cap = self.cap(&bucket, now);
        let earned = (now - bucket.filled).as_secs_f64() * self.qps;
        bucket.tokens = (bucket.tokens + earned).min(cap.max(bucket.tokens));
        bucket.filled = now;
        bucket
    }

    /// What the bucket holds at most.
    fn cap(&self, bucket: &Bucket, now: Instant) -> f64 {
        let is_calm = bucket.calm_since.is_none_or(|since| now - since >= CALM);
        if bucket.failing || !is_calm { 1.0 } else { self.burst }
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        // Plain numbers: a panic elsewhere leaves them usable.
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token of a request that waits; it goes back to the bucket if the request is given up.
struct Turn<'a>(&'a Throttle);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().tokens += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest number of moments within any one second.
    fn peak(times: &[Duration]) -> usize {
        let within = |from: Duration| {
            times.iter().filter(|time| **time >= from && **time < from + Duration::from_secs(1)).count()
        };
        times.iter().map(|from| within(*from)).max().unwrap_or(0)
    }

    async fn taken(throttle: &Throttle, count: usize) -> Vec<Duration> {
        let began = Instant::now();
        let mut times = Vec::new();
        for _ in 0..count {
            throttle.take().await;
            times.push(began.elapsed());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_may_burst_and_goes_on_at_the_rate() {
        let throttle = Throttle::new(10, 20);
        let times = taken(&throttle, 50).await;
        assert_eq!(times[19], Duration::ZERO, "the burst");
        let last = times[49].as_secs_f64();
        assert!((2.99..3.02).contains(&last), "30 more at 10 a second, not {last}");
        assert!(throttle.waited() > Duration::from_millis(2900), "{:?}", throttle.waited());
    }

    #[tokio::test(start_paused = true)]
    async fn the_return_after_an_outage_keeps_within_the_rate() {
        let throttle = Throttle::new(10, 20);
        for _ in 0..10 {
            throttle.take().await;
            throttle.set_failing(true);
            sleep(Duration::from_secs(30)).await;
        }
        throttle.take().await;
        throttle.set_failing(false);
        // Neither at once nor after a pause.
        sleep(Duration::from_secs(5)).await;
        let times = taken(&throttle, 40).await;
        assert!(peak(&times) <= 11, "{} requests in a second", peak(&times));
        sleep(CALM).await;
        assert_eq!(peak(&taken(&throttle, 20).await), 20, "the burst is there again");
    }

    #[tokio::test(start_paused = true)]
    async fn spare_is_what_leaves_a_token_for_others() {
        let throttle = Throttle::new(1, 3);
        assert!(throttle.has_spare());
        taken(&throttle, 2).await;
        assert!(!throttle.has_spare());
        sleep(Duration::from_millis(1010)).await;
        assert!(throttle.has_spare());
        // Of the one token that there is while the server fails, and for a while after it, all is spare.
        throttle.set_failing(true);
        assert!(throttle.has_spare());
        throttle.set_failing(false);
        throttle.take().await;
        assert!(!throttle.has_spare());
        sleep(Duration::from_millis(1010)).await;
        assert!(throttle.has_spare());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_given_up_keep_nobody_else_waiting() {
        let throttle = Throttle::new(10, 1);
        throttle.take().await;
        for _ in 0..100 {
            drop(tokio::time::timeout(Duration::from_millis(1), throttle.take()).await);
        }
        let times = taken(&throttle, 1).await;
        assert!(times[0] <= Duration::from_millis(100), "{:?}", times[0]);
    }
}
