//! Datagrams of unconnected sockets through a service: sendmsg4/6 and recvmsg4/6.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Service, UDP, endpoints};
use portway_tests::harness::probe::ToAddress;
use portway_tests::harness::{World, canonical, eventually, mapped};

/// How a socket may be used to send to a service: its family, and the address as it is given.
fn ways() -> Result<[(bool, SocketAddr); 4]> {
    let (v4, v6) = (WEB[0].to_address()?, WEB[1].to_address()?);
    Ok([(false, v4), (true, v6), (true, mapped(v4)), (true, v4)])
}

#[test]
fn a_reply_comes_from_the_service() -> Result<()> {
    World::test("reply", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        for mut client in [world.node_client()?, world.client(&pod)?] {
            for (v6, to) in ways()? {
                let socket = client.open_udp(v6)?;
                let answer = client.send_to(socket, to)?.unwrap();
                // An IPv6 socket sees IPv4 mapped, however it sent.
                let source = if v6 { mapped(to) } else { to };
                assert_eq!((answer.name.as_str(), answer.peer), ("a", source), "to {to}, IPv6 socket: {v6}");
            }
        }
        Ok(())
    })
}

#[test]
fn what_is_no_frontend_is_left_alone() -> Result<()> {
    World::test("direct", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pod)?;
        for (v6, to) in
            [(false, a.socket_v4(8080)), (true, a.socket_v6(8080)), (true, mapped(a.socket_v4(8080)))]
        {
            let socket = client.open_udp(v6)?;
            assert_eq!(client.send_to(socket, to)?.unwrap().peer, to);
        }
        Ok(())
    })
}

/// Backends that answer many sockets, so that each socket's faithfulness is no accident.
#[test]
fn a_socket_keeps_its_backend_and_sockets_spread() -> Result<()> {
    World::test("sticky", |world| {
        let pods = world.serving_pods(&["a", "b", "c", "d"])?;
        world.publish(&web(), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pods[0])?;
        for (v6, to) in ways()? {
            let mut servers = BTreeSet::new();
            for _ in 0..8 {
                let socket = client.open_udp(v6)?;
                let tally = client.send_many(socket, to, 200)?;
                assert_eq!((tally.by_name.len(), tally.answers()), (1, 200), "to {to}: {tally:?}");
                servers.extend(tally.by_name.into_keys());
            }
            // All eight on one backend: once in 16,384.
            assert!(servers.len() > 1, "to {to}: {servers:?}");
        }
        Ok(())
    })
}

#[test]
fn a_socket_moves_when_its_backend_leaves() -> Result<()> {
    World::test("moves", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&b)?;
        let mut sockets = Vec::new();
        for (v6, to) in ways()? {
            let socket = client.open_udp(v6)?;
            assert_eq!(client.send_to(socket, to)?.unwrap().name, "a");
            sockets.push((socket, to));
        }
        world.publish(&web(), endpoints(&[&a, &b]))?;
        client.wait_servers(WEB[0], &["a", "b"])?;
        client.wait_servers(WEB[1], &["a", "b"])?;
        for (socket, to) in &sockets {
            assert_eq!(client.send_many(*socket, *to, 50)?.by_name.get("a"), Some(&50), "{to}");
        }
        world.publish(&web(), endpoints(&[&b]))?;
        for (socket, to) in &sockets {
            eventually(Duration::from_secs(5), "the socket to move", || {
                let answer = client.send_to(*socket, *to)?.unwrap();
                ensure!(answer.name == "b", "{} answers", answer.name);
                Ok(())
            })?;
            assert_eq!(client.send_many(*socket, *to, 50)?.by_name.get("b"), Some(&50), "{to}");
        }
        Ok(())
    })
}

/// Both have the same pod, so the source of a reply says nothing but what the programs make of it.
#[test]
fn one_socket_and_two_services_of_one_pod_get_each_reply_from_the_right_one() -> Result<()> {
    World::test("two", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        let dns = Service::new("dns", &["10.96.0.53", "fd00:10:96::53"]).port("dns", UDP, 53);
        world.publish(&web(), endpoints(&[&a]))?;
        world.publish(&dns, endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pod)?;
        for (v6, pair) in [
            (false, [WEB[0], "10.96.0.53:53"]),
            (true, [WEB[1], "[fd00:10:96::53]:53"]),
            (true, ["[::ffff:10.96.0.10]:80", "[::ffff:10.96.0.53]:53"]),
        ] {
            let socket = client.open_udp(v6)?;
            for to in pair.into_iter().cycle().take(10) {
                assert_eq!(client.send_to(socket, to)?.unwrap().peer, to.to_address()?);
            }
        }
        Ok(())
    })
}

#[test]
fn one_socket_talks_to_a_service_and_to_its_pod() -> Result<()> {
    World::test("both", |world| {
        let (a, b, pod) = (world.serving_pod("a")?, world.serving_pod("b")?, world.pod("client")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pod)?;
        let socket = client.open_udp(false)?;
        for _ in 0..3 {
            let answer = client.send_to(socket, WEB[0])?.unwrap();
            assert_eq!((answer.name.as_str(), canonical(answer.peer)), ("a", WEB[0].to_address()?));
            let answer = client.send_to(socket, b.socket_v4(8080))?.unwrap();
            assert_eq!((answer.name.as_str(), answer.peer), ("b", b.socket_v4(8080)));
        }
        Ok(())
    })
}
