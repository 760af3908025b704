//! Connects through a service: connect4/6 and getpeername4/6, TCP and UDP, from the node and from pods.

use std::net::IpAddr;

use anyhow::Result;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::endpoints;
use portway_tests::harness::probe::{Protocol, ToAddress};
use portway_tests::harness::{Errno, World, mapped};

#[test]
fn a_connect_reaches_every_backend_in_both_families() -> Result<()> {
    World::test("connect", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        world.publish(&web(), endpoints(&[&a, &b]))?;
        world.start_agent(&[])?;
        for mut client in [world.node_client()?, world.client(&a)?] {
            for to in WEB {
                let both = ["a", "b"].map(String::from).into();
                assert_eq!(client.servers(to)?, both, "{to} by TCP");
                assert_eq!(client.udp_servers(to)?, both, "{to} by UDP");
            }
        }
        Ok(())
    })
}

#[test]
fn the_peer_of_a_connected_socket_is_the_service_and_the_server_sees_the_client() -> Result<()> {
    World::test("peername", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pod)?;
        for to in WEB {
            let own: IpAddr = if to.starts_with('[') { pod.v6.into() } else { pod.v4.into() };
            for answer in [client.tcp(to)?.unwrap(), client.udp(to)?.unwrap()] {
                assert_eq!(answer.peer, to.to_address()?);
                assert_eq!(answer.client.ip(), own);
            }
        }
        Ok(())
    })
}

#[test]
fn a_mapped_address_on_an_ipv6_socket_reaches_the_ipv4_service() -> Result<()> {
    World::test("mapped", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        world.publish(&web(), [a.endpoint()])?;
        world.start_agent(&[])?;
        let to = mapped(WEB[0].to_address()?);
        for mut client in [world.node_client()?, world.client(&pod)?] {
            for answer in [client.tcp(to)?.unwrap(), client.udp(to)?.unwrap()] {
                assert_eq!((answer.name.as_str(), answer.peer), ("a", to));
                assert!(answer.client.is_ipv4());
            }
        }
        Ok(())
    })
}

#[test]
fn what_is_no_frontend_is_left_alone() -> Result<()> {
    World::test("others", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&a)?);
        for to in ["10.96.0.10:81", "[fd00:10:96::10]:81", "10.96.0.11:80", "[fd00:10:96::11]:80"] {
            // Untranslated: the namespaces have no route there.
            assert_eq!(node.tcp(to)?.unwrap_err(), Errno::ENETUNREACH, "{to}");
            assert_eq!(node.udp(to)?.unwrap_err(), Errno::ENETUNREACH, "{to}");
        }
        for client in [&mut node, &mut pod] {
            for to in [a.socket_v4(8080), a.socket_v6(8080)] {
                assert_eq!(client.tcp(to)?.unwrap().peer, to);
                assert_eq!(client.udp(to)?.unwrap().peer, to);
            }
        }
        Ok(())
    })
}

#[test]
fn a_client_outside_the_control_group_is_left_alone() -> Result<()> {
    World::test("outside", |world| {
        let (a, pod) = (world.serving_pod("a")?, world.pod("client")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let (mut inside, mut outside) = (world.client(&pod)?, world.outside_client(&pod)?);
        for to in WEB {
            assert!(inside.tcp(to)?.is_ok());
            assert!(outside.tcp(to)?.is_err(), "{to}");
        }
        Ok(())
    })
}

#[test]
fn a_service_without_backends_refuses_until_it_has_some() -> Result<()> {
    World::test("nobackends", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), [])?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&a)?);
        let refusing = [WEB[0].to_address()?, WEB[1].to_address()?, mapped(WEB[0].to_address()?)];
        for client in [&mut node, &mut pod] {
            for to in refusing {
                assert_eq!(client.tcp(to)?.unwrap_err(), Errno::ECONNREFUSED, "{to} by TCP");
                assert_eq!(client.udp(to)?.unwrap_err(), Errno::ECONNREFUSED, "{to} by connected UDP");
                let socket = client.open_udp(to.is_ipv6())?;
                assert_eq!(client.send_to(socket, to)?.unwrap_err(), Errno::ECONNREFUSED, "{to} by UDP");
            }
        }
        world.publish(&web(), endpoints(&[&a]))?;
        for to in WEB {
            pod.wait_servers(to, &["a"])?;
        }
        world.publish(&web(), endpoints(&[&a]).into_iter().map(|endpoint| endpoint.not_ready()))?;
        for to in WEB {
            pod.wait_servers(to, &["ECONNREFUSED"])?;
        }
        Ok(())
    })
}

#[test]
fn a_connection_stays_with_its_backend_when_that_leaves_the_service() -> Result<()> {
    World::test("established", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&b)?;
        let mut open = Vec::new();
        for to in WEB {
            open.push(client.connect(Protocol::Tcp, to)?.0);
            open.push(client.connect(Protocol::Udp, to)?.0);
        }
        world.publish(&web(), endpoints(&[&b]))?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        for socket in open {
            assert_eq!(client.again(socket)?.unwrap().name, "a");
        }
        Ok(())
    })
}
