//! NodePorts and host ports: where they answer, and who may bind their ports (post_bind4/6).

use anyhow::{Result, ensure};
use portway_tests::harness::fixture::{NODE_PORT, node_port_web, web};
use portway_tests::harness::manifest::{HostPortPod, TCP, UDP, endpoints};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::world::{NODE, NODE_V4, NODE_V6};
use portway_tests::harness::{Errno, Probe, Server, World};

/// Addresses of the node that a pod can reach: those of `eth0` and those of the first pod's link.
const NODE_ADDRESSES: [&str; 4] = ["172.18.0.10", "[fd00:172:18::10]", "10.244.1.1", "[fd00:10:244:1::1]"];
const LOOPBACK: [&str; 3] = ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"];
/// The kernel takes a connect to these for one to loopback.
const UNSPECIFIED: [&str; 3] = ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]"];

fn at(addr: &str, port: u16) -> String {
    format!("{addr}:{port}")
}

/// The server that answers TCP, connected UDP and unconnected UDP alike.
fn server(client: &mut Probe, to: &str) -> Result<Result<String, Errno>> {
    let tcp = client.tcp(to)?.map(|answer| answer.name);
    let udp = client.udp(to)?.map(|answer| answer.name);
    let socket = client.open_udp(to.starts_with('['))?;
    let datagram = client.send_to(socket, to)?.map(|answer| answer.name);
    ensure!(tcp == udp && tcp == datagram, "{to}: TCP {tcp:?}, connected UDP {udp:?}, UDP {datagram:?}");
    Ok(tcp)
}

#[test]
fn a_node_port_answers_on_every_address_of_the_node() -> Result<()> {
    World::test("nodeport", |world| {
        let a = world.serving_pod("a")?;
        let pod = world.pod("client")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&pod)?);
        for addr in NODE_ADDRESSES {
            let to = at(addr, NODE_PORT);
            assert_eq!(server(&mut node, &to)?, Ok("a".into()), "{to} from the node");
            assert_eq!(server(&mut pod, &to)?, Ok("a".into()), "{to} from a pod");
        }
        Ok(())
    })
}

#[test]
fn a_node_port_answers_on_loopback_from_the_node_alone() -> Result<()> {
    World::test("loopback", |world| {
        let a = world.serving_pod("a")?;
        let pod = world.pod("client")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        // The pod's own loopback is its own affair, also on this port.
        let _own = Server::start(&pod.namespace, "own", NODE_PORT)?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&pod)?);
        for addr in LOOPBACK.into_iter().chain(UNSPECIFIED) {
            let to = at(addr, NODE_PORT);
            assert_eq!(server(&mut node, &to)?, Ok("a".into()), "{to} from the node");
            assert_eq!(server(&mut pod, &to)?, Ok("own".into()), "{to} from a pod");
        }
        // All of 127.0.0.0/8 is loopback.
        assert_eq!(server(&mut node, &at("127.1.2.3", NODE_PORT))?, Ok("a".into()));
        assert_eq!(pod.tcp(at("127.1.2.3", NODE_PORT).as_str())?.unwrap().name, "own");
        Ok(())
    })
}

#[test]
fn the_peer_of_a_node_port_is_the_address_that_was_asked_for() -> Result<()> {
    World::test("nodeportpeer", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut node = world.node_client()?;
        for addr in NODE_ADDRESSES.into_iter().chain(LOOPBACK) {
            let to = at(addr, NODE_PORT);
            for answer in [node.tcp(to.as_str())?.unwrap(), node.udp(to.as_str())?.unwrap()] {
                assert_eq!(answer.peer, to.parse()?);
            }
        }
        Ok(())
    })
}

#[test]
fn node_ports_answer_only_where_nodeport_addresses_lets_them() -> Result<()> {
    World::test("nodeportaddrs", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&["--nodeport-addresses=172.18.0.0/24,fd00:172:18::/64"])?;
        let mut node = world.node_client()?;
        for addr in ["172.18.0.10", "[fd00:172:18::10]"] {
            assert_eq!(server(&mut node, &at(addr, NODE_PORT))?, Ok("a".into()), "{addr}");
        }
        for addr in ["10.244.1.1", "[fd00:10:244:1::1]"] {
            // Untranslated: nothing listens there.
            assert_eq!(node.tcp(at(addr, NODE_PORT).as_str())?.unwrap_err(), Errno::ECONNREFUSED, "{addr}");
        }
        // The key is about addresses that others reach the node by.
        for addr in LOOPBACK.into_iter().chain(UNSPECIFIED) {
            assert_eq!(server(&mut node, &at(addr, NODE_PORT))?, Ok("a".into()), "{addr}");
        }
        Ok(())
    })
}

#[test]
fn a_node_port_is_served_on_an_address_that_the_node_gets_later() -> Result<()> {
    World::test("newaddress", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut node = world.node_client()?;
        for (addr, prefix, to) in
            [("198.51.100.77", 32, "198.51.100.77:30080"), ("2001:db8::77", 128, "[2001:db8::77]:30080")]
        {
            let addr: std::net::IpAddr = addr.parse()?;
            assert_eq!(node.tcp(to)?.unwrap_err(), Errno::ENETUNREACH);
            world.node().add_address("eth0", addr, prefix)?;
            node.wait_servers(to, &["a"])?;
            world.node().delete_address("eth0", addr)?;
            node.wait_servers(to, &["ENETUNREACH"])?;
        }
        Ok(())
    })
}

#[test]
fn a_bind_to_a_node_port_is_denied_in_the_nodes_namespace_alone() -> Result<()> {
    World::test("bind", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&a)?);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            for addr in ["0.0.0.0", "[::]", "127.0.0.1", "[::1]", "172.18.0.10", "[fd00:172:18::10]"] {
                let to = at(addr, NODE_PORT);
                assert_eq!(
                    node.bind(protocol, to.as_str())?.unwrap_err(),
                    Errno::EADDRINUSE,
                    "{to} by {protocol:?}"
                );
                let free = at(addr, NODE_PORT + 1);
                let socket = node.bind(protocol, free.as_str())?.unwrap();
                node.close(socket)?;
            }
            for addr in ["0.0.0.0", "[::]", "127.0.0.1", "[::1]"] {
                let socket = pod.bind(protocol, at(addr, NODE_PORT).as_str())?.unwrap();
                pod.close(socket)?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_bind_is_free_outside_the_range_and_without_protection() -> Result<()> {
    World::test("bindfree", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        for flags in [["--node-port-range=31000,31999"], ["--node-port-bind-protection=false"]] {
            world.start_agent(&flags)?;
            let mut node = world.node_client()?;
            // It is served all the same.
            node.wait_servers((NODE_V4.into(), NODE_PORT), &["a"])?;
            let socket = node.bind(Protocol::Tcp, at("0.0.0.0", NODE_PORT).as_str())?.unwrap();
            node.close(socket)?;
            world.kill_agent()?;
        }
        Ok(())
    })
}

#[test]
fn a_node_port_range_may_be_reserved_from_the_ephemeral_ports() -> Result<()> {
    World::test("reserved", |world| {
        let reserved = |world: &World| -> Result<String> {
            world.node().run(|| Ok(std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports")?))
        };
        world.node().sysctl("ipv4/ip_local_port_range", "20000 60999")?;
        world.node().sysctl("ipv4/ip_local_reserved_ports", "21000")?;
        world.start_agent(&[])?;
        let ports = reserved(world)?;
        assert!(ports.contains("30000-32767") && ports.contains("21000"), "{ports:?}");
        Ok(())
    })
}

#[test]
fn a_host_port_reaches_its_pod_by_the_nodes_addresses() -> Result<()> {
    World::test("hostport", |world| {
        let a = world.serving_pod("a")?;
        let pod = world.pod("client")?;
        let with_ports = HostPortPod::new("a", "uid-a", NODE, a.v4)
            .port(TCP, 8443, 8080)
            .port(UDP, 8443, 8080)
            .port_on(NODE_V4, TCP, 8444, 8080);
        world.manifests().put("pods", [with_ports])?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&pod)?);
        for addr in ["172.18.0.10", "10.244.1.1"] {
            assert_eq!(server(&mut node, &at(addr, 8443))?, Ok("a".into()), "{addr} from the node");
            assert_eq!(server(&mut pod, &at(addr, 8443))?, Ok("a".into()), "{addr} from a pod");
        }
        assert_eq!(server(&mut node, "127.0.0.1:8443")?, Ok("a".into()));
        assert_eq!(pod.tcp("127.0.0.1:8443")?.unwrap_err(), Errno::ECONNREFUSED);
        // With a hostIP only there.
        assert_eq!(node.tcp((NODE_V4.into(), 8444))?.unwrap().name, "a");
        assert_eq!(node.tcp("10.244.1.1:8444")?.unwrap_err(), Errno::ECONNREFUSED);
        // The pod has no IPv6 address.
        assert_eq!(node.tcp((NODE_V6.into(), 8443))?.unwrap_err(), Errno::ECONNREFUSED);
        Ok(())
    })
}

#[test]
fn a_cluster_address_is_no_node_port() -> Result<()> {
    World::test("clusterip", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut node = world.node_client()?;
        assert_eq!(node.tcp((NODE_V4.into(), 80))?.unwrap_err(), Errno::ECONNREFUSED);
        assert!(node.tcp(("10.96.0.10".parse()?, NODE_PORT))?.is_err());
        Ok(())
    })
}
