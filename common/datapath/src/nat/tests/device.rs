//! Which packets are masqueraded, and what becomes of errors about them.

use crate::packet::{TcpFlags, Tuple, protocol};
use crate::{DeviceValue, NodeNetwork, Reason};

use super::super::{
    Arriving, Leaving, LeavingError, NatNode, NatPacket, arriving, error_arriving, error_leaving, leaving,
};
use super::*;

const PORTS: NatPorts = NatPorts::new(40_000, 49_999);
const SWITCHES: NatNode =
    NatNode { switches: NodeNetwork::MASQUERADE_V4 | NodeNetwork::MASQUERADE_V6, ports: PORTS };
const NODE_V6: Addr = Addr::v6([0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const POD_V6: Addr = Addr::v6([0xfd, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const WORLD_V6: Addr = Addr::v6([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const DEVICE: DeviceValue = DeviceValue { v4: NODE, v6: NODE_V6 };

fn node() -> Memory {
    let tables = Memory::default();
    tables.own.borrow_mut().insert(NODE_V6);
    *tables.pods.borrow_mut() = HashSet::from([pod(1), pod(2), POD_V6]);
    *tables.inside.borrow_mut() = HashSet::from([pod(1), pod(2), POD_V6, pod(77)]);
    tables
}

fn tuple(protocol: u8, source: (Addr, u16), destination: (Addr, u16)) -> Tuple {
    Tuple {
        source: source.0,
        destination: destination.0,
        source_port: Port::new(source.1),
        destination_port: Port::new(destination.1),
        protocol,
    }
}

/// What the programs make of a packet's headers.
#[derive(Clone, Copy, Debug)]
struct Headers {
    tuple: Tuple,
    flags: u8,
    icmp_type: u8,
}

impl Headers {
    fn packet(&self) -> NatPacket<'_> {
        NatPacket { tuple: &self.tuple, flags: TcpFlags::new(self.flags), icmp_type: self.icmp_type }
    }
}

fn headers(tuple: Tuple) -> Headers {
    Headers { tuple, flags: 0, icmp_type: 0 }
}

fn udp(source: (Addr, u16), destination: (Addr, u16)) -> Headers {
    headers(tuple(protocol::UDP, source, destination))
}

fn tcp(flags: u8, source: (Addr, u16), destination: (Addr, u16)) -> Headers {
    Headers { flags, ..headers(tuple(protocol::TCP, source, destination)) }
}

fn echo(icmp_type: u8, id: u16, source: Addr, destination: Addr) -> Headers {
    let protocol = if icmp_type < 128 { protocol::ICMP } else { protocol::ICMPV6 };
    Headers { icmp_type, ..headers(tuple(protocol, (source, id), (destination, id))) }
}

/// What becomes of a packet, and of which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Unchanged,
    To(Addr, Port),
    Drop(Reason),
}

fn leave_by(tables: &Memory, node: NatNode, device: &DeviceValue, packet: &Headers) -> Change {
    let mut desk = NatDesk::EMPTY;
    match leaving(tables, &mut desk, node, device, &packet.packet()) {
        Leaving::Unchanged => Change::Unchanged,
        Leaving::Source => Change::To(desk.result().0, desk.result().1),
        Leaving::Drop(reason) => Change::Drop(reason),
    }
}

fn leave(tables: &Memory, packet: &Headers) -> Change {
    leave_by(tables, SWITCHES, &DEVICE, packet)
}

fn arrive(tables: &Memory, packet: &Headers) -> Change {
    let mut desk = NatDesk::EMPTY;
    match arriving(tables, &mut desk, SWITCHES, &packet.packet()) {
        Arriving::Unchanged => Change::Unchanged,
        Arriving::Destination => Change::To(desk.result().0, desk.result().1),
    }
}

/// An ICMP error that leaves, about `quoted`: what the quoted destination becomes, and whether the error's source does too.
fn complain(tables: &Memory, source: Addr, destination: Addr, quoted: &Headers) -> (Change, bool) {
    let outer = tuple(protocol::ICMP, (source, 0), (destination, 0));
    let mut desk = NatDesk::EMPTY;
    match error_leaving(tables, &mut desk, SWITCHES, &outer, &quoted.packet()) {
        LeavingError::Unchanged => (Change::Unchanged, false),
        LeavingError::About { from_pod } => (Change::To(desk.result().0, desk.result().1), from_pod),
        LeavingError::Drop(reason) => (Change::Drop(reason), false),
    }
}

/// An ICMP error that comes to `destination`.
fn hear(tables: &Memory, destination: Addr, quoted: &Headers) -> Option<(Addr, Port)> {
    let mut desk = NatDesk::EMPTY;
    error_arriving(tables, &mut desk, SWITCHES, destination, &quoted.packet()).then(|| desk.result())
}

#[test]
fn a_pod_that_talks_to_the_world_has_the_nodes_address_in_both_families() {
    for (pod, node_address, world) in [(pod(1), NODE, world(1)), (POD_V6, NODE_V6, WORLD_V6)] {
        let tables = node();
        let out = leave(&tables, &udp((pod, 41_000), (world, 53)));
        assert_eq!(out, Change::To(node_address, Port::new(41_000)));
        let back = arrive(&tables, &udp((world, 53), (node_address, 41_000)));
        assert_eq!(back, Change::To(pod, Port::new(41_000)));
        assert_eq!(arrive(&tables, &udp((world, 54), (node_address, 41_000))), Change::Unchanged);
    }
}

#[test]
fn inside_the_cluster_and_without_the_switch_a_pod_keeps_its_address() {
    let tables = node();
    assert_eq!(leave(&tables, &udp((pod(1), 41_000), (pod(77), 53))), Change::Unchanged);
    let off = NatNode { switches: NodeNetwork::MASQUERADE_V6, ..SWITCHES };
    let out = udp((pod(1), 41_000), (world(1), 53));
    assert_eq!(leave_by(&tables, off, &DEVICE, &out), Change::Unchanged);
    assert!(tables.entries().is_empty());
}

#[test]
fn what_neither_a_pod_nor_the_node_sends_is_left_alone() {
    let tables = node();
    assert_eq!(leave(&tables, &udp((world(9), 41_000), (world(1), 53))), Change::Unchanged);
    assert!(tables.entries().is_empty());
}

#[test]
fn a_device_without_an_address_masquerades_nothing() {
    let tables = node();
    let device = DeviceValue { v4: Addr::ANY_V6, v6: NODE_V6 };
    let out = leave_by(&tables, SWITCHES, &device, &udp((pod(1), 41_000), (world(1), 53)));
    assert_eq!(out, Change::Drop(Reason::NoNatAddress));
}

#[test]
fn replies_of_a_flow_that_began_outside_keep_the_pods_address() {
    let tables = node();
    let reply = udp((pod(1), 8_080), (world(1), 41_000));
    tables.from_outside.borrow_mut().insert(reply.tuple.flow_of_source(FlowKey::PLAIN));
    assert_eq!(leave(&tables, &reply), Change::Unchanged);
    // Of these the packet itself says so, whatever conntrack has forgotten.
    let accepted = tcp(TcpFlags::SYN | TcpFlags::ACK, (pod(1), 8_080), (world(1), 41_001));
    assert_eq!(leave(&tables, &accepted), Change::Unchanged);
    assert_eq!(leave(&tables, &echo(0, 7, pod(1), world(1))), Change::Unchanged);
    assert!(tables.entries().is_empty());
}

#[test]
fn an_echo_is_known_by_its_identifier() {
    for (request, reply, pod_address, node_address, world) in
        [(8, 0, pod(1), NODE, world(1)), (128, 129, POD_V6, NODE_V6, WORLD_V6)]
    {
        let tables = node();
        let Change::To(source, id) = leave(&tables, &echo(request, 7, pod_address, world)) else {
            panic!("an echo request is masqueraded")
        };
        assert!(source == node_address && PORTS.contains(id), "{source} {id}");
        let back = arrive(&tables, &echo(reply, id.get(), world, node_address));
        assert_eq!(back, Change::To(pod_address, Port::new(7)));
        let asked = arrive(&tables, &echo(request, id.get(), world, node_address));
        assert_eq!(asked, Change::Unchanged, "a request of the same identifier is for the node");
    }
}

#[test]
fn two_pods_that_ping_with_one_identifier_get_their_own_answers() {
    let tables = node();
    let ids = [1, 2].map(|last| match leave(&tables, &echo(8, 41_000, pod(last), world(1))) {
        Change::To(_, id) => id,
        other @ (Change::Unchanged | Change::Drop(_)) => panic!("{other:?}"),
    });
    for (last, id) in [1, 2].into_iter().zip(ids) {
        let back = arrive(&tables, &echo(0, id.get(), world(1), NODE));
        assert_eq!(back, Change::To(pod(last), Port::new(41_000)));
    }
}

#[test]
fn the_nodes_own_flow_keeps_its_port_and_its_answers() {
    let tables = node();
    assert_eq!(leave(&tables, &udp((NODE, 41_000), (world(1), 53))), Change::Unchanged);
    let Change::To(_, other) = leave(&tables, &udp((pod(1), 41_000), (world(1), 53))) else {
        panic!("the pod is masqueraded")
    };
    assert_ne!(other, Port::new(41_000));
    assert_eq!(arrive(&tables, &udp((world(1), 53), (NODE, 41_000))), Change::Unchanged);
    // The pod was first with another port: then it is the node that gives way, and gets its answers all the same.
    assert_eq!(leave(&tables, &udp((pod(1), 41_001), (world(1), 53))), Change::To(NODE, Port::new(41_001)));
    let Change::To(NODE, moved) = leave(&tables, &udp((NODE, 41_001), (world(1), 53))) else {
        panic!("the node's flow gives way")
    };
    let back = arrive(&tables, &udp((world(1), 53), (NODE, moved.get())));
    assert_eq!(back, Change::To(NODE, Port::new(41_001)));
}

#[test]
fn flows_of_the_node_that_cannot_collide_take_no_room() {
    let tables = node();
    for out in [
        udp((NODE, 53), (world(1), 53)),
        udp((NODE, 41_000), (pod(77), 53)),
        echo(0, 41_000, NODE, world(1)),
        tcp(TcpFlags::SYN | TcpFlags::ACK, (NODE, 41_000), (world(1), 5)),
        headers(tuple(47, (NODE, 0), (world(1), 0))),
    ] {
        assert_eq!(leave(&tables, &out), Change::Unchanged, "{out:?}");
    }
    assert!(tables.entries().is_empty());
}

#[test]
fn what_has_no_port_is_not_masqueraded() {
    let tables = node();
    for protocol in [47, 50, 112] {
        let out = headers(tuple(protocol, (pod(1), 0), (world(1), 0)));
        assert_eq!(leave(&tables, &out), Change::Drop(Reason::NatUnsupported));
    }
    let back = Headers { icmp_type: 135, ..headers(tuple(protocol::ICMPV6, (WORLD_V6, 0), (NODE_V6, 0))) };
    assert_eq!(arrive(&tables, &back), Change::Unchanged, "neighbour discovery is the node's");
}

#[test]
fn an_error_from_a_third_router_reaches_the_pod_with_the_packet_it_sent() {
    let tables = node();
    let sent = udp((pod(1), 500), (world(1), 53));
    let Change::To(source, port) = leave(&tables, &sent) else { panic!("masqueraded") };
    let seen = udp((source, port.get()), (world(1), 53));
    let found = hear(&tables, NODE, &seen);
    assert_eq!(found, Some((pod(1), Port::new(500))));
    // Nor is what nobody sent, or what quotes one address and comes to another.
    let never = udp((source, port.get()), (world(2), 53));
    assert_eq!(hear(&tables, NODE, &never), None);
    assert_eq!(hear(&tables, pod(2), &seen), None);
}

#[test]
fn an_error_about_an_echo_is_found_by_its_identifier() {
    let tables = node();
    let Change::To(source, id) = leave(&tables, &echo(8, 7, pod(1), world(1))) else { panic!("masqueraded") };
    let seen = echo(8, id.get(), source, world(1));
    let found = hear(&tables, NODE, &seen);
    assert_eq!(found, Some((pod(1), Port::new(7))));
    let about_reply = echo(0, id.get(), source, world(1));
    assert_eq!(hear(&tables, NODE, &about_reply), None);
}

#[test]
fn an_error_about_the_nodes_own_packet_is_the_nodes() {
    let tables = node();
    let sent = udp((NODE, 41_000), (world(1), 53));
    leave(&tables, &sent);
    assert_eq!(hear(&tables, NODE, &sent), None);
}

#[test]
fn an_error_that_a_pod_sends_names_the_address_its_peer_knows() {
    let tables = node();
    let Change::To(source, port) = leave(&tables, &udp((pod(1), 500), (world(1), 53))) else {
        panic!("masqueraded")
    };
    let delivered = udp((world(1), 53), (pod(1), 500));
    let expected = (Change::To(source, port), true);
    assert_eq!(complain(&tables, pod(1), world(1), &delivered), expected);
    // So does one of the node's own about it: a pod's smaller MTU, a hop limit that ends here.
    let expected = (Change::To(source, port), false);
    assert_eq!(complain(&tables, NODE, world(1), &delivered), expected);
}

#[test]
fn an_error_about_what_came_from_outside_keeps_the_pods_address_and_any_other_is_dropped() {
    let tables = node();
    let came = udp((world(1), 9_000), (pod(1), 8_080));
    assert_eq!(complain(&tables, pod(1), world(1), &came), (Change::Drop(Reason::NatUnsupported), false));
    tables.from_outside.borrow_mut().insert(came.tuple.flow_of_destination(FlowKey::PLAIN));
    assert_eq!(complain(&tables, pod(1), world(1), &came), (Change::Unchanged, false));
}
