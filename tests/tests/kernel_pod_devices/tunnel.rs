//! The tunnel device of two nodes, and of strangers.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use portway_datapath::{Direction, NumericIdentity, Reason};
use portway_tests::harness::frame;
use portway_tests::harness::probe::ping::ping;
use portway_tests::harness::wire::Wire;
use portway_tests::harness::{Namespace, Server, eventually};

use super::net::{Net, PATIENCE, PORT, TUNNEL_PORT, ip, lan, seen_by_tcp, seen_by_udp, udp_socket};

#[test]
fn pods_of_two_nodes_see_each_others_addresses_through_the_tunnel() -> Result<()> {
    let net = Net::tunnel("tunnel")?;
    let (one, other) = (&net.nodes[0].pods[0], &net.nodes[1].pods[0]);
    let _servers =
        [Server::start(&one.namespace, "one", PORT)?, Server::start(&other.namespace, "other", PORT)?];
    for at in 0..2 {
        for (client, server) in [(one, other), (other, one)] {
            let to = SocketAddr::new(server.addresses[at], PORT);
            assert_eq!(seen_by_tcp(&client.namespace, to)?.ip(), client.addresses[at]);
            let socket = udp_socket(&client.namespace, client.addresses[at], 0)?;
            assert_eq!(seen_by_udp(&socket, to, 10)?, socket.local_addr()?);
            assert_eq!(seen_by_udp(&socket, to, 4_000)?, socket.local_addr()?, "in pieces");
            client.namespace.run(|| Ok(ping(to.ip(), 56)?))?;
        }
    }
    Ok(())
}

#[test]
fn a_pod_and_another_node_see_each_others_addresses() -> Result<()> {
    let net = Net::tunnel("node")?;
    let (pod, node) = (&net.nodes[0].pods[0], &net.nodes[1]);
    for (at, addr) in node.addresses().into_iter().enumerate() {
        // The way back of the node is its agent's to make.
        let family = if at == 0 { "-4 route add 10.9.1.0/24" } else { "-6 route add fd09:1::/64" };
        ip(&node.namespace, &format!("{family} dev pw_vxlan src {addr}"))?;
        let _server = Server::start(&node.namespace, "node", PORT)?;
        let to = SocketAddr::new(addr, PORT);
        assert_eq!(seen_by_tcp(&pod.namespace, to)?.ip(), pod.addresses[at]);
        let _server = Server::start(&pod.namespace, "pod", PORT)?;
        let to = SocketAddr::new(pod.addresses[at], PORT);
        assert_eq!(seen_by_tcp(&node.namespace, to)?.ip(), addr);
        node.namespace.run(|| Ok(ping(to.ip(), 56)?))?;
    }
    Ok(())
}

#[test]
fn a_stranger_and_a_node_that_lies_are_not_heard() -> Result<()> {
    let net = Net::tunnel("stranger")?;
    let (node, pod) = (&net.nodes[0], &net.nodes[0].pods[0]);
    let (own, other) = (node.pods[1].addresses, net.nodes[1].pods[0].addresses);
    let [stranger, _] = lan(66);
    ip(&net.router, &format!("addr add {stranger}/24 dev lan"))?;
    let [world, world_v6] = super::world(2);
    let node_2 = &net.nodes[1].namespace;
    for at in 0..2 {
        let socket = udp_socket(&pod.namespace, pod.addresses[at], PORT)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut heard = [0; 64];
        // The one that may is heard, so that the others' silence says something.
        let right = (node_2, lan(2)[0], other[at]);
        tell(right, pod.addresses[at], b"right")?;
        let (len, from) = socket.recv_from(&mut heard)?;
        assert_eq!((&heard[..len], from.ip()), (&b"right"[..], other[at]));

        let lies = [
            (&net.router, stranger, other[at]),
            (&net.router, lan(254)[0], other[at]),
            (node_2, lan(2)[0], own[at]),
            (node_2, lan(2)[0], pod.addresses[at]),
            (node_2, lan(2)[0], node.addresses()[at]),
            (node_2, lan(2)[0], if at == 0 { world } else { world_v6 }),
        ];
        for (number, lie) in lies.into_iter().enumerate() {
            let before = node.counted(Reason::TunnelFromStranger, Direction::Ingress)?;
            tell(lie, pod.addresses[at], b"wrong")?;
            eventually(PATIENCE, "the packet to be dropped", || {
                let now = node.counted(Reason::TunnelFromStranger, Direction::Ingress)?;
                ensure!(now > before, "lie {number} was not");
                Ok(())
            })?;
        }
        tell(right, pod.addresses[at], b"again")?;
        let (len, _) = socket.recv_from(&mut heard)?;
        assert_eq!(&heard[..len], b"again", "somebody else was heard before");
    }
    Ok(())
}

#[test]
fn what_comes_by_the_tunnel_for_nobody_here_does_not_leave_again() -> Result<()> {
    let net = Net::tunnel("nobody")?;
    let node = &net.nodes[0];
    let right = (&net.nodes[1].namespace, lan(2)[0], net.nodes[1].pods[0].addresses[0]);
    let before = node.counted(Reason::UnknownEndpoint, Direction::Ingress)?;
    for nobody in ["10.9.1.200".parse()?, super::world(2)[0]] {
        tell(right, nobody, b"nobody")?;
    }
    eventually(PATIENCE, "both to be dropped", || {
        let now = node.counted(Reason::UnknownEndpoint, Direction::Ingress)?;
        ensure!(now == before + 2, "{} of 2 were", now - before);
        Ok(())
    })
}

/// The node itself is no pod: its neighbours know it as another node. An identity that only this node has a number for is not
/// told.
#[test]
fn who_sends_is_in_the_tunnels_network_identifier() -> Result<()> {
    const POD: NumericIdentity = NumericIdentity::new(48_861);
    const LOCAL: NumericIdentity = NumericIdentity::new(NumericIdentity::LOCAL_FIRST);
    let net = Net::tunnel("vni")?;
    let (node, pod, other) = (&net.nodes[0], &net.nodes[0].pods[0], &net.nodes[1].pods[0]);
    let wire = Wire::open(&net.nodes[1].namespace, "eth0")?;
    ip(&node.namespace, &format!("-4 route replace 10.9.2.0/24 dev pw_vxlan src {}", lan(1)[0]))?;
    let from_pod = udp_socket(&pod.namespace, pod.addresses[0], 0)?;
    let from_node = udp_socket(&node.namespace, lan(1)[0], 0)?;
    let id = node.tables.endpoints()?[&pod.addresses[0].into()].id;
    for (identity, socket, expected) in [
        (NumericIdentity::UNKNOWN, &from_pod, NumericIdentity::UNKNOWN),
        (POD, &from_pod, POD),
        (LOCAL, &from_pod, NumericIdentity::UNKNOWN),
        (POD, &from_node, NumericIdentity::REMOTE_NODE),
    ] {
        node.tables.set_endpoint_identity(id, identity)?;
        let text = format!("from {identity}, seen as {expected}");
        socket.send_to(text.as_bytes(), SocketAddr::new(other.addresses[0], PORT))?;
        eventually(PATIENCE, &text, || {
            let heard = wire.heard()?;
            let vni = heard.iter().find_map(|frame| vni_of(frame, text.as_bytes()));
            ensure!(vni == Some(expected.get()), "the network identifier is {vni:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The network identifier of a VXLAN packet by IPv4 that has these bytes in it (RFC 7348, section 5).
fn vni_of(frame: &[u8], marker: &[u8]) -> Option<u32> {
    const HEADER: usize = 14 + 20 + 8;
    frame.windows(marker.len()).find(|window| *window == marker)?;
    let vxlan: [u8; 8] = frame.get(HEADER..HEADER + 8)?.try_into().ok()?;
    (vxlan[0] == 0x08).then(|| u32::from_be_bytes([0, vxlan[4], vxlan[5], vxlan[6]]))
}

/// Sends the first node a tunnel packet from `outer` in a namespace, with a datagram of `inner` to `to`.
fn tell((namespace, outer, inner): (&Namespace, IpAddr, IpAddr), to: IpAddr, text: &[u8]) -> Result<()> {
    let packet = frame::udp(SocketAddr::new(inner, 9_999), SocketAddr::new(to, PORT), text);
    let mac = portway_datapath::NodeNetwork::TUNNEL_MAC;
    let payload = frame::vxlan(1, &frame::ethernet([2, 0, 0, 0, 0, 1], mac, &packet));
    let socket = udp_socket(namespace, outer, 0)?;
    socket.send_to(&payload, SocketAddr::new(lan(1)[0], TUNNEL_PORT))?;
    Ok(())
}
