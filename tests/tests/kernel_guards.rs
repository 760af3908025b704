//! Who is translated at all: external addresses, load-balancer addresses, namespaces, traffic policies.

use anyhow::Result;
use portway_tests::harness::fixture::{WEB, WEB_V4, WEB_V6, web};
use portway_tests::harness::manifest::{Endpoint, endpoints};
use portway_tests::harness::world::{NODE_V4, NODE_V6};
use portway_tests::harness::{Errno, World};

/// CVE-2020-8554: a service may not take traffic to addresses that are not the cluster's.
#[test]
fn an_external_address_is_translated_only_if_it_is_the_nodes() -> Result<()> {
    World::test("external", |world| {
        let a = world.serving_pod("a")?;
        let (v4, v6) = (NODE_V4.to_string(), NODE_V6.to_string());
        let service = web().external_ips(&["203.0.113.5", "2001:db8::5", &v4, &v6]);
        world.publish(&service, endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut node = world.node_client()?;
        let mut pod = world.client(&a)?;
        for client in [&mut node, &mut pod] {
            for addr in [NODE_V4.into(), NODE_V6.into()] {
                assert_eq!(client.tcp((addr, 80))?.unwrap().name, "a");
                assert_eq!(client.udp((addr, 80))?.unwrap().name, "a");
            }
        }
        for to in ["203.0.113.5:80", "[2001:db8::5]:80"] {
            assert_eq!(node.tcp(to)?.unwrap_err(), Errno::ENETUNREACH, "{to}");
            assert!(pod.tcp(to)?.is_err(), "{to}");
        }
        // Without endpoints the guard still comes first: the real owner of the address decides.
        world.publish(&service, [])?;
        node.wait_servers(WEB[0], &["ECONNREFUSED"])?;
        assert_eq!(node.tcp("203.0.113.5:80")?.unwrap_err(), Errno::ENETUNREACH);
        assert_eq!(node.tcp((NODE_V4.into(), 80))?.unwrap_err(), Errno::ECONNREFUSED);
        Ok(())
    })
}

#[test]
fn any_external_address_is_translated_without_the_guard() -> Result<()> {
    World::test("noguard", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web().external_ips(&["203.0.113.5", "2001:db8::5"]), endpoints(&[&a]))?;
        world.start_agent(&["--disable-external-ip-mitigation=true"])?;
        let mut node = world.node_client()?;
        for to in ["203.0.113.5:80", "[2001:db8::5]:80"] {
            assert_eq!(node.tcp(to)?.unwrap().name, "a");
        }
        Ok(())
    })
}

#[test]
fn a_load_balancers_address_goes_straight_to_the_backends() -> Result<()> {
    World::test("loadbalancer", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web().load_balancer(&["203.0.113.20", "2001:db8::20"]), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        for mut client in [world.node_client()?, world.client(&a)?] {
            for to in ["203.0.113.20:80", "[2001:db8::20]:80"] {
                let answer = client.tcp(to)?.unwrap();
                assert_eq!((answer.name.as_str(), answer.peer), ("a", to.parse()?));
                assert_eq!(client.udp(to)?.unwrap().name, "a");
            }
        }
        Ok(())
    })
}

#[test]
fn only_the_nodes_namespace_is_translated_when_told_so() -> Result<()> {
    World::test("hostns", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&["--bpf-lb-sock-hostns-only=true"])?;
        let (mut node, mut pod) = (world.node_client()?, world.client(&a)?);
        for to in WEB {
            assert_eq!(node.tcp(to)?.unwrap().name, "a");
            assert_eq!(node.udp(to)?.unwrap().name, "a");
            assert!(pod.tcp(to)?.is_err(), "{to}");
            let socket = pod.open_udp(to.starts_with('['))?;
            assert!(pod.send_to(socket, to)?.is_err(), "{to}");
        }
        Ok(())
    })
}

#[test]
fn the_internal_policy_local_keeps_to_the_nodes_own_pods() -> Result<()> {
    World::test("itplocal", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let service = web().with("internalTrafficPolicy", "Local");
        let elsewhere = [Endpoint::new(b.v4).on("node-2"), Endpoint::new(b.v6).on("node-2")];
        world.publish(&service, endpoints(&[&a]).into_iter().chain(elsewhere.clone()))?;
        world.start_agent(&[])?;
        for mut client in [world.node_client()?, world.client(&b)?] {
            for to in WEB {
                assert_eq!(client.servers(to)?, ["a".to_owned()].into());
                assert_eq!(client.udp_servers(to)?, ["a".to_owned()].into());
            }
        }
        let mut client = world.client(&a)?;
        world.publish(&service, elsewhere)?;
        for to in WEB {
            client.wait_servers(to, &["ECONNREFUSED"])?;
        }
        world.publish(&web(), [b.endpoint(), b.endpoint_v6()])?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        Ok(())
    })
}

/// From inside, an external address gets the whole set: kube-proxy's short circuit.
#[test]
fn the_external_policy_local_does_not_bind_clients_on_the_node() -> Result<()> {
    World::test("etplocal", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let service = web().load_balancer(&["203.0.113.20"]).with("externalTrafficPolicy", "Local");
        world.publish(&service, [a.endpoint(), Endpoint::new(b.v4).on("node-2")])?;
        world.start_agent(&[])?;
        let mut client = world.client(&a)?;
        let both = ["a", "b"].map(String::from).into();
        assert_eq!(client.servers("203.0.113.20:80")?, both);
        assert_eq!(client.servers(WEB[0])?, both);
        Ok(())
    })
}

#[test]
fn one_family_alone_is_served_when_the_other_is_off() -> Result<()> {
    World::test("family", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        let mut node = world.node_client()?;
        for (flag, on, off) in
            [("--enable-ipv6=false", WEB_V4, WEB_V6), ("--enable-ipv4=false", WEB_V6, WEB_V4)]
        {
            world.start_agent(&[flag])?;
            let on = (on.parse()?, 80);
            let off = (off.parse()?, 80);
            node.wait_servers(on, &["a"])?;
            node.wait_servers(off, &["ENETUNREACH"])?;
            world.kill_agent()?;
        }
        Ok(())
    })
}
