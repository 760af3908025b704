use std::time::Duration;

use super::Config;

/// From this share of the range on it goes faster, and from the second one on as fast as it may.
const SHORT: (f64, f64) = (0.8, 0.95);
/// Between rounds, at the first share and at the second.
const INTERVALS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));
/// From creation to mark, at the first share and at the second. An agent writes the reference to a number within seconds of
/// hearing of it; one that is throttled with a node full of new pods needs half a minute. A mark that was early goes.
const YOUNG: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(60));
/// From mark to delete. Longer than a watch is silent before it counts as dead ([`STALE`](crate::observed::STALE)) and than an
/// agent takes to write a reference that it is writing, with its retries, together: agents use numbers meanwhile.
const MARKED: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(180));
/// Times the configured rate, at the second share.
const FASTEST: f64 = 4.0;

/// How fast identities go, by how many there are.
///
/// | taken | between rounds | from creation to mark | from mark to delete | deletes |
/// |---|---|---|---|---|
/// | up to 80 % | as configured | as configured | as configured | as configured |
/// | 80 % | at most 60 s | at most 5 min | at most 5 min | as configured |
/// | 95 % and more | at most 5 s | at most 60 s | at most 3 min | four times that |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub interval: Duration,
    /// From creation to mark.
    pub young: Duration,
    /// From mark to delete.
    pub marked: Duration,
    pub deletes_per_second: f64,
}

impl Limits {
    /// With so many numbers of the range taken.
    pub fn of(config: &Config, taken: usize) -> Self {
        let Config { interval, timeout, .. } = *config;
        let deletes_per_second = per_second(config);
        let share = taken as f64 / f64::from(config.range.count());
        if share < SHORT.0 {
            return Self { interval, young: timeout, marked: timeout, deletes_per_second };
        }
        let pressure = ((share - SHORT.0) / (SHORT.1 - SHORT.0)).min(1.0);
        let between = |from: Duration, to: Duration| from.mul_f64(1.0 - pressure) + to.mul_f64(pressure);
        Self {
            interval: interval.min(between(INTERVALS.0, INTERVALS.1)),
            young: timeout.min(between(YOUNG.0, YOUNG.1)),
            marked: timeout.min(between(MARKED.0, MARKED.1)),
            deletes_per_second: deletes_per_second * (1.0 + (FASTEST - 1.0) * pressure),
        }
    }
}

fn per_second(config: &Config) -> f64 {
    f64::from(config.rate_limit) / config.rate_interval.as_secs_f64().max(1.0)
}

/// Deletes that may be done: as many at once as in an interval, and as many in each interval.
#[derive(Debug)]
pub(super) struct Budget {
    most: f64,
    left: f64,
    filled: Duration,
}

impl Budget {
    pub(super) fn new(config: &Config) -> Self {
        let most = f64::from(config.rate_limit).max(1.0);
        Self { most, left: most, filled: Duration::ZERO }
    }

    /// How many may be done now.
    pub(super) fn left(&mut self, per_second: f64, now: Duration) -> usize {
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.filled = now.max(self.filled);
        self.left = (self.left + passed * per_second).min(self.most);
        self.left.max(0.0) as usize
    }

    /// One is done.
    pub(super) fn take(&mut self) {
        self.left -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use portway_model::identity::NumberRange;

    use super::*;

    fn config() -> Config {
        Config {
            interval: Duration::from_secs(900),
            timeout: Duration::from_secs(1800),
            rate_interval: Duration::from_secs(60),
            rate_limit: 2400,
            range: NumberRange::narrowed(0, 300, 1299).unwrap(),
            rules: None,
            has_slices: false,
        }
    }

    #[test]
    fn the_fuller_the_range_the_faster_it_goes_and_never_slower_than_configured() {
        let of = |taken| Limits::of(&config(), taken);
        let configured = Limits {
            interval: Duration::from_secs(900),
            young: Duration::from_secs(1800),
            marked: Duration::from_secs(1800),
            deletes_per_second: 40.0,
        };
        assert_eq!((of(0), of(799)), (configured, configured));
        let first = Limits { interval: INTERVALS.0, young: YOUNG.0, marked: MARKED.0, ..configured };
        assert_eq!(of(800), first);
        let last =
            Limits { interval: INTERVALS.1, young: YOUNG.1, marked: MARKED.1, deletes_per_second: 160.0 };
        assert_eq!((of(950), of(1000)), (last, last));
        for taken in 800..1000 {
            let (before, after) = (of(taken), of(taken + 1));
            assert!(
                after.interval <= before.interval
                    && after.young <= before.young
                    && after.marked <= before.marked,
                "{taken}"
            );
        }
        let quick = Config { interval: Duration::from_secs(1), timeout: Duration::from_secs(2), ..config() };
        let Limits { interval, young, marked, .. } = Limits::of(&quick, 1000);
        assert_eq!((interval, young, marked), (quick.interval, quick.timeout, quick.timeout));
    }

    #[test]
    fn no_more_go_than_the_budget_has() {
        let mut budget = Budget::new(&config());
        assert_eq!(budget.left(40.0, Duration::from_secs(5)), 2400);
        (0..2400).for_each(|_| budget.take());
        assert_eq!(budget.left(40.0, Duration::from_secs(5)), 0);
        assert_eq!(budget.left(40.0, Duration::from_secs(6)), 40);
        assert_eq!(budget.left(40.0, Duration::from_secs(3600)), 2400);
    }
}
