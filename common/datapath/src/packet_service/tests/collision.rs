//! Two connections of one pod that would be one for its backend: a kernel gives one port to connections to different
//! addresses, and a service's packets leave for the address of a backend.

use super::*;

/// A connection between the pod and `server`, with its handshake done.
fn hold(tables: &Memory, asked: &Tuple, server: Addr) {
    for (here, there) in [(SYN, SYN | ACK), (ACK, ACK)] {
        send(tables, asked, here);
        receive(tables, &answer(server, protocol::TCP), there);
    }
}

/// What the pod sends to B itself, from the port of [`ask`].
fn direct() -> Tuple {
    answer(B, protocol::TCP).reversed()
}

/// The pod holds a connection to B, dialled as `tuple`, which answers from `from`.
#[track_caller]
fn is_held(tables: &Memory, tuple: &Tuple, from: Incoming) {
    for flags in [ACK, FIN | ACK] {
        assert_eq!(receive(tables, &answer(B, protocol::TCP), flags), from, "{flags:#x}");
        let sent = send(tables, tuple, ACK);
        match from {
            Incoming::Direct => assert_eq!(sent, Outgoing::Direct),
            Incoming::From { .. } => assert_eq!(backend(sent), B),
        }
    }
}

const FRONTEND: Incoming = Incoming::From { addr: VIP, port: Port::new(80) };

#[test]
fn a_connection_to_a_service_leaves_a_held_one_from_the_same_port_alone() {
    let mut tables = Memory::new();
    hold(&tables, &direct(), B);
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    for again in 0..3 {
        assert_eq!(send(&tables, &ask(protocol::TCP), SYN), Outgoing::Refuse, "again {again}");
        assert_eq!(send(&tables, &ask(protocol::TCP), ACK), Outgoing::Refuse, "again {again}");
    }
    is_held(&tables, &direct(), Incoming::Direct);
}

#[test]
fn a_connection_to_a_service_gets_a_backend_that_the_pod_talks_to_from_no_such_port() {
    let mut tables = Memory::new();
    let held = direct();
    hold(&tables, &held, B);
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER), (2, C, SERVER), (3, D, SERVER)]);
    let mut chosen = BTreeMap::<Addr, u32>::new();
    for vip in 0..60 {
        let vip = Addr::v4([10, 96, 1, vip]);
        let port = (vip, Port::new(80), Protocol::TCP);
        tables.serve(port, 0, &[(1, B, SERVER), (2, C, SERVER), (3, D, SERVER)]);
        let ask = tuple((POD, 40_000), (vip, 80), protocol::TCP);
        let other = backend(send(&tables, &ask, SYN));
        assert_ne!(other, B);
        *chosen.entry(other).or_default() += 1;
        assert_eq!(
            receive(&tables, &answer(other, protocol::TCP), SYN | ACK),
            Incoming::From { addr: vip, port: Port::new(80) }
        );
        // Its half under the frontend is forgotten: it finds the same backend again.
        tables.forget(&ask.flow_of_source(FlowKey::SERVICE));
        assert_eq!(backend(send(&tables, &ask, ACK)), other);
        // Over, so that the next one may have that.
        send(&tables, &ask, RST);
    }
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    is_held(&tables, &held, Incoming::Direct);
}

#[test]
fn a_client_that_is_bound_is_refused_rather_than_sent_elsewhere() {
    let mut tables = Memory::new();
    hold(&tables, &direct(), B);
    tables.serve(frontend(Protocol::TCP), 60, &[(1, B, SERVER)]);
    let elsewhere = tuple((POD, 40_001), (VIP, 80), protocol::TCP);
    assert_eq!(backend(send(&tables, &elsewhere, SYN)), B);
    tables.serve(frontend(Protocol::TCP), 60, &[(1, B, SERVER), (2, C, SERVER)]);
    assert_eq!(send(&tables, &ask(protocol::TCP), SYN), Outgoing::Refuse);
    assert_eq!(backend(send(&tables, &elsewhere, SYN)), B);
    is_held(&tables, &direct(), Incoming::Direct);
}

#[test]
fn a_direct_connection_leaves_a_held_one_to_a_service_from_the_same_port_alone() {
    for to_pod in [false, true] {
        let mut tables = Memory::new();
        tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
        let ask = ask(protocol::TCP);
        let direct = direct();
        let dial = |tables: &Memory, flags| {
            outgoing(tables, &direct, to_pod, &sighting(tables, &direct, Direction::Egress, flags))
        };
        // While it begins, and when it is established.
        assert_eq!(backend(send(&tables, &ask, SYN)), B);
        assert_eq!(dial(&tables, SYN), Outgoing::Refuse, "to a pod of this node: {to_pod}");
        hold(&tables, &ask, B);
        assert_eq!(dial(&tables, SYN), Outgoing::Refuse, "to a pod of this node: {to_pod}");
        is_held(&tables, &ask, FRONTEND);
        send(&tables, &ask, FIN | ACK);
        // It is over.
        assert_eq!(dial(&tables, SYN), Outgoing::Direct);
        assert_eq!(receive(&tables, &answer(B, protocol::TCP), SYN | ACK), Incoming::Direct);
        // And what its end left under the frontend has no say.
        assert_eq!(send(&tables, &ask, SYN), Outgoing::Refuse);
        assert_eq!(send(&tables, &ask, RST), Outgoing::Refuse);
        is_held(&tables, &direct, Incoming::Direct);
    }
}

#[test]
fn two_frontends_of_one_backend_do_not_share_a_port() {
    let mut tables = Memory::new();
    tables.serve(frontend(Protocol::TCP), 0, &[(1, B, SERVER)]);
    let other = Addr::v4([192, 0, 2, 10]);
    tables.serve((other, Port::new(80), Protocol::TCP), 0, &[(1, B, SERVER)]);
    let (ask, second) = (ask(protocol::TCP), tuple((POD, 40_000), (other, 80), protocol::TCP));
    hold(&tables, &ask, B);
    assert_eq!(send(&tables, &second, SYN), Outgoing::Refuse);
    is_held(&tables, &ask, FRONTEND);
}
