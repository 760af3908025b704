//! The harness itself, with plain sockets: what the other kernel tests stand on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::world::{NODE_V4, NODE_V6};
use portway_tests::harness::{Errno, PREFIX, World, canonical, cgroup, eventually, mapped};

#[test]
fn pods_and_node_reach_each_other_and_each_sees_who_asks() -> Result<()> {
    World::test("reach", |world| {
        let a = world.serving_pod("a")?;
        let b = world.serving_pod("b")?;
        let mut client = world.client(&a)?;
        let mut node = world.node_client()?;
        for to in [b.socket_v4(8080), b.socket_v6(8080)] {
            let own = if to.is_ipv4() { a.v4.into() } else { std::net::IpAddr::from(a.v6) };
            for outcome in [client.tcp(to)?, client.udp(to)?] {
                let answer = outcome.unwrap();
                assert_eq!((answer.name.as_str(), answer.client.ip(), answer.peer), ("b", own, to));
            }
            assert_eq!(node.tcp(to)?.unwrap().name, "b");
        }
        let to = mapped(b.socket_v4(8080));
        let answer = client.tcp(to)?.unwrap();
        assert_eq!((answer.peer, canonical(answer.client).ip()), (to, a.v4.into()));
        Ok(())
    })
}

#[test]
fn an_unconnected_socket_tells_who_replied() -> Result<()> {
    World::test("unconnected", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let mut client = world.client(&a)?;
        for v6 in [false, true] {
            let socket = client.open_udp(v6)?;
            for pod in [&a, &b] {
                let to = if v6 { pod.socket_v6(8080) } else { pod.socket_v4(8080) };
                let answer = client.send_to(socket, to)?.unwrap();
                assert_eq!((&answer.name, answer.peer), (&pod.name, to));
            }
            // Linux takes an IPv4 address for an IPv6 socket too, mapped or not.
            assert_eq!(client.send_many(socket, b.socket_v4(8080), 5)?.by_name["b"], 5);
        }
        Ok(())
    })
}

#[test]
fn there_is_no_way_out_of_a_world() -> Result<()> {
    World::test("noway", |world| {
        let a = world.pod("a")?;
        let mut node = world.node_client()?;
        for to in ["10.96.0.1:80", "192.0.2.1:80", "[fd00:10:96::1]:80", "[2001:db8::1]:80"] {
            assert_eq!(node.tcp(to)?.unwrap_err(), Errno::ENETUNREACH, "{to}");
        }
        let mut client = world.client(&a)?;
        for to in ["192.0.2.1:80", "[2001:db8::1]:80"] {
            let errno = client.tcp(to)?.unwrap_err();
            assert!([Errno::ENETUNREACH, Errno::EHOSTUNREACH].contains(&errno), "{to}: {errno}");
        }
        Ok(())
    })
}

#[test]
fn connections_stay_open_until_they_are_closed_and_binds_hold_their_port() -> Result<()> {
    World::test("keep", |world| {
        let a = world.serving_pod("a")?;
        let mut node = world.node_client()?;
        let (tcp, _) = node.connect(Protocol::Tcp, a.socket_v4(8080))?;
        let (udp, _) = node.connect(Protocol::Udp, a.socket_v6(8080))?;
        for socket in [tcp, udp, tcp] {
            assert_eq!(node.again(socket)?.unwrap().name, "a");
        }
        let held = node.bind(Protocol::Tcp, "0.0.0.0:31000")?.unwrap();
        assert_eq!(node.bind(Protocol::Tcp, "0.0.0.0:31000")?.unwrap_err(), Errno::EADDRINUSE);
        node.close(held)?;
        let again = node.bind(Protocol::Tcp, "0.0.0.0:31000")?.unwrap();
        node.close(again)
    })
}

#[test]
fn many_connects_are_counted_by_server_and_by_error() -> Result<()> {
    World::test("many", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let mut node = world.node_client()?;
        let to = [a.socket_v4(8080), b.socket_v6(8080), a.socket_v4(1)];
        let tally = node.connects(&to, 300, 1000)?;
        assert_eq!((tally.by_name["a"], tally.by_name["b"]), (100, 100));
        assert_eq!(tally.failed_with(Errno::ECONNREFUSED), 100);
        assert!(tally.median_ns().is_some_and(|ns| ns > 1000));
        Ok(())
    })
}

#[test]
fn a_client_is_in_its_namespace_and_its_control_group() -> Result<()> {
    World::test("place", |world| {
        let a = world.pod("a")?;
        let (mut node, mut client, outside) =
            (world.node_client()?, world.client(&a)?, world.outside_client(&a)?);
        assert_eq!(node.netns_cookie()?, world.node().cookie()?);
        assert_eq!(client.netns_cookie()?, a.namespace.cookie()?);
        let procs = std::fs::read_to_string(world.cgroup().path().join("cgroup.procs"))?;
        let procs: Vec<u32> = procs.lines().map(|line| line.parse().unwrap()).collect();
        assert!(procs.contains(&node.id()) && procs.contains(&client.id()) && !procs.contains(&outside.id()));
        Ok(())
    })
}

#[test]
fn the_node_answers_on_addresses_that_come_and_go() -> Result<()> {
    World::test("addresses", |world| {
        let a = world.pod("a")?;
        let server = portway_tests::harness::Server::start(world.node(), "node", 8080)?;
        let mut client = world.client(&a)?;
        for to in [(NODE_V4.into(), 8080), (NODE_V6.into(), 8080)] {
            assert_eq!(client.tcp(to)?.unwrap().name, "node");
        }
        world.node().add_address("eth0", [198, 51, 100, 99].into(), 32)?;
        assert_eq!(client.tcp("198.51.100.99:8080")?.unwrap().name, "node");
        world.node().delete_address("eth0", [198, 51, 100, 99].into())?;
        assert!(client.tcp("198.51.100.99:8080")?.is_err());
        drop(server);
        assert_eq!(client.tcp((NODE_V4.into(), 8080))?.unwrap_err(), Errno::ECONNREFUSED);
        Ok(())
    })
}

/// Also what a panic of the body leaves: nothing.
#[test]
fn a_world_leaves_nothing_behind() -> Result<()> {
    let mut left: Option<(std::path::PathBuf, std::path::PathBuf)> = None;
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        World::test("panics", |world| {
            let a = world.serving_pod("a")?;
            let client = world.client(&a)?;
            left = Some((world.cgroup().path().to_owned(), world.bpf_root().to_owned()));
            std::mem::forget(client);
            panic!("as a test may");
        })
    }));
    assert!(failed.is_err());
    let (cgroup, bpf) = left.unwrap();
    assert!(!cgroup.exists() && !bpf.exists());
    Ok(())
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() -> Result<()> {
    // A process that is gone for sure: one of our own that ended.
    let mut child = std::process::Command::new("true").spawn()?;
    let pid = child.id();
    child.wait()?;
    let group = cgroup::unified_hierarchy()?.join(format!("{PREFIX}{pid}-killed"));
    std::fs::create_dir(&group)?;
    std::fs::create_dir(group.join("inside"))?;
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn()?;
    std::fs::write(group.join("inside/cgroup.procs"), sleeper.id().to_string())?;
    let dir = std::env::temp_dir().join(format!("{PREFIX}{pid}-killed-x"));
    std::fs::create_dir(&dir)?;
    World::test("next", |_| Ok(()))?;
    let gone = |path: &Path| -> Result<()> {
        ensure!(!path.exists(), "{} is still there", path.display());
        Ok(())
    };
    // A test beside this one may have been the one to clean up.
    eventually(Duration::from_secs(5), "the leftovers to go", || gone(&group).and_then(|()| gone(&dir)))?;
    assert!(!sleeper.wait()?.success());
    Ok(())
}
