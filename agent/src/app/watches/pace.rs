use std::time::{Duration, Instant};

/// How often the thread of the watches may wake.
///
/// A change that comes alone is taken at once. Where changes come without pause they are taken a few times a second,
/// all that have come by then: waking, planning, telling the sockets' thread and waiting for a grace period then cost
/// once for all of them. What waits is in the connection's buffer; the server holds back what does not fit.
#[derive(Debug)]
pub(super) struct Pace {
    /// Wakes that are free at the moment.
    free: f64,
    at: Instant,
}

/// Wakes that are free after a calm. An event takes one to three.
const BURST: f64 = 40.0;
/// Wakes a second that are free for ever.
const PER_SECOND: f64 = 25.0;
/// How long what comes more often is gathered. kube-proxy's `minSyncPeriod` is a second.
const REST: Duration = Duration::from_millis(300);

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { free: BURST, at: now }
    }

    /// How long the thread rests before it waits for the next event. Whoever asks then rests for so long, which earns
    /// no free wake: only waiting for events does.
    pub(super) fn rest(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * PER_SECOND;
        self.free = (self.free + earned).min(BURST);
        let rest = if self.free < 1.0 {
            REST
        } else {
            self.free -= 1.0;
            Duration::ZERO
        };
        self.at = now + rest;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wakes for events that come so far apart, for a while; the number of rests and of wakes without one.
    fn wake(pace: &mut Pace, now: &mut Instant, apart: Duration, lasting: Duration) -> (u32, u32) {
        let (begin, mut next) = (*now, *now);
        let (mut rests, mut free) = (0, 0);
        while *now < begin + lasting {
            let rest = pace.rest(*now);
            *(if rest.is_zero() { &mut free } else { &mut rests }) += 1;
            *now += rest;
            // All that came meanwhile is one wake.
            while next <= *now {
                next += apart;
            }
            if rest.is_zero() {
                *now = next;
            }
        }
        (rests, free)
    }

    #[test]
    fn what_never_rests_is_taken_three_times_a_second() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let (rests, free) = wake(&mut pace, &mut now, Duration::from_millis(10), Duration::from_secs(60));
        assert!((165..=200).contains(&rests), "{rests}");
        assert!(free < 120, "{free}");
    }

    #[test]
    fn changes_that_come_alone_are_never_held() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let (rests, free) = wake(&mut pace, &mut now, Duration::from_millis(41), Duration::from_secs(60));
        assert_eq!(rests, 0);
        assert!(free > 1400, "{free}");
    }

    #[test]
    fn after_a_storm_a_calm_makes_wakes_free_again() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        wake(&mut pace, &mut now, Duration::from_millis(1), Duration::from_secs(5));
        now += Duration::from_secs(2);
        assert_eq!(wake(&mut pace, &mut now, Duration::from_millis(10), Duration::from_millis(300)).0, 0);
    }
}
