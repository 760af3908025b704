//! Changes of services while clients connect.

use std::time::{Duration, Instant};

use anyhow::Result;
use portway_agent::maps::KernelTables;
use portway_datapath::Counter;
use portway_tests::harness::fixture::{NODE_PORT, WEB, node_port_web, web};
use portway_tests::harness::manifest::{Service, TCP, endpoints};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::world::NODE_V4;
use portway_tests::harness::{Errno, World};

#[test]
fn a_scale_up_is_seen_within_the_second_and_a_scale_down_sends_nobody_astray() -> Result<()> {
    World::test("scale", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["a"])?;
        }
        let start = Instant::now();
        world.publish(&web(), endpoints(&[&a, &b]))?;
        for to in WEB {
            client.wait_servers(to, &["a", "b"])?;
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        world.publish(&web(), endpoints(&[&b]))?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
            assert_eq!(client.connects(&[to.parse()?], 500, 0)?.by_name.get("b"), Some(&500));
        }
        Ok(())
    })
}

/// Every connect of a service that changes all the time gets a backend of the version before or after.
#[test]
fn no_connect_fails_while_a_service_changes() -> Result<()> {
    World::test("churn", |world| {
        let (a, b, c) = (world.serving_pod("a")?, world.serving_pod("b")?, world.serving_pod("c")?);
        world.publish(&web(), endpoints(&[&a, &b]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        client.start_connects(&[WEB[0].parse()?, WEB[1].parse()?], 2000, 1000)?;
        let start = Instant::now();
        let mut changes = 0;
        while start.elapsed() < Duration::from_millis(1900) {
            let pair = [[&a, &b], [&b, &c], [&c, &a]][changes % 3];
            world.publish(&web(), endpoints(&pair))?;
            changes += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        let tally = client.finish_connects()?;
        assert_eq!((tally.answers(), tally.failures()), (2000, 0), "after {changes} changes: {tally:?}");
        assert_eq!(tally.by_name.len(), 3, "{tally:?}");
        Ok(())
    })
}

#[test]
fn the_loser_of_a_clash_takes_over_at_once() -> Result<()> {
    World::test("clash", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let service = |name: &str, created: &str| {
            Service::new(name, &["10.96.0.10", "fd00:10:96::10"]).port("http", TCP, 80).created(created)
        };
        let (old, young) = (service("old", "2026-01-01T00:00:00Z"), service("young", "2026-02-01T00:00:00Z"));
        world.publish(&young, endpoints(&[&b]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        // Under load: a frontend that changes owner must not be gone for a moment.
        let mut load = world.node_client()?;
        load.start_connects(&[WEB[0].parse()?, WEB[1].parse()?], 1500, 1000)?;
        for _ in 0..3 {
            world.publish(&old, endpoints(&[&a]))?;
            for to in WEB {
                client.wait_servers(to, &["a"])?;
            }
            world.manifests().remove("old")?;
            for to in WEB {
                client.wait_servers(to, &["b"])?;
            }
        }
        let tally = load.finish_connects()?;
        assert_eq!((tally.answers(), tally.failures()), (1500, 0), "{tally:?}");
        Ok(())
    })
}

#[test]
fn terminating_backends_serve_only_while_no_other_is_ready() -> Result<()> {
    World::test("terminating", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let last = || [a.endpoint().terminating(), a.endpoint_v6().terminating()];
        world.publish(&web(), last())?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            client.wait_servers(to, &["a"])?;
        }
        world.publish(&web(), endpoints(&[&b]).into_iter().chain(last()))?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        let not_ready = endpoints(&[&b]).into_iter().map(|endpoint| endpoint.not_ready());
        world.publish(&web(), not_ready.chain(last()))?;
        for to in WEB {
            client.wait_servers(to, &["a"])?;
        }
        Ok(())
    })
}

#[test]
fn a_service_that_goes_takes_its_frontends_with_it() -> Result<()> {
    World::test("deleted", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        assert_eq!(client.tcp((NODE_V4.into(), NODE_PORT))?.unwrap().name, "a");
        // No longer a NodePort service.
        world.publish(&web(), endpoints(&[&a]))?;
        client.wait_servers((NODE_V4.into(), NODE_PORT), &["ECONNREFUSED"])?;
        assert_eq!(client.tcp(WEB[0])?.unwrap().name, "a");
        world.manifests().remove("web")?;
        for to in WEB {
            client.wait_servers(to, &["ENETUNREACH"])?;
        }
        let dump = KernelTables::open_read_only(world.bpf_root())?.dump()?;
        assert!(dump.frontends.is_empty() && dump.services.is_empty(), "{dump:?}");
        Ok(())
    })
}

#[test]
fn what_happens_to_sockets_is_counted() -> Result<()> {
    World::test("counters", |world| {
        let a = world.serving_pod("a")?;
        let none = Service::new("none", &["10.96.0.66"]).port("http", TCP, 80);
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.publish(&none, [])?;
        world.start_agent(&[])?;
        let reader = KernelTables::open_read_only(world.bpf_root())?;
        let count = |counter| -> Result<u64> { Ok(reader.counters()?.get(&counter).copied().unwrap_or(0)) };
        let before: Vec<u64> = Counter::ALL.into_iter().map(count).collect::<Result<_>>()?;
        let mut client = world.node_client()?;
        for to in WEB {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let (socket, _) = client.connect(protocol, to)?;
                client.close(socket)?;
            }
            let socket = client.open_udp(to.starts_with('['))?;
            client.send_many(socket, to, 3)?;
            client.close(socket)?;
        }
        // One that was never translated is not counted when it goes.
        let (direct, _) = client.connect(Protocol::Tcp, a.socket_v4(8080))?;
        client.close(direct)?;
        assert_eq!(client.tcp("10.96.0.66:80")?.unwrap_err(), Errno::ECONNREFUSED);
        assert!(client.bind(Protocol::Tcp, ("0.0.0.0".parse()?, NODE_PORT))?.is_err());
        let after: Vec<u64> = Counter::ALL.into_iter().map(count).collect::<Result<_>>()?;
        // Exactly these moved.
        let moved: Vec<(&str, u64)> = Counter::ALL
            .iter()
            .zip(after.iter().zip(&before))
            .map(|(counter, (after, before))| (counter.name(), after - before))
            .filter(|(_, count)| *count > 0)
            .collect();
        let wanted =
            [("connects", 4), ("datagrams", 6), ("no-backends", 1), ("denied-binds", 1), ("releases", 4)];
        assert_eq!(moved, wanted);
        Ok(())
    })
}
