//! The programs at a pod's link, on a kernel: conntrack, services by packets, delivery, sources, errors, pieces.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "kernel_pod_programs/errors.rs"]
mod errors;
mod pod_programs;
#[path = "kernel_pod_programs/ports.rs"]
mod ports;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use pod_programs::{HAIRPIN_V4, HAIRPIN_V6, Node, POD_SIZES, PORT};
use portway_datapath::{FlowKey, FlowMap, FlowValue, Reason};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::{Errno, Outcome, eventually, frame};

fn frontends() -> [SocketAddr; 2] {
    ["10.96.0.10:80".parse().unwrap(), "[fd00:96::10]:80".parse().unwrap()]
}

/// Who a client reached, and whom the server saw.
#[track_caller]
fn answered(outcome: Outcome) -> (String, IpAddr) {
    let answer = outcome.unwrap();
    (answer.name, answer.client.ip())
}

#[test]
fn pods_of_a_node_reach_each_other_and_the_node_past_its_stack() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let mut client = a.client()?;
    // With nobody to forward for, what arrives was delivered by the programs.
    for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        node.namespace.sysctl(key, "0")?;
    }
    for (to, own) in b.sockets().into_iter().zip([IpAddr::V4(a.v4), a.v6.into()]) {
        assert_eq!(answered(client.tcp(to)?), ("b".to_owned(), own));
        assert_eq!(answered(client.udp(to)?), ("b".to_owned(), own));
        assert_eq!(client.ping(to.ip(), 100)?, Ok(()));
    }
    // Each end has its own entry of each flow: three protocols, two families.
    for (local, from_peer) in [(a.v4, false), (b.v4, true)] {
        let flows = node.flows(local.into())?;
        assert_eq!(flows.len(), 3, "{flows:?}");
        for (map, key, value) in flows {
            assert_eq!(map, FlowMap::Established, "{key:?}");
            assert_eq!(value.is(FlowValue::FROM_PEER), from_peer, "{key:?} {value:?}");
            assert!(value.is_answered() && value.packets_in > 0 && value.packets_out > 0, "{value:?}");
        }
    }
    assert_eq!(node.counted(Reason::KernelError)?, 0);
    Ok(())
}

#[test]
fn the_node_reaches_its_pods_and_they_the_node() -> Result<()> {
    let mut node = Node::new()?;
    let a = node.pod("a")?;
    let addresses: [IpAddr; 2] = ["172.18.0.10".parse()?, "fd00:172:18::10".parse()?];
    for addr in addresses {
        node.namespace.add_address("lo", addr, if addr.is_ipv4() { 32 } else { 128 })?;
    }
    let _server = portway_tests::harness::Server::start(&node.namespace, "node", PORT)?;
    let mut on_node = portway_tests::harness::Probe::start(&node.namespace, None)?;
    let mut client = a.client()?;
    for (to, node_address) in a.sockets().into_iter().zip(addresses) {
        assert_eq!(answered(on_node.tcp(to)?).0, "a");
        assert_eq!(answered(on_node.udp(to)?).0, "a");
        assert_eq!(on_node.ping(to.ip(), 100)?, Ok(()));
        let own = to.ip();
        let node = SocketAddr::new(node_address, PORT);
        assert_eq!(answered(client.tcp(node)?), ("node".to_owned(), own));
        assert_eq!(answered(client.udp(node)?), ("node".to_owned(), own));
        assert_eq!(client.ping(node_address, 100)?, Ok(()));
    }
    Ok(())
}

#[test]
fn a_service_is_reached_by_packets_and_the_client_keeps_its_address() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let mut client = a.client()?;
    for (n, (frontend, backend)) in frontends().into_iter().zip(b.sockets()).enumerate() {
        node.service(1 + n as u32, frontend, &[backend])?;
        let own = if frontend.is_ipv4() { IpAddr::V4(a.v4) } else { a.v6.into() };
        for outcome in [client.tcp(frontend)?, client.udp(frontend)?] {
            let answer = outcome.unwrap();
            assert_eq!((answer.name.as_str(), answer.client.ip(), answer.peer), ("b", own, frontend));
        }
    }
    let services: Vec<_> =
        node.flows(a.v4.into())?.into_iter().filter(|(_, key, _)| key.kind == FlowKey::SERVICE).collect();
    assert_eq!(services.len(), 2);
    for (map, key, value) in services {
        assert_eq!(value.other(), Some((b.v4_addr(), portway_datapath::Port::new(PORT))), "{key:?}");
        assert!(map == FlowMap::Established || key.protocol == frame::UDP, "{key:?} {map:?}");
    }
    Ok(())
}

#[test]
fn a_connection_stays_with_its_backend_when_the_service_has_another() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b, c) = (node.pod("a")?, node.pod("b")?, node.pod("c")?);
    let mut client = a.client()?;
    for (n, frontend) in frontends().into_iter().enumerate() {
        node.service(1 + n as u32, frontend, &[b.sockets()[n]])?;
        let (tcp, answer) = client.connect(Protocol::Tcp, frontend)?;
        assert_eq!(answer.name, "b");
        let (udp, answer) = client.connect(Protocol::Udp, frontend)?;
        assert_eq!(answer.name, "b");
        node.service(1 + n as u32, frontend, &[c.sockets()[n]])?;
        assert_eq!(answered(client.again(tcp)?).0, "b", "a connection");
        assert_eq!(answered(client.tcp(frontend)?).0, "c", "a new connection");
        // Its backend's slot still says that it serves, so the exchange stays; the next one goes elsewhere.
        assert_eq!(answered(client.again(udp)?).0, "b", "an exchange");
        assert_eq!(answered(client.udp(frontend)?).0, "c", "a new exchange");
    }
    Ok(())
}

#[test]
fn a_pod_reaches_itself_by_its_service_in_both_families() -> Result<()> {
    let mut node = Node::new()?;
    let a = node.pod("a")?;
    let mut client = a.client()?;
    for (n, (frontend, backend)) in frontends().into_iter().zip(a.sockets()).enumerate() {
        node.service(1 + n as u32, frontend, &[backend])?;
        let seen = if frontend.is_ipv4() { IpAddr::V4(HAIRPIN_V4) } else { HAIRPIN_V6.into() };
        for outcome in [client.tcp(frontend)?, client.udp(frontend)?] {
            let answer = outcome.unwrap();
            assert_eq!((answer.name.as_str(), answer.client.ip(), answer.peer), ("a", seen, frontend));
        }
        let (kept, _) = client.connect(Protocol::Tcp, frontend)?;
        for _ in 0..3 {
            assert_eq!(answered(client.again(kept)?).0, "a");
        }
    }
    Ok(())
}

#[test]
fn a_service_without_backends_refuses_at_once() -> Result<()> {
    let mut node = Node::new()?;
    let a = node.pod("a")?;
    let mut client = a.client()?;
    for (n, frontend) in frontends().into_iter().enumerate() {
        node.service(1 + n as u32, frontend, &[])?;
        assert_eq!(client.tcp(frontend)?.unwrap_err(), Errno::ECONNREFUSED, "TCP to {frontend}");
        assert_eq!(client.udp(frontend)?.unwrap_err(), Errno::ECONNREFUSED, "UDP to {frontend}");
    }
    assert!(node.counted(Reason::NoBackends)? >= 4);
    assert!(node.flows(a.v4.into())?.is_empty(), "what was refused is no flow");
    // Each is counted once. (The pod's stack may send something of its own meanwhile.)
    const ASKS: u64 = 50;
    let (refused, forwarded) = (node.counted(Reason::NoBackends)?, node.counted(Reason::Forwarded)?);
    let wire = a.wire()?;
    for port in 0..ASKS as u16 {
        let ask = frame::udp((a.v4, 2000 + port).into(), frontends()[0], b"anybody");
        wire.send(&frame::ethernet(a.mac, a.node_mac, &ask))?;
    }
    eventually(Duration::from_secs(5), "all are refused", || {
        ensure!(node.counted(Reason::NoBackends)? == refused + ASKS);
        Ok(())
    })?;
    assert!(node.counted(Reason::Forwarded)? < forwarded + ASKS);
    Ok(())
}

#[test]
fn the_pieces_of_a_datagram_go_where_its_first_one_goes() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let mut client = a.client()?;
    for (n, (frontend, backend)) in frontends().into_iter().zip(b.sockets()).enumerate() {
        node.service(1 + n as u32, frontend, &[backend])?;
        for to in [frontend, backend] {
            assert_eq!(answered(client.udp_large(to, 5000)?).0, "b", "{to}");
        }
        assert_eq!(client.ping(backend.ip(), 5000)?, Ok(()));
    }
    assert_eq!(node.counted(Reason::UnknownFragment)?, 0);
    // A later piece without its first one is nobody's: IPv4, 8 bytes at offset 800.
    let mut packet = frame::udp((a.v4, 7).into(), (b.v4, PORT).into(), b"a piece");
    packet[6..8].copy_from_slice(&100u16.to_be_bytes());
    packet[10..12].fill(0);
    let sum = frame::checksum(0, &packet[..20]).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    a.wire()?.send(&frame::ethernet(a.mac, a.node_mac, &packet))?;
    eventually(Duration::from_secs(5), "the piece is dropped", || {
        ensure!(node.counted(Reason::UnknownFragment)? == 1);
        Ok(())
    })
}

#[test]
fn an_error_of_a_backend_is_one_of_the_service_for_its_client() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let mut client = a.client()?;
    // Nothing listens there, at another pod or at the client itself: a connected socket hears only of the peer it knows.
    for (n, backend) in [IpAddr::V4(b.v4), b.v6.into(), a.v4.into(), a.v6.into()].into_iter().enumerate() {
        let frontend = SocketAddr::new(frontends()[usize::from(backend.is_ipv6())].ip(), 90 + n as u16);
        node.service(1 + n as u32, frontend, &[(backend, 9).into()])?;
        assert_eq!(client.udp(frontend)?.unwrap_err(), Errno::ECONNREFUSED, "{frontend} at {backend}");
        assert_eq!(client.tcp(frontend)?.unwrap_err(), Errno::ECONNREFUSED, "{frontend} at {backend}");
    }
    Ok(())
}

#[test]
fn a_segment_whose_flags_are_cut_off_is_dropped() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let (wire, heard) = (a.wire()?, b.wire()?);
    for (from, to) in a.sockets().into_iter().zip(b.sockets()) {
        let mut segment = Vec::new();
        segment.extend(PORT.to_be_bytes());
        segment.extend(to.port().to_be_bytes());
        segment.extend(b"a cut segment");
        // RFC 1858: the flags would come in another piece. What follows the packet in its frame is not the packet's.
        for len in [8, 13] {
            for padding in [&[][..], &[0; 20]] {
                let before = node.counted(Reason::Malformed)?;
                let mut packet = frame::ip(from.ip(), to.ip(), frame::TCP, &segment[..len]);
                packet.extend(padding);
                wire.send(&frame::ethernet(a.mac, a.node_mac, &packet))?;
                eventually(Duration::from_secs(5), "the segment is dropped", || {
                    ensure!(node.counted(Reason::Malformed)? == before + 1, "{to} {len} {}", padding.len());
                    Ok(())
                })?;
            }
        }
    }
    assert!(!heard.has_heard(b"a cu")?);
    Ok(())
}

#[test]
fn a_pod_sends_only_from_what_is_its_own() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b) = (node.pod("a")?, node.pod("b")?);
    let (wire, heard) = (a.wire()?, b.wire()?);
    let link_local: Ipv6Addr = "fe80::77".parse()?;
    let to = |v6: bool| SocketAddr::new(if v6 { b.v6.into() } else { b.v4.into() }, PORT);
    let udp = |from: IpAddr| frame::udp((from, 7).into(), to(from.is_ipv6()), b"a spoof");
    let framed = |packet: &[u8]| frame::ethernet(a.mac, a.node_mac, packet);
    let strangers: [IpAddr; 6] = [
        b.v4.into(),
        b.v6.into(),
        "10.9.9.9".parse()?,
        "0.0.0.0".parse()?,
        "fd00:9::9".parse()?,
        link_local.into(),
    ];
    let mut spoofs: Vec<Vec<u8>> = strangers.into_iter().map(|from| framed(&udp(from))).collect();
    spoofs.push(frame::ethernet(b.mac, a.node_mac, &udp(a.v4.into())));
    spoofs.push(frame::arp_reply(a.mac, a.mac, b.v4));
    spoofs.push(frame::arp_reply(a.mac, b.mac, a.v4));
    spoofs.push(framed(&frame::neighbour_advertisement(link_local, b.v6, a.mac)));
    spoofs.push(framed(&frame::neighbour_advertisement(b.v6, b.v6, a.mac)));
    spoofs.push(framed(&frame::neighbour_advertisement(a.v6, a.v6, b.mac)));
    spoofs.push(framed(&frame::neighbour_advertisement("fe80::1".parse()?, a.v6, a.mac)));
    spoofs.push(framed(&frame::router_advertisement(link_local)));
    for (n, spoof) in spoofs.iter().enumerate() {
        let before = node.counted(Reason::InvalidSource)?;
        wire.send(spoof)?;
        eventually(Duration::from_secs(5), "the spoof is dropped", || {
            ensure!(node.counted(Reason::InvalidSource)? == before + 1, "number {n}: {spoof:02x?}");
            Ok(())
        })?;
    }
    assert!(!heard.has_heard(b"a spoof")?);
    let before = node.counted(Reason::InvalidSource)?;
    let honest = [
        frame::arp_reply(a.mac, a.mac, a.v4),
        framed(&frame::neighbour_advertisement(link_local, a.v6, a.mac)),
        framed(&udp(a.v6.into())),
        framed(&udp(a.v4.into())),
    ];
    for frame in honest {
        wire.send(&frame)?;
    }
    eventually(Duration::from_secs(5), "what is honest arrives", || {
        ensure!(heard.has_heard(b"a spoof")?);
        Ok(())
    })?;
    assert_eq!(node.counted(Reason::InvalidSource)?, before);
    Ok(())
}

#[test]
fn a_flood_of_syns_breaks_no_connection_and_keeps_none_from_being_made() -> Result<()> {
    let mut node = Node::new()?;
    let (a, b, c) = (node.pod("a")?, node.pod("b")?, node.pod("c")?);
    let [frontend, _] = frontends();
    node.service(1, frontend, &[b.sockets()[0]])?;
    let mut client = c.client()?;
    let (kept, _) = client.connect(Protocol::Tcp, frontend)?;
    let (early, _) = client.connect(Protocol::Tcp, b.sockets()[0])?;
    // More exchanges than pw_conntrack has room for, each with two entries: what comes then finds none.
    for _ in 0..=POD_SIZES.conntrack / 2 {
        assert_eq!(answered(client.udp(b.sockets()[0])?).0, "b");
    }
    assert!(node.counted(Reason::MapFull)? > 0);
    let wire = a.wire()?;
    for round in 0..20u16 {
        for port in 0..500u16 {
            let from = SocketAddr::new(a.v4.into(), 1024 + round * 500 + port);
            let syn = frame::tcp(from, (b.v4, 9).into(), 2);
            wire.send(&frame::ethernet(a.mac, a.node_mac, &syn))?;
        }
        for socket in [kept, early] {
            assert_eq!(answered(client.again(socket)?).0, "b", "round {round}");
        }
        assert_eq!(answered(client.tcp(frontend)?).0, "b", "round {round}");
        assert_eq!(answered(client.udp(frontend)?).0, "b", "round {round}");
    }
    Ok(())
}
