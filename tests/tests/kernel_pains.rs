//! What hurt users of other systems: a test for each class of `pains.md` that the socket path is about, named after
//! its number.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::harness::fixture::{NODE_PORT, WEB, node_port_web, web};
use portway_tests::harness::manifest::{Endpoint, HostPortPod, TCP, UDP, endpoints, node};
use portway_tests::harness::probe::{Protocol, ToAddress};
use portway_tests::harness::world::{NODE, NODE_V4};
use portway_tests::harness::{Errno, World, eventually, mapped};

/// <https://github.com/cilium/cilium/issues/27096>
#[test]
fn pain_09_a_terminating_backend_gets_no_new_connection_by_affinity() -> Result<()> {
    World::test("pain09", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let service = web().affinity(600);
        world.publish(&service, endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.servers(to)?, ["a".to_owned()].into());
        }
        world.publish(
            &service,
            [a.endpoint().terminating(), a.endpoint_v6().terminating(), b.endpoint(), b.endpoint_v6()],
        )?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/41022>
#[test]
fn pain_11_with_no_endpoint_in_the_zone_all_serve() -> Result<()> {
    World::test("pain11", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let service = web().with("trafficDistribution", "PreferClose");
        world.manifests().put("node", [node(NODE, "zone-a")])?;
        let in_zone = |pod: &portway_tests::harness::Pod, zone: &str| {
            [pod.endpoint().for_zones(&[zone]), pod.endpoint_v6().for_zones(&[zone])]
        };
        world.publish(&service, in_zone(&a, "zone-b").into_iter().chain(in_zone(&b, "zone-b")))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["a", "b"])?;
        }
        // With one in the zone it alone serves, and the hint is no dead letter.
        world.publish(&service, in_zone(&a, "zone-a").into_iter().chain(in_zone(&b, "zone-b")))?;
        for to in WEB {
            client.wait_servers(to, &["a"])?;
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/48455>
#[test]
fn pain_19_the_newest_live_pod_has_the_host_port_at_once() -> Result<()> {
    World::test("pain19", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let old = HostPortPod::new("db-0", "uid-1", NODE, a.v4).port(TCP, 8443, 8080);
        let new = HostPortPod::new("db-0", "uid-2", NODE, b.v4)
            .created("2026-06-01T00:00:00Z")
            .port(TCP, 8443, 8080);
        world.manifests().put("old", [old.clone()])?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        let to = (NODE_V4.into(), 8443);
        client.wait_servers(to, &["a"])?;
        // The successor comes; the old one's end is news that has not arrived yet.
        world.manifests().put("old", [old.succeeded()])?;
        world.manifests().put("new", [new])?;
        client.wait_servers(to, &["b"])?;
        world.manifests().remove("old")?;
        world.wait_programmed()?;
        client.wait_servers(to, &["b"])
    })
}

/// <https://github.com/cilium/cilium/issues/41426>
#[test]
fn pain_20_one_host_port_serves_tcp_and_udp() -> Result<()> {
    World::test("pain20", |world| {
        let a = world.serving_pod("a")?;
        world.manifests().put(
            "dns",
            [HostPortPod::new("dns", "uid-1", NODE, a.v4).port(TCP, 53, 8080).port(UDP, 53, 8080)],
        )?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        let to = (NODE_V4.into(), 53);
        assert_eq!(client.tcp(to)?.unwrap().name, "a");
        assert_eq!(client.udp(to)?.unwrap().name, "a");
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/32805>
#[test]
fn pain_21_the_late_end_of_a_pod_with_the_same_address_takes_nothing_away() -> Result<()> {
    World::test("pain21", |world| {
        let a = world.serving_pod("a")?;
        let old = HostPortPod::new("old", "uid-1", NODE, a.v4).port(TCP, 8443, 8080);
        let new = HostPortPod::new("new", "uid-2", NODE, a.v4)
            .created("2026-06-01T00:00:00Z")
            .port(TCP, 8443, 8080);
        world.manifests().put("old", [old])?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        let to = (NODE_V4.into(), 8443);
        client.wait_servers(to, &["a"])?;
        let mut load = world.node_client()?;
        load.start_connects(&[to.into()], 1000, 1000)?;
        world.manifests().put("new", [new])?;
        world.wait_programmed()?;
        world.manifests().remove("old")?;
        world.wait_programmed()?;
        let tally = load.finish_connects()?;
        assert_eq!((tally.answers(), tally.failures()), (1000, 0), "{tally:?}");
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/45184>
#[test]
fn pain_25_a_service_without_backends_says_connection_refused() -> Result<()> {
    World::test("pain25", |world| {
        let a = world.pod("a")?;
        world.publish(&node_port_web(), [])?;
        world.start_agent(&[])?;
        for mut client in [world.node_client()?, world.client(&a)?] {
            for to in [WEB[0], WEB[1], "172.18.0.10:30080", "[fd00:172:18::10]:30080"] {
                let to = to.to_address()?;
                for to in [to, mapped(to)] {
                    assert_eq!(client.tcp(to)?.unwrap_err(), Errno::ECONNREFUSED, "{to}");
                    assert_eq!(client.udp(to)?.unwrap_err(), Errno::ECONNREFUSED, "{to}");
                    let socket = client.open_udp(to.is_ipv6())?;
                    assert_eq!(client.send_to(socket, to)?.unwrap_err(), Errno::ECONNREFUSED, "{to}");
                }
            }
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/19067>
#[test]
fn pain_27_a_port_is_free_again_when_its_node_port_has_gone() -> Result<()> {
    World::test("pain27", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&a)?);
        for addr in ["0.0.0.0", "[::]"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let to = format!("{addr}:{NODE_PORT}");
                assert_eq!(node.bind(protocol, to.as_str())?.unwrap_err(), Errno::EADDRINUSE);
                // Another namespace has its own ports.
                let socket = pod.bind(protocol, to.as_str())?.unwrap();
                pod.close(socket)?;
            }
        }
        world.publish(&web(), endpoints(&[&a]))?;
        for addr in ["0.0.0.0", "[::]"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let to = format!("{addr}:{NODE_PORT}");
                let socket = eventually(Duration::from_secs(5), "the port to be free", || {
                    Ok(node.bind(protocol, to.as_str())??)
                })?;
                node.close(socket)?;
            }
        }
        Ok(())
    })
}

/// <https://github.com/projectcalico/calico/pull/13399>
#[test]
fn pain_42_unconnected_udp_keeps_its_backend() -> Result<()> {
    World::test("pain42", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.serving_pod("c")?);
        world.publish(&web(), endpoints(&[&a, &b, &c]))?;
        world.start_agent(&[])?;
        let mut client = world.client(&a)?;
        for (v6, to) in [
            (false, WEB[0].to_address()?),
            (true, WEB[1].to_address()?),
            (true, mapped(WEB[0].to_address()?)),
        ] {
            let socket = client.open_udp(v6)?;
            let tally = client.send_many(socket, to, 200)?;
            assert_eq!((tally.by_name.len(), tally.answers()), (1, 200), "{to}: {tally:?}");
            let first = tally.by_name.into_keys().next().unwrap();
            let rest: Vec<_> = [&a, &b, &c].into_iter().filter(|pod| pod.name != first).collect();
            world.publish(&web(), endpoints(&rest))?;
            eventually(Duration::from_secs(5), "the socket to leave a backend that is gone", || {
                let server = client.send_to(socket, to)?.unwrap().name;
                ensure!(server != first, "{server} still answers");
                Ok(())
            })?;
            let tally = client.send_many(socket, to, 200)?;
            assert_eq!((tally.by_name.len(), tally.answers()), (1, 200), "{to}: {tally:?}");
            world.publish(&web(), endpoints(&[&a, &b, &c]))?;
        }
        Ok(())
    })
}

/// <https://github.com/metal-stack/gardener-extension-provider-metal/pull/506>
#[test]
fn pain_43_the_nodes_own_udp_reaches_a_service_whose_backends_are_elsewhere() -> Result<()> {
    World::test("pain43", |world| {
        let a = world.serving_pod("a")?;
        let elsewhere = [Endpoint::new(a.v4).on("node-2"), Endpoint::new(a.v6).on("node-2")];
        world.publish(&web(), elsewhere)?;
        world.start_agent(&[])?;
        let mut node = world.node_client()?;
        for to in WEB {
            assert_eq!(node.udp_servers(to)?, BTreeSet::from(["a".to_owned()]));
            let socket = node.open_udp(to.starts_with('['))?;
            assert_eq!(node.send_many(socket, to, 20)?.by_name.get("a"), Some(&20));
        }
        Ok(())
    })
}
