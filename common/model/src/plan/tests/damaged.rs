//! Maps that anybody may have written anything into, and who takes them over: what was not touched is right at every
//! step, and in the end everything is.

use std::collections::BTreeSet;

use portway_datapath::{
    BackendIndex, BackendSlot, FrontendKind, FrontendValue, RunOffset, ServiceIndex, ServiceName,
    ServiceWord, Tables as _,
};
use proptest::prelude::*;

use super::random::{Run, seeded};
use super::shape::assert_exact;
use super::world::{addr, frontend, frontend_keys};
use crate::loadbalancer::Desired as _;
use crate::tables::TableOp;

impl Run {
    /// Something that only another writer, or a defect, does; and the service whose version or slot it is.
    fn any_damage(&mut self) -> Option<(ServiceIndex, TableOp)> {
        let dump = self.tables.inner.tables.dump();
        let dice = &mut self.dice;
        let service = dump.services.get(dice.below(dump.services.len().max(1)))?.clone();
        let other = &dump.services[dice.below(dump.services.len())];
        let number = dice.below(1 << 20) as u32;
        let run = service.word.run()?;
        let mut touched = ServiceIndex::new(0);
        let sort = dice.below(14);
        if sort < 6 {
            touched = service.index;
        }
        let op = match sort {
            // Two services on one run; nothing; the middle of another one's run, or anywhere.
            0 => TableOp::Publish { service: service.index, word: other.word },
            1 => TableOp::Publish { service: service.index, word: ServiceWord::NONE },
            2 => TableOp::Publish {
                service: if number.is_multiple_of(2) { service.index } else { ServiceIndex::new(50) },
                word: ServiceWord::new(RunOffset::new(1 + number % 1000), number),
            },
            // A run that offers nothing, is half written, or garbage.
            3 => {
                let header = portway_datapath::RunHeader { local_len: 0, cluster_len: 0, ..service.header };
                TableOp::WriteRun { at: run, records: header.records().to_vec() }
            }
            4 => {
                let zeros = 1 + number % (2 + service.header.backends());
                TableOp::WriteRun { at: run, records: vec![[0; 6]; zeros as usize] }
            }
            5 => {
                let at = run.plus(number % (2 + service.header.backends()));
                TableOp::WriteRun { at, records: vec![[number % 9; 6]] }
            }
            6 => {
                let (index, slot) = *dump.backends.get(dice.below(dump.backends.len().max(1)))?;
                let state = BackendSlot::state_word(slot.incarnation(), number & 3);
                touched = slot.service;
                TableOp::StoreBackendState { index, state }
            }
            7 => {
                let index = BackendIndex::new(1 + number % 20);
                let slot = self.tables.inner.tables.backend(index);
                touched = slot.map_or(touched, |slot| slot.service);
                let slot =
                    BackendSlot::new(number, 1 + (number & 1), other.index, addr("10.1.0.1"), FOREIGN_PORT);
                TableOp::WriteBackend { index, slot }
            }
            8 => {
                let (key, _) = *dump.frontends.get(dice.below(dump.frontends.len().max(1)))?;
                TableOp::DeleteFrontend { key }
            }
            // Two services' frontends on one index; an index that is not published; the value of another key.
            9 | 10 => {
                let (key, old) = *dump.frontends.get(dice.below(dump.frontends.len().max(1)))?;
                let value = match number % 4 {
                    0 => FrontendValue::new(&key, FrontendKind::ClusterIp, ServiceIndex::new(number % 60)),
                    1 => FrontendValue::from_word(old.word() ^ u64::from(number) << 20),
                    _ => FrontendValue::new(&key, FrontendKind::ClusterIp, other.index),
                };
                TableOp::StoreFrontend { key, value }
            }
            11 => {
                let mut keys = frontend_keys();
                keys.push(frontend("10.96.0.77:80/TCP"));
                let key = keys[dice.below(keys.len())];
                if dump.frontends.iter().any(|(known, _)| *known == key) {
                    return None;
                }
                let value = FrontendValue::new(&key, FrontendKind::NodePort, service.index);
                TableOp::InsertFrontend { key, value }
            }
            12 if number.is_multiple_of(2) => {
                let (service, addr, bits) =
                    *dump.source_ranges.get(dice.below(dump.source_ranges.len().max(1)))?;
                TableOp::DeleteSourceRange { service, addr, bits }
            }
            12 => TableOp::InsertSourceRange { service: service.index, addr: addr("0.0.0.0"), bits: 96 },
            // A dump does not tell an empty name from none.
            _ if number.is_multiple_of(2) || other.service.is_empty() => {
                TableOp::ForgetService { service: service.index }
            }
            _ => {
                let name = Box::new(ServiceName::new(&other.service, &other.port_name).unwrap());
                TableOp::NameService { service: ServiceIndex::new(1 + number % 40), name }
            }
        };
        Some((touched, op))
    }

    /// A few of them; what they made wrong is not looked at until all is put right.
    fn damage_at_random(&mut self, how_many: usize) -> Vec<TableOp> {
        let (mut done, mut services) = (Vec::new(), BTreeSet::new());
        while done.len() < how_many {
            let Some((touched, op)) = self.any_damage() else { break };
            services.insert(touched);
            self.damage(std::slice::from_ref(&op));
            done.push(op);
        }
        self.tables.inner.overlook_damage(&services);
        done
    }

    /// After a grace period, as after every restore.
    fn quiet(&mut self) {
        self.ticket = None;
        let period = self.tables.inner.period_began();
        self.tables.inner.period_ended(period);
    }

    fn put_right(&mut self) {
        assert_exact(&self.planner, &self.tables.inner.tables.dump());
        self.dirty = self.wanted().everything();
        let mut last = None;
        for _ in 0..100 {
            let wanted = self.worlds.last().unwrap();
            let outcome = self.planner.prune(wanted, &mut self.dirty, &mut self.tables);
            self.check();
            if outcome.is_settled() {
                self.tables.inner.see_again();
                self.settle();
                return;
            }
            last = Some(outcome);
            self.grace();
            self.grace();
        }
        panic!("never settled: {last:?}");
    }
}

const FOREIGN_PORT: portway_datapath::Port = portway_datapath::Port::new(4444);

fn some_world(seed: u64) -> Run {
    let mut run = Run::new(seed, 0);
    for _ in 0..6 {
        run.change();
    }
    run.settle();
    run.tables.inner.ops.clear();
    run
}

proptest! {
    #![proptest_config(seeded(if is_long() { 20_000 } else { 400 }))]

    #[test]
    fn maps_with_any_damage_are_put_right_by_a_successor(seed: u64, how_many in 1usize..6) {
        let mut run = some_world(seed);
        let damage = run.damage_at_random(how_many);
        run.planner = super::super::Planner::new(super::world::OPTIONS);
        run.planner.restore(&run.tables.inner.tables.dump());
        run.quiet();
        run.dirty = run.wanted().everything();
        // Until every source has synced nothing is pruned, and nobody's state gets worse.
        for _ in 0..100 {
            let wanted = run.worlds.last().unwrap();
            let outcome = run.planner.reconcile(wanted, &mut run.dirty, &mut run.tables);
            prop_assert_eq!(&run.tables.inner.violations, &Vec::<String>::new(), "{:?}", damage);
            if outcome.is_settled() {
                break;
            }
            run.grace();
            run.grace();
        }
        run.put_right();
    }
}

fn is_long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}
