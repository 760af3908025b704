//! Flows and masqueraded flows that are over are forgotten, and no others. On own maps; the clock is the test's.

#[path = "kernel_pod_flows/services.rs"]
mod services;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use portway_agent::config::FlowTimeouts;
use portway_agent::conntrack::{Collector, Conntrack, Ended, Passed, Trust, tick_time};
use portway_agent::maps::{KernelTables, PodMapId, PodTables, pod_pin_path};
use portway_datapath::layout::{PodSizes, Sizes};
use portway_datapath::nat::NatMap;
use portway_datapath::{
    Addr, BackendIndex, BackendRef, BackendSlot, EndpointValue, FlowKey, FlowMap, FlowValue, LocalAddress,
    Membership, NatKey, NatValue, Port, ServiceIndex,
};
use portway_model::tables::{TableOp, TableWriter as _};
use portway_tests::harness::eventually;
use portway_tests::harness::mount::BpfMount;
use portway_tests::harness::process::{binary, output};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000_000 * SECOND;
const TCP: u8 = 6;
const UDP: u8 = 17;

const TIMEOUTS: FlowTimeouts = FlowTimeouts {
    tcp: Duration::from_secs(1000),
    tcp_syn: Duration::from_secs(60),
    tcp_fin: Duration::from_secs(10),
    any: Duration::from_secs(60),
    service_tcp: Duration::from_secs(1000),
    service_tcp_grace: Duration::from_secs(60),
    service_any: Duration::from_secs(60),
};

/// The maps, and what collects.
struct Node {
    services: KernelTables,
    tables: PodTables,
    collector: Collector,
    bpf: BpfMount,
    _dir: tempfile::TempDir,
}

impl Node {
    fn new(sizes: &PodSizes) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let bpf = BpfMount::new(dir.path())?;
        let (mut services, _) = KernelTables::open(bpf.path(), &Sizes::DEFAULT)?;
        services.set_local_addresses(&BTreeMap::from([(NODE, LocalAddress::new(true))]))?;
        let (tables, _) = PodTables::open(bpf.path(), sizes)?;
        for last in [7, 8] {
            let value =
                EndpointValue { ifindex: 5, id: last.into(), flags: 0, mac: [2; 6], node_mac: [4; 6] };
            tables.set_endpoint(pod(last), value)?;
        }
        let collector = Collector::new(tables.clone(), services.reader(), TIMEOUTS);
        Ok(Self { services, tables, collector, bpf, _dir: dir })
    }

    fn small() -> Result<Self> {
        Self::new(&PodSizes {
            conntrack: 256,
            conntrack_new: 256,
            nat: 256,
            nat_new: 256,
            ..PodSizes::DEFAULT
        })
    }

    /// As a program would.
    fn insert<K: Pod, V: Pod>(&self, map: PodMapId, key: K, value: V) -> Result<()> {
        let data = MapData::from_pin(pod_pin_path(self.bpf.path(), map))?;
        let makes_room = matches!(map, PodMapId::ConntrackNew | PodMapId::NatNew);
        let data = if makes_room { Map::LruHashMap(data) } else { Map::HashMap(data) };
        let mut map: HashMap<_, K, V> = data.try_into()?;
        Ok(map.insert(key, value, 0)?)
    }

    fn flow(&self, key: FlowKey, age: u64, change: impl Fn(&mut FlowValue)) -> Result<FlowKey> {
        let mut value = FlowValue::new(&key, 0, NOW - age * SECOND);
        change(&mut value);
        self.insert(PodMapId::Conntrack, key, value)?;
        Ok(key)
    }

    fn pass(&mut self, trust: Trust) -> Result<Passed> {
        Ok(self.collector.pass(NOW, trust, &BTreeMap::new())?)
    }

    fn flows(&self) -> Result<Vec<FlowKey>> {
        let mut keys = Vec::new();
        for map in [FlowMap::Established, FlowMap::New] {
            self.tables.reader().for_each_flow(map, |key, _| keys.push(*key))?;
        }
        Ok(keys)
    }

    fn halves(&self) -> Result<usize> {
        let mut halves = 0;
        for map in [NatMap::Established, NatMap::New] {
            self.tables.reader().for_each_nat(map, |_, _| halves += 1)?;
        }
        Ok(halves)
    }
}

const NODE: Addr = Addr::v4([192, 0, 2, 1]);
const WORLD: (Addr, Port) = (Addr::v4([198, 51, 100, 1]), Port::new(443));
const FRONTEND: (Addr, Port) = (Addr::v4([10, 96, 0, 10]), Port::new(53));

fn pod(last: u8) -> Addr {
    Addr::v4([10, 1, 0, last])
}

fn plain(port: u16, peer: (Addr, Port), protocol: u8) -> FlowKey {
    FlowKey::new((pod(7), Port::new(port)), peer, protocol, FlowKey::PLAIN)
}

fn backend(last: u8) -> (Addr, Port) {
    (Addr::v4([10, 2, 0, last]), Port::new(5353))
}

fn unchanged(_: &mut FlowValue) {}

#[test]
fn a_flow_goes_when_it_has_been_idle_for_as_long_as_its_state_allows() -> Result<()> {
    let mut node = Node::small()?;
    let closed = |value: &mut FlowValue| (value.seen_out, value.seen_in) = (FlowValue::FIN, FlowValue::FIN);
    let half = |value: &mut FlowValue| value.seen_out = FlowValue::FIN;
    let stay = [
        node.flow(plain(1, WORLD, TCP), 900, unchanged)?,
        node.flow(plain(2, WORLD, TCP), 900, half)?,
        node.flow(plain(3, WORLD, TCP), 5, closed)?,
        node.flow(plain(4, WORLD, UDP), 50, unchanged)?,
    ];
    node.flow(plain(5, WORLD, TCP), 1002, unchanged)?;
    node.flow(plain(6, WORLD, TCP), 12, closed)?;
    node.flow(plain(7, WORLD, UDP), 62, unchanged)?;
    let opening = FlowValue::new(&plain(8, WORLD, TCP), 0, NOW - 62 * SECOND);
    node.insert(PodMapId::ConntrackNew, plain(8, WORLD, TCP), opening)?;
    let passed = node.pass(Trust::default())?;
    let removed = |map| passed.removed.get(&(map, Ended::Idle)).copied();
    ensure!(
        removed(PodMapId::Conntrack) == Some(3) && removed(PodMapId::ConntrackNew) == Some(1),
        "{passed:?}"
    );
    ensure!(passed.tables[&PodMapId::Conntrack].left == 4, "{passed:?}");
    let left = node.flows()?;
    ensure!(left.len() == 4 && stay.iter().all(|key| left.contains(key)), "{left:?}");
    Ok(())
}

#[test]
fn the_halves_of_a_masqueraded_flow_stay_and_go_together() -> Result<()> {
    let mut node = Node::small()?;
    let pair = |port: u16, ages: [u64; 2]| -> Result<()> {
        let (inside, outside) = ((pod(7), Port::new(port)), (NODE, Port::new(port)));
        let (out, back) =
            (NatKey::new(inside, WORLD, TCP, NatKey::OUT), NatKey::new(outside, WORLD, TCP, NatKey::IN));
        let at = |age| NOW - age * SECOND;
        node.insert(PodMapId::Nat, out, NatValue::new(&out, outside, FlowValue::SEEN, at(ages[0])))?;
        node.insert(PodMapId::Nat, back, NatValue::new(&back, inside, FlowValue::SEEN, at(ages[1])))
    };
    // A download: the pod says nothing.
    pair(1, [2000, 5])?;
    pair(2, [2000, 2000])?;
    // The node's own, which keeps its port.
    let own = (NODE, Port::new(3));
    let key = NatKey::new(own, WORLD, TCP, NatKey::OUT);
    node.insert(PodMapId::NatNew, key, NatValue::new(&key, own, FlowValue::SEEN, NOW))?;
    let trust = Trust { endpoints: true, services: false };
    let passed = node.pass(trust)?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Nat, Ended::Idle), 2)]), "{passed:?}");
    ensure!(node.halves()? == 3);
    // The pod goes: both halves with it, and the node's own stays.
    node.tables.delete_endpoint(pod(7))?;
    let passed = node.pass(trust)?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Nat, Ended::Endpoint), 2)]), "{passed:?}");
    Ok(())
}

#[test]
fn flows_of_pods_that_are_gone_go_once_all_pods_are_known() -> Result<()> {
    let mut node = Node::small()?;
    let key = node.flow(plain(1, WORLD, TCP), 0, unchanged)?;
    let of_other = FlowKey::new((pod(8), Port::new(1)), WORLD, TCP, FlowKey::PLAIN);
    node.flow(of_other, 0, unchanged)?;
    node.tables.delete_endpoint(pod(7))?;
    ensure!(
        node.pass(Trust::default())?.removed.is_empty(),
        "{key:?} may be of a pod that is not restored yet"
    );
    let passed = node.pass(Trust { endpoints: true, services: false })?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Conntrack, Ended::Endpoint), 1)]), "{passed:?}");
    ensure!(node.flows()? == [of_other]);
    Ok(())
}

#[test]
fn the_next_pod_of_an_address_keeps_its_flows_when_those_of_the_last_one_go() -> Result<()> {
    let mut node = Node::small()?;
    node.flow(plain(1, WORLD, TCP), 10, unchanged)?;
    let of_peer = FlowKey::new((pod(8), Port::new(9)), (pod(7), Port::new(80)), TCP, FlowKey::PLAIN);
    node.flow(of_peer, 10, unchanged)?;
    let next = node.flow(plain(2, WORLD, TCP), 1, unchanged)?;
    let ended = BTreeMap::from([(pod(7), NOW - 5 * SECOND)]);
    let passed = node.collector.pass(NOW, Trust { endpoints: true, services: false }, &ended)?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Conntrack, Ended::Endpoint), 2)]), "{passed:?}");
    ensure!(node.flows()? == [next]);
    Ok(())
}

/// A pass takes its time; the pods that it does not know from its beginning are not gone.
#[test]
fn flows_of_pods_that_begin_during_a_pass_stay() -> Result<()> {
    let mut node = Node::new(&PodSizes::DEFAULT)?;
    let data = MapData::from_pin(pod_pin_path(node.bpf.path(), PodMapId::Conntrack))?;
    let mut map: HashMap<_, FlowKey, FlowValue> = Map::HashMap(data).try_into()?;
    for n in 0..50_000_u32 {
        let [a, b, c, d] = n.to_be_bytes();
        let key = plain(1, (Addr::v4([20 + a, b, c, d]), Port::new(80)), TCP);
        map.insert(key, FlowValue::new(&key, 0, NOW), 0)?;
    }
    let data = MapData::from_pin(pod_pin_path(node.bpf.path(), PodMapId::Nat))?;
    let mut halves: HashMap<_, NatKey, NatValue> = Map::HashMap(data).try_into()?;
    let inside = |n: u16| (Addr::v4([10, 3, (n >> 8) as u8, n as u8]), Port::new(1));
    let (tables, collector) = (node.tables.clone(), &mut node.collector);
    std::thread::scope(|scope| {
        let passes = scope.spawn(|| -> Result<()> {
            for _ in 0..3 {
                let trust = Trust { endpoints: true, services: false };
                let passed = collector.pass(NOW, trust, &BTreeMap::new())?;
                ensure!(passed.removed.is_empty(), "{passed:?}");
            }
            Ok(())
        });
        let mut began = 0;
        while !passes.is_finished() && began < 4_000 {
            let value = EndpointValue { ifindex: 6, id: 9, flags: 0, mac: [2; 6], node_mac: [4; 6] };
            tables.set_endpoint(inside(began).0, value)?;
            let key = FlowKey::new(inside(began), WORLD, TCP, FlowKey::PLAIN);
            map.insert(key, FlowValue::new(&key, 0, NOW), 0)?;
            let half = NatKey::new(inside(began), WORLD, TCP, NatKey::OUT);
            let outside = (NODE, Port::new(40_000));
            halves.insert(half, NatValue::new(&half, outside, FlowValue::SEEN, NOW), 0)?;
            began += 1;
        }
        passes.join().map_err(|_| anyhow::anyhow!("the collector panicked"))??;
        ensure!(began > 100, "{began} pods began");
        Ok(())
    })
}

#[test]
fn udp_flows_leave_a_backend_that_serves_no_more_and_tcp_stays() -> Result<()> {
    let mut node = Node::small()?;
    let (service, index) = (ServiceIndex::new(3), BackendIndex::new(5));
    let slot =
        |incarnation, members| BackendSlot::new(incarnation, members, service, backend(1).0, backend(1).1);
    let entry = |port, protocol, incarnation| {
        let key = FlowKey::new((pod(7), Port::new(port)), FRONTEND, protocol, FlowKey::SERVICE);
        node.flow(key, 0, |value| {
            (value.other, value.other_port) = backend(1);
            value.service = service;
            value.backend = BackendRef::new(index, incarnation).word();
        })
    };
    let (udp, tcp) = (entry(1, UDP, 7)?, entry(2, TCP, 7)?);
    let everything = Trust { endpoints: true, services: true };
    let write = |slot| TableOp::WriteBackend { index, slot };
    node.services.write(&write(slot(7, Membership::Cluster.bit())))?;
    ensure!(node.pass(everything)?.removed.is_empty());
    // It leaves: no set has it.
    node.services.write(&write(slot(7, 0)))?;
    ensure!(node.pass(Trust { services: false, ..everything })?.removed.is_empty());
    let passed = node.pass(everything)?;
    ensure!(passed.removed == BTreeMap::from([((PodMapId::Conntrack, Ended::Backend), 1)]), "{passed:?}");
    ensure!(node.flows()? == [tcp], "{udp:?} is still there");
    Ok(())
}

#[test]
fn the_command_lists_flows_and_masqueraded_flows_from_the_maps_alone() -> Result<()> {
    let node = Node::small()?;
    let key = plain(40_000, WORLD, TCP);
    node.insert(PodMapId::Conntrack, key, FlowValue::new(&key, 0, tick_time()?))?;
    let inside = (pod(7), Port::new(40_000));
    let half = NatKey::new(inside, WORLD, TCP, NatKey::OUT);
    let value = NatValue::new(&half, (NODE, Port::new(1024)), FlowValue::SEEN, tick_time()?);
    node.insert(PodMapId::NatNew, half, value)?;
    let portway = |table: &str, format: &[&str]| {
        let mut command = Command::new(binary("portway")?);
        let command = command.args(["bpf", table, "list", "--bpf-root"]).arg(node.bpf.path()).args(format);
        output(command)
    };
    let flows = portway("ct", &[])?;
    ensure!(flows.starts_with("TCP OUT 10.1.0.7:40000 -> 198.51.100.1:443 Idle=0s "), "{flows}");
    let halves = portway("nat", &[])?;
    let line = "TCP OUT 10.1.0.7:40000 -> 198.51.100.1:443 XLATE_SRC 192.0.2.1:1024 Idle=0s Seen=any [New]";
    ensure!(halves.trim_end() == line, "{halves}");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&portway("ct", &["-o", "json"])?)?;
    ensure!(rows.len() == 1 && rows[0]["endpoint"] == "10.1.0.7:40000", "{rows:?}");
    Ok(())
}

#[test]
fn the_collector_of_an_agent_forgets_on_demand_and_counts() -> Result<()> {
    let node = Node::small()?;
    let now = tick_time()?;
    let key = plain(1, WORLD, TCP);
    node.insert(PodMapId::Conntrack, key, FlowValue::new(&key, 0, now))?;
    let conntrack = Conntrack::start(node.tables.clone(), node.services.reader(), TIMEOUTS)?;
    conntrack.endpoints_are_known();
    let used = |wanted: u64| {
        eventually(Duration::from_secs(5), "a pass", || {
            let status = conntrack.status();
            ensure!(status.used.get(&PodMapId::Conntrack) == Some(&wanted), "{status:?}");
            Ok(())
        })
    };
    used(1)?;
    conntrack.forget(vec![pod(7)]);
    used(0)?;
    let status = conntrack.status();
    ensure!(status.removed == BTreeMap::from([((PodMapId::Conntrack, Ended::Endpoint), 1)]), "{status:?}");
    ensure!(status.failures == 0 && status.max[&PodMapId::Conntrack] == 256, "{status:?}");
    Ok(())
}

/// A node that loses its pods one after the other.
#[test]
fn pods_that_end_one_after_the_other_are_forgotten_by_few_passes() -> Result<()> {
    let node = Node::small()?;
    let now = tick_time()?;
    for n in 0..200 {
        let key = FlowKey::new((pod(n), Port::new(1)), WORLD, TCP, FlowKey::PLAIN);
        node.insert(PodMapId::Conntrack, key, FlowValue::new(&key, 0, now))?;
    }
    let conntrack = Conntrack::start(node.tables.clone(), node.services.reader(), TIMEOUTS)?;
    let began = Instant::now();
    for n in 0..200 {
        conntrack.forget(vec![pod(n)]);
        // By then a pass would be over, were there one for each.
        ensure!(node.flows()?.len() <= 200);
    }
    eventually(Duration::from_secs(5), "the last one to be forgotten", || {
        ensure!(node.flows()?.is_empty(), "some are left");
        Ok(())
    })?;
    let (passes, took) = (conntrack.status().passes, began.elapsed());
    let most = 1 + took.as_millis() as u64 / 200;
    ensure!(passes <= most, "{passes} passes in {took:?}");
    Ok(())
}

#[test]
fn a_pass_over_a_hundred_thousand_flows_takes_less_than_a_second() -> Result<()> {
    const FLOWS: u32 = 100_000;
    let mut node = Node::new(&PodSizes::DEFAULT)?;
    let data = MapData::from_pin(pod_pin_path(node.bpf.path(), PodMapId::Conntrack))?;
    let mut map: HashMap<_, FlowKey, FlowValue> = Map::HashMap(data).try_into()?;
    for n in 0..FLOWS {
        let [a, b, c, d] = n.to_be_bytes();
        let peer = (Addr::v4([20 + a, b, c, d]), Port::new(80));
        let key = plain(1, peer, TCP);
        // One in ten is over.
        let age = if n % 10 == 0 { 2000 } else { 0 };
        map.insert(key, FlowValue::new(&key, 0, NOW - age * SECOND), 0).context("insert a flow")?;
    }
    let began = Instant::now();
    let passed = node.pass(Trust { endpoints: true, services: true })?;
    let took = began.elapsed();
    println!("{FLOWS} flows, {:?} removed, in {took:?}", passed.removed);
    ensure!(passed.tables[&PodMapId::Conntrack].left == u64::from(FLOWS) * 9 / 10, "{passed:?}");
    ensure!(took < Duration::from_secs(1), "{took:?}");
    Ok(())
}
