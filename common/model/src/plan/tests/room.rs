//! Maps that are full, memory that waits for a grace period, and the allocators.

use std::collections::BTreeSet;

use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, FrontendKind};

use super::super::extents::{Extent, Extents};
use super::super::numbers::Numbers;
use super::super::{Options, Outcome, Planner, Problem, Subject};
use super::random::seeded;
use super::shape::{assert_exact, from_scratch, shape};
use super::world::{Dice, OPTIONS, SIZES, World, frontend, key, service};
use crate::loadbalancer::Dirty;
use crate::tables::{FullTable, MemoryTables};

struct Small {
    planner: Planner,
    tables: MemoryTables,
    world: World,
    dirty: Dirty,
}

impl Small {
    fn new(sizes: Sizes) -> Self {
        let planner = Planner::new(Options { sizes, maglev: None });
        Self { planner, tables: MemoryTables::new(sizes), world: World::default(), dirty: Dirty::default() }
    }

    fn go_to(&mut self, world: World) -> Outcome<FullTable> {
        self.dirty.merge(self.world.diff(&world));
        self.world = world;
        self.again()
    }

    fn again(&mut self) -> Outcome<FullTable> {
        let outcome = self.planner.reconcile(&self.world, &mut self.dirty, &mut self.tables);
        assert_exact(&self.planner, &self.tables.dump());
        assert_eq!(outcome.is_settled(), self.dirty.is_empty());
        outcome
    }

    fn grace(&mut self) {
        let retired = self.planner.take_retired().unwrap();
        self.planner.reclaim(retired);
    }
}

fn one(backends: &[&str]) -> World {
    World::default().with(key("ns/a", "http"), service(backends)).at(
        frontend("10.96.0.1:80/TCP"),
        FrontendKind::ClusterIp,
        &key("ns/a", "http"),
    )
}

#[test]
fn a_service_without_room_for_a_second_run_waits_for_the_grace_period() {
    // Two runs of two backends each fit, a third does not.
    let mut small = Small::new(Sizes { runs: 9, ..SIZES });
    assert!(small.go_to(one(&["10.1.0.1:80", "10.1.0.2:80"])).is_settled());
    assert!(small.go_to(one(&["10.1.0.1:80", "10.1.0.3:80"])).is_settled());
    let outcome = small.go_to(one(&["10.1.0.1:80", "10.1.0.4:80"]));
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    assert_eq!(outcome.waiting, BTreeSet::from([Subject::Service(key("ns/a", "http"))]));
    assert_eq!(outcome.writes, 0);
    // Waiting needs no new ticket each time.
    let retired = small.planner.take_retired().unwrap();
    assert!(!small.again().is_settled());
    assert!(small.planner.take_retired().is_none());
    small.planner.reclaim(retired);
    assert!(small.again().is_settled());
    assert_eq!(shape(&small.tables), from_scratch(&small.world, Options { sizes: SIZES, maglev: None }));
}

#[test]
fn a_full_map_keeps_the_last_good_version_and_heals_when_room_appears() {
    let sizes = Sizes { backends: 4, ..SIZES };
    let mut small = Small::new(sizes);
    let good = one(&["10.1.0.1:80", "10.1.0.2:80"]);
    assert!(small.go_to(good.clone()).is_settled());
    let before = shape(&small.tables);
    let outcome = small.go_to(one(&["10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80", "10.1.0.4:80"]));
    assert_eq!(outcome.writes, 0);
    let [failure] = &outcome.failures[..] else { panic!("{outcome:?}") };
    assert!(matches!(&failure.problem, Problem::Full(full) if full.map() == "pw_backends"));
    assert_eq!(
        failure.to_string(),
        "service ns/a port http TCP IPv4: pw_backends has no room for 2 more: 2 of 4 entries are in use; \
         raise bpf-lb-service-backend-map-max"
    );
    assert_eq!(shape(&small.tables), before);
    // A service that goes makes room only after the grace period.
    assert!(small.go_to(one(&["10.1.0.1:80", "10.1.0.3:80"])).is_settled());
    assert!(!small.go_to(one(&["10.1.0.1:80", "10.1.0.4:80"])).is_settled());
    small.grace();
    assert!(small.again().is_settled());
}

#[test]
fn each_map_that_is_full_is_named_with_the_key_that_raises_it() {
    let two = || {
        one(&["10.1.0.1:80"]).with(key("ns/b", ""), service(&["10.1.0.2:80"])).at(
            frontend("10.96.0.2:80/TCP"),
            FrontendKind::ClusterIp,
            &key("ns/b", ""),
        )
    };
    let mut ranges = one(&["10.1.0.1:80"]);
    let service = ranges.services.values_mut().next().unwrap();
    service.source_ranges = vec![(Addr::v4([10, 0, 0, 0]), 104), (Addr::v4([11, 0, 0, 0]), 104)];
    service.flags = portway_datapath::ServiceFlags::SOURCE_RANGES;
    let cases = [
        (Sizes { services: 2, ..SIZES }, two(), "pw_services", "bpf-lb-service-map-max"),
        (Sizes { runs: 5, ..SIZES }, two(), "pw_runs", "bpf-lb-service-backend-map-max"),
        (Sizes { backends: 2, ..SIZES }, two(), "pw_backends", "bpf-lb-service-backend-map-max"),
        (Sizes { frontends: 1, ..SIZES }, two(), "pw_frontends", "bpf-lb-map-max"),
        (Sizes { source_ranges: 1, ..SIZES }, ranges, "pw_source_ranges", "bpf-lb-source-range-map-max"),
    ];
    for (sizes, world, map, size_key) in cases {
        let mut small = Small::new(sizes);
        let outcome = small.go_to(world);
        let [failure] = &outcome.failures[..] else { panic!("{map}: {outcome:?}") };
        let Problem::Full(full) = &failure.problem else { panic!("{map}: {failure}") };
        assert_eq!((full.map(), full.size_key()), (map, Some(size_key)));
        // The other one works; with nothing wanted everything goes.
        assert!(!small.go_to(World::default()).waiting.is_empty() || small.dirty.is_empty());
        while small.planner.take_retired().map(|r| small.planner.reclaim(r)).is_some() {
            assert!(small.again().failures.is_empty());
        }
        assert!(shape(&small.tables).is_empty());
        assert_eq!(small.planner.usage(), super::super::Usage::default());
    }
}

#[test]
fn frontends_that_make_room_do_not_wait_for_those_that_need_it() {
    // A frontend for any address may change only after the one for a single address came, which finds no room until
    // the other has gone.
    let (a, b) = (key("ns/a", "http"), key("ns/b", ""));
    let world = World::default()
        .with(a.clone(), service(&["10.1.0.1:80"]))
        .with(b.clone(), service(&["10.1.0.2:80"]));
    let mut small = Small::new(Sizes { frontends: 1, ..SIZES });
    let before = world.clone().at(frontend("0.0.0.0:443/TCP"), FrontendKind::NodePort, &a);
    assert!(small.go_to(before).is_settled());
    let after = world.at(frontend("10.0.0.1:443/TCP"), FrontendKind::LoadBalancer, &b);
    let outcome = small.go_to(after);
    assert_eq!(outcome.failures.len(), 1, "{outcome:?}");
    assert!(small.again().is_settled());
}

#[test]
fn a_frontend_goes_before_the_service_that_needs_its_slots_is_published() {
    // As above, but here it is the service of the one that comes which finds no room.
    let (a, b) = (key("ns/a", "http"), key("ns/b", ""));
    let before = World::default().with(a.clone(), service(&["10.1.0.1:80"])).at(
        frontend("0.0.0.0:443/TCP"),
        FrontendKind::NodePort,
        &a,
    );
    let after = World::default().with(b.clone(), service(&["10.1.0.2:80"])).at(
        frontend("10.0.0.1:443/TCP"),
        FrontendKind::LoadBalancer,
        &b,
    );
    let mut small = Small::new(Sizes { backends: 2, ..SIZES });
    assert!(small.go_to(before).is_settled());
    let outcome = small.go_to(after);
    assert_eq!((outcome.failures.len(), outcome.waiting.len()), (0, 1), "{outcome:?}");
    small.grace();
    assert!(small.again().is_settled());
}

#[test]
fn small_maps_settle_after_any_change() {
    let sizes = Sizes { frontends: 12, services: 16, runs: 120, backends: 64, source_ranges: 24, ..SIZES };
    let (mut small, mut dice) = (Small::new(sizes), Dice(7));
    let mut waits = 0;
    for _ in 0..2_000 {
        let mut next = small.world.clone();
        next.mutate(&mut dice);
        let mut outcome = small.go_to(next);
        while !outcome.is_settled() {
            assert!(outcome.failures.is_empty(), "{outcome:?}");
            waits += 1;
            small.grace();
            outcome = small.again();
        }
    }
    assert!(waits > 100, "{waits}");
    assert_eq!(shape(&small.tables), from_scratch(&small.world, Options { sizes: SIZES, maglev: None }));
}

#[test]
fn nothing_is_lost_in_a_thousand_changes() {
    let (mut planner, mut tables) = (Planner::new(OPTIONS), MemoryTables::new(SIZES));
    let (mut world, mut dice) = (World::default(), Dice(11));
    for _ in 0..1_000 {
        let mut next = world.clone();
        next.mutate(&mut dice);
        let mut dirty = world.diff(&next);
        world = next;
        while !planner.reconcile(&world, &mut dirty, &mut tables).is_settled() {
            let retired = planner.take_retired().unwrap();
            planner.reclaim(retired);
        }
        if let Some(retired) = planner.take_retired() {
            planner.reclaim(retired);
        }
    }
    let services = tables.dump().services;
    let usage = planner.usage();
    assert_eq!(usage.services as usize, services.len());
    assert_eq!(usage.runs as usize, services.iter().map(|s| 2 + s.backends.len()).sum::<usize>());
    assert_eq!(usage.backends as usize, services.iter().map(|s| s.backends.len()).sum::<usize>());
    let tables = |s: &crate::tables::ServiceDump| {
        s.header.maglev_size * if s.header.flags.bits() & 3 == 0 { 1 } else { 2 }
    };
    assert_eq!(usage.maglev, services.iter().map(tables).sum::<u32>());
}

#[test]
fn numbers_are_given_from_one_and_never_past_the_end() {
    let mut numbers = Numbers::new(4);
    assert_eq!(
        [numbers.take(), numbers.take(), numbers.take(), numbers.take()],
        [Some(1), Some(2), Some(3), None]
    );
    numbers.give_back(2);
    numbers.give_back(0);
    numbers.give_back(9);
    assert_eq!((numbers.available(), numbers.take(), numbers.take()), (1, Some(2), None));
    let mut restored = Numbers::restored(6, &BTreeSet::from([0, 2, 4, 77]));
    let rest: Vec<_> = std::iter::from_fn(|| restored.take()).collect();
    assert_eq!(rest, [1, 3, 5]);
}

#[test]
fn extents_that_overlap_are_free_only_when_both_are() {
    let extent = |start, len| Extent { start, len };
    let used = [extent(1, 10), extent(5, 10), extent(20, 5)];
    let (mut extents, overlaps) = Extents::restored(1, 30, &used);
    assert_eq!(overlaps, [true, true, false]);
    assert_eq!(extents.free(), 29 - 14 - 5);
    assert_eq!(extents.parts_of_one_user(used[0]), [extent(1, 4)]);
    assert_eq!(extents.parts_of_one_user(used[1]), [extent(5, 10)]);
    assert_eq!(extents.parts_of_one_user(used[2]), [extent(20, 5)]);
}

proptest::proptest! {
    #![proptest_config(seeded(64))]

    #[test]
    fn extents_never_overlap_and_all_come_back(seed: u64) {
        let (mut extents, mut dice) = (Extents::new(1, 500), Dice(seed));
        let mut taken: Vec<Extent> = Vec::new();
        for _ in 0..300 {
            if dice.one_in(2) {
                let len = 1 + dice.below(30) as u32;
                match extents.take(len) {
                    Some(extent) => {
                        assert!(extent.start >= 1 && extent.end() <= 500 && extent.len == len);
                        assert!(taken.iter().all(|t| t.end() <= extent.start || extent.end() <= t.start));
                        taken.push(extent);
                    }
                    None => assert!(!extents.fits(len)),
                }
            } else if !taken.is_empty() {
                let at = dice.below(taken.len());
                extents.release(taken.swap_remove(at));
            }
            let used: u32 = taken.iter().map(|t| t.len).sum();
            assert_eq!((extents.used(), extents.free()), (used, 499 - used));
        }
        let (mut again, _) = Extents::restored(1, 500, &taken);
        assert_eq!(again.free(), extents.free());
        taken.into_iter().for_each(|extent| { again.release(extent); extents.release(extent) });
        // All neighbours became one.
        assert!(extents.fits(499) && again.fits(499));
    }
}
