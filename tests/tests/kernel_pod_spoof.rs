//! A pod sends from its own addresses alone, and nobody but a node sends through the tunnel: each packet that says
//! otherwise is dropped and counted, and what is right passes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_datapath::Reason;
use portway_tests::harness::cluster_net::{Node, Pod, Routing, WORLD_V4, WORLD_V6};
use portway_tests::harness::frame::{
    ALL_NODES, BROADCAST, Mac, arp_reply, ethernet, icmp, neighbour_advertisement, router_advertisement, tcp,
    udp, vxlan,
};
use portway_tests::harness::manifest::{Service, UDP};
use portway_tests::harness::wire::Wire;
use portway_tests::harness::{ClusterNet, Namespace, eventually};

/// Each packet is sent so often.
const TIMES: u64 = 5;
/// Nobody's, in the node's pod CIDRs.
const UNUSED_V4: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 250);
const UNUSED_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 0, 0xfa);
const OTHER_MAC: Mac = [0x02, 0, 0, 0, 0, 0x66];

/// Who must hear nothing of it.
struct Ears(Vec<(&'static str, Wire)>);

impl Ears {
    fn check(&self, what: &str, marker: &[u8]) -> Result<()> {
        for (who, wire) in &self.0 {
            ensure!(!wire.has_heard(marker)?, "{what} reached {who}");
        }
        Ok(())
    }
}

/// Sends `frame`, which has `marker` in it, and waits until it was dropped for `reason` as often.
fn dropped(node: &Node, wire: &Wire, ears: &Ears, what: &str, frame: &[u8], marker: &[u8]) -> Result<()> {
    let before = node.dropped(Reason::InvalidSource)?;
    for _ in 0..TIMES {
        wire.send(frame)?;
    }
    eventually(Duration::from_secs(2), &format!("{what} to be counted"), || {
        let now = node.dropped(Reason::InvalidSource)? - before;
        ensure!(now >= TIMES, "{now} of {TIMES} are");
        Ok(())
    })?;
    ears.check(what, marker)
}

/// One UDP packet with a marker of its own.
fn datagram(source: IpAddr, destination: IpAddr, what: &str) -> (Vec<u8>, Vec<u8>) {
    let marker = format!("marker of {what}").into_bytes();
    (udp(SocketAddr::new(source, 7), SocketAddr::new(destination, 9), &marker), marker)
}

#[test]
fn a_pod_sends_from_its_own_addresses_alone() -> Result<()> {
    ClusterNet::test("spoof", 2, |net| {
        net.start_agents(Routing::Native, &[])?;
        let (mallory, victim) = (net.pod(1, "mallory")?, net.pod(1, "victim")?);
        let far = net.pod(2, "far")?;
        let node = net.node(1);
        let (wire, gateway) = (mallory.wire()?, mallory.gateway_mac()?);
        let ears = Ears(vec![
            ("the victim", victim.wire()?),
            ("a pod of the other node", far.wire()?),
            ("the other node", Wire::open(net.node(2).namespace(), "eth0")?),
            ("the world", Wire::open(net.world(), "eth0")?),
        ]);
        let destinations = |v6: bool| {
            [
                victim.address(v6),
                far.address(v6),
                if v6 { WORLD_V6.into() } else { WORLD_V4.into() },
                if v6 { net.node(2).v6().into() } else { net.node(2).v4().into() },
            ]
        };
        let strange: [(&str, IpAddr); 12] = [
            ("the neighbour's address", victim.v4.into()),
            ("a free address of the node", UNUSED_V4.into()),
            ("the address of a pod elsewhere", far.v4.into()),
            ("the node's address", node.v4().into()),
            ("an address of the world", WORLD_V4.into()),
            ("no address", Ipv4Addr::UNSPECIFIED.into()),
            ("the neighbour's address", victim.v6.into()),
            ("a free address of the node", UNUSED_V6.into()),
            ("the address of a pod elsewhere", far.v6.into()),
            ("the node's address", node.v6().into()),
            ("an address of the world", WORLD_V6.into()),
            ("no address", Ipv6Addr::UNSPECIFIED.into()),
        ];
        for (whose, source) in strange {
            for destination in destinations(source.is_ipv6()) {
                let what = format!("UDP from {whose}, {source}, to {destination}");
                let (packet, marker) = datagram(source, destination, &what);
                dropped(node, &wire, &ears, &what, &ethernet(wire.mac(), gateway, &packet), &marker)?;
                let what = format!("TCP from {whose}, {source}, to {destination}");
                let segment = tcp(SocketAddr::new(source, 7), SocketAddr::new(destination, 9), 2);
                dropped(node, &wire, &ears, &what, &ethernet(wire.mac(), gateway, &segment), &segment)?;
            }
        }
        for (what, source) in [("v4", IpAddr::from(mallory.v4)), ("v6", mallory.v6.into())] {
            for destination in destinations(source.is_ipv6()) {
                let what = format!("{what} from another hardware address to {destination}");
                let (packet, marker) = datagram(source, destination, &what);
                for mac in [OTHER_MAC, victim.wire()?.mac(), gateway] {
                    dropped(node, &wire, &ears, &what, &ethernet(mac, gateway, &packet), &marker)?;
                }
            }
        }
        // A link-local source speaks of neighbours, and of nothing else.
        let link_local: Ipv6Addr = "fe80::66".parse()?;
        let (packet, marker) = datagram(link_local.into(), far.v6.into(), "a link-local source");
        dropped(node, &wire, &ears, "UDP from fe80::66", &ethernet(wire.mac(), gateway, &packet), &marker)?;
        // A pod gets its address from the node, and gives none away.
        let (packet, marker) = datagram(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into(), "DHCP");
        dropped(node, &wire, &ears, "DHCP", &ethernet(wire.mac(), BROADCAST, &packet), &marker)?;
        right_ones_pass(node, &mallory, &wire, gateway, &[&victim, &far])
    })
}

/// The pod's own packets: none is counted as a drop.
fn right_ones_pass(node: &Node, pod: &Pod, wire: &Wire, gateway: Mac, to: &[&Pod]) -> Result<()> {
    let before = node.dropped(Reason::InvalidSource)?;
    for server in to {
        let ear = server.wire()?;
        for v6 in [false, true] {
            let what = format!("the pod's own packet to {}", server.name());
            let (packet, marker) = datagram(pod.address(v6), server.address(v6), &what);
            eventually(Duration::from_secs(2), &format!("{what} to arrive"), || {
                wire.send(&ethernet(wire.mac(), gateway, &packet))?;
                ensure!(ear.has_heard(&marker)?, "it did not");
                Ok(())
            })?;
        }
    }
    let counted = node.dropped(Reason::InvalidSource)? - before;
    ensure!(counted == 0, "{counted} packets of the pod's own are counted as drops");
    Ok(())
}

#[test]
fn a_pod_speaks_for_its_own_addresses_to_its_neighbours() -> Result<()> {
    ClusterNet::test("neighbours", 1, |net| {
        net.start_agents(Routing::Native, &[])?;
        let (mallory, victim) = (net.pod(1, "mallory")?, net.pod(1, "victim")?);
        let node = net.node(1);
        let wire = mallory.wire()?;
        let (mac, gateway) = (wire.mac(), mallory.gateway_mac()?);
        let ears = Ears(vec![("the victim", victim.wire()?)]);
        let link_local: Ipv6Addr = "fe80::66".parse()?;
        let router: Ipv6Addr = "fe80::1".parse()?;
        let before = node.ip(&["neigh", "show"])?;
        let lies = [
            ("ARP for the neighbour", arp_reply(mac, mac, victim.v4)),
            ("ARP for the gateway", arp_reply(mac, mac, "169.254.1.1".parse()?)),
            ("ARP for the node", arp_reply(mac, mac, node.v4())),
            ("ARP for itself at another hardware address", arp_reply(mac, OTHER_MAC, mallory.v4)),
            ("ARP from another hardware address", arp_reply(OTHER_MAC, mac, mallory.v4)),
            ("ND for the neighbour", nd(mac, mallory.v6, victim.v6, mac)),
            ("ND from the neighbour", nd(mac, victim.v6, mallory.v6, mac)),
            ("ND for the neighbour from a link-local address", nd(mac, link_local, victim.v6, mac)),
            ("ND for the gateway", nd(mac, link_local, router, mac)),
            ("ND for the node", nd(mac, mallory.v6, node.v6(), mac)),
            ("a router advertisement", ethernet(mac, multicast(), &router_advertisement(link_local))),
            ("a router advertisement", ethernet(mac, multicast(), &router_advertisement(mallory.v6))),
            ("a redirect", ethernet(mac, gateway, &redirect(link_local, mallory.v6, victim.v6))),
        ];
        for (what, lie) in lies {
            dropped(node, &wire, &ears, what, &lie, &lie)?;
        }
        assert_eq!(node.ip(&["neigh", "show"])?, before, "a neighbour has changed");
        // The truth is no drop.
        let before = node.dropped(Reason::InvalidSource)?;
        for truth in [arp_reply(mac, mac, mallory.v4), nd(mac, mallory.v6, mallory.v6, mac)] {
            wire.send(&truth)?;
        }
        right_ones_pass(node, &mallory, &wire, gateway, &[&victim])?;
        assert_eq!(node.dropped(Reason::InvalidSource)?, before);
        Ok(())
    })
}

const fn multicast() -> Mac {
    // RFC 2464, section 7, for all nodes.
    [0x33, 0x33, 0, 0, 0, 1]
}

fn nd(frame_source: Mac, source: Ipv6Addr, target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    ethernet(frame_source, multicast(), &neighbour_advertisement(source, target, mac))
}

/// "Reach `destination` by me": RFC 4861, section 4.5.
fn redirect(source: Ipv6Addr, target: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![137, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    message.extend(destination.octets());
    icmp(source.into(), ALL_NODES.into(), &message)
}

/// A datagram of the tunnel with a packet from `source` to `destination` in it.
fn tunnelled(source: IpAddr, destination: IpAddr, what: &str) -> (Vec<u8>, Vec<u8>) {
    let (packet, marker) = datagram(source, destination, what);
    // Portway's tunnel devices have one address.
    (vxlan(1, &ethernet(OTHER_MAC, BROADCAST, &packet)), marker)
}

/// Sends datagrams from `namespace` and waits until they were dropped for `reason` as often.
fn refused(
    node: &Node,
    (namespace, to): (&Namespace, SocketAddr),
    ears: &Ears,
    (what, reason): (&str, Reason),
    (payload, marker): (&[u8], &[u8]),
) -> Result<()> {
    let before = node.dropped(reason)?;
    namespace.run(|| {
        let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        (0..TIMES)
            .try_for_each(|_| socket.send_to(payload, to).map(drop))
            .with_context(|| format!("send to {to}"))
    })?;
    eventually(Duration::from_secs(2), &format!("{what} to be counted"), || {
        let now = node.dropped(reason)? - before;
        ensure!(now == TIMES, "{now} of {TIMES} are");
        Ok(())
    })?;
    ears.check(what, marker)
}

#[test]
fn only_a_node_sends_through_the_tunnel() -> Result<()> {
    ClusterNet::test("vxlan", 2, |net| {
        net.start_agents(Routing::Tunnel, &[])?;
        let (mallory, victim, far) = (net.pod(1, "mallory")?, net.pod(1, "victim")?, net.pod(2, "far")?);
        let stranger = net.stranger("stranger")?;
        // A service whose port becomes the tunnel's by its translation.
        let disguise = Service::new("disguise", &["10.96.2.1"]).port_to("tunnel", UDP, 53, TUNNEL);
        net.publish(&disguise, [portway_tests::harness::manifest::Endpoint::new(net.node(2).v4())])?;
        net.node(1).wait_programmed()?;
        let (here, there) = (net.node(1), net.node(2));
        let ears = Ears(vec![("the victim", victim.wire()?), ("a pod of the other node", far.wire()?)]);
        for (source, destination) in [
            (IpAddr::from(far.v4), IpAddr::from(victim.v4)),
            (far.v6.into(), victim.v6.into()),
            (victim.v4.into(), far.v4.into()),
            (WORLD_V4.into(), far.v4.into()),
        ] {
            for to in [
                SocketAddr::from((here.v4(), TUNNEL)),
                (here.v6(), TUNNEL).into(),
                (there.v4(), TUNNEL).into(),
                (there.v6(), TUNNEL).into(),
                (victim.v4, TUNNEL).into(),
                (far.v6, TUNNEL).into(),
                "10.96.2.1:53".parse()?,
            ] {
                let what =
                    format!("a tunnel packet from a pod to {to} with one from {source} to {destination}");
                let (payload, marker) = tunnelled(source, destination, &what);
                let what = (what.as_str(), Reason::TunnelFromPod);
                refused(here, (&mallory.namespace, to), &ears, what, (&payload, &marker))?;
            }
            let to = SocketAddr::from((here.v4(), TUNNEL));
            for (who, from) in [("a stranger on the link", &stranger), ("the world", net.world())] {
                let what = format!("a tunnel packet of {who} with one from {source} to {destination}");
                let (payload, marker) = tunnelled(source, destination, &what);
                let what = (what.as_str(), Reason::TunnelFromStranger);
                refused(here, (from, to), &ears, what, (&payload, &marker))?;
            }
        }
        // A node speaks for its own pods, not for those of another node or the world.
        for source in [IpAddr::from(victim.v4), victim.v6.into(), WORLD_V4.into(), here.v4().into()] {
            let destination = victim.address(source.is_ipv6());
            let what = format!("a tunnel packet of a node with one from {source}");
            let (payload, marker) = tunnelled(source, destination, &what);
            let (what, to) = ((what.as_str(), Reason::TunnelFromStranger), (here.v4(), TUNNEL).into());
            refused(here, (there.namespace(), to), &ears, what, (&payload, &marker))?;
        }
        Ok(())
    })
}

/// `tunnel-port`.
const TUNNEL: u16 = 8472;

#[test]
fn what_a_nodes_tunnel_brings_for_its_pods_arrives() -> Result<()> {
    ClusterNet::test("vxlan-right", 2, |net| {
        net.start_agents(Routing::Tunnel, &[])?;
        let (near, far) = (net.serving_pod(1, "near")?, net.pod(2, "far")?);
        let mut client = net.client(&far)?;
        let before = net.node(1).dropped(Reason::TunnelFromStranger)?;
        for v6 in [false, true] {
            let answer = client.tcp(near.socket(v6))?.unwrap();
            assert_eq!(answer.client.ip(), far.address(v6));
            client.ping(near.address(v6), 56)?.unwrap();
        }
        assert_eq!(net.node(1).dropped(Reason::TunnelFromStranger)?, before);
        Ok(())
    })
}
