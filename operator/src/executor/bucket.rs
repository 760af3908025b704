use std::time::Duration;

use crate::controller::Pace;

/// Writes that a controller may send, by its pace.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    tokens: f64,
    /// `None`: it is full.
    filled: Option<Duration>,
}

impl Bucket {
    /// How many may be sent now, at most the pace's batch.
    pub(super) fn fill(&mut self, pace: Pace, now: Duration) -> usize {
        let full = pace.batch.max(1) as f64;
        self.tokens = match self.filled {
            None => full,
            Some(filled) => {
                let earned = now.saturating_sub(filled).as_secs_f64() * pace.per_second.max(0.0);
                (self.tokens + earned).min(full)
            }
        };
        self.filled = Some(now);
        // Not negative, and not more than the batch.
        self.tokens as usize
    }

    pub(super) fn take(&mut self, number: usize) {
        self.tokens -= number as f64;
    }

    /// When there is a token again; `None`: never.
    pub(super) fn next(&self, pace: Pace) -> Option<Duration> {
        let lacks = (1.0 - self.tokens).max(0.0) / pace.per_second;
        Duration::try_from_secs_f64(lacks).ok().and_then(|lacks| self.filled?.checked_add(lacks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { batch: 20, per_second: 10.0 };

    #[test]
    fn a_batch_is_there_at_once_and_the_rate_afterwards() {
        let mut bucket = Bucket::default();
        let mut sent = 0;
        for tenth in 0..=100 {
            let now = Duration::from_millis(100 * tenth);
            let may = bucket.fill(PACE, now);
            bucket.take(may);
            sent += may;
        }
        assert!((119..=120).contains(&sent), "{sent} in 10 s");
    }

    #[test]
    fn a_long_rest_earns_one_batch_and_no_more() {
        let mut bucket = Bucket::default();
        let may = bucket.fill(PACE, Duration::ZERO);
        bucket.take(may);
        assert_eq!(bucket.next(PACE), Some(Duration::from_millis(100)));
        assert_eq!(bucket.fill(PACE, Duration::from_secs(3600)), 20);
        bucket.take(20);
        assert_eq!(bucket.next(Pace { batch: 1, per_second: 0.0 }), None);
    }
}
