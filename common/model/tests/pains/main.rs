//! Faults that other systems had (reference/pains.md), by their row: each class is right in the model and the maps.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

mod node;
mod restart;
mod scale;

use node::{Node, endpoint, service, set, slice, slice_of, tally};
use portway_datapath::{
    BackendIndex, BackendSlot, FrontendKey, FrontendKind, FrontendValue, Membership, Port, Protocol,
    RunBackend, RunHeader, RunOffset, ServiceFlags, ServiceIndex, ServiceName, ServiceWord,
};
use portway_model::k8s::ObjectKind::{EndpointSlice, Service};
use portway_model::tables::{TableOp, TableWriter as _};

/// A node with `web` at 10.96.0.1: two slices of two endpoints each.
fn two_slices() -> Node {
    let mut node = Node::new();
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.list(EndpointSlice, &slices());
    node.synced();
    node
}

fn slices() -> [String; 2] {
    [slice("web-1", 2, "web", &["10.1.0.1", "10.1.0.2"]), slice("web-2", 3, "web", &["10.1.0.3", "10.1.0.4"])]
}

#[test]
fn pain_01_a_relist_replaces_what_was_held() {
    let mut node = two_slices();
    // The watch was cut; meanwhile slice 1 went from {1, 2} to {5}, and slice 2 away.
    node.list(EndpointSlice, &[slice("web-1", 9, "web", &["10.1.0.5"])]);
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.5"]));
    node.applied(EndpointSlice, &slice("web-1", 10, "web", &["10.1.0.5", "10.1.0.6"]));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.5", "10.1.0.6"]));
    // And the service itself.
    node.list(Service, &[]);
    node.program();
    assert_eq!((node.backends("10.96.0.1"), node.rows()), (None, vec![]));
}

#[test]
fn pain_02_what_nobody_knows_goes_with_the_first_sync_and_needs_no_event() {
    let node = two_slices();
    let mut node = node.restart();
    let (foreign, at) = (ServiceIndex::new(50), RunOffset::new(900));
    let (addr, port) = (portway_datapath::Addr::v4([10, 9, 9, 9]), Port::new(80));
    let key = FrontendKey::new(portway_datapath::Addr::v4([10, 96, 0, 77]), port, Protocol::TCP);
    let backend = RunBackend { addr, port, index: BackendIndex::new(800) };
    let header = RunHeader { cluster_len: 1, ..RunHeader::default() };
    let mut records = header.records().to_vec();
    records.push(backend.record());
    // A whole service, and backends of a service that is known: one in its run, one beside it.
    let known = node.maps.tables.dump().services[0].clone();
    let mut longer = known.header;
    longer.cluster_len += 1;
    let mut of_known = longer.records().to_vec();
    of_known.extend(known.backends.iter().map(RunBackend::record));
    of_known.push(RunBackend { index: BackendIndex::new(801), ..backend }.record());
    let slot = |service| BackendSlot::new(700, Membership::Cluster.bit(), service, addr, port);
    for op in [
        TableOp::WriteBackend { index: backend.index, slot: slot(foreign) },
        TableOp::WriteRun { at, records },
        TableOp::NameService { service: foreign, name: Box::new(ServiceName::new("ns/gone", "").unwrap()) },
        TableOp::Publish { service: foreign, word: ServiceWord::new(at, 1) },
        TableOp::InsertFrontend { key, value: FrontendValue::new(&key, FrontendKind::ClusterIp, foreign) },
        TableOp::WriteBackend { index: BackendIndex::new(801), slot: slot(known.index) },
        TableOp::WriteBackend { index: BackendIndex::new(802), slot: slot(known.index) },
        TableOp::WriteRun { at: RunOffset::new(950), records: of_known },
        TableOp::Publish { service: known.index, word: ServiceWord::new(RunOffset::new(950), 2) },
    ] {
        node.maps.tables.write(&op).unwrap();
    }
    let mut node = node.restart();
    assert!(node.backends("10.96.0.1").unwrap().contains("10.9.9.9:80"));
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.list(EndpointSlice, &slices());
    node.synced();
    assert_eq!(
        node.rows(),
        ["ns/web 10.96.0.1:80 → 10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080 10.1.0.4:8080"]
    );
    let dump = node.maps.tables.dump();
    let in_use = dump.backends.iter().filter(|(_, slot)| slot.members() != 0).count();
    assert_eq!((dump.services.len(), in_use, dump.stray_names.len()), (1, 4, 0));
}

#[test]
fn pain_10_a_terminating_endpoint_among_hints_moves_nobody_else() {
    let hinted = |text: &str| endpoint(text, r#", "hints": {"forZones": [{"name": "a"}]}"#);
    let mut node = Node::new();
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    let node_a = r#"{"metadata": {"name": "node-a", "resourceVersion": "1",
        "labels": {"topology.kubernetes.io/zone": "a"}}}"#;
    node.list(portway_model::k8s::ObjectKind::Node, &[node_a.to_owned()]);
    let three = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];
    node.list(EndpointSlice, &[slice_of("web-1", 2, "web", &three.map(hinted))]);
    node.synced();
    let slots = |node: &Node| node.maps.tables.dump().backends;
    let before = slots(&node);
    node.applied(
        EndpointSlice,
        &slice_of("web-1", 3, "web", &["10.1.0.1 -", "10.1.0.2", "10.1.0.3"].map(hinted)),
    );
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.2", "10.1.0.3"]));
    // The others are the same slots and incarnations: who is bound to them stays.
    assert_eq!(slots(&node)[1..], before[1..]);
    assert_eq!(
        tally(&node.maps.ops[node.maps.ops.len() - 3..]),
        [("run", 1), ("publish", 1), ("state", 1)].into()
    );
}

#[test]
fn pain_14_the_map_is_what_the_slices_say_after_each_of_a_thousand_changes() {
    let mut random = 11u64;
    let mut pick = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let services = ["kubernetes", "web", "dns"];
    let mut node = Node::new();
    let objects: Vec<_> =
        services.iter().zip(1..).map(|(name, n)| service(name, 1, &format!("10.96.0.{n}"), "")).collect();
    node.list(Service, &objects);
    node.list(EndpointSlice, &[]);
    node.synced();
    let mut pods: Vec<Vec<String>> = vec![Vec::new(); 3];
    for version in 10..1010 {
        let of = pick(3) as usize;
        // Addresses are reused, also by another service.
        if pods[of].len() > 4 || (pick(2) == 0 && !pods[of].is_empty()) {
            let gone = pick(pods[of].len() as u64) as usize;
            pods[of].swap_remove(gone);
        } else {
            let new = format!("10.1.0.{}", 1 + pick(8));
            if pods.iter().flatten().any(|pod| *pod == new) {
                continue;
            }
            pods[of].push(new);
        }
        let now: Vec<&str> = pods[of].iter().map(String::as_str).collect();
        node.applied(EndpointSlice, &slice(&format!("{}-x", services[of]), version, services[of], &now));
        node.program();
        for (pods, n) in pods.iter().zip(1..) {
            let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
            assert_eq!(node.backends(&format!("10.96.0.{n}")), set(&pods), "after change {version}");
        }
        if version % 100 == 0 {
            let found = node.planner.differences(&node.balancer, &Default::default(), true);
            assert_eq!(found, []);
        }
    }
}

#[test]
fn pain_16_a_restored_run_that_offers_nothing_is_never_a_reason_to_refuse() {
    // Local only, with a local backend; what the earlier agent left offers nothing, in three ways.
    let local = r#", "internalTrafficPolicy": "Local""#;
    let services = [service("web", 1, "10.96.0.1", local)];
    let slices = [slice("web-1", 2, "web", &["10.1.0.1 @node-a", "10.1.0.2"])];
    let mut sound = Node::new();
    sound.list(Service, &services);
    sound.list(EndpointSlice, &slices);
    sound.synced();
    assert_eq!(sound.backends("10.96.0.1"), set(&["10.1.0.1"]));
    let dump = sound.maps.tables.dump();
    let left = dump.services[0].clone();
    let empty = RunHeader { local_len: 0, cluster_len: 0, ..left.header };
    let no_local = RunHeader { local_len: 0, ..left.header };
    let quarantined = dump.backends.iter().map(|(index, slot)| TableOp::StoreBackendState {
        index: *index,
        state: BackendSlot::state_word(slot.incarnation(), 0),
    });
    let header = |header: RunHeader| TableOp::WriteRun {
        at: left.word.run().unwrap(),
        records: header.records().to_vec(),
    };
    assert!(left.header.flags.has(ServiceFlags::INTERNAL_LOCAL));
    for damage in [vec![header(empty)], vec![header(no_local)], quarantined.collect()] {
        let mut node = Node::new();
        node.list(Service, &services);
        node.list(EndpointSlice, &slices);
        node.synced();
        damage.iter().for_each(|op| node.maps.tables.write(op).unwrap());
        let mut node = node.restart();
        node.list(Service, &services);
        node.list(EndpointSlice, &slices);
        node.program();
        assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.1"]), "{damage:?}");
        node.synced();
        let slots = node.maps.tables.dump().backends;
        assert!(slots.iter().filter(|(_, slot)| slot.members() != 0).count() == 2, "{slots:?}");
    }
}
