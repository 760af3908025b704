//! The socket path on tables in memory: the order of its steps, and what each remembers.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

use std::net::IpAddr;

use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, Client, Counter, Destination, FrontendKey, FrontendKind, FrontendValue,
    LocalAddress, Membership, NetnsOptions, NodeConfig, PassReason, Port, Protocol, RunBackend, RunHeader,
    RunOffset, ServiceFlags, ServiceIndex, ServiceWord, Settings, SocketTranslation, Translation,
    UDP_IDLE_NS, Verdict, bind_is_denied, original_peer, reply_source, translate, translate_datagram,
};
use portway_model::tables::{MemoryTables, TableOp, TableWriter as _};

const NODE: Client = Client { netns: 1 };
const POD: Client = Client { netns: 2 };
const SERVICE: ServiceIndex = ServiceIndex::new(5);

fn addr(s: &str) -> Addr {
    s.parse::<IpAddr>().unwrap().into()
}

fn to(s: &str, port: u16, protocol: Protocol) -> Destination {
    Destination { addr: addr(s), port: Port::new(port), protocol }
}

fn tables() -> MemoryTables {
    let mut tables = MemoryTables::new(Sizes::DEFAULT);
    tables.config = NodeConfig { host_netns: NODE.netns, settings: settings().word() };
    tables.local_addresses.insert(addr("10.0.0.1"), LocalAddress::new(true));
    tables.local_addresses.insert(addr("10.0.0.2"), LocalAddress::new(false));
    tables
}

fn settings() -> Settings {
    Settings::new().guard_external_ips().serve_node_ports_on_loopback().protect_node_ports(30_000, 32_767)
}

/// A service of backends 10.1.0.1.. at port 8080: the first `local` of them on this node, all in the cluster set.
fn service(tables: &mut MemoryTables, backends: u8, local: u32, flags: ServiceFlags, affinity_seconds: u32) {
    let at = RunOffset::new(10);
    let header = RunHeader {
        flags,
        affinity_seconds,
        local_len: local,
        cluster_start: 0,
        cluster_len: u32::from(backends),
        ..RunHeader::default()
    };
    let mut records = header.records().to_vec();
    for n in 0..backends {
        let index = BackendIndex::new(100 + u32::from(n));
        let (addr, port) = (Addr::v4([10, 1, 0, n + 1]), Port::new(8080));
        records.push(RunBackend { addr, port, index }.record());
        let members =
            Membership::Cluster.bit() | if u32::from(n) < local { Membership::Local.bit() } else { 0 };
        let slot = BackendSlot::new(7, members, SERVICE, addr, port);
        tables.write(&TableOp::WriteBackend { index, slot }).unwrap();
    }
    tables.write(&TableOp::WriteRun { at, records }).unwrap();
    tables.write(&TableOp::Publish { service: SERVICE, word: ServiceWord::new(at, 1) }).unwrap();
}

fn frontend(tables: &mut MemoryTables, at: Destination, kind: FrontendKind) {
    let key = FrontendKey::new(at.addr, at.port, at.protocol);
    tables.write(&TableOp::InsertFrontend { key, value: FrontendValue::new(&key, kind, SERVICE) }).unwrap();
}

fn leave(tables: &mut MemoryTables, n: u32) {
    tables
        .write(&TableOp::StoreBackendState {
            index: BackendIndex::new(100 + n),
            state: BackendSlot::state_word(7, 0),
        })
        .unwrap();
}

#[track_caller]
fn translated(verdict: Verdict) -> Translation {
    match verdict {
        Verdict::Translate(translation) => translation,
        Verdict::Pass(_) | Verdict::Refuse(_) => panic!("{verdict:?}"),
    }
}

const VIP: &str = "10.96.0.1";

#[test]
fn a_cluster_address_is_translated_to_every_backend() {
    let mut tables = tables();
    service(&mut tables, 4, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        seen.insert(translated(translate(&tables, POD, to(VIP, 80, Protocol::TCP))).addr);
    }
    assert_eq!(seen.len(), 4);
    assert_eq!(tables.counter(Counter::Connects), 200);
    for other in [to(VIP, 81, Protocol::TCP), to(VIP, 80, Protocol::UDP), to("10.96.0.2", 80, Protocol::TCP)]
    {
        assert_eq!(translate(&tables, POD, other), Verdict::Pass(PassReason::NoFrontend));
    }
}

#[test]
fn without_backends_the_client_is_refused() {
    let mut tables = tables();
    service(&mut tables, 0, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    assert_eq!(translate(&tables, POD, to(VIP, 80, Protocol::TCP)), Verdict::Refuse(SERVICE));
    assert_eq!(tables.counter(Counter::NoBackends), 1);
}

#[test]
fn a_node_port_answers_on_the_addresses_it_may() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to("0.0.0.0", 30_080, Protocol::TCP), FrontendKind::NodePort);
    let at = |client, s| translate(&tables, client, to(s, 30_080, Protocol::TCP));
    for (client, address) in [(NODE, "10.0.0.1"), (POD, "10.0.0.1"), (NODE, "127.0.0.1"), (NODE, "0.0.0.0")] {
        translated(at(client, address));
    }
    for (client, address) in [
        (NODE, "10.0.0.2"), // an address that nodeport-addresses leaves out
        (NODE, "10.0.0.3"), // not an address of the node
        (POD, "127.0.0.1"), // the pod's own loopback
        (POD, "0.0.0.0"),   // likewise
        (NODE, "::1"),      // the other family
    ] {
        assert_eq!(at(client, address), Verdict::Pass(PassReason::NoFrontend), "{client:?} {address}");
    }
}

#[test]
fn a_host_port_answers_on_every_address_of_the_node() {
    let mut tables = tables();
    service(&mut tables, 1, 1, ServiceFlags::default(), 0);
    frontend(&mut tables, to("0.0.0.0", 8081, Protocol::TCP), FrontendKind::HostPort);
    for (client, address) in [(POD, "10.0.0.1"), (POD, "10.0.0.2"), (NODE, "127.0.0.1")] {
        translated(translate(&tables, client, to(address, 8081, Protocol::TCP)));
    }
    assert_eq!(
        translate(&tables, POD, to("127.0.0.1", 8081, Protocol::TCP)),
        Verdict::Pass(PassReason::NoFrontend)
    );
}

#[test]
fn an_external_ip_of_somebody_else_is_left_alone_even_without_backends() {
    let mut tables = tables();
    service(&mut tables, 0, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to("8.8.8.8", 53, Protocol::UDP), FrontendKind::ExternalIps);
    frontend(&mut tables, to("10.0.0.1", 53, Protocol::UDP), FrontendKind::ExternalIps);
    let at = |tables: &MemoryTables, s| translate(tables, POD, to(s, 53, Protocol::UDP));
    assert_eq!(at(&tables, "8.8.8.8"), Verdict::Pass(PassReason::ExternalIpGuard));
    assert_eq!(at(&tables, "10.0.0.1"), Verdict::Refuse(SERVICE));
    tables.config.settings = Settings::new().word();
    assert_eq!(at(&tables, "8.8.8.8"), Verdict::Refuse(SERVICE));
}

#[test]
fn host_namespace_only_leaves_pods_alone() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    tables.config.settings = settings().host_namespace_only().word();
    translated(translate(&tables, NODE, to(VIP, 80, Protocol::TCP)));
    assert_eq!(
        translate(&tables, POD, to(VIP, 80, Protocol::TCP)),
        Verdict::Pass(PassReason::OtherNamespace)
    );
}

#[test]
fn the_sockets_of_a_pod_that_opted_out_are_left_alone_where_pods_may() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    let at = |tables: &MemoryTables, client| translate(tables, client, to(VIP, 80, Protocol::TCP));
    for netns in [POD.netns, NODE.netns] {
        tables.netns.insert(netns, NetnsOptions::new(false));
    }
    translated(at(&tables, POD));
    tables.config.settings = settings().allow_opt_outs().word();
    assert_eq!(at(&tables, POD), Verdict::Pass(PassReason::OptedOut));
    translated(at(&tables, NODE));
    translated(at(&tables, Client { netns: 3 }));
    tables.netns.insert(POD.netns, NetnsOptions::new(true));
    translated(at(&tables, POD));
}

#[test]
fn the_internal_policy_rules_the_cluster_address_only() {
    let mut tables = tables();
    service(&mut tables, 4, 0, ServiceFlags::INTERNAL_LOCAL, 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    frontend(&mut tables, to("0.0.0.0", 30_080, Protocol::TCP), FrontendKind::NodePort);
    assert_eq!(translate(&tables, POD, to(VIP, 80, Protocol::TCP)), Verdict::Refuse(SERVICE));
    translated(translate(&tables, POD, to("10.0.0.1", 30_080, Protocol::TCP)));
}

#[test]
fn pain_09_affinity_never_gives_a_backend_that_left() {
    let mut tables = tables();
    service(&mut tables, 4, 0, ServiceFlags::default(), 600);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    let connect = |tables: &MemoryTables| translated(translate(tables, POD, to(VIP, 80, Protocol::TCP))).addr;
    let bound = connect(&tables);
    for _ in 0..50 {
        assert_eq!(connect(&tables), bound);
    }
    // Its state is lowered and nothing else yet: a terminating backend, or one whose removal is half way.
    leave(&mut tables, u32::from(bound.octets()[15]) - 1);
    let moved =
        (0..64).map(|_| connect(&tables)).find(|b| *b != bound).expect("chosen anew until it is another");
    tables.now += 599 * 1_000_000_000;
    assert_eq!(connect(&tables), moved, "refreshed by use");
}

#[test]
fn affinity_ends_with_its_timeout_and_belongs_to_a_namespace() {
    let mut tables = tables();
    service(&mut tables, 50, 0, ServiceFlags::default(), 10);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    let connect = |tables: &MemoryTables, netns| {
        translated(translate(tables, Client { netns }, to(VIP, 80, Protocol::TCP))).addr
    };
    let bound: Vec<_> = (0..20).map(|netns| connect(&tables, 10 + netns)).collect();
    assert!(bound.iter().any(|b| *b != bound[0]), "each namespace has its own");
    tables.now += 11 * 1_000_000_000;
    let after: Vec<_> = (0..20).map(|netns| connect(&tables, 10 + netns)).collect();
    assert_ne!(bound, after, "chosen anew after the timeout");
}

#[test]
fn pain_42_an_unconnected_socket_keeps_its_backend_until_idle_or_gone() {
    let mut tables = tables();
    service(&mut tables, 50, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 53, Protocol::UDP), FrontendKind::ClusterIp);
    let send = |tables: &MemoryTables| {
        translated(translate_datagram(tables, POD, 77, to(VIP, 53, Protocol::UDP))).addr
    };
    let first = send(&tables);
    for _ in 0..10 {
        tables.now += UDP_IDLE_NS - 1;
        assert_eq!(send(&tables), first);
    }
    let gone = u32::from(first.octets()[15]) - 1;
    leave(&mut tables, gone);
    let second = send(&tables);
    tables.now += UDP_IDLE_NS;
    let chosen: std::collections::BTreeSet<_> = (0..40)
        .map(|_| {
            tables.now += UDP_IDLE_NS;
            send(&tables)
        })
        .collect();
    assert!(chosen.len() > 5, "{second} chosen anew each time after idling: {chosen:?}");
}

#[test]
fn replies_come_from_the_frontend_that_the_socket_asked() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    for vip in [VIP, "10.96.0.2"] {
        frontend(&mut tables, to(vip, 53, Protocol::UDP), FrontendKind::ClusterIp);
    }
    let send = |cookie, vip| translated(translate_datagram(&tables, POD, cookie, to(vip, 53, Protocol::UDP)));
    let backend = send(1, VIP);
    send(2, "10.96.0.2");
    let source = |cookie| reply_source(&tables, cookie, None, backend.addr, backend.port);
    assert_eq!(source(1), Some((addr(VIP), Port::new(53))));
    assert_eq!(source(2), Some((addr("10.96.0.2"), Port::new(53))));
    assert_eq!(source(3), None, "a socket that never asked");
    assert_eq!(reply_source(&tables, 1, None, addr("10.9.9.9"), Port::new(53)), None);
}

#[test]
fn a_connected_socket_sees_the_peer_it_asked_for() {
    let to = Translation { service: SERVICE, addr: addr("10.1.0.1"), port: Port::new(8080) };
    let translation = SocketTranslation::new(addr(VIP), Port::new(80), Protocol::TCP, &to);
    assert_eq!(
        original_peer(&translation, addr("10.1.0.1"), Port::new(8080)),
        Some((addr(VIP), Port::new(80)))
    );
    assert_eq!(original_peer(&translation, addr("10.1.0.2"), Port::new(8080)), None);
    assert_eq!(original_peer(&translation, addr("10.1.0.1"), Port::new(8081)), None);
}

#[test]
fn pain_27_a_node_port_is_protected_on_the_node_only_and_only_while_it_exists() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to("0.0.0.0", 30_080, Protocol::TCP), FrontendKind::NodePort);
    let denied = |tables: &MemoryTables, netns, port, protocol| {
        bind_is_denied(tables, netns, addr("0.0.0.0"), Port::new(port), protocol)
    };
    assert!(denied(&tables, NODE.netns, 30_080, Protocol::TCP));
    assert!(!denied(&tables, POD.netns, 30_080, Protocol::TCP));
    assert!(!denied(&tables, NODE.netns, 30_080, Protocol::UDP));
    assert!(!denied(&tables, NODE.netns, 30_081, Protocol::TCP));
    let key = FrontendKey::new(Addr::ANY_V4, Port::new(30_080), Protocol::TCP);
    tables.write(&TableOp::DeleteFrontend { key }).unwrap();
    assert!(!denied(&tables, NODE.netns, 30_080, Protocol::TCP));
}

#[test]
fn a_frontend_whose_service_is_just_gone_passes_uncounted() {
    let mut tables = tables();
    service(&mut tables, 1, 0, ServiceFlags::default(), 0);
    frontend(&mut tables, to(VIP, 80, Protocol::TCP), FrontendKind::ClusterIp);
    tables.write(&TableOp::Publish { service: SERVICE, word: ServiceWord::NONE }).unwrap();
    assert_eq!(translate(&tables, POD, to(VIP, 80, Protocol::TCP)), Verdict::Pass(PassReason::Inconsistent));
    assert_eq!(tables.counter(Counter::Inconsistent), 0);
}
