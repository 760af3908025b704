//! Random wanted states through tables that fail, looked at after every operation.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::super::{Planner, Retired};
use super::checker::{Checker, Faulty};
use super::shape::{assert_exact, from_scratch, shape};
use super::world::{Dice, OPTIONS, World};
use crate::loadbalancer::{Desired as _, Dirty};
use crate::tables::MemoryTables;

/// A planner, its tables, and what they went through since they last agreed.
pub(super) struct Run {
    pub(super) planner: Planner,
    pub(super) tables: Faulty,
    /// From the state in which everything agreed to the wanted one.
    pub(super) worlds: Vec<World>,
    pub(super) dirty: Dirty,
    pub(super) ticket: Option<(u64, Retired)>,
    pub(super) dice: Dice,
}

impl Run {
    pub(super) fn new(seed: u64, one_in: u64) -> Self {
        let checker = Checker::new(MemoryTables::new(OPTIONS.sizes));
        Self {
            planner: Planner::new(OPTIONS),
            tables: Faulty::new(checker, one_in, seed),
            worlds: vec![World::default()],
            dirty: Dirty::default(),
            ticket: None,
            dice: Dice(seed),
        }
    }

    pub(super) fn wanted(&self) -> &World {
        self.worlds.last().unwrap()
    }

    pub(super) fn change(&mut self) {
        let mut next = self.wanted().clone();
        next.mutate(&mut self.dice);
        self.dirty.merge(self.wanted().diff(&next));
        self.worlds.push(next);
        self.tables.inner.allow(&self.worlds);
    }

    /// One reconciliation; whether everything agrees after it.
    pub(super) fn reconcile(&mut self) -> bool {
        let is_settled = self.reconcile_unchecked();
        self.check();
        is_settled
    }

    /// As [`Self::reconcile`]; the caller looks at the violations.
    pub(super) fn reconcile_unchecked(&mut self) -> bool {
        let wanted = self.worlds.last().unwrap();
        let before = self.tables.inner.ops.len() as u64;
        let outcome = self.planner.reconcile(wanted, &mut self.dirty, &mut self.tables);
        assert_eq!(outcome.writes, self.tables.inner.ops.len() as u64 - before);
        assert_exact(&self.planner, &self.tables.inner.tables.dump());
        assert_eq!(outcome.is_settled(), self.dirty.is_empty(), "{outcome:?} {:?}", self.dirty);
        outcome.is_settled()
    }

    pub(super) fn check(&self) {
        assert_eq!(self.tables.inner.violations, Vec::<String>::new());
    }

    pub(super) fn grace(&mut self) {
        match self.ticket.take() {
            Some((period, retired)) => {
                self.tables.inner.period_ended(period);
                self.planner.reclaim(retired);
            }
            None => {
                let period = self.tables.inner.period_began();
                self.ticket = self.planner.take_retired().map(|retired| (period, retired));
            }
        }
    }

    /// Until everything agrees, and then that it is what one plan from nothing would have made.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            if self.reconcile() {
                let wanted = self.wanted().clone();
                assert_eq!(shape(&self.tables.inner.tables), from_scratch(&wanted, OPTIONS));
                self.worlds = vec![wanted];
                self.tables.inner.allow(&self.worlds);
                self.tables.inner.look("settling");
                self.check();
                return;
            }
            self.grace();
        }
        let wanted = self.worlds.last().unwrap();
        let outcome = self.planner.reconcile(wanted, &mut self.dirty, &mut self.tables);
        panic!("never settled: {outcome:?}, {:?}", self.dirty);
    }

    fn step(&mut self) {
        self.change();
        if self.dice.one_in(3) {
            self.settle();
            let writes = self.tables.inner.ops.len();
            self.dirty.merge(self.wanted().everything());
            self.dirty.merge(self.planner.everything());
            while !self.reconcile() {}
            assert_eq!(self.tables.inner.ops.len(), writes, "equal content writes nothing");
        } else {
            self.reconcile();
        }
        if self.dice.one_in(2) {
            self.grace();
        }
        self.tables.inner.ops.clear();
    }
}

#[test]
fn twenty_thousand_random_changes_are_right_after_every_operation() {
    let mut run = Run::new(20_261_130, 10);
    for _ in 0..20_000 {
        run.step();
    }
    run.settle();
}

/// The same cases in each run.
pub(super) fn seeded(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(3),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(seeded(48))]

    #[test]
    fn random_changes_are_right_after_every_operation(seed: u64, one_in in 0u64..12, steps in 1usize..60) {
        let mut run = Run::new(seed, if one_in < 4 { 0 } else { one_in });
        for _ in 0..steps {
            run.step();
        }
        run.settle();
    }
}
