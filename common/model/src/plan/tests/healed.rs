//! Maps that somebody else changed while a planner knows them.

use portway_datapath::{
    BackendSlot, FrontendKind, FrontendValue, Membership, Port, ServiceIndex, ServiceName, ServiceWord,
};

use super::super::{Aspect, Difference};
use super::random::Run;
use super::restored::{programmed, two};
use super::shape::{assert_exact, from_scratch, shape};
use super::world::{OPTIONS, World, addr, frontend, key, service};
use crate::loadbalancer::{Desired as _, Dirty};
use crate::tables::TableOp;

impl Run {
    fn differences(&self) -> Vec<Difference> {
        let dump = self.tables.inner.tables.dump();
        self.planner.differences(&dump, self.wanted(), &self.dirty)
    }

    /// Damages the maps, expects these differences and heals them.
    fn mends(&mut self, ops: &[TableOp], expected: &[&str]) {
        assert_eq!(self.differences(), []);
        let named: Vec<_> = self.differences_after(ops).iter().map(ToString::to_string).collect();
        assert_eq!(named, expected);
        self.mend();
    }

    fn differences_after(&mut self, ops: &[TableOp]) -> Vec<Difference> {
        self.damage(ops);
        self.differences()
    }

    fn mend(&mut self) {
        let named = self.differences();
        let before = self.tables.inner.tables.dump();
        let kept = before.services.iter().find(|s| s.service == "ns/c").cloned();
        self.planner.heal(&before);
        self.dirty = self.wanted().everything();
        let tables = &mut self.tables.inner.tables;
        let wanted = self.worlds.last().unwrap();
        let mut writes = 0;
        for _ in 0..3 {
            let outcome = self.planner.prune(wanted, &mut self.dirty, tables);
            assert!(outcome.failures.is_empty(), "{outcome:?}");
            writes += outcome.writes;
            while let Some(retired) = self.planner.take_retired() {
                self.planner.reclaim(retired);
            }
        }
        assert!(self.dirty.is_empty() && writes > 0, "{named:?}");
        let after = tables.dump();
        assert_exact(&self.planner, &after);
        assert_eq!(shape(tables), from_scratch(wanted, OPTIONS));
        assert_eq!(self.differences(), []);
        // What nobody touched was not written.
        assert_eq!(after.services.iter().find(|s| s.service == "ns/c").cloned(), kept);
    }
}

fn three() -> World {
    let c = key("ns/c", "http");
    let mut with_tables = service(&["10.1.0.7:8080", "10.1.0.8:8080"]);
    with_tables.reached_from_outside = true;
    two().with(c.clone(), with_tables).at(frontend("10.96.0.3:443/TCP"), FrontendKind::LoadBalancer, &c)
}

const A: &str = "service ns/a port http TCP IPv4";
const B: &str = "service ns/b TCP IPv4";
const ONE: &str = "frontend 10.96.0.1:80/TCP";

#[test]
fn a_deleted_a_changed_and_a_foreign_frontend_are_named_and_mended() {
    let mut run = programmed(three());
    let one = frontend("10.96.0.1:80/TCP");
    run.mends(
        &[TableOp::DeleteFrontend { key: one }],
        &[&format!("{ONE}: frontend: the maps hold nothing, wanted is ClusterIP of {A}")],
    );
    let b = FrontendValue::new(&one, FrontendKind::ClusterIp, run.index_of("ns/b"));
    run.mends(
        &[TableOp::StoreFrontend { key: one, value: b }],
        &[&format!("{ONE}: frontend: the maps hold ClusterIP of {B}, wanted is ClusterIP of {A}")],
    );
    let stray = frontend("10.96.0.9:30080/TCP");
    run.mends(
        &[
            TableOp::InsertFrontend {
                key: stray,
                value: FrontendValue::new(&stray, FrontendKind::NodePort, ServiceIndex::new(50)),
            },
            TableOp::StoreFrontend { key: one, value: FrontendValue::from_word(7) },
        ],
        &[
            &format!(
                "{ONE}: frontend: the maps hold the value of another frontend, wanted is ClusterIP of {A}"
            ),
            "frontend 10.96.0.9:30080/TCP: frontend: the maps hold service index 50, which is nobody's, wanted is nothing",
        ],
    );
}

#[test]
fn an_overwritten_publishing_word_is_named_and_mended() {
    let mut run = programmed(three());
    let (a, b) = (run.index_of("ns/a"), run.index_of("ns/b"));
    let of_b = run.word(b);
    let slots = run.differences_after(&[TableOp::Publish { service: a, word: ServiceWord::NONE }]);
    assert!(slots.iter().any(|d| d.subject == A && d.aspect == Aspect::Version && d.held == "nothing"));
    assert!(slots.iter().all(|d| d.subject == A && !d.is_pending));
    run.mend();
    let stolen = run.differences_after(&[TableOp::Publish { service: a, word: of_b }]);
    assert!(stolen.iter().any(|d| d.subject == A && d.aspect == Aspect::Version), "{stolen:?}");
    assert!(stolen.iter().all(|d| d.subject == A), "{stolen:?}");
    run.mend();
    let middle = ServiceWord::new(of_b.run().unwrap().plus(1), 9);
    assert!(!run.differences_after(&[TableOp::Publish { service: a, word: middle }]).is_empty());
    run.mend();
}

#[test]
fn an_edited_run_is_named_and_mended() {
    let mut run = programmed(three());
    let a = run.index_of("ns/a");
    let at = run.word(a).run().unwrap();
    let dump = run.tables.inner.tables.dump();
    let service = dump.services.iter().find(|s| s.index == a).unwrap();
    let mut swapped = service.header.records().to_vec();
    swapped.extend(service.backends.iter().rev().map(portway_datapath::RunBackend::record));
    run.mends(
        &[TableOp::WriteRun { at, records: swapped }],
        &[
            &format!("{A}: version: the maps hold a damaged run, wanted is a sound one"),
            &format!("{A}: backends: the maps hold nothing, wanted is 10.1.0.1:8080 (cluster)"),
        ],
    );
    let at = run.word(a).run().unwrap();
    let dump = run.tables.inner.tables.dump();
    let service = dump.services.iter().find(|s| s.index == a).unwrap();
    let mut longer = service.header;
    longer.affinity_seconds = 60;
    run.mends(
        &[TableOp::WriteRun { at, records: longer.records().to_vec() }],
        &[&format!(
            "{A}: settings: the maps hold flags 0x0, affinity 60 s, wanted is flags 0x0, affinity 0 s"
        )],
    );
    let at = run.word(a).run().unwrap();
    let mut foreign =
        run.tables.inner.tables.dump().services.iter().find(|s| s.index == a).unwrap().backends[0];
    foreign.addr = addr("10.9.9.9");
    let found =
        run.differences_after(&[TableOp::WriteRun { at: at.plus(2), records: vec![foreign.record()] }]);
    assert!(
        found.iter().any(|d| d.aspect == Aspect::Backends && d.wanted.contains("10.1.0.1:8080 (cluster)"))
    );
    run.mend();
}

#[test]
fn changed_slots_ranges_and_names_are_named_and_mended() {
    let mut ranged = service(&["10.1.0.1:8080", "10.1.0.2:8080"]);
    ranged.source_ranges = vec![(addr("192.0.2.0"), 120)];
    ranged.flags =
        portway_datapath::ServiceFlags::default().with(portway_datapath::ServiceFlags::SOURCE_RANGES);
    let mut run = programmed(three().with(key("ns/a", "http"), ranged));
    let a = run.index_of("ns/a");
    let (index, slot) = run.tables.inner.tables.dump().backends[0];
    let state = BackendSlot::state_word(slot.incarnation(), 0);
    let (slot_number, incarnation) = (index.get(), slot.incarnation());
    run.mends(
        &[TableOp::StoreBackendState { index, state }],
        &[&format!(
            "{A}: backend states: the maps hold 10.1.0.1:8080 (going) in slot {slot_number}, incarnation {incarnation}, wanted is 10.1.0.1:8080 (cluster) in slot {slot_number}, incarnation {incarnation}"
        )],
    );
    run.mends(
        &[
            TableOp::DeleteSourceRange { service: a, addr: addr("192.0.2.0"), bits: 120 },
            TableOp::InsertSourceRange { service: a, addr: addr("0.0.0.0"), bits: 96 },
        ],
        &[&format!("{A}: source ranges: the maps hold 0.0.0.0/0, wanted is 192.0.2.0/24")],
    );
    run.mends(
        &[TableOp::ForgetService { service: a }],
        &[&format!("{A}: name: the maps hold nothing, wanted is ns/a port http")],
    );
    let name = Box::new(ServiceName::new("ns/z", "").unwrap());
    run.mends(
        &[TableOp::NameService { service: a, name }],
        &[&format!("{A}: name: the maps hold ns/z, wanted is ns/a port http")],
    );
}

#[test]
fn what_is_nobodys_is_named_and_goes() {
    let mut run = programmed(three());
    let stray = ServiceIndex::new(40);
    let slot = BackendSlot::new(900, Membership::Cluster.bit(), stray, addr("10.1.0.9"), Port::new(80));
    let found = run.differences_after(&[
        TableOp::NameService { service: stray, name: Box::new(ServiceName::new("ns/x", "p").unwrap()) },
        TableOp::InsertSourceRange { service: stray, addr: addr("10.0.0.0"), bits: 104 },
        TableOp::WriteBackend { index: portway_datapath::BackendIndex::new(200), slot },
    ]);
    let aspects: Vec<_> = found.iter().map(|d| (&*d.subject, d.aspect, &*d.wanted)).collect();
    assert_eq!(
        aspects,
        [
            ("left-over service 40", Aspect::BackendStates, "nothing"),
            ("left-over service 40", Aspect::SourceRanges, "nothing"),
            ("left-over service 40", Aspect::Name, "nothing"),
        ]
    );
    run.mend();
}

#[test]
fn what_is_not_written_yet_is_pending_and_what_was_never_marked_is_not() {
    let mut run = programmed(three());
    let mut next = three();
    next.services.insert(key("ns/a", "http"), service(&["10.1.0.5:8080"]));
    next.frontends.remove(&frontend("10.96.0.2:80/TCP"));
    let dirty = three().diff(&next);
    run.worlds.push(next);
    let texts = |run: &Run| run.differences().iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected = [
        format!(
            "{A}: backends: the maps hold 10.1.0.1:8080 (cluster), 10.1.0.2:8080 (cluster), wanted is 10.1.0.5:8080 (cluster)"
        ),
        format!("frontend 10.96.0.2:80/TCP: frontend: the maps hold ClusterIP of {B}, wanted is nothing"),
    ];
    assert_eq!(texts(&run), expected);
    run.dirty = dirty;
    assert_eq!(texts(&run), expected.map(|text| format!("{text} (not written yet)")));
    run.dirty = Dirty::default();
    run.mend();
}

#[test]
fn a_difference_travels_as_json() {
    let mut run = programmed(three());
    let found = run.differences_after(&[TableOp::DeleteFrontend { key: frontend("10.96.0.1:80/TCP") }]);
    let json = serde_json::to_string(&found).unwrap();
    assert!(
        json.starts_with(r#"[{"subject":"frontend 10.96.0.1:80/TCP","aspect":"frontend","held":"nothing""#)
    );
    assert_eq!(serde_json::from_str::<Vec<Difference>>(&json).unwrap(), found);
}
