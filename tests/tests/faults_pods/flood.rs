//! A full conntrack map under a flood of half-open connections from a pod.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use portway_agent::maps::{PodMapId, pod_pin_path};
use portway_datapath::{Addr, FlowKey, FlowMap, FlowValue, Port, Reason};
use portway_tests::harness::cluster_net::{Node, Pod, PodSpec, Routing};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::frame::{ethernet, tcp};
use portway_tests::harness::manifest::{Service, TCP};
use portway_tests::harness::probe::ToAddress as _;
use portway_tests::harness::wire::Wire;
use portway_tests::harness::{ClusterNet, Ending, bpf, meanwhile};

use super::is_long;
use super::load::world;

/// Flows that the map has room for.
const ROOM: u32 = 8192;
/// Half-open connections a second.
const FLOOD: u64 = 20_000;

#[test]
fn a_full_conntrack_map_under_a_flood_breaks_nothing_and_serves_who_comes() -> Result<()> {
    ClusterNet::test("flood", 2, |net| {
        let flags = ["--bpf-ct-global-tcp-max=4096", "--bpf-ct-global-any-max=4096"];
        net.start_agents(Routing::Native, &flags)?;
        let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
        net.publish(&web(), near.endpoints().into_iter().chain(far.endpoints()))?;
        // Nobody listens there.
        let closed = Service::new("closed", &["10.96.0.66"]).port_to("http", TCP, 80, 9);
        net.publish(&closed, near.endpoints())?;
        let client = net.make(1, &PodSpec::new("client").without_socket_lb())?;
        let flooder = net.pod(1, "flooder")?;
        let node = net.node(1);
        node.wait_programmed()?;
        let mut to: Vec<SocketAddr> = WEB.iter().map(|web| web.to_address()).collect::<Result<_>>()?;
        for v6 in [false, true] {
            to.extend([near.socket(v6), far.socket(v6), world(v6)]);
        }
        // Established before the flood.
        let (mut held, mut new) = (net.client(&client)?, net.client(&client)?);
        held.start_load(&to, 100, 0)?;
        let filled = fill(node)?;
        let (tally, (sent, took)) = meanwhile(
            || new.connects(&to, if is_long() { 12_000 } else { 1_000 }, 200),
            |end| flood(&flooder, &[near.socket(false), far.socket(false)], end),
        )?;
        let full = node.dropped(Reason::MapFull)?;
        let held = held.end_load()?;
        println!(
            "{filled} entries filled the map; {sent} half-open connections in {took:?}; {} of {} new connections served; \
             {} of {} established broken; {full} times no room",
            tally.answers(),
            tally.answers() + tally.failures(),
            held.exchanges.failures(),
            held.held,
        );
        ensure!(sent / took.as_secs().max(1) >= FLOOD / 4, "that was no flood");
        ensure!(full > 0, "the map was never full");
        ensure!(
            held.trouble().is_none() && held.held == 100,
            "established connections: {:?}",
            held.trouble()
        );
        let served = f64::from(tally.answers()) / f64::from(tally.answers() + tally.failures());
        ensure!(served >= 0.99, "{:.1} % of new connections were served: {tally:?}", served * 100.0);
        Ok(())
    })
}

/// Fills the map of established flows with some that nobody has, seen just now.
fn fill(node: &Node) -> Result<u32> {
    let tables = node.tables()?;
    let mut there = 0;
    tables.for_each_flow(FlowMap::Established, |_, _| there += 1)?;
    let room = tables.sizes().conntrack;
    ensure!(room <= ROOM, "the map has room for {room} flows");
    let path = pod_pin_path(node.bpf_root(), PodMapId::Conntrack);
    let now = tick_time()?;
    let mut filled = 0;
    for number in 0..room - there {
        let [_, a, b, c] = number.to_be_bytes();
        let local = (Addr::from(IpAddr::from([10, 244, 1, 2])), Port::new(1000));
        let peer = (Addr::from(IpAddr::from([192, a, b, c])), Port::new(80));
        let key = FlowKey::new(local, peer, 6, FlowKey::PLAIN);
        let seen = FlowValue::SEEN | FlowValue::SYN;
        let value = FlowValue { seen_out: seen, seen_in: seen, ..FlowValue::new(&key, 0, now) };
        match bpf::insert(&path, &[(key_bytes(key), value_bytes(value))]) {
            Ok(()) => filled += 1,
            // Other flows came meanwhile.
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error).context("fill the map"),
        }
    }
    Ok(filled)
}

/// Nanoseconds, as programs read it.
fn tick_time() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).context("read the clock")?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

fn key_bytes(key: FlowKey) -> [u8; size_of::<FlowKey>()] {
    // SAFETY: integers and byte arrays without padding between them, which any bytes are.
    unsafe { std::mem::transmute(key) }
}

fn value_bytes(value: FlowValue) -> [u8; size_of::<FlowValue>()] {
    // SAFETY: integers and byte arrays without padding between them, which any bytes are.
    unsafe { std::mem::transmute(value) }
}

/// Until told to stop, without an answer to what comes back.
fn flood(from: &Pod, to: &[SocketAddr], end: &Ending) -> Result<(u64, Duration)> {
    const BATCH: u64 = 20;
    let (wire, gateway): (Wire, _) = (from.wire()?, from.gateway_mac()?);
    let start = Instant::now();
    let mut sent = 0_u64;
    while !end.has_come() {
        for _ in 0..BATCH {
            let number = sent;
            let source = SocketAddr::new(from.v4.into(), 1024 + (number % 64_000) as u16);
            let mut target = to[number as usize % to.len()];
            // Ports that nobody listens on.
            target.set_port(20_000 + (number / 64_000) as u16);
            wire.send(&ethernet(wire.mac(), gateway, &tcp(source, target, 2)))?;
            sent += 1;
        }
        let due = start + Duration::from_secs_f64(sent as f64 / FLOOD as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok((sent, start.elapsed()))
}
