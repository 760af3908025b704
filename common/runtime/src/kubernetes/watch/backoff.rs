use std::time::Duration;

use tokio::time::Instant;

use crate::kubernetes::jitter;

/// Waits that double, each drawn from its upper half. After a calm of twice the longest wait it begins anew.
#[derive(Debug)]
pub(super) struct Backoff {
    shortest: Duration,
    longest: Duration,
    /// The upper end of the next wait.
    next: Duration,
    /// When the last wait was over.
    over: Option<Instant>,
}

impl Backoff {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest * 2, over: None }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.shortest * 2;
    }

    /// The next wait.
    pub(super) fn draw(&mut self) -> Duration {
        let now = Instant::now();
        if self.over.is_some_and(|over| now.saturating_duration_since(over) > self.longest * 2) {
            self.reset();
        }
        let upper = self.next.min(self.longest);
        self.next = (upper * 2).min(self.longest);
        let wait = jitter::between(upper / 2, upper);
        self.over = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_to_the_longest_and_begin_anew_after_a_calm() {
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
        for upper in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            let wait = backoff.draw();
            assert!((upper / 2.0..upper).contains(&wait.as_secs_f64()), "{wait:?} of {upper}");
            tokio::time::sleep(wait).await;
        }
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(backoff.draw() < Duration::from_millis(500));
    }

    #[tokio::test(start_paused = true)]
    async fn two_that_fail_together_do_not_come_back_together() {
        let waits: std::collections::BTreeSet<Duration> =
            (0..50).map(|_| Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).draw()).collect();
        assert!(waits.len() > 40, "{} different waits of 50", waits.len());
    }
}
