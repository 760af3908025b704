//! What an earlier run left, sound or not, and its successor.

use portway_datapath::{
    BackendIndex, BackendSlot, FrontendKind, FrontendValue, Membership, RunOffset, ServiceIndex, ServiceName,
    ServiceWord,
};

use super::super::Planner;
use super::random::Run;
use super::shape::{assert_exact, from_scratch, shape};
use super::world::{OPTIONS, World, frontend, key, keys, service};
use crate::loadbalancer::Desired as _;
use crate::tables::{TableDump, TableOp, TableWriter as _};

pub(super) fn two() -> World {
    let (a, b) = (key("ns/a", "http"), key("ns/b", ""));
    World::default()
        .with(a.clone(), service(&["10.1.0.1:8080", "10.1.0.2:8080"]))
        .with(b.clone(), service(&["10.1.0.3:8080"]))
        .at(frontend("10.96.0.1:80/TCP"), FrontendKind::ClusterIp, &a)
        .at(frontend("10.96.0.2:80/TCP"), FrontendKind::ClusterIp, &b)
}

/// A run in which `world` is programmed.
pub(super) fn programmed(world: World) -> Run {
    let mut run = Run::new(3, 0);
    run.go_to(world);
    run.settle();
    run.tables.inner.ops.clear();
    run
}

impl Run {
    /// Operations of nobody, which may break what the checker looks for.
    pub(super) fn damage(&mut self, ops: &[TableOp]) {
        ops.iter().for_each(|op| self.tables.inner.tables.write(op).unwrap());
    }

    /// Another planner that knows only the maps.
    fn restore(&mut self) {
        self.planner = Planner::new(OPTIONS);
        self.planner.restore(&self.tables.inner.tables.dump());
        self.dirty = self.wanted().everything();
    }

    /// A successor puts damaged maps right; the checker does not look, for it would only find the damage.
    fn recover(&mut self) {
        self.recover_from(&self.tables.inner.tables.dump());
    }

    /// As [`Self::recover`] where the maps say `dump`.
    fn recover_from(&mut self, dump: &TableDump) {
        self.planner = Planner::new(OPTIONS);
        self.planner.restore(dump);
        self.dirty = self.wanted().everything();
        let tables = &mut self.tables.inner.tables;
        let wanted = self.worlds.last().unwrap();
        for prune in [false, true, true] {
            let outcome = if prune {
                self.planner.prune(wanted, &mut self.dirty, tables)
            } else {
                self.planner.reconcile(wanted, &mut self.dirty, tables)
            };
            assert!(outcome.failures.is_empty(), "{outcome:?}");
            while let Some(retired) = self.planner.take_retired() {
                self.planner.reclaim(retired);
            }
        }
        assert_exact(&self.planner, &tables.dump());
        assert_eq!(shape(tables), from_scratch(wanted, OPTIONS));
        let usage = self.planner.usage();
        assert_eq!(usage.services as usize, wanted.services.len());
        let backends: usize = wanted.services.values().map(|s| s.backends.len()).sum();
        assert_eq!(usage.backends as usize, backends);
        assert_eq!(usage.runs as usize, 2 * wanted.services.len() + backends);
    }

    fn index_of(&self, name: &str) -> ServiceIndex {
        self.tables.inner.tables.dump().services.iter().find(|s| s.service == name).unwrap().index
    }

    fn word(&self, index: ServiceIndex) -> ServiceWord {
        self.tables.inner.tables.dump().services.iter().find(|s| s.index == index).unwrap().word
    }
}

#[test]
fn a_restored_service_keeps_its_index_slots_and_version() {
    let mut run = programmed(two());
    let before = run.tables.inner.tables.dump();
    run.restore();
    assert!(run.reconcile());
    assert_eq!(run.tables.inner.tables.dump(), before);
    // Incarnations go on after the highest of all slots.
    let highest = before.backends.iter().map(|(_, slot)| slot.incarnation()).max().unwrap();
    run.go_to(two().with(key("ns/b", ""), service(&["10.1.0.3:8080", "10.1.0.4:8080"])));
    run.settle();
    let after = run.tables.inner.tables.dump();
    assert_eq!(after.backends.iter().map(|(_, slot)| slot.incarnation()).max(), Some(highest + 1));
}

#[test]
fn nothing_is_deleted_before_prune() {
    let mut run = programmed(two());
    run.restore();
    // The source that knows `ns/b` has not spoken yet.
    let mut one = two();
    one.services.remove(&key("ns/b", ""));
    one.frontends.remove(&frontend("10.96.0.2:80/TCP"));
    let mut dirty = one.everything();
    let outcome = run.planner.reconcile(&one, &mut dirty, &mut run.tables);
    assert_eq!((outcome.writes, outcome.is_settled()), (0, true));
    run.check();
    run.worlds.push(one);
    run.tables.inner.allow(&run.worlds);
    let outcome = run.planner.prune(run.worlds.last().unwrap(), &mut run.dirty, &mut run.tables);
    assert!(outcome.is_settled(), "{outcome:?}");
    run.settle();
}

#[test]
fn two_owners_of_one_restored_index_come_apart_without_a_wrong_answer() {
    // Both frontends point at the index of `ns/a`, and now each belongs to a service of its own.
    let a = key("ns/a", "http");
    let shared = two().at(frontend("10.96.0.2:80/TCP"), FrontendKind::ClusterIp, &a);
    let mut run = programmed(shared.clone());
    run.worlds = vec![shared, two()];
    run.tables.inner.allow(&run.worlds);
    let index = run.index_of("ns/a");
    run.restore();
    run.settle();
    assert_eq!(run.index_of("ns/a"), index);
    assert_eq!(run.planner.usage().services, 2);
}

#[test]
fn two_services_that_claim_one_index_are_told_apart() {
    // TCP and UDP of `ns/b` have the same names; a damaged map gives both frontends the index of one.
    let (tcp, udp) = (&keys()[2], &keys()[3]);
    let dns = frontend("10.96.0.1:53/UDP");
    let world = two().with(udp.clone(), service(&["10.1.0.5:53"])).at(dns, FrontendKind::ClusterIp, udp);
    let mut run = programmed(world);
    let index = run.planner.service_index(tcp).unwrap();
    run.damage(&[TableOp::StoreFrontend {
        key: dns,
        value: FrontendValue::new(&dns, FrontendKind::ClusterIp, index),
    }]);
    run.recover();
    assert_ne!(run.planner.service_index(tcp), run.planner.service_index(udp));
}

#[test]
fn frontends_of_unpublished_indices_and_values_of_other_keys_are_put_right() {
    let mut run = programmed(two());
    let (one, two) = (frontend("10.96.0.1:80/TCP"), frontend("10.96.0.2:80/TCP"));
    let stray = frontend("10.96.0.3:443/TCP");
    run.damage(&[
        TableOp::StoreFrontend {
            key: one,
            value: FrontendValue::new(&one, FrontendKind::ClusterIp, ServiceIndex::new(50)),
        },
        TableOp::StoreFrontend { key: two, value: FrontendValue::from_word(7) },
        TableOp::InsertFrontend {
            key: stray,
            value: FrontendValue::new(&stray, FrontendKind::ClusterIp, ServiceIndex::new(0)),
        },
    ]);
    run.recover();
}

#[test]
fn overlapping_runs_are_never_taken_for_free() {
    let mut run = programmed(two());
    let (a, b) = (run.index_of("ns/a"), run.index_of("ns/b"));
    // `ns/b` is published in the middle of the run of `ns/a`.
    let middle = run.word(a).run().unwrap().plus(1);
    run.damage(&[TableOp::Publish { service: b, word: ServiceWord::new(middle, 77) }]);
    run.recover();
}

#[test]
fn services_that_share_a_run_come_apart() {
    let (a, b) = (key("ns/a", "http"), key("ns/b", ""));
    let world = World::default()
        .with(a.clone(), service(&[]))
        .with(b.clone(), service(&[]))
        .at(frontend("10.96.0.1:80/TCP"), FrontendKind::ClusterIp, &a)
        .at(frontend("10.96.0.2:80/TCP"), FrontendKind::ClusterIp, &b);
    let mut run = programmed(world);
    let (a, b) = (run.index_of("ns/a"), run.index_of("ns/b"));
    run.damage(&[TableOp::Publish { service: b, word: run.word(a) }]);
    run.recover();
    assert_ne!(run.word(a).run(), run.word(b).run());
}

#[test]
fn leftovers_of_every_kind_go_with_prune() {
    let mut run = programmed(two());
    let stray = ServiceIndex::new(40);
    let slot = BackendSlot::new(
        900,
        Membership::Cluster.bit(),
        stray,
        super::world::addr("10.1.0.9"),
        portway_datapath::Port::new(80),
    );
    run.damage(&[
        TableOp::NameService { service: stray, name: Box::new(ServiceName::new("ns/x", "p").unwrap()) },
        TableOp::InsertSourceRange {
            service: ServiceIndex::new(41),
            addr: super::world::addr("10.0.0.0"),
            bits: 104,
        },
        TableOp::WriteBackend { index: BackendIndex::new(200), slot },
    ]);
    run.recover();
    assert_eq!(run.planner.usage().source_ranges, 0);
}

#[test]
fn a_version_whose_slots_are_not_its_own_is_published_again() {
    let mut run = programmed(two());
    let dump = run.tables.inner.tables.dump();
    let (index, slot) = dump.backends[0];
    let mut foreign = slot;
    foreign.service = ServiceIndex::new(33);
    run.damage(&[TableOp::WriteBackend { index, slot: foreign }]);
    run.recover();
}

#[test]
fn bits_that_a_damaged_map_lost_are_raised_in_place() {
    let mut run = programmed(two());
    let (index, slot) = run.tables.inner.tables.dump().backends[0];
    let state = BackendSlot::state_word(slot.incarnation(), 0);
    run.damage(&[TableOp::StoreBackendState { index, state }]);
    run.restore();
    let wanted = run.worlds.last().unwrap();
    let outcome = run.planner.reconcile(wanted, &mut run.dirty, &mut run.tables);
    assert_eq!((outcome.writes, outcome.is_settled()), (1, true));
    run.settle();
}

#[test]
fn a_run_past_the_end_of_its_map_is_not_trusted() {
    let mut run = programmed(two());
    let b = run.index_of("ns/b");
    let mut dump = run.tables.inner.tables.dump();
    let service = dump.services.iter_mut().find(|s| s.index == b).unwrap();
    service.word = ServiceWord::new(RunOffset::new(u32::MAX - 1), 5);
    service.header.cluster_len = u32::MAX;
    run.recover_from(&dump);
}

#[test]
fn a_header_that_claims_the_rest_of_the_map_keeps_nobody_from_being_written() {
    let mut run = programmed(two());
    let a = run.index_of("ns/a");
    let service = run.tables.inner.tables.dump().services.into_iter().find(|s| s.index == a).unwrap();
    let all = portway_datapath::RunHeader { cluster_len: OPTIONS.sizes.runs, ..service.header };
    run.damage(&[TableOp::WriteRun { at: service.word.run().unwrap(), records: all.records().to_vec() }]);
    run.recover();
}

#[test]
fn retired_memory_of_before_frees_nothing_after_a_restore() {
    let mut run = programmed(two());
    run.go_to(two().with(key("ns/b", ""), service(&["10.1.0.4:8080"])));
    run.settle();
    let old = run.planner.take_retired().unwrap();
    let dump = run.tables.inner.tables.dump();
    run.planner.restore(&dump);
    let usage = run.planner.usage();
    run.planner.reclaim(old);
    assert_eq!(run.planner.usage(), usage);
}

#[test]
fn a_service_without_frontends_is_found_by_its_names() {
    // As after a crash between publishing and the first frontend.
    let world = World::default().with(key("ns/a", "http"), service(&["10.1.0.1:8080"]));
    let mut run = programmed(world.clone());
    let index = run.index_of("ns/a");
    run.restore();
    run.go_to(world.at(frontend("10.96.0.1:80/TCP"), FrontendKind::ClusterIp, &key("ns/a", "http")));
    run.settle();
    assert_eq!(run.index_of("ns/a"), index);
    assert_eq!(run.tables.inner.ops.len(), 1);
}
