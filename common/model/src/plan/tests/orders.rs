//! The checker itself: orders that are wrong on purpose, each of which it must catch.

use portway_datapath::{FrontendKind, RunOffset, ServiceIndex};

use super::super::{Options, Planner};
use super::checker::Checker;
use super::random::Run;
use super::world::{SIZES, World, frontend, key, service};
use crate::loadbalancer::{Dirty, ServicePortKey};
use crate::tables::{MemoryTables, TableOp, TableWriter as _};

/// Operations that lead from nothing to the first state, and from there to the second.
struct Recorded {
    before: World,
    after: World,
    first: Vec<TableOp>,
    second: Vec<TableOp>,
}

fn record(before: World, after: World) -> Recorded {
    let mut run = Run::new(1, 0);
    run.go_to(before.clone());
    run.settle();
    let first = std::mem::take(&mut run.tables.inner.ops);
    run.go_to(after.clone());
    run.settle();
    Recorded { before, after, first, second: std::mem::take(&mut run.tables.inner.ops) }
}

impl Recorded {
    /// What the checker says of these operations instead of the second half.
    fn violations(&self, second: &[TableOp]) -> Vec<String> {
        let mut checker = Checker::new(MemoryTables::new(SIZES));
        checker.allow([&World::default(), &self.before]);
        self.first.iter().for_each(|op| checker.write(op).unwrap());
        checker.allow([&self.before]);
        checker.look("the first state");
        let period = checker.period_began();
        checker.period_ended(period);
        assert_eq!(checker.violations, Vec::<String>::new());
        checker.allow([&self.before, &self.after]);
        second.iter().for_each(|op| checker.write(op).unwrap());
        checker.violations
    }

    /// The second half with the operations that `which` picks moved to its front.
    fn with_first(&self, which: impl Fn(&TableOp) -> bool) -> Vec<TableOp> {
        let (mut first, rest): (Vec<_>, Vec<_>) = self.second.iter().cloned().partition(which);
        first.extend(rest);
        first
    }
}

fn world(backends: &[&str], frontends: &[&str]) -> World {
    frontends.iter().fold(World::default().with(key("ns/a", ""), service(backends)), |world, s| {
        world.at(frontend(s), FrontendKind::ClusterIp, &key("ns/a", ""))
    })
}

fn changed() -> Recorded {
    record(
        world(&["10.1.0.1:80", "10.1.0.2:80"], &["10.96.0.1:80/TCP"]),
        world(&["10.1.0.2:80", "10.1.0.3:80"], &["10.96.0.1:80/TCP"]),
    )
}

const fn is_publish(op: &TableOp) -> bool {
    matches!(op, TableOp::Publish { .. })
}

#[test]
fn the_planners_own_order_is_right() {
    for recorded in [
        changed(),
        record(World::default(), world(&["10.1.0.1:80"], &["10.96.0.1:80/TCP"])),
        record(world(&["10.1.0.1:80"], &["10.96.0.1:80/TCP"]), World::default()),
    ] {
        assert_eq!(recorded.violations(&recorded.second), Vec::<String>::new());
        assert!(recorded.second.iter().any(is_publish));
    }
}

#[test]
fn a_frontend_before_its_service_is_published_is_caught() {
    let recorded = record(World::default(), world(&["10.1.0.1:80"], &["10.96.0.1:80/TCP"]));
    let second = recorded.with_first(|op| matches!(op, TableOp::InsertFrontend { .. }));
    assert!(!recorded.violations(&second).is_empty());
}

#[test]
fn a_service_that_goes_before_its_frontends_is_caught() {
    let recorded = record(world(&["10.1.0.1:80"], &["10.96.0.1:80/TCP"]), World::default());
    assert!(!recorded.violations(&recorded.with_first(is_publish)).is_empty());
}

#[test]
fn a_version_that_is_published_before_it_is_written_is_caught() {
    let recorded = changed();
    let [TableOp::Publish { word, .. }] =
        recorded.second.iter().filter(|op| is_publish(op)).collect::<Vec<_>>()[..]
    else {
        panic!("{:?}", recorded.second)
    };
    // What an earlier run has left there: no backends.
    let mut second = vec![TableOp::WriteRun { at: word.run().unwrap(), records: vec![[0; 6]; 4] }];
    second.extend(recorded.with_first(is_publish));
    assert!(recorded.violations(&second).iter().any(|violation| violation.contains("Refuse")));
}

#[test]
fn slots_after_the_publication_are_caught() {
    let recorded = changed();
    let slots = |op: &TableOp| matches!(op, TableOp::WriteBackend { .. });
    // What an earlier use has left there: another service's backend.
    let mut second: Vec<_> = recorded.second.iter().filter(|op| slots(op)).cloned().collect();
    for op in &mut second {
        let TableOp::WriteBackend { slot, .. } = op else { panic!("{op:?}") };
        (slot.service, slot.state) = (ServiceIndex::new(9), slot.state & !0xffff_ffff);
    }
    assert_eq!(second.len(), 1);
    second.extend(recorded.with_first(|op| !slots(op)));
    assert!(recorded.violations(&second).iter().any(|violation| violation.contains("has RunBackend")));
}

#[test]
fn bits_that_are_lowered_before_the_publication_are_caught() {
    let recorded = changed();
    let second = recorded.with_first(|op| matches!(op, TableOp::StoreBackendState { .. }));
    assert!(recorded.violations(&second).iter().any(|violation| violation.contains("has RunBackend")));
}

#[test]
fn an_edit_of_a_published_run_is_caught() {
    let recorded = changed();
    let run_of = |op: &TableOp| if let TableOp::WriteRun { at, .. } = op { Some(*at) } else { None };
    let old: RunOffset = recorded.first.iter().find_map(run_of).unwrap();
    let edit = |op: &TableOp| {
        let mut ops = vec![op.clone()];
        if let TableOp::WriteRun { records, .. } = op {
            ops.push(TableOp::WriteRun { at: old, records: records.clone() });
        }
        ops
    };
    let second: Vec<_> = recorded.second.iter().flat_map(edit).collect();
    assert!(
        recorded.violations(&second).iter().any(|violation| violation.contains("before the grace period"))
    );
}

#[test]
fn a_frontend_that_is_empty_in_between_is_caught() {
    let (a, b) = (key("ns/a", ""), key("ns/b", ""));
    let services = World::default()
        .with(a.clone(), service(&["10.1.0.1:80"]))
        .with(b.clone(), service(&["10.1.0.2:80"]));
    let vip = frontend("10.96.0.1:80/TCP");
    let recorded = record(
        services.clone().at(vip, FrontendKind::ClusterIp, &a),
        services.at(vip, FrontendKind::ClusterIp, &b),
    );
    let [TableOp::StoreFrontend { key, value }] = recorded.second[..] else {
        panic!("{:?}", recorded.second)
    };
    let replaced = [TableOp::DeleteFrontend { key }, TableOp::InsertFrontend { key, value }];
    assert!(!recorded.violations(&replaced).is_empty());
}

#[test]
fn a_swap_without_a_second_index_is_caught() {
    let (a, b) = (key("ns/a", "http"), key("ns/a", "https"));
    let (one, two) = (frontend("10.96.0.1:80/TCP"), frontend("10.96.0.3:443/TCP"));
    let swapped = |a: &ServicePortKey, b: &ServicePortKey| {
        World::default()
            .with(b.clone(), service(&["10.1.0.1:8443"]))
            .with(a.clone(), service(&["10.1.0.1:8080"]))
            .at(one, FrontendKind::ClusterIp, a)
            .at(two, FrontendKind::ClusterIp, b)
    };
    let recorded = record(swapped(&a, &b), swapped(&b, &a));
    // Each service in place, then each frontend: as if nothing depended on anything.
    let mut tables = MemoryTables::new(SIZES);
    let mut planner = Planner::new(Options { sizes: SIZES, maglev: None });
    let mut naive = Vec::new();
    let halfway =
        World { services: recorded.after.services.clone(), frontends: recorded.before.frontends.clone() };
    for (from, to) in
        [(&World::default(), &recorded.before), (&recorded.before, &halfway), (&halfway, &recorded.after)]
    {
        let mut writer = Recorder(&mut tables, Vec::new());
        let mut dirty: Dirty = from.diff(to);
        assert!(planner.reconcile(to, &mut dirty, &mut writer).is_settled());
        naive.push(writer.1);
    }
    assert!(!recorded.violations(&naive[1..].concat()).is_empty());
}

#[test]
fn reuse_before_the_grace_period_is_caught() {
    let mut run = Run::new(1, 0);
    for n in 0..40 {
        run.go_to(world(&[&format!("10.1.0.{n}:80")], &["10.96.0.1:80/TCP"]));
        run.reconcile_unchecked();
        // No grace period: the checker is not told, and would not believe it.
        if let Some(retired) = run.planner.take_retired() {
            run.planner.reclaim(retired);
        }
    }
    let told = |what: &str| run.tables.inner.violations.iter().any(|v| v.contains(what));
    assert!(told("WriteRun") && told("WriteBackend"), "{:?}", run.tables.inner.violations);
}

#[test]
fn what_a_frontend_has_left_must_not_change_at_once() {
    let before = world(&["10.1.0.1:80"], &["10.96.0.1:80/TCP", "10.96.0.2:80/TCP"]);
    let after = world(&["10.1.0.2:80"], &["10.96.0.1:80/TCP"]);
    let mut run = Run::new(1, 0);
    run.go_to(before);
    run.settle();
    run.go_to(after);
    assert!(!run.reconcile());
    let retired = run.planner.take_retired().unwrap();
    assert!(retired.is_empty(), "it is only waited for");
    run.planner.reclaim(retired);
    run.reconcile_unchecked();
    assert!(run.tables.inner.violations.iter().any(|v| v.contains("follows an earlier")));
}

struct Recorder<'a>(&'a mut MemoryTables, Vec<TableOp>);

impl crate::tables::TableWriter for Recorder<'_> {
    type Error = crate::tables::FullTable;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        self.0.write(op)?;
        self.1.push(op.clone());
        Ok(())
    }
}
