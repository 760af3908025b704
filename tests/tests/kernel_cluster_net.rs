//! The network of the pod tests itself, without an agent: what the other tests stand on.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::harness::cluster_net::{ROUTER_V4, WORLD, WORLD_V4, WORLD_V6};
use portway_tests::harness::frame::{ethernet, udp};
use portway_tests::harness::manifest::TARGET;
use portway_tests::harness::wire::Wire;
use portway_tests::harness::witness::{Heard, Witness};
use portway_tests::harness::{ClusterNet, Errno, Probe, Server, eventually};

#[test]
fn nodes_reach_each_other_and_the_world_and_each_sees_who_asks() -> Result<()> {
    ClusterNet::test("net", 3, |net| {
        let _servers: Vec<Server> = net
            .nodes()
            .iter()
            .map(|node| Server::start(node.namespace(), node.name(), TARGET))
            .collect::<Result<_>>()?;
        for from in net.nodes() {
            let mut client = from.client()?;
            let own = |v6: bool| if v6 { from.v6().into() } else { IpAddr::from(from.v4()) };
            let nodes = net
                .nodes()
                .iter()
                .flat_map(|node| [(node.name(), IpAddr::from(node.v4())), (node.name(), node.v6().into())]);
            let world = [(WORLD, IpAddr::from(WORLD_V4)), (WORLD, WORLD_V6.into())];
            for (name, addr) in nodes.chain(world) {
                let to = SocketAddr::new(addr, TARGET);
                // A node that asks itself is seen by the address that it asked for.
                for answer in [client.tcp(to)?.unwrap(), client.udp(to)?.unwrap()] {
                    assert_eq!(
                        (answer.name.as_str(), answer.client.ip()),
                        (name, own(addr.is_ipv6())),
                        "{to}"
                    );
                }
                client.ping(addr, 56)?.unwrap();
                client.ping(addr, 4000)?.unwrap();
            }
        }
        Ok(())
    })
}

#[test]
fn there_is_no_way_out_and_the_world_has_no_way_to_the_pods() -> Result<()> {
    ClusterNet::test("net-out", 1, |net| {
        let mut node = net.node(1).client()?;
        let mut world = Probe::start(net.world(), None)?;
        let unreachable = [Errno::ENETUNREACH, Errno::EHOSTUNREACH];
        for to in
            ["192.0.2.1:80", "[2001:db8:1::1]:80", "8.8.8.8:53", "10.244.1.2:80", "[fd00:10:244:1::2]:80"]
        {
            for client in [&mut node, &mut world] {
                let errno = client.tcp(to)?.unwrap_err();
                assert!(unreachable.contains(&errno), "{to}: {errno}");
            }
        }
        Ok(())
    })
}

#[test]
fn a_narrow_way_to_the_world_is_told_to_who_sends_more() -> Result<()> {
    ClusterNet::test("net-narrow", 1, |net| {
        net.narrow(1300)?;
        let mut client = net.node(1).client()?;
        for addr in [IpAddr::from(WORLD_V4), WORLD_V6.into()] {
            // The first is lost, and answered by the router; what comes after it is cut.
            eventually(Duration::from_secs(20), "a large ping to arrive", || {
                client.ping(addr, 1400)?.map_err(anyhow::Error::from)
            })?;
        }
        Ok(())
    })
}

#[test]
fn witnesses_and_wires_hear_what_comes() -> Result<()> {
    ClusterNet::test("net-hear", 1, |net| {
        let stranger = net.stranger("stranger")?;
        let node = net.node(1);
        let (witness, wire) = (Witness::start(&stranger)?, Wire::open(&stranger, "eth0")?);
        let mut client = node.client()?;
        client.ping("172.18.0.101".parse()?, 56)?.unwrap();
        client.ping("fd00:172:18::101".parse()?, 56)?.unwrap();
        assert_eq!(client.udp("172.18.0.101:9")?.unwrap_err(), Errno::ECONNREFUSED);
        let heard = witness.heard()?;
        for (what, from) in [
            (Heard::Echo, IpAddr::from(node.v4())),
            (Heard::Echo, node.v6().into()),
            (Heard::Datagram(9), node.v4().into()),
        ] {
            assert!(heard.contains(&(what, from)), "{what:?} from {from} is not in {heard:?}");
        }
        // A frame as it is, from an address that nobody has.
        let sender = Wire::open(node.namespace(), "eth0")?;
        let packet = udp("192.0.2.1:7".parse()?, "172.18.0.101:9".parse()?, b"from nowhere");
        sender.send(&ethernet(sender.mac(), wire.mac(), &packet))?;
        eventually(Duration::from_secs(2), "the frame to be heard", || {
            ensure!(wire.has_heard(b"from nowhere")?, "it was not");
            Ok(())
        })?;
        assert!(witness.heard()?.contains(&(Heard::Datagram(9), "192.0.2.1".parse()?)));
        assert_ne!(IpAddr::from(ROUTER_V4), IpAddr::from(node.v4()));
        Ok(())
    })
}
