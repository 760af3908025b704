//! A planner that dies at any operation, and its successor.

use proptest::prelude::*;

use super::super::Planner;
use super::random::{Run, seeded};
use super::world::OPTIONS;
use crate::loadbalancer::Desired as _;

impl Run {
    /// The next operations but so many never happen; then another planner takes the maps over. Whether there were no
    /// more operations than that.
    fn crash_after(&mut self, operations: u64) -> bool {
        self.tables.inner.lives = operations;
        let wanted = self.worlds.last().unwrap();
        let _ = self.planner.reconcile(wanted, &mut self.dirty, &mut self.tables);
        self.check();
        let survived = self.tables.inner.lives > 0;
        self.tables.inner.lives = u64::MAX;
        self.restart();
        survived
    }

    fn restart(&mut self) {
        // What the dead one had retired is not its successor's.
        self.ticket = None;
        self.planner = Planner::new(OPTIONS);
        self.planner.restore(&self.tables.inner.tables.dump());
        // The successor waits for a grace period before its first write.
        let period = self.tables.inner.period_began();
        self.tables.inner.period_ended(period);
        super::shape::assert_exact(&self.planner, &self.tables.inner.tables.dump());
        // It doesn't know what was dirty; the world may have moved on meanwhile.
        if self.dice.one_in(2) {
            self.change();
        }
        self.dirty = self.wanted().everything();
        while !self.reconcile() {
            self.retire();
        }
        loop {
            let wanted = self.worlds.last().unwrap();
            let outcome = self.planner.prune(wanted, &mut self.dirty, &mut self.tables);
            self.check();
            if outcome.is_settled() {
                break;
            }
            self.retire();
        }
        self.settle();
    }

    fn retire(&mut self) {
        self.grace();
        self.grace();
    }
}

#[test]
fn a_crash_after_any_operation_is_put_right() {
    for seed in 0..60 {
        for operations in 0.. {
            let mut run = Run::new(seed, 0);
            for _ in 0..3 {
                run.change();
            }
            run.settle();
            run.change();
            run.change();
            if run.crash_after(operations) {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(seeded(48))]

    #[test]
    fn crashes_among_failures_are_put_right(
        seed: u64,
        crashes in proptest::collection::vec((0u64..40, 1usize..6), 1..6),
    ) {
        let mut run = Run::new(seed, 10);
        for (operations, changes) in crashes {
            for _ in 0..changes {
                run.change();
                run.reconcile();
                run.grace();
            }
            run.change();
            run.crash_after(operations);
        }
    }
}
