//! Connections of one pod that would be one for its backend: a kernel gives one port to connections to different
//! addresses, and a service's packets leave for the address of a backend.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::*;

/// A connection of the pod with one of its backends.
struct Held {
    asked: Tuple,
    to_pod: bool,
    server: (Addr, Port),
    source_port: Port,
}

/// What the pod sends leaves for a backend, from a port.
#[track_caller]
fn leaves(asked: &Tuple, sent: Outgoing) -> ((Addr, Port), Port) {
    match sent {
        Outgoing::Direct => ((asked.destination, asked.destination_port), asked.source_port),
        Outgoing::ToBackend { addr, port, source_port } => ((addr, port), source_port),
        Outgoing::ToItself { port, source_port } => ((asked.source, port), source_port),
        Outgoing::Refuse | Outgoing::Drop(_) => panic!("{asked:?}: {sent:?}"),
    }
}

impl Held {
    #[track_caller]
    fn dial_to(tables: &Memory, asked: Tuple, to_pod: bool) -> Self {
        let (server, source_port) = leaves(&asked, send_to(tables, &asked, to_pod, SYN));
        Self { asked, to_pod, server, source_port }
    }

    /// With its handshake done.
    #[track_caller]
    fn hold(tables: &Memory, asked: Tuple) -> Self {
        let held = Self::dial_to(tables, asked, false);
        held.says(tables, SYN | ACK, ACK);
        held.says(tables, ACK, ACK);
        held
    }

    /// What the backend sees: the pod, and the port that it has there.
    fn seen(&self) -> (Addr, Port) {
        (self.server.0, self.source_port)
    }

    /// A packet of the backend arrives as one of whom the pod dialled, at the port that it dialled from, and one back leaves
    /// as they all do.
    #[track_caller]
    fn says(&self, tables: &Memory, there: u8, here: u8) {
        let Self { asked, server, source_port, .. } = self;
        let answer = tuple((server.0, server.1.get()), (POD, source_port.get()), protocol::TCP);
        let arrived = match receive(tables, &answer, there) {
            Incoming::Direct => answer,
            Incoming::From { addr, port, own_port } => {
                Tuple { source: addr, source_port: port, destination_port: own_port, ..answer }
            }
        };
        assert_eq!(arrived, asked.reversed());
        assert_eq!(leaves(asked, send_to(tables, asked, self.to_pod, here)), (*server, *source_port));
    }

    /// Whatever else happened, it goes on, to its end.
    #[track_caller]
    fn goes_on(&self, tables: &Memory) {
        self.says(tables, ACK, ACK);
        self.says(tables, FIN | ACK, ACK);
    }
}

/// What the pod sends to B itself, from the port of [`ask`].
fn direct() -> Tuple {
    answer(B, protocol::TCP).reversed()
}

/// Services at 10.96.1.0 to 10.96.1.255.
fn vip(number: u8) -> Addr {
    Addr::v4([10, 96, 1, number])
}

fn ask_of(number: u8, port: u16) -> Tuple {
    tuple((POD, port), (vip(number), 80), protocol::TCP)
}

fn serve(tables: &mut Memory, number: u8, affinity: u32, backends: &[(u32, Addr, Port)]) {
    tables.serve((vip(number), Port::new(80), Protocol::TCP), affinity, backends);
}

#[test]
fn a_connection_to_a_service_leaves_from_another_port_than_a_held_one_with_its_backend() {
    for affinity in [0, 60] {
        let mut tables = Memory::new();
        let held = Held::hold(&tables, direct());
        assert_eq!(held.source_port, CLIENT);
        serve(&mut tables, 0, affinity, &[(1, B, SERVER)]);
        let second = Held::hold(&tables, ask_of(0, 40_000));
        assert_eq!(second.server, (B, SERVER));
        assert_ne!(second.source_port, CLIENT);
        held.goes_on(&tables);
        second.goes_on(&tables);
    }
}

#[test]
fn a_direct_connection_leaves_from_another_port_than_a_held_one_to_a_service() {
    for to_pod in [false, true] {
        let mut tables = Memory::new();
        tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
        // While it begins, and when it is established.
        let begins = Held::dial_to(&tables, ask(protocol::TCP), false);
        let during = Held::dial_to(&tables, direct(), to_pod);
        assert_ne!(during.source_port, CLIENT, "to a pod of this node: {to_pod}");
        for held in [&begins, &during] {
            held.says(&tables, SYN | ACK, ACK);
            held.says(&tables, ACK, ACK);
        }
        let elsewhere = Held::hold(&tables, ask_of_vip(41_000));
        let direct = Held::dial_to(&tables, tuple((POD, 41_000), (B, 8080), protocol::TCP), to_pod);
        direct.says(&tables, SYN | ACK, ACK);
        for held in [begins, during, elsewhere, direct] {
            held.goes_on(&tables);
        }
    }
}

fn ask_of_vip(port: u16) -> Tuple {
    tuple((POD, port), (VIP, 80), protocol::TCP)
}

#[test]
fn a_direct_connection_that_left_from_another_port_stays_there() {
    for to_pod in [false, true] {
        let mut tables = Memory::new();
        tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
        let first = Held::hold(&tables, ask(protocol::TCP));
        let second = Held::dial_to(&tables, direct(), to_pod);
        // The SYN is sent again.
        let again = Held::dial_to(&tables, direct(), to_pod);
        assert_eq!((again.source_port, again.server), (second.source_port, second.server));
        // Who had the port is over, and its entries go: also for a SYN, which the backend may have had already.
        first.goes_on(&tables);
        send(&tables, &first.asked, FIN | ACK);
        tables.forget(&direct().flow_of_source(FlowKey::PLAIN));
        tables.forget(&first.asked.flow_of_source(FlowKey::SERVICE));
        let again = Held::dial_to(&tables, direct(), to_pod);
        assert_eq!((again.source_port, again.server), (second.source_port, second.server));
        // Late news of who had it.
        assert_eq!(receive(&tables, &direct().reversed(), ACK), Incoming::Direct);
        second.says(&tables, SYN | ACK, ACK);
        // Its half under what it dialled is forgotten too while somebody else has the port.
        let third = Held::hold(&tables, ask(protocol::TCP));
        assert_eq!(third.source_port, CLIENT);
        tables.forget(&direct().flow_of_source(FlowKey::SERVICE));
        second.says(&tables, ACK, ACK);
        // So does the other half.
        tables.forget(&FlowKey::new((POD, second.source_port), second.server, protocol::TCP, FlowKey::PLAIN));
        assert_eq!(leaves(&direct(), send_to(&tables, &direct(), to_pod, ACK)).1, second.source_port);
        second.goes_on(&tables);
        third.goes_on(&tables);
        // A new one after it may have the same port: it is its own.
        send_to(&tables, &direct(), to_pod, FIN | ACK);
        let new = Held::dial_to(&tables, direct(), to_pod);
        new.says(&tables, SYN | ACK, ACK);
        new.goes_on(&tables);
        third.says(&tables, ACK, ACK);
    }
}

#[test]
fn a_service_s_half_that_is_forgotten_is_found_again_under_another_port() {
    let mut tables = Memory::new();
    serve(&mut tables, 0, 0, &[(1, B, SERVER)]);
    serve(&mut tables, 1, 0, &[(1, B, SERVER)]);
    let first = Held::hold(&tables, ask_of(0, 40_000));
    for handshake in [false, true] {
        let second = Held::dial_to(&tables, ask_of(1, 40_000), false);
        assert_ne!(second.source_port, CLIENT);
        if handshake {
            second.says(&tables, SYN | ACK, ACK);
        }
        tables.forget(&second.asked.flow_of_source(FlowKey::SERVICE));
        second.says(&tables, if handshake { ACK } else { SYN | ACK }, ACK);
        let under = FlowKey::new((POD, second.source_port), second.server, protocol::TCP, FlowKey::PLAIN);
        tables.forget(&under);
        assert_eq!(leaves(&second.asked, send(&tables, &second.asked, ACK)).1, second.source_port);
        second.goes_on(&tables);
        send(&tables, &second.asked, RST);
    }
    first.goes_on(&tables);
}

#[test]
fn a_hundred_connections_from_one_port_to_one_backend_are_a_hundred() {
    let mut tables = Memory::new();
    let mut held: Vec<_> =
        (0..2).map(|port| Held::hold(&tables, tuple((POD, 40_000 + port), (B, 8080), 6))).collect();
    for number in 0..100 {
        serve(&mut tables, number, u32::from(number % 2) * 60, &[(1, B, SERVER)]);
        for port in 0..2 {
            held.push(Held::hold(&tables, ask_of(number, 40_000 + port)));
        }
    }
    let seen: BTreeSet<_> = held.iter().map(Held::seen).collect();
    assert_eq!(seen.len(), held.len());
    for held in &held {
        held.goes_on(&tables);
    }
    // None of them is one that the pod's kernel may give to a connection to B.
    let given = held.iter().filter(|held| held.source_port != held.asked.source_port);
    assert!(
        given.clone().count() == 200
            && given.clone().all(|held| (1024..32_768).contains(&held.source_port.get()))
    );
}

#[test]
fn where_no_port_is_left_the_client_is_refused_and_what_is_over_makes_room() {
    let mut tables = Memory::new();
    let ask = ask_of(0, 40_000);
    // Whoever dials B from any of the ports that are tried.
    let all: Vec<_> = (1024..=40_000u16)
        .filter(|port| *port < 32_768 || *port == 40_000)
        .map(|port| Held::hold(&tables, tuple((POD, port), (B, 8080), protocol::TCP)))
        .collect();
    serve(&mut tables, 0, 0, &[(1, B, SERVER)]);
    assert_eq!(send(&tables, &ask, SYN), Outgoing::Refuse);
    assert_eq!(send(&tables, &ask, ACK), Outgoing::Refuse);
    assert_eq!(tables.entries(), all.len(), "what was refused is no flow");
    all.iter().for_each(|held| held.goes_on(&tables));
    for held in &all {
        send(&tables, &held.asked, FIN | ACK);
    }
    assert_eq!(send(&tables, &ask, ACK), Outgoing::Refuse, "it begins nothing");
    let new = Held::hold(&tables, ask);
    new.goes_on(&tables);
    // Late packets of who had the port before are not the new one's.
    let before = all.iter().find(|held| held.source_port == new.source_port).unwrap();
    for flags in [ACK, RST] {
        let sent = send(&tables, &before.asked, flags);
        assert!(sent == Outgoing::Refuse || leaves(&before.asked, sent).1 != new.source_port, "{sent:?}");
    }
    new.says(&tables, ACK, ACK);
}

#[test]
fn a_connection_that_was_just_over_is_not_taken_for_the_next_one_from_its_port() {
    let mut tables = Memory::new();
    serve(&mut tables, 0, 0, &[(1, B, SERVER)]);
    serve(&mut tables, 1, 0, &[(1, B, SERVER)]);
    let first = Held::hold(&tables, ask_of(0, 40_000));
    first.goes_on(&tables);
    send(&tables, &first.asked, FIN | ACK);
    for asked in [direct(), ask_of(1, 40_000)] {
        let next = Held::hold(&tables, asked);
        assert_ne!(next.source_port, CLIENT);
        // The last words of the first one are its own.
        first.says(&tables, FIN | ACK, ACK);
        next.goes_on(&tables);
    }
    // To the same frontend it is the client's to know when it may.
    assert_eq!(Held::hold(&tables, ask_of(0, 40_000)).source_port, CLIENT);
}

#[test]
fn a_pod_that_is_its_own_backend_by_two_frontends_holds_both_connections() {
    let mut tables = Memory::new();
    serve(&mut tables, 0, 0, &[(1, POD, SERVER)]);
    serve(&mut tables, 1, 0, &[(1, POD, SERVER)]);
    let hairpin = tables.hairpin(Family::V4);
    let mut ports = BTreeSet::new();
    for _ in 0..2 {
        for number in [0, 1] {
            let sent = send(&tables, &ask_of(number, 40_000), SYN);
            let Outgoing::ToItself { port: SERVER, source_port } = sent else { panic!("{sent:?}") };
            ports.insert(source_port);
            let answer = tuple((POD, 8080), (hairpin, source_port.get()), protocol::TCP);
            let seen = sighting(&tables, &answer, Direction::Egress, SYN | ACK);
            let expected = Some(((vip(number), Port::new(80)), CLIENT));
            assert_eq!(answer_to_itself(&tables, &answer, &seen), expected);
            let quoted = tuple((POD, source_port.get()), (POD, 8080), protocol::TCP);
            let expected = Quoted { addr: vip(number), port: Port::new(80), own_port: CLIENT };
            assert_eq!(quoted_frontend(&tables, &quoted), Some(expected));
        }
    }
    assert_eq!(ports.len(), 2);
}

#[test]
fn an_error_about_a_connection_from_another_port_is_about_the_port_that_each_end_knows() {
    let mut tables = Memory::new();
    serve(&mut tables, 0, 0, &[(1, B, SERVER)]);
    serve(&mut tables, 1, 0, &[(1, B, SERVER)]);
    Held::hold(&tables, ask_of(0, 40_000));
    for asked in [ask_of(1, 40_000), direct()] {
        let held = Held::hold(&tables, asked);
        let left = tuple((POD, held.source_port.get()), (B, 8080), protocol::TCP);
        let (addr, port) = (asked.destination, asked.destination_port);
        assert_eq!(quoted_frontend(&tables, &left), Some(Quoted { addr, port, own_port: CLIENT }));
        let (addr, port) = held.server;
        let expected = Quoted { addr, port, own_port: held.source_port };
        assert_eq!(quoted_backend(&tables, &asked.reversed()), Some(expected));
    }
}

#[test]
fn a_backend_that_dials_the_pod_at_a_port_that_was_given_finds_it_once_that_is_over() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    Held::hold(&tables, direct());
    let held = Held::hold(&tables, ask(protocol::TCP));
    held.goes_on(&tables);
    send(&tables, &held.asked, FIN | ACK);
    let dialled = tuple((B, 8080), (POD, held.source_port.get()), protocol::TCP);
    assert_eq!(receive(&tables, &dialled, SYN), Incoming::Direct);
    assert_eq!(send(&tables, &dialled.reversed(), SYN | ACK), Outgoing::Direct);
    assert_eq!(receive(&tables, &dialled, ACK), Incoming::Direct);
}
