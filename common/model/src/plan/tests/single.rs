//! One change each: what is written, and that it does not depend on what else there is.

use portway_datapath::maglev::Seed;
use portway_datapath::{Addr, FrontendKind, RunHeader, ServiceFlags};

use super::super::{Failure, MaglevLack, MaglevOptions, Options, Outcome, Planner, Problem, Subject};
use super::checker::Stopped;
use super::random::Run;
use super::shape::shape;
use super::world::{OPTIONS, SIZES, World, frontend, key, service};
use crate::loadbalancer::{Desired as _, Dirty, ServicePortKey};
use crate::tables::{MemoryTables, TableOp, rows};

/// Reconciles from one state to another; what was written.
fn step(planner: &mut Planner, tables: &mut MemoryTables, from: &World, to: &World) -> u64 {
    let mut dirty = from.diff(to);
    let outcome = planner.reconcile(to, &mut dirty, tables);
    assert!(outcome.is_settled() && dirty.is_empty(), "{outcome:?}");
    outcome.writes
}

fn many(services: u32) -> World {
    (0..services).fold(World::default(), |world, n| {
        let key = key(&format!("ns/s{n}"), "");
        let [_, _, high, low] = n.to_be_bytes();
        let vip = frontend(&format!("10.96.{high}.{low}:80/TCP"));
        world.with(key.clone(), service(&["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"])).at(
            vip,
            FrontendKind::ClusterIp,
            &key,
        )
    })
}

fn options(services: u32) -> Options {
    let sizes = portway_datapath::layout::Sizes {
        services: services + 64,
        ..portway_datapath::layout::Sizes::DEFAULT
    };
    Options { sizes, maglev: None }
}

#[test]
fn an_endpoint_change_writes_the_same_whatever_the_number_of_services() {
    let writes: Vec<_> = [1, 10, 1000]
        .into_iter()
        .map(|n| {
            let (mut planner, mut tables) = (Planner::new(options(n)), MemoryTables::new(options(n).sizes));
            let before = many(n);
            step(&mut planner, &mut tables, &World::default(), &before);
            let after = before
                .clone()
                .with(key("ns/s0", ""), service(&["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.4:8080"]));
            step(&mut planner, &mut tables, &before, &after)
        })
        .collect();
    // The new slot, the run, the word, the bits of the one that went.
    assert_eq!(writes, [4, 4, 4]);
}

#[test]
fn equal_content_writes_nothing() {
    let world = many(10);
    let (mut planner, mut tables) = (Planner::new(options(10)), MemoryTables::new(SIZES));
    step(&mut planner, &mut tables, &World::default(), &world);
    let mut dirty = world.everything();
    dirty.merge(planner.everything());
    let outcome = planner.reconcile(&world, &mut dirty, &mut tables);
    assert!(outcome.is_settled() && dirty.is_empty());
    assert_eq!(outcome.writes, 0);

    let mut restored = Planner::new(options(10));
    restored.restore(&tables.dump());
    let mut dirty = world.everything();
    let outcome = restored.reconcile(&world, &mut dirty, &mut tables);
    assert_eq!(outcome.writes, 0, "also after a restart");
    assert_eq!(restored.prune(&world, &mut dirty, &mut tables).writes, 0);
}

#[test]
fn a_run_is_sorted_local_only_both_cluster_only_each_in_address_order() {
    let backends =
        ["10.1.0.1:80", "10.1.0.2:80+l", "10.1.0.3:80+L", "10.1.0.4:80", "10.1.0.5:80+l", "10.1.0.6:80+L"];
    let wanted = service(&backends);
    let world = World::default().with(key("ns/a", ""), wanted);
    let (mut planner, mut tables) = (Planner::new(OPTIONS), MemoryTables::new(SIZES));
    step(&mut planner, &mut tables, &World::default(), &world);
    let dump = tables.dump();
    let order: Vec<_> = dump.services[0].backends.iter().map(|b| b.addr.octets()[15]).collect();
    assert_eq!(order, [3, 6, 2, 5, 1, 4]);
    let RunHeader { local_len, cluster_start, cluster_len, .. } = dump.services[0].header;
    assert_eq!((local_len, cluster_start, cluster_len), (4, 2, 4));
}

/// Two ports of a service swap their names: each frontend and each set of backends moves to the other index.
fn swap() -> (World, World) {
    let (http, https) = (key("ns/a", "http"), key("ns/a", "https"));
    let (vip80, vip443) = (frontend("10.96.0.1:80/TCP"), frontend("10.96.0.3:443/TCP"));
    let (on_80, on_443) = (service(&["10.1.0.1:8080"]), service(&["10.1.0.1:8443"]));
    let world = |of_80: &ServicePortKey, of_443: &ServicePortKey| {
        World::default()
            .with(of_80.clone(), on_80.clone())
            .with(of_443.clone(), on_443.clone())
            .at(vip80, FrontendKind::ClusterIp, of_80)
            .at(vip443, FrontendKind::ClusterIp, of_443)
    };
    (world(&http, &https), world(&https, &http))
}

impl Run {
    pub(super) fn go_to(&mut self, world: World) {
        self.dirty.merge(self.wanted().diff(&world));
        self.worlds.push(world);
        self.tables.inner.allow(&self.worlds);
    }
}

#[test]
fn ports_that_swap_their_names_never_answer_for_each_other() {
    let (before, after) = swap();
    let mut run = Run::new(1, 0);
    run.go_to(before);
    run.settle();
    run.go_to(after.clone());
    run.settle();
    let rows = rows(&run.tables.inner.tables.dump());
    assert_eq!(
        rows.iter().map(|r| (r.port, r.port_name.as_str())).collect::<Vec<_>>(),
        [(443, "http"), (80, "https")].into_iter().rev().collect::<Vec<_>>()
    );
    // And nothing is left of the second index.
    run.grace();
    run.grace();
    assert_eq!(run.planner.usage().services, 2);
}

#[test]
fn a_service_that_changes_while_a_frontend_leaves_keeps_its_index() {
    let (a, b) = (key("ns/a", "http"), key("ns/b", ""));
    let (one, two) = (frontend("10.96.0.1:80/TCP"), frontend("10.96.0.2:80/TCP"));
    let before = World::default()
        .with(a.clone(), service(&["10.1.0.1:8080"]))
        .with(b.clone(), service(&["10.1.0.9:8080"]))
        .at(one, FrontendKind::ClusterIp, &a)
        .at(two, FrontendKind::LoadBalancer, &a);
    let after =
        before.clone().with(a.clone(), service(&["10.1.0.2:8080"])).at(two, FrontendKind::LoadBalancer, &b);
    let mut run = Run::new(1, 0);
    run.go_to(before);
    run.settle();
    let index = run.planner.service_index(&a);
    run.go_to(after);
    assert!(!run.reconcile(), "who read the frontend before it left may still follow it");
    run.settle();
    assert_eq!(run.planner.service_index(&a), index);
}

#[test]
fn a_successor_pod_takes_the_host_port_in_place() {
    let pods = super::world::keys();
    for (old, new) in [(&pods[5], &pods[6]), (&pods[6], &pods[5])] {
        let port = frontend("0.0.0.0:443/TCP");
        let pod = |pod: &ServicePortKey, backend| {
            World::default().with(pod.clone(), service(&[backend])).at(port, FrontendKind::HostPort, pod)
        };
        let mut run = Run::new(1, 0);
        run.go_to(pod(old, "10.1.0.1:443"));
        run.settle();
        run.tables.inner.ops.clear();
        run.go_to(pod(new, "10.1.0.2:443"));
        run.settle();
        let gap =
            |op: &TableOp| matches!(op, TableOp::InsertFrontend { .. } | TableOp::DeleteFrontend { .. });
        assert!(!run.tables.inner.ops.iter().any(gap), "{:?}", run.tables.inner.ops);
    }
}

#[test]
fn a_frontend_of_an_unknown_service_is_a_failure_that_names_both() {
    let world =
        World::default().at(frontend("10.96.0.1:80/TCP"), FrontendKind::ClusterIp, &key("ns/gone", "http"));
    let mut dirty = Dirty { frontends: world.frontends.keys().copied().collect(), ..Dirty::default() };
    let outcome = Planner::new(OPTIONS).reconcile(&world, &mut dirty, &mut MemoryTables::new(SIZES));
    let failures: Vec<_> = outcome.failures.iter().map(ToString::to_string).collect();
    assert_eq!(
        failures,
        ["frontend 10.96.0.1:80/TCP: belongs to service ns/gone port http TCP IPv4, which does not exist"]
    );
    assert_eq!(dirty.frontends.len(), 1);
}

#[test]
fn a_failed_write_names_the_service_and_the_map_and_stays_dirty() {
    let world = World::default().with(key("ns/a", "http"), service(&["10.1.0.1:80"]));
    let mut run = Run::new(1, 0);
    run.go_to(world.clone());
    run.tables.inner.lives = 2;
    let outcome: Outcome<_> = run.planner.reconcile(&world, &mut run.dirty, &mut run.tables);
    let [Failure { subject: Subject::Service(failed), problem: Problem::Write { map: "pw_runs", error: _ } }] =
        &outcome.failures[..]
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(run.dirty.services.first(), Some(failed));
    assert_eq!(
        outcome.failures[0].to_string(),
        format!("service ns/a port http TCP IPv4: pw_runs: {}", Stopped::Dead)
    );
    run.tables.inner.lives = u64::MAX;
    run.settle();
}

fn maglev(table_size: u32, budget: u32) -> Options {
    let sizes = portway_datapath::layout::Sizes { maglev: budget, ..SIZES };
    Options { sizes, maglev: Some(MaglevOptions { table_size, seed: Seed(*b"JLfvgnHc2kaS") }) }
}

#[test]
fn maglev_tables_hold_positions_of_the_run_and_agree_between_nodes() {
    let mut wanted = service(&["10.1.0.1:80", "10.1.0.2:80+l", "10.1.0.3:80+l", "10.1.0.4:80"]);
    wanted.reached_from_outside = true;
    wanted.flags = ServiceFlags::EXTERNAL_LOCAL;
    let mut there = service(&["10.1.0.1:80+l", "10.1.0.2:80", "10.1.0.3:80", "10.1.0.4:80"]);
    there.reached_from_outside = true;
    let tables_of = |wanted| {
        let world = World::default().with(key("ns/a", ""), wanted);
        let mut tables = MemoryTables::new(SIZES);
        step(&mut Planner::new(maglev(251, 1024)), &mut tables, &World::default(), &world);
        let dump = tables.dump();
        let service = &dump.services[0];
        let (at, size) = (service.header.maglev_at, service.header.maglev_size);
        assert_eq!(size, 251);
        let table = |at: u32| -> Vec<Addr> {
            (at..at + size)
                .map(|n| service.backends[usize::from(tables.maglev_slot(n).unwrap())].addr)
                .collect()
        };
        let local = (service.header.flags == ServiceFlags::EXTERNAL_LOCAL).then(|| table(at + size));
        (table(at), local)
    };
    let (here, local) = tables_of(wanted);
    let (elsewhere, no_local) = tables_of(there);
    assert_eq!(here, elsewhere, "runs are sorted differently, tables say the same");
    assert_eq!(no_local, None);
    let local = local.unwrap();
    assert!(local.iter().all(|b| [2, 3].contains(&b.octets()[15])));
    assert!(here.iter().any(|b| b.octets()[15] == 4));
}

#[test]
fn maglev_past_its_budget_is_random_until_another_service_gives_up_its_tables() {
    let (a, b) = (key("ns/a", ""), key("ns/b", ""));
    let wanted = || {
        let mut wanted = service(&["10.1.0.1:80", "10.1.0.2:80"]);
        wanted.reached_from_outside = true;
        wanted
    };
    let both = World::default().with(a.clone(), wanted()).with(b.clone(), wanted());
    let options = maglev(251, 600);
    let (mut planner, mut tables) = (Planner::new(options), MemoryTables::new(options.sizes));
    // Room for two single tables, and not for a second version of both.
    step(&mut planner, &mut tables, &World::default(), &both);
    assert!(planner.without_maglev().is_empty());
    let third = both.clone().with(key("ns/c", ""), wanted());
    step(&mut planner, &mut tables, &both, &third);
    assert_eq!(planner.without_maglev().get(&key("ns/c", "")), Some(&MaglevLack::Budget));
    assert_eq!(shape(&tables).iter().filter(|s| s.has_tables()).count(), 2);

    let mut fewer = third.clone();
    fewer.services.remove(&a);
    fewer.services.remove(&b);
    step(&mut planner, &mut tables, &third, &fewer);
    let retired = planner.take_retired().unwrap();
    planner.reclaim(retired);
    step(&mut planner, &mut tables, &fewer, &fewer);
    assert!(planner.without_maglev().is_empty());
    assert_eq!(shape(&tables).iter().filter(|s| s.has_tables()).count(), 1);
}
