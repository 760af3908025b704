//! One rule a test.

use std::boxed::Box;

use crate::packet::{TcpFlags, protocol};
use crate::{FlowValue, Reason};

use super::super::nat_seen;
use super::*;

const PORTS: NatPorts = NatPorts::new(40_000, 40_015);

fn flow(pod_last: u8, port: u16, seen: u8, protocol: u8) -> NatFlow {
    NatFlow {
        local: (pod(pod_last), Port::new(port)),
        peer: (world(9), Port::new(443)),
        protocol,
        seen,
        fixed: false,
    }
}

fn udp(pod_last: u8, port: u16) -> NatFlow {
    flow(pod_last, port, FlowValue::SEEN, protocol::UDP)
}

fn tcp(pod_last: u8, port: u16, flags: u8) -> NatFlow {
    flow(pod_last, port, nat_seen(TcpFlags::new(flags)), protocol::TCP)
}

/// The packet that answers `flow`, which left from `source`.
fn answer(flow: &NatFlow, source: (Addr, Port), seen: u8) -> NatFlow {
    NatFlow { local: source, seen, ..*flow }
}

fn keys(flow: &NatFlow, source: (Addr, Port)) -> [NatKey; 2] {
    [
        NatKey::new(flow.local, flow.peer, flow.protocol, NatKey::OUT),
        NatKey::new(source, flow.peer, flow.protocol, NatKey::IN),
    ]
}

fn are_in(tables: &Memory, map: NatMap, flow: &NatFlow, source: (Addr, Port)) -> bool {
    keys(flow, source).iter().all(|key| tables.has(map, key))
}

#[test]
fn a_flow_keeps_its_port_where_it_is_free_and_gets_another_where_it_is_not() {
    let tables = Memory::default();
    let first = masquerade(&tables, &udp(1, 40_003), NODE, PORTS);
    assert_eq!(first, Ok((NODE, Port::new(40_003))));
    let second = masquerade(&tables, &udp(2, 40_003), NODE, PORTS).unwrap();
    assert_ne!(second, (NODE, Port::new(40_003)));
    assert!(PORTS.contains(second.1));
    let outside = masquerade(&tables, &udp(3, 500), NODE, PORTS).unwrap();
    assert!(PORTS.contains(outside.1), "a port that could be the node's own");
}

#[test]
fn towards_another_peer_a_port_is_free() {
    let tables = Memory::default();
    let one = udp(1, 40_003);
    let two = NatFlow { peer: (world(10), Port::new(443)), ..udp(2, 40_003) };
    assert_eq!(masquerade(&tables, &one, NODE, PORTS), masquerade(&tables, &two, NODE, PORTS));
}

#[test]
fn what_comes_back_is_the_pods() {
    let tables = Memory::default();
    for last in 1..=10 {
        let flow = udp(last, 40_001);
        let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
        assert_eq!(unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN)), Some(flow.local));
    }
    let stranger =
        NatFlow { local: (NODE, Port::new(40_001)), peer: (world(8), Port::new(443)), ..udp(1, 1) };
    assert_eq!(unmasquerade(&tables, &stranger), None);
}

#[test]
fn the_node_keeps_its_own_port_unless_a_pod_has_it() {
    let tables = Memory::default();
    let own = NatFlow { local: (NODE, Port::new(40_007)), ..udp(0, 0) };
    assert_eq!(masquerade(&tables, &own, NODE, PORTS), Ok(own.local));
    assert_eq!(unmasquerade(&tables, &answer(&own, own.local, FlowValue::SEEN)), Some(own.local));
    let flow = udp(1, 40_007);
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    assert_ne!(source, own.local, "the pod would get the node's answers");

    let late = NatFlow { local: source, ..own };
    let moved = masquerade(&tables, &late, NODE, PORTS).unwrap();
    assert_ne!(moved, source, "the node's answers would be the pod's");
    assert_eq!(unmasquerade(&tables, &answer(&late, moved, FlowValue::SEEN)), Some(late.local));
}

#[test]
fn a_port_that_cannot_be_changed_is_kept_or_refused() {
    let tables = Memory::default();
    let sctp = |last| NatFlow { fixed: true, ..flow(last, 700, FlowValue::SEEN, protocol::SCTP) };
    assert_eq!(masquerade(&tables, &sctp(1), NODE, PORTS), Ok((NODE, Port::new(700))));
    assert_eq!(masquerade(&tables, &sctp(2), NODE, PORTS), Err(Reason::NoNatPort));
    assert_eq!(masquerade(&tables, &sctp(1), NODE, PORTS), Ok((NODE, Port::new(700))));
}

#[test]
fn a_datagram_that_is_answered_is_established_and_one_that_is_not_is_not() {
    let tables = Memory::default();
    let flow = udp(1, 40_000);
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    tables.now.set(10 * SECOND);
    masquerade(&tables, &flow, NODE, PORTS).unwrap();
    assert!(are_in(&tables, NatMap::New, &flow, source));
    unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN));
    assert!(are_in(&tables, NatMap::Established, &flow, source));
    assert!(keys(&flow, source).iter().all(|key| !tables.has(NatMap::New, key)));
}

#[test]
fn a_connection_is_established_by_the_third_segment_of_its_handshake() {
    let (syn, ack, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::RST);
    for (third, established) in [(ack, true), (syn, false), (rst, false), (rst | ack, false)] {
        let tables = Memory::default();
        let source = masquerade(&tables, &tcp(1, 40_000, syn), NODE, PORTS).unwrap();
        let answered = nat_seen(TcpFlags::new(syn | ack));
        unmasquerade(&tables, &answer(&tcp(1, 40_000, 0), source, answered));
        assert!(are_in(&tables, NatMap::New, &tcp(1, 40_000, 0), source), "after two segments");
        masquerade(&tables, &tcp(1, 40_000, third), NODE, PORTS).unwrap();
        let now = are_in(&tables, NatMap::Established, &tcp(1, 40_000, 0), source);
        assert_eq!(now, established, "third segment {third:#x}");
    }
}

#[test]
fn a_connection_that_was_there_before_the_maps_is_established_when_both_sides_have_spoken() {
    let tables = Memory::default();
    let flow = tcp(1, 40_000, TcpFlags::ACK);
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    unmasquerade(&tables, &answer(&flow, source, nat_seen(TcpFlags::new(TcpFlags::ACK))));
    assert!(are_in(&tables, NatMap::Established, &flow, source));
}

#[test]
fn a_connection_on_a_port_that_was_closed_is_not_closed() {
    let tables = Memory::default();
    let (syn, ack, fin) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN);
    let source = masquerade(&tables, &tcp(1, 40_000, syn), NODE, PORTS).unwrap();
    unmasquerade(&tables, &answer(&tcp(1, 40_000, 0), source, nat_seen(TcpFlags::new(syn | ack))));
    masquerade(&tables, &tcp(1, 40_000, ack | fin), NODE, PORTS).unwrap();
    unmasquerade(&tables, &answer(&tcp(1, 40_000, 0), source, nat_seen(TcpFlags::new(fin | ack))));
    assert_eq!(masquerade(&tables, &tcp(1, 40_000, syn), NODE, PORTS), Ok(source));
    for (_, key, value) in tables.entries() {
        assert_eq!(value.seen & (FlowValue::FIN | FlowValue::RST), 0, "{key:?}");
    }
}

#[test]
fn each_half_makes_the_other_again() {
    for established in [false, true] {
        for lost in [NatKey::OUT, NatKey::IN] {
            let tables = Memory::default();
            // Another flow has the port of its own, so that it has one that only the halves know.
            masquerade(&tables, &udp(2, 40_000), NODE, PORTS).unwrap();
            let flow = udp(1, 40_000);
            let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
            if established {
                unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN));
            }
            let [out, back] = keys(&flow, source);
            let key = if lost == NatKey::OUT { out } else { back };
            tables.delete_nat(NatMap::New, &key);
            tables.delete_nat(NatMap::Established, &key);
            tables.now.set(3 * SECOND);
            if lost == NatKey::OUT {
                assert_eq!(unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN)), Some(flow.local));
            } else {
                assert_eq!(masquerade(&tables, &flow, NODE, PORTS), Ok(source));
            }
            assert!([NatMap::New, NatMap::Established].iter().any(|map| tables.has(*map, &key)));
            assert_eq!(masquerade(&tables, &flow, NODE, PORTS), Ok(source));
            assert_eq!(unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN)), Some(flow.local));
        }
    }
}

#[test]
fn a_flow_that_lost_both_halves_finds_its_port_again() {
    let tables = Memory::default();
    masquerade(&tables, &udp(2, 40_000), NODE, PORTS).unwrap();
    let flow = udp(1, 40_000);
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    for key in keys(&flow, source) {
        tables.delete_nat(NatMap::New, &key);
    }
    assert_eq!(masquerade(&tables, &flow, NODE, PORTS), Ok(source));
}

#[test]
fn a_flow_whose_port_went_to_another_gets_a_new_one() {
    let tables = Memory::default();
    let flow = udp(1, 40_000);
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    let [_, back] = keys(&flow, source);
    tables.delete_nat(NatMap::New, &back);
    assert_eq!(masquerade(&tables, &udp(2, 40_000), NODE, PORTS), Ok(source));
    let other = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    assert_ne!(other, source);
    assert_eq!(
        unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN)),
        Some(pod(2)).map(|pod| (pod, Port::new(40_000)))
    );
    assert_eq!(unmasquerade(&tables, &answer(&flow, other, FlowValue::SEEN)), Some(flow.local));
}

#[test]
fn a_flow_leaves_an_address_that_the_node_has_lost() {
    let (old, new) = (Addr::v4([192, 168, 0, 7]), NODE);
    let tables = Memory::default();
    tables.own.borrow_mut().insert(old);
    let flow = udp(1, 40_000);
    masquerade(&tables, &flow, old, PORTS).unwrap();
    assert_eq!(masquerade(&tables, &flow, new, PORTS), Ok((old, Port::new(40_000))), "by another device");
    tables.own.borrow_mut().remove(&old);
    assert_eq!(masquerade(&tables, &flow, new, PORTS), Ok((new, Port::new(40_000))));
    assert!(tables.entries().iter().all(|(_, key, _)| key.local != old), "{:?}", tables.entries());
}

#[test]
fn a_flow_that_has_ended_makes_room_and_one_that_lives_does_not() {
    let (syn, ack, fin, rst) = (TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST);
    for (out, back, ended) in
        [(fin, fin, true), (rst, 0, true), (0, rst, true), (fin, 0, false), (0, fin, false), (0, 0, false)]
    {
        let one = NatPorts::new(40_000, 40_000);
        let tables = Memory::default();
        let source = masquerade(&tables, &tcp(1, 40_000, syn), NODE, one).unwrap();
        unmasquerade(&tables, &answer(&tcp(1, 40_000, 0), source, nat_seen(TcpFlags::new(syn | ack))));
        masquerade(&tables, &tcp(1, 40_000, ack), NODE, one).unwrap();
        masquerade(&tables, &tcp(1, 40_000, ack | out), NODE, one).unwrap();
        unmasquerade(&tables, &answer(&tcp(1, 40_000, 0), source, nat_seen(TcpFlags::new(ack | back))));
        let second = masquerade(&tables, &tcp(2, 40_000, syn), NODE, one);
        // A reset by the pod alone is known from its own half, which the port's search does not look at.
        let found = ended && back != 0;
        assert_eq!(second.is_ok(), found, "out {out:#x} back {back:#x}");
    }
}

#[test]
fn a_full_map_breaks_nothing_and_refuses_nothing() {
    let tables = Memory::default();
    tables.established_room.set(6);
    let flows: [NatFlow; 10] = core::array::from_fn(|last| udp(last as u8, 40_002));
    let sources = flows.map(|flow| {
        let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
        unmasquerade(&tables, &answer(&flow, source, FlowValue::SEEN));
        source
    });
    assert!(tables.full.get() > 0);
    for (flow, source) in flows.iter().zip(sources) {
        tables.now.set(tables.now.get() + 2 * SECOND);
        assert_eq!(masquerade(&tables, flow, NODE, PORTS), Ok(source));
        assert_eq!(unmasquerade(&tables, &answer(flow, source, FlowValue::SEEN)), Some(flow.local));
    }
    // Room again: those that waited move at their next packet.
    tables.established_room.set(usize::MAX);
    for (flow, source) in flows.iter().zip(sources) {
        tables.now.set(tables.now.get() + 2 * SECOND);
        masquerade(&tables, flow, NODE, PORTS).unwrap();
        assert!(are_in(&tables, NatMap::Established, flow, source));
    }
}

#[test]
fn two_processors_give_one_flow_one_source() {
    let tables = Memory::default();
    masquerade(&tables, &udp(2, 40_000), NODE, PORTS).unwrap();
    let flow = udp(1, 40_000);
    *tables.meanwhile.borrow_mut() = Some(Box::new(move |tables| {
        masquerade(tables, &flow, NODE, PORTS).unwrap();
    }));
    let source = masquerade(&tables, &flow, NODE, PORTS).unwrap();
    assert_eq!(masquerade(&tables, &flow, NODE, PORTS), Ok(source));
    let halves =
        tables.entries().iter().filter(|(_, _, value)| (value.other, value.other_port) == flow.local).count();
    assert_eq!(halves, 1, "{:?}", tables.entries());
}

#[test]
fn a_port_whose_flow_moves_while_it_is_looked_at_is_not_given_away() {
    let tables = Memory::default();
    let (first, second) = (udp(1, 40_000), udp(2, 40_000));
    // Between the look at both maps and the insert the first flow comes, is answered and so moves to `pw_nat`.
    *tables.meanwhile.borrow_mut() = Some(Box::new(move |tables| {
        let source = masquerade(tables, &first, NODE, PORTS).unwrap();
        unmasquerade(tables, &answer(&first, source, FlowValue::SEEN));
    }));
    let source = masquerade(&tables, &second, NODE, PORTS).unwrap();
    assert_ne!(source, (NODE, Port::new(40_000)));
    let back = answer(&first, (NODE, Port::new(40_000)), FlowValue::SEEN);
    assert_eq!(unmasquerade(&tables, &back), Some(first.local));
}
