use std::time::Duration;

use super::pass::Passed;

const FIRST: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// Passes take at most a hundredth of one CPU.
const SHARE: u32 = 100;
/// Those that somebody asks for take at most an eleventh of one CPU.
const ASKED_SHARE: u32 = 10;
/// A fifth of a second: a hundred pods that end together are few passes.
const ASKED_SHORTEST: Duration = Duration::from_millis(200);

/// When the next pass is due: soon where the last one found much, or where a map is nearly full.
#[derive(Debug)]
pub(super) struct Pace {
    pause: Duration,
    /// See [`Pace::asked`].
    asked: Duration,
}

impl Pace {
    pub(super) const fn new() -> Self {
        Self { pause: FIRST, asked: Duration::ZERO }
    }

    pub(super) const fn pause(&self) -> Duration {
        self.pause
    }

    /// The pause before a pass that somebody asks for: none before the first one. What is asked for meanwhile waits for the same
    /// pass.
    pub(super) const fn asked(&self) -> Duration {
        self.asked
    }

    /// The pause after a pass that took so long.
    pub(super) fn passed(&mut self, passed: &Passed, took: Duration) -> Duration {
        self.asked = ASKED_SHORTEST.max(took * ASKED_SHARE);
        let left: u64 = passed.tables.values().map(|table| table.left).sum();
        let removed: u64 = passed.removed.values().sum();
        // Maps that make room by themselves are full by nature.
        let is_nearly_full =
            passed.tables.values().any(|table| !table.makes_room && table.left > table.max / 4 * 3);
        self.pause = if is_nearly_full {
            SHORTEST
        } else if removed * 4 > left + removed {
            self.pause / 2
        } else if removed * 20 < left + removed || removed + left == 0 {
            self.pause * 3 / 2
        } else {
            self.pause
        }
        .clamp(SHORTEST, LONGEST)
        .max((took * SHARE).min(LONGEST));
        self.pause
    }

    /// The pause after a pass that ended early, after so long.
    pub(super) fn failed(&mut self, took: Duration) -> Duration {
        self.asked = ASKED_SHORTEST.max(took * ASKED_SHARE);
        self.pause = FIRST;
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::super::pass::{Ended, Table};
    use super::*;
    use crate::maps::PodMapId;

    fn passed(left: u64, removed: u64, max: u64) -> Passed {
        Passed {
            tables: [(PodMapId::Conntrack, Table { left, max, makes_room: false })].into(),
            removed: [((PodMapId::Conntrack, Ended::Idle), removed)].into(),
        }
    }

    #[test]
    fn the_pause_follows_what_a_pass_finds() {
        let mut pace = Pace::new();
        let short = Duration::from_millis(1);
        assert_eq!(pace.passed(&passed(60, 40, 1000), short), FIRST / 2);
        assert_eq!(pace.passed(&passed(0, 40, 1000), short), SHORTEST);
        assert_eq!(pace.passed(&passed(90, 10, 1000), short), SHORTEST, "neither much nor little");
        assert_eq!(pace.passed(&passed(100, 0, 1000), short), SHORTEST * 3 / 2);
        for _ in 0..20 {
            pace.passed(&passed(0, 0, 1000), short);
        }
        assert_eq!(pace.pause(), LONGEST);
    }

    #[test]
    fn a_pass_that_is_asked_for_waits_as_long_as_the_last_one_was_costly() {
        let mut pace = Pace::new();
        assert_eq!(pace.asked(), Duration::ZERO);
        pace.passed(&passed(0, 0, 1000), Duration::from_millis(1));
        assert_eq!(pace.asked(), ASKED_SHORTEST);
        pace.failed(Duration::from_millis(300));
        assert_eq!(pace.asked(), Duration::from_secs(3));
    }

    #[test]
    fn a_map_that_is_nearly_full_is_looked_at_often_but_never_all_the_time() {
        let mut pace = Pace::new();
        assert_eq!(pace.passed(&passed(760, 0, 1000), Duration::from_millis(1)), SHORTEST);
        assert_eq!(pace.passed(&passed(760, 0, 1000), Duration::from_millis(500)), Duration::from_secs(50));
        let mut full = passed(1000, 0, 1000);
        full.tables.values_mut().for_each(|table| table.makes_room = true);
        assert!(Pace::new().passed(&full, Duration::from_millis(1)) > SHORTEST);
    }
}
