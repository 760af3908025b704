//! Whatever a pod reaches, it reaches, and is seen as who it is: {same node, other node} × {v4, v6} × {TCP, UDP, ICMP}
//! × {native, tunnel} × {pod address, service by socket, service by packet, itself through its service, the world}.
//!
//! A service has no echo; what ICMP has to do with it is the error of a port that nobody listens on: it must come back
//! to the client's socket although the address that it is about is the backend's.

#![expect(clippy::print_stdout, reason = "the cells are part of the result")]

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use portway_tests::harness::cluster_net::{Pod, PodSpec, Routing, WORLD, WORLD_V4, WORLD_V6};
use portway_tests::harness::manifest::{Service, TARGET, TCP, UDP};
use portway_tests::harness::witness::{Heard, Witness};
use portway_tests::harness::{Answer, ClusterNet, Errno, Outcome, Probe};

/// Nobody listens there.
const CLOSED: u16 = 9;
/// What a pod that reaches itself by packets sees: `ipv4-service-loopback-address`, `ipv6-service-loopback-address`.
const HAIRPIN_V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 42, 1));
const HAIRPIN_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    SameNode,
    OtherNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Tcp,
    Udp,
    Icmp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    PodAddress,
    ServiceBySocket,
    ServiceByPacket,
    ItselfBySocket,
    ItselfByPacket,
    World,
}

const TARGETS: [Target; 6] = [
    Target::PodAddress,
    Target::ServiceBySocket,
    Target::ServiceByPacket,
    Target::ItselfBySocket,
    Target::ItselfByPacket,
    Target::World,
];

/// A pod that answers and asks, its service, and what it hears.
struct Party {
    pod: Pod,
    probe: Probe,
    witness: Witness,
    /// Of its service, v4 and v6.
    vips: [IpAddr; 2],
}

impl Party {
    fn new(net: &mut ClusterNet, number: u8, spec: &PodSpec, service: u8) -> Result<Self> {
        let pod = net.make(number, spec)?;
        net.serve(&pod)?;
        let vips = [format!("10.96.1.{service}"), format!("fd00:10:96::1:{service:x}")];
        let cluster_ips: Vec<&str> = vips.iter().map(String::as_str).collect();
        let service = Service::new(pod.name(), &cluster_ips)
            .port("http", TCP, 80)
            .port("quic", UDP, 80)
            .port_to("closed", UDP, CLOSED, CLOSED);
        net.publish(&service, pod.endpoints())?;
        let vips = [vips[0].parse()?, vips[1].parse()?];
        Ok(Self { probe: net.client(&pod)?, witness: Witness::start(&pod.namespace)?, pod, vips })
    }
}

/// On each of two nodes a pod whose sockets are translated and one whose packets are.
struct Cells {
    by_socket: [Party; 2],
    by_packet: [Party; 2],
    world: Witness,
    nodes: [[IpAddr; 2]; 2],
}

impl Cells {
    fn new(net: &mut ClusterNet) -> Result<Self> {
        let mut party = |number: u8, packets: bool| {
            let name = format!("{}-{number}", if packets { "packet" } else { "socket" });
            let spec = PodSpec::new(&name);
            let spec = if packets { spec.without_socket_lb() } else { spec };
            Party::new(net, number, &spec, 2 * number + u8::from(packets))
        };
        let by_socket = [party(1, false)?, party(2, false)?];
        let by_packet = [party(1, true)?, party(2, true)?];
        let nodes = [1, 2].map(|number| [IpAddr::from(net.node(number).v4()), net.node(number).v6().into()]);
        Ok(Self { by_socket, by_packet, world: Witness::start(net.world())?, nodes })
    }

    /// Asks from `from`, and says what is wrong.
    fn check(&mut self, from: usize, place: Place, v6: bool, speech: Speech, target: Target) -> Result<()> {
        let to = if place == Place::SameNode { from } else { 1 - from };
        let family = usize::from(v6);
        let packets = matches!(target, Target::ServiceByPacket | Target::ItselfByPacket);
        let Self { by_socket, by_packet, world, nodes } = self;
        // Each kind of pod is served by the other kind.
        let (clients, server) =
            if packets { (by_packet, &by_socket[to]) } else { (by_socket, &by_packet[to]) };
        let client = &mut clients[from];
        let own = client.pod.address(v6);
        let hairpin = if v6 { HAIRPIN_V6 } else { HAIRPIN_V4 };
        let (probe, itself, itself_vip) =
            (&mut client.probe, client.pod.name().to_owned(), client.vips[family]);
        match target {
            Target::PodAddress => {
                let addr = server.pod.address(v6);
                if speech == Speech::Icmp {
                    return echo(probe, addr, &server.witness, own);
                }
                let to = SocketAddr::new(addr, TARGET);
                seen(ask(probe, speech, to)?, server.pod.name(), own, to)
            }
            Target::ServiceBySocket | Target::ServiceByPacket => {
                service(probe, speech, server.vips[family], server.pod.name(), &server.witness, own)
            }
            Target::ItselfBySocket => service(probe, speech, itself_vip, &itself, &client.witness, own),
            Target::ItselfByPacket => service(probe, speech, itself_vip, &itself, &client.witness, hairpin),
            Target::World => {
                let addr = if v6 { IpAddr::from(WORLD_V6) } else { WORLD_V4.into() };
                let masquerade = nodes[from][family];
                if speech == Speech::Icmp {
                    return echo(probe, addr, world, masquerade);
                }
                let to = SocketAddr::new(addr, TARGET);
                seen(ask(probe, speech, to)?, WORLD, masquerade, to)
            }
        }
    }
}

fn service(
    probe: &mut Probe,
    speech: Speech,
    vip: IpAddr,
    name: &str,
    witness: &Witness,
    client: IpAddr,
) -> Result<()> {
    if speech == Speech::Icmp {
        witness.heard()?;
        match probe.udp((vip, CLOSED))? {
            Err(Errno::ECONNREFUSED) => {}
            other => bail!("a closed port is {other:?}, not ECONNREFUSED"),
        }
        return has_heard(witness, Heard::Datagram(CLOSED), client);
    }
    let to = SocketAddr::new(vip, 80);
    seen(ask(probe, speech, to)?, name, client, to)
}

fn ask(probe: &mut Probe, speech: Speech, to: SocketAddr) -> Result<Outcome> {
    match speech {
        Speech::Tcp => probe.tcp(to),
        Speech::Udp => probe.udp(to),
        Speech::Icmp => bail!("a service has no echo"),
    }
}

fn seen(outcome: Outcome, name: &str, client: IpAddr, to: SocketAddr) -> Result<()> {
    let answer = outcome.with_context(|| format!("{to}"))?;
    let Answer { name: found, client: seen, mut peer } = answer;
    // The scope of a link-local address is the link's number.
    peer = SocketAddr::new(peer.ip(), peer.port());
    ensure!(found == name, "{to} is answered by {found}, not by {name}");
    ensure!(seen.ip() == client, "{name} sees {}, not {client}", seen.ip());
    ensure!(peer == to, "the client's peer is {peer}, not {to}");
    Ok(())
}

fn echo(probe: &mut Probe, to: IpAddr, witness: &Witness, client: IpAddr) -> Result<()> {
    witness.heard()?;
    probe.ping(to, 56)?.with_context(|| format!("ping {to}"))?;
    has_heard(witness, Heard::Echo, client)
}

fn has_heard(witness: &Witness, what: Heard, client: IpAddr) -> Result<()> {
    let heard: Vec<_> = witness.heard()?.into_iter().filter(|(found, _)| *found == what).collect();
    ensure!(heard == [(what, client)], "heard was {heard:?}, not {what:?} from {client}");
    Ok(())
}

fn every_cell_works(routing: Routing) -> Result<()> {
    ClusterNet::test(&format!("matrix-{routing:?}"), 2, |net| {
        net.start_agents(routing, &[])?;
        let mut cells = Cells::new(net)?;
        for node in net.nodes() {
            node.wait_programmed()?;
        }
        let (mut right, mut wrong) = (0, Vec::new());
        for target in TARGETS {
            for place in [Place::SameNode, Place::OtherNode] {
                for v6 in [false, true] {
                    for speech in [Speech::Tcp, Speech::Udp, Speech::Icmp] {
                        // Who speaks to itself or the world is on one node, then on the other; everybody else asks
                        // from the first node and from the second.
                        let alone =
                            matches!(target, Target::ItselfBySocket | Target::ItselfByPacket | Target::World);
                        let froms: &[usize] = match (alone, place) {
                            (false, _) => &[0, 1],
                            (true, Place::SameNode) => &[0],
                            (true, Place::OtherNode) => &[1],
                        };
                        for &from in froms {
                            let place = if alone { Place::SameNode } else { place };
                            let family = if v6 { "v6" } else { "v4" };
                            match cells.check(from, place, v6, speech, target) {
                                Ok(()) => right += 1,
                                Err(error) => wrong.push(format!(
                                    "{target:?} {place:?} {family} {speech:?} from node-{}: {error:#}",
                                    from + 1
                                )),
                            }
                        }
                    }
                }
            }
        }
        println!("{routing:?}: {right} cells right, {} wrong", wrong.len());
        ensure!(wrong.is_empty() && right == 108, "{right} right; wrong:\n  {}", wrong.join("\n  "));
        // What was to be translated by packets was.
        for (node, party) in net.nodes().iter().zip(&cells.by_packet) {
            let flows = node.portway(&["bpf", "ct", "list"])?;
            for vip in party.vips {
                ensure!(flows.contains(&vip.to_string()), "{vip} is in no flow of {}:\n{flows}", node.name());
            }
        }
        Ok(())
    })
}

#[test]
fn every_cell_works_with_native_routing() -> Result<()> {
    every_cell_works(Routing::Native)
}

#[test]
fn every_cell_works_through_the_tunnel() -> Result<()> {
    every_cell_works(Routing::Tunnel)
}
