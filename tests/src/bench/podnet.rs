//! `bench podnet`: pod to pod against a plain veth pair and against a bridge, a service by packets against the pod
//! itself, and both ways between nodes. Every path is measured in turn, round after round.

mod path;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;

use super::report::{Figure, median};
use crate::harness::cluster_net::Routing;
use crate::harness::manifest::{Service, TCP};
use crate::harness::{ClusterNet, Namespace};

use path::{Cost, PORT, Path, Server, measure, ratio};

const BENCH: &str = "podnet";
const VIP: &str = "10.96.7.7";

/// The paths, in the order in which they take their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Veth,
    Bridge,
    Pods,
    Service,
    Nodes,
    PodsNative,
    PodsTunnel,
}

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let mut native = ClusterNet::new("podnet-native", 2)?;
    let mut tunnel = ClusterNet::new("podnet-tunnel", 2)?;
    native.start_agents(Routing::Native, &[])?;
    tunnel.start_agents(Routing::Tunnel, &[])?;
    let (client, near, far) = (native.pod(1, "client")?, native.pod(1, "near")?, native.pod(2, "far")?);
    let (client_tunnel, far_tunnel) = (tunnel.pod(1, "client")?, tunnel.pod(2, "far")?);
    let service = Service::new("near", &[VIP]).port_to("bench", TCP, PORT, PORT);
    native.publish(&service, near.endpoints().into_iter().take(1))?;
    native.node(1).wait_programmed()?;
    let (veth, bridge) = (veth_pair()?, bridged()?);
    let at = |addr: Ipv4Addr| SocketAddr::from((addr, PORT));
    let node_2 = native.node(2);
    let mut servers = Vec::new();
    for namespace in
        [&veth[1], &bridge[1], &near.namespace, node_2.namespace(), &far.namespace, &far_tunnel.namespace]
    {
        servers.push(Server::start(namespace)?);
    }
    // This process is in no control group that a program sees: the service is translated by packets.
    let ways = [
        (Way::Veth, &veth[0], at(PLAIN[1])),
        (Way::Bridge, &bridge[0], at(PLAIN[1])),
        (Way::Pods, &client.namespace, at(near.v4)),
        (Way::Service, &client.namespace, SocketAddr::new(VIP.parse()?, PORT)),
        (Way::Nodes, native.node(1).namespace(), at(node_2.v4())),
        (Way::PodsNative, &client.namespace, at(far.v4)),
        (Way::PodsTunnel, &client_tunnel.namespace, at(far_tunnel.v4)),
    ];
    let mut paths = ways.map(|(way, client, to)| (way, Path::new(client, to)));
    let rounds = if long { 200 } else { 60 };
    let costs = measure(&mut paths.each_mut().map(|(_, path)| path), rounds)?;
    let cost = |way: Way| {
        let found = paths.iter().zip(&costs).find(|((found, _), _)| *found == way);
        found.map(|(_, cost)| cost).ok_or_else(|| anyhow::anyhow!("{way:?} was not measured"))
    };
    figures(cost)
}

fn figures<'a>(cost: impl Fn(Way) -> Result<&'a Cost>) -> Result<Vec<Figure>> {
    let round_trip = |way| anyhow::Ok(median(&cost(way)?.round_trip_ns) / 1000.0);
    let rate = |way| anyhow::Ok(median(&cost(way)?.bytes_per_second) * 8.0 / 1e9);
    let cpu = |way| anyhow::Ok(cost(way)?.cpu_seconds_per_gb());
    let mut figures = Vec::new();
    for (way, name) in [
        (Way::Veth, "a plain veth pair"),
        (Way::Bridge, "a bridge"),
        (Way::Pods, "pods of one node"),
        (Way::Service, "a service by packets"),
        (Way::Nodes, "nodes"),
        (Way::PodsNative, "pods across nodes, native"),
        (Way::PodsTunnel, "pods across nodes, tunnel"),
    ] {
        figures.push(Figure::trend(BENCH, format!("{name}: round trip, median"), round_trip(way)?, "us"));
        figures.push(Figure::trend(BENCH, format!("{name}: throughput, median"), rate(way)?, "Gbit/s"));
        figures.push(Figure::trend(BENCH, format!("{name}: CPU"), cpu(way)?, "s/GB"));
    }
    let (veth, pods) = (Way::Veth, Way::Pods);
    let round_trips = |a, b| anyhow::Ok(ratio(&cost(a)?.round_trip_ns, &cost(b)?.round_trip_ns));
    let rates = |a, b| anyhow::Ok(ratio(&cost(a)?.bytes_per_second, &cost(b)?.bytes_per_second));
    figures.extend([
        Figure::at_most(
            BENCH,
            "pods of one node / veth pair, round trip",
            round_trips(pods, veth)?,
            "x",
            1.05,
        ),
        Figure::at_least(BENCH, "pods of one node / veth pair, throughput", rates(pods, veth)?, "x", 0.95),
        Figure::trend(BENCH, "pods of one node / bridge, round trip", round_trips(pods, Way::Bridge)?, "x"),
        Figure::trend(BENCH, "pods of one node / bridge, throughput", rates(pods, Way::Bridge)?, "x"),
        Figure::at_most(
            BENCH,
            "a service by packets / pods directly, round trip",
            round_trips(Way::Service, pods)?,
            "x",
            1.05,
        ),
        Figure::trend(
            BENCH,
            "a service by packets / pods directly, throughput",
            rates(Way::Service, pods)?,
            "x",
        ),
        Figure::trend(
            BENCH,
            "across nodes, native / nodes, round trip",
            round_trips(Way::PodsNative, Way::Nodes)?,
            "x",
        ),
        Figure::trend(
            BENCH,
            "across nodes, tunnel / nodes, round trip",
            round_trips(Way::PodsTunnel, Way::Nodes)?,
            "x",
        ),
        Figure::trend(
            BENCH,
            "across nodes, native / nodes, throughput",
            rates(Way::PodsNative, Way::Nodes)?,
            "x",
        ),
        Figure::trend(
            BENCH,
            "across nodes, tunnel / nodes, throughput",
            rates(Way::PodsTunnel, Way::Nodes)?,
            "x",
        ),
    ]);
    Ok(figures)
}

/// Of the two ends that no agent knows.
const PLAIN: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];

fn ends() -> Result<[Namespace; 2]> {
    Ok([Namespace::new("end-1")?, Namespace::new("end-2")?])
}

fn addressed(ends: [Namespace; 2]) -> Result<[Namespace; 2]> {
    for (end, addr) in ends.iter().zip(PLAIN) {
        end.add_address("eth0", addr.into(), 24)?;
    }
    Ok(ends)
}

fn veth_pair() -> Result<[Namespace; 2]> {
    let ends = ends()?;
    ends[0].add_veth("eth0", &ends[1], "eth0")?;
    addressed(ends)
}

/// The bridge's namespace lives as long as the links to it do.
fn bridged() -> Result<[Namespace; 2]> {
    let (ends, middle) = (ends()?, Namespace::new("bridge")?);
    middle.add_bridge("bridge")?;
    for (port, end) in ["port1", "port2"].into_iter().zip(&ends) {
        middle.add_veth(port, end, "eth0")?;
        middle.enslave(port, "bridge")?;
    }
    std::mem::forget(middle);
    addressed(ends)
}
