//! Services by packets on tables in memory: which entries a packet makes, and which backend it gets.

use std::cell::RefCell;
use std::collections::BTreeMap;

mod collision;

use super::*;
use crate::packet::TcpFlags;
use crate::packet_tables::memory::Memory;
use crate::{Direction, Family, Protocol};

const POD: Addr = Addr::v4([10, 1, 0, 1]);
const VIP: Addr = Addr::v4([10, 96, 0, 10]);
const B: Addr = Addr::v4([10, 1, 0, 2]);
const C: Addr = Addr::v4([10, 1, 0, 3]);
const D: Addr = Addr::v4([10, 1, 0, 4]);
const SERVER: Port = Port::new(8080);
/// Of [`ask`].
const CLIENT: Port = Port::new(40_000);

fn tuple(source: (Addr, u16), destination: (Addr, u16), protocol: u8) -> Tuple {
    Tuple {
        source: source.0,
        destination: destination.0,
        source_port: Port::new(source.1),
        destination_port: Port::new(destination.1),
        protocol,
    }
}

fn ask(protocol: u8) -> Tuple {
    tuple((POD, 40_000), (VIP, 80), protocol)
}

fn frontend(protocol: Protocol) -> (Addr, Port, Protocol) {
    (VIP, Port::new(80), protocol)
}

fn sighting(tables: &Memory, tuple: &Tuple, direction: Direction, flags: u8) -> Sighting {
    let flags = TcpFlags::new(if tuple.protocol == protocol::TCP { flags } else { 0 });
    Sighting { direction, protocol: tuple.protocol, flags, bytes: 100, now: tables.now }
}

fn send(tables: &Memory, tuple: &Tuple, flags: u8) -> Outgoing {
    send_to(tables, tuple, false, flags)
}

std::thread_local! {
    /// As a CPU's: one packet finds on it what the one before left.
    static DESK: RefCell<ServiceDesk> = const { RefCell::new(ServiceDesk::EMPTY) };
}

/// `to_pod`: a pod of this node has the destination.
fn send_to(tables: &Memory, tuple: &Tuple, to_pod: bool, flags: u8) -> Outgoing {
    let seen = sighting(tables, tuple, Direction::Egress, flags);
    DESK.with_borrow_mut(|desk| outgoing(tables, tuple, to_pod, &seen, || Ok(desk)))
}

fn receive(tables: &Memory, tuple: &Tuple, flags: u8) -> Incoming {
    incoming(tables, tuple, &sighting(tables, tuple, Direction::Ingress, flags))
}

#[track_caller]
fn backend(outgoing: Outgoing) -> Addr {
    let Outgoing::ToBackend { addr, .. } = outgoing else { panic!("{outgoing:?}") };
    addr
}

const SYN: u8 = TcpFlags::SYN;
const ACK: u8 = TcpFlags::ACK;
const FIN: u8 = TcpFlags::FIN;
const RST: u8 = TcpFlags::RST;

/// The answer of `from` to [`ask`].
fn answer(from: Addr, protocol: u8) -> Tuple {
    tuple((from, SERVER.get()), (POD, 40_000), protocol)
}

#[test]
fn a_connection_to_a_service_is_two_entries_that_become_established_together() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::TCP);
    assert_eq!(send(&tables, &ask, SYN), Outgoing::ToBackend { addr: B, port: SERVER, source_port: CLIENT });
    let frontend = Incoming::From { addr: VIP, port: Port::new(80), own_port: CLIENT };
    assert_eq!(receive(&tables, &answer(B, protocol::TCP), SYN | ACK), frontend);
    let keys = [
        ask.flow_of_source(FlowKey::SERVICE),
        tuple((POD, 40_000), (B, 8080), protocol::TCP).flow_of_source(FlowKey::PLAIN),
    ];
    for key in keys {
        assert_eq!(tables.entry(&key).unwrap().0, FlowMap::New, "{key:?}");
    }
    assert_eq!(backend(send(&tables, &ask, ACK)), B);
    for key in keys {
        assert_eq!(tables.entry(&key).unwrap().0, FlowMap::Established, "{key:?}");
    }
    assert_eq!(receive(&tables, &answer(B, protocol::TCP), ACK), frontend);
    assert_eq!(tables.entries(), 2);
}

#[test]
fn a_connection_stays_with_its_backend_whatever_becomes_of_the_service() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::TCP);
    send(&tables, &ask, SYN);
    receive(&tables, &answer(B, protocol::TCP), SYN | ACK);
    tables.serve(frontend(Protocol::TCP), 0, &[(2, C, SERVER)]);
    assert_eq!(backend(send(&tables, &ask, ACK)), B);
    tables.serve(frontend(Protocol::TCP), 0, &[]);
    assert_eq!(backend(send(&tables, &ask, ACK)), B);
    tables.stop_serving();
    assert_eq!(backend(send(&tables, &ask, ACK)), B);
}

#[test]
fn a_syn_again_gets_a_backend_that_serves() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::TCP);
    assert_eq!(backend(send(&tables, &ask, SYN)), B);
    assert_eq!(backend(send(&tables, &ask, SYN)), B, "sent again");
    tables.serve(frontend(Protocol::TCP), 0, &[(2, C, SERVER)]);
    assert_eq!(backend(send(&tables, &ask, SYN)), C, "its backend is gone");
    tables.serve(frontend(Protocol::TCP), 0, &[]);
    assert_eq!(send(&tables, &ask, SYN), Outgoing::Refuse);
}

#[test]
fn a_new_connection_from_the_port_of_one_that_is_over_is_a_new_flow() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::TCP);
    for flags in [SYN, ACK] {
        send(&tables, &ask, flags);
        receive(&tables, &answer(B, protocol::TCP), if flags == SYN { SYN | ACK } else { ACK });
    }
    send(&tables, &ask, FIN | ACK);
    receive(&tables, &answer(B, protocol::TCP), FIN | ACK);
    let plain = tuple((POD, 40_000), (B, 8080), protocol::TCP).flow_of_source(FlowKey::PLAIN);
    assert!(tables.entry(&plain).unwrap().1.is_closed());
    // The same backend again, because there is no other.
    assert_eq!(backend(send(&tables, &ask, SYN)), B);
    let value = tables.entry(&plain).unwrap().1;
    assert!(!value.is_closed() && !value.is_answered(), "{value:?}");
    assert_eq!(value.other(), Some((VIP, Port::new(80))));
}

#[test]
fn an_exchange_keeps_its_backend_while_that_serves() {
    let mut tables = Memory::new();
    let udp = frontend(Protocol::UDP);
    tables.serve(udp, 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::UDP);
    assert_eq!(backend(send(&tables, &ask, 0)), B);
    tables.serve(udp, 0, &[(1, B, SERVER), (2, C, SERVER)]);
    for _ in 0..20 {
        assert_eq!(backend(send(&tables, &ask, 0)), B);
    }
    tables.serve(udp, 0, &[(2, C, SERVER)]);
    assert_eq!(backend(send(&tables, &ask, 0)), C);
    assert_eq!(
        receive(&tables, &answer(C, protocol::UDP), 0),
        Incoming::From { addr: VIP, port: Port::new(80), own_port: CLIENT }
    );
    tables.serve(udp, 0, &[]);
    assert_eq!(send(&tables, &ask, 0), Outgoing::Refuse);
}

#[test]
fn datagrams_to_two_frontends_of_one_backend_are_answered_by_the_one_that_was_asked() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    let external = Addr::v4([192, 0, 2, 10]);
    tables.serve((external, Port::new(53), Protocol::UDP), 0, &[(1, B, SERVER)]);
    let (first, second) = (ask(protocol::UDP), tuple((POD, 40_000), (external, 53), protocol::UDP));
    let direct = tuple((POD, 40_000), (B, 8080), protocol::UDP);
    for _ in 0..3 {
        for asked in [first, second] {
            assert_eq!(backend(send(&tables, &asked, 0)), B);
            let expected =
                Incoming::From { addr: asked.destination, port: asked.destination_port, own_port: CLIENT };
            for _ in 0..2 {
                assert_eq!(receive(&tables, &answer(B, protocol::UDP), 0), expected);
            }
        }
        assert_eq!(send_to(&tables, &direct, true, 0), Outgoing::Direct);
        assert_eq!(receive(&tables, &answer(B, protocol::UDP), 0), Incoming::Direct);
    }
}

#[test]
fn a_service_may_come_to_be_where_nobody_answered_yet() {
    let mut tables = Memory::new();
    let ask = ask(protocol::UDP);
    assert_eq!(send(&tables, &ask, 0), Outgoing::Direct);
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    assert_eq!(backend(send(&tables, &ask, 0)), B);
    // Where somebody answered, the flow stays.
    let direct = tuple((POD, 41_000), (VIP, 80), protocol::UDP);
    tables.stop_serving();
    send(&tables, &direct, 0);
    receive(&tables, &direct.reversed(), 0);
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    assert_eq!(send(&tables, &direct, 0), Outgoing::Direct);
}

#[test]
fn a_client_with_affinity_is_bound_by_its_address() {
    let mut tables = Memory::new();
    let backends = [(1, B, SERVER), (2, C, SERVER)];
    tables.serve(frontend(Protocol::TCP), 60, &backends);
    let from = |source, port| tuple((source, port), (VIP, 80), protocol::TCP);
    for pod in 1..20u8 {
        let source = Addr::v4([10, 1, 1, pod]);
        let first = backend(send(&tables, &from(source, 40_000), SYN));
        for port in 40_001..40_010 {
            assert_eq!(backend(send(&tables, &from(source, port), SYN)), first);
        }
    }
}

#[test]
fn a_pod_that_is_its_own_backend_is_answered_by_the_frontend() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, POD, SERVER)]);
    let ask = ask(protocol::TCP);
    assert_eq!(send(&tables, &ask, SYN), Outgoing::ToItself { port: SERVER, source_port: CLIENT });
    let hairpin = tables.hairpin(Family::V4);
    let answer = tuple((POD, 8080), (hairpin, 40_000), protocol::TCP);
    let seen = sighting(&tables, &answer, Direction::Egress, SYN | ACK);
    let expected = Some(((VIP, Port::new(80)), Port::new(40_000)));
    assert_eq!(answer_to_itself(&tables, &answer, &seen), expected);
    // Nobody asked from there.
    let stranger = tuple((POD, 8080), (hairpin, 40_001), protocol::TCP);
    assert_eq!(answer_to_itself(&tables, &stranger, &seen), None);
}

#[test]
fn half_of_a_flow_is_made_again_from_the_other() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::TCP);
    send(&tables, &ask, SYN);
    tables.forget(&tuple((POD, 40_000), (B, 8080), protocol::TCP).flow_of_source(FlowKey::PLAIN));
    assert_eq!(backend(send(&tables, &ask, ACK)), B);
    assert_eq!(
        receive(&tables, &answer(B, protocol::TCP), ACK),
        Incoming::From { addr: VIP, port: Port::new(80), own_port: CLIENT }
    );
}

#[test]
fn a_connection_that_was_forgotten_finds_its_backend_again() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER), (2, C, SERVER), (3, D, SERVER)]);
    let mut connections = BTreeMap::<Addr, u32>::new();
    for port in 40_000..40_300 {
        let ask = tuple((POD, port), (VIP, 80), protocol::TCP);
        let first = backend(send(&tables, &ask, SYN));
        *connections.entry(first).or_default() += 1;
        let plain = tuple((POD, port), (first, 8080), protocol::TCP);
        receive(&tables, &plain.reversed(), SYN | ACK);
        tables.forget(&ask.flow_of_source(FlowKey::SERVICE));
        let forgets_both = port % 2 == 0;
        if forgets_both {
            tables.forget(&plain.flow_of_source(FlowKey::PLAIN));
        }
        assert_eq!(backend(send(&tables, &ask, ACK)), first, "port {port}");
        // The half that was there has not begun anew: the handshake is complete.
        let (map, value) = tables.entry(&plain.flow_of_source(FlowKey::PLAIN)).unwrap();
        assert_eq!((map == FlowMap::Established, value.is_answered()), (!forgets_both, !forgets_both));
        assert_eq!(
            receive(&tables, &plain.reversed(), ACK),
            Incoming::From { addr: VIP, port: Port::new(80), own_port: Port::new(port) }
        );
        assert_eq!(backend(send(&tables, &ask, ACK)), first);
        assert_eq!(tables.entry(&ask.flow_of_source(FlowKey::SERVICE)).unwrap().0, FlowMap::Established);
    }
    // Each has its third: 100 of 300, and 4.9 standard deviations.
    assert!(
        connections.len() == 3 && connections.values().all(|count| (60..140).contains(count)),
        "{connections:?}"
    );
}

#[test]
fn what_cannot_be_remembered_is_dropped_only_where_its_answers_would_be_lost() {
    let mut tables = Memory::new();
    tables.refuses_new = true;
    let direct = tuple((POD, 40_000), (B, 8080), protocol::UDP);
    assert_eq!(send(&tables, &direct, 0), Outgoing::Direct);
    assert_eq!(receive(&tables, &direct.reversed(), 0), Incoming::Direct);
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    assert_eq!(send(&tables, &ask(protocol::UDP), 0), Outgoing::Drop(Reason::MapFull));
}

#[test]
fn services_are_not_looked_for_where_they_are_off_or_cannot_be() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    let ask = ask(protocol::UDP);
    assert_eq!(send_to(&tables, &ask, true, 0), Outgoing::Direct, "to a pod of this node");
    tables.switches = 0;
    assert_eq!(send(&tables, &ask, 0), Outgoing::Direct);
    tables.switches = NodeNetwork::SERVICES;
    assert_eq!(send(&tables, &tuple((POD, 7), (VIP, 7), protocol::ICMP), 0), Outgoing::Direct);
    assert_eq!(backend(send(&tables, &ask, 0)), B);
}

#[test]
fn sctp_is_translated_where_the_port_stays() {
    let mut tables = Memory::new();
    let sctp = frontend(Protocol::SCTP);
    tables.serve(sctp, 0, &[(1, B, Port::new(80))]);
    assert_eq!(backend(send(&tables, &ask(protocol::SCTP), 0)), B);
    tables.serve(sctp, 0, &[(2, C, SERVER)]);
    assert_eq!(send(&tables, &ask(protocol::SCTP), 0), Outgoing::Refuse);
}

#[test]
fn an_error_about_a_packet_to_a_backend_is_about_the_frontend_for_the_pod() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    send(&tables, &ask(protocol::UDP), 0);
    let quoted = tuple((POD, 40_000), (B, 8080), protocol::UDP);
    let expected = Quoted { addr: VIP, port: Port::new(80), own_port: CLIENT };
    assert_eq!(quoted_frontend(&tables, &quoted), Some(expected));
    let direct = tuple((POD, 41_000), (B, 8080), protocol::UDP);
    send(&tables, &direct, 0);
    assert_eq!(quoted_frontend(&tables, &direct), None);
}

#[test]
fn an_error_of_a_pod_about_an_answer_of_a_frontend_is_about_one_of_its_backend() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::UDP), 0, &[(1, B, SERVER)]);
    send(&tables, &ask(protocol::UDP), 0);
    let expected = Quoted { addr: B, port: SERVER, own_port: CLIENT };
    assert_eq!(quoted_backend(&tables, &ask(protocol::UDP).reversed()), Some(expected));
    let direct = tuple((POD, 41_000), (B, 8080), protocol::UDP);
    send(&tables, &direct, 0);
    assert_eq!(quoted_backend(&tables, &direct.reversed()), None);
}
