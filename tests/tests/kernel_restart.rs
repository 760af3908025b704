//! What the agent leaves in the kernel: a restart takes it over, `cleanup` removes it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_datapath::layout::LAYOUT_VERSION;
use portway_tests::harness::bpf::{ATTACH_TYPES, attached, pin_foreign_map};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Service, TCP, endpoints};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::{Agent, World, eventually};

/// One program for each hook that services need.
fn assert_one_program_each(world: &World) -> Result<()> {
    let programs = attached(world.cgroup().path())?;
    let names: Vec<&str> = programs.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ATTACH_TYPES.map(|(name, _)| name));
    for (name, ids) in programs {
        assert_eq!(ids.len(), 1, "{name}: {ids:?}");
    }
    Ok(())
}

#[test]
fn killed_and_restarted_five_times_under_load_it_refuses_nobody() -> Result<()> {
    World::test("restart", |world| {
        let pods = world.serving_pods(&["a", "b", "c", "d"])?;
        world.publish(&web(), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pods[0])?;
        let (held, first) = client.connect(Protocol::Tcp, WEB[0])?;
        let mut load = world.node_client()?;
        // 1,000 a second for as long as the restarts take.
        let mut total = 0;
        let to = [WEB[0].parse()?, WEB[1].parse()?];
        for _ in 0..5 {
            load.start_connects(&to, 2000, 1000)?;
            std::thread::sleep(Duration::from_millis(300));
            world.kill_agent()?;
            std::thread::sleep(Duration::from_millis(100));
            world.start_agent(&[])?;
            let tally = load.finish_connects()?;
            // Each answer is a backend's own name: nothing went out untranslated.
            assert_eq!((tally.answers(), tally.failures()), (2000, 0), "{tally:?}");
            assert_eq!(tally.by_name.len(), 4, "{tally:?}");
            total += tally.answers();
        }
        assert_eq!(total, 10_000);
        assert_eq!(client.again(held)?.unwrap().name, first.name);
        assert_one_program_each(world)
    })
}

#[test]
fn what_changed_while_the_agent_was_down_is_made_good() -> Result<()> {
    World::test("down", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let other = Service::new("other", &["10.96.0.20", "fd00:10:96::20"]).port("http", TCP, 80);
        world.publish(&web(), endpoints(&[&a]))?;
        world.publish(&other, endpoints(&[&a]))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        world.kill_agent()?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        world.publish(&web(), endpoints(&[&b]))?;
        world.manifests().remove("other")?;
        world.start_agent(&[])?;
        for to in WEB {
            client.wait_servers(to, &["b"])?;
        }
        client.wait_servers("10.96.0.20:80", &["ENETUNREACH"])?;
        assert_eq!(world.portway(&["bpf", "lb", "list", "-o", "json"])?.matches("default/other").count(), 0);
        assert_one_program_each(world)
    })
}

/// What a file held before it broke is, after a restart, in the kernel alone.
#[test]
fn a_file_that_is_broken_at_a_restart_takes_nothing_away() -> Result<()> {
    World::test("brokenfile", |world| {
        let a = world.serving_pod("a")?;
        let other = Service::new("other", &["10.96.0.20"]).port("http", TCP, 80);
        world.publish(&web(), endpoints(&[&a]))?;
        world.publish(&other, [a.endpoint()])?;
        world.start_agent(&[])?;
        world.kill_agent()?;
        world.manifests().remove("other")?;
        world.manifests().put_text("web.json", "{\"kind\": \"Serv")?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        let status = world.portway(&["status"])?;
        assert!(status.contains("what an earlier agent made of 1 file that cannot be used"), "{status}");
        // A change elsewhere is no reason either.
        let third = Service::new("third", &["10.96.0.30"]).port("http", TCP, 80);
        world.publish(&third, [a.endpoint()])?;
        client.wait_servers("10.96.0.30:80", &["a"])?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        world.publish(&web(), endpoints(&[&a]))?;
        client.wait_servers("10.96.0.20:80", &["ENETUNREACH"])?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        let status = world.portway(&["status"])?;
        assert!(!status.contains("earlier agent"), "{status}");
        Ok(())
    })
}

#[test]
fn clients_keep_their_backends_over_a_restart() -> Result<()> {
    World::test("keeps", |world| {
        let pods = world.serving_pods(&["a", "b", "c", "d"])?;
        let sticky =
            Service::new("sticky", &["10.96.0.30", "fd00:10:96::30"]).port("http", TCP, 80).affinity(600);
        world.publish(&web(), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.publish(&sticky, endpoints(&pods.iter().collect::<Vec<_>>()))?;
        world.start_agent(&[])?;
        let mut client = world.client(&pods[0])?;
        let mut sockets = Vec::new();
        for n in 0..16 {
            let to = WEB[n % 2];
            let socket = client.open_udp(to.starts_with('['))?;
            sockets.push((socket, to, client.send_to(socket, to)?.unwrap().name));
        }
        let bound: Vec<(&str, _)> = ["10.96.0.30:80", "[fd00:10:96::30]:80"]
            .into_iter()
            .map(|to| Ok((to, client.servers(to)?)))
            .collect::<Result<_>>()?;
        world.kill_agent()?;
        world.start_agent(&[])?;
        for (socket, to, name) in sockets {
            let tally = client.send_many(socket, to, 5)?;
            assert_eq!(tally.by_name, [(name, 5)].into(), "{to}");
        }
        for (to, servers) in bound {
            assert_eq!((client.servers(to)?, servers.len()), (servers, 1), "{to}");
        }
        Ok(())
    })
}

#[test]
fn an_agent_that_is_told_to_end_leaves_the_services_working() -> Result<()> {
    World::test("stop", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        world.agent.take().unwrap().stop()?;
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
            assert_eq!(client.udp(to)?.unwrap().name, "a");
        }
        assert_one_program_each(world)
    })
}

/// Two would write the same memory.
#[test]
fn a_second_agent_on_the_same_maps_ends_and_says_why() -> Result<()> {
    World::test("second", |world| {
        world.start_agent(&[])?;
        let mut places = world.places();
        places.state = places.state.join("second");
        std::fs::create_dir(&places.state)?;
        let mut second = Agent::spawn(&places, &["--agent-health-port=9880"])?;
        let status = second.wait_ended(Duration::from_secs(10))?;
        let log = second.log();
        assert!(!status.success() && log.contains("another process"), "{status}: {log}");
        Ok(())
    })
}

#[test]
fn cleanup_leaves_nothing() -> Result<()> {
    World::test("cleanup", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.node().sysctl("ipv4/ip_local_port_range", "20000 60999")?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        assert!(client.tcp(WEB[0])?.is_ok());
        // Not while the agent runs.
        assert!(world.portway(&["cleanup", "--yes"]).is_err());
        assert!(client.tcp(WEB[0])?.is_ok());
        world.kill_agent()?;
        world.portway(&["cleanup", "--yes"])?;
        assert_eq!(attached(world.cgroup().path())?, []);
        let left: Vec<PathBuf> = std::fs::read_dir(world.bpf_root())?
            .map(|entry| Ok(entry?.path()))
            .filter(|path: &Result<PathBuf>| {
                // The file system itself has these two.
                path.as_ref()
                    .is_ok_and(|path| !["maps.debug", "progs.debug"].iter().any(|own| path.ends_with(own)))
            })
            .collect::<Result<_>>()?;
        assert_eq!(left, Vec::<PathBuf>::new());
        for to in WEB {
            assert!(client.tcp(to)?.is_err());
        }
        // And it can begin anew.
        world.start_agent(&[])?;
        assert_eq!(client.tcp(WEB[0])?.unwrap().name, "a");
        Ok(())
    })
}

#[test]
fn a_pinned_map_of_another_layout_is_not_used() -> Result<()> {
    World::test("layout", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        let maps = world.bpf_root().join(format!("portway/v{LAYOUT_VERSION}/maps"));
        std::fs::create_dir_all(&maps)?;
        pin_foreign_map(&maps.join("pw_frontends"))?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        // Nor after a restart, and what is there by now is taken over.
        world.kill_agent()?;
        assert_eq!(client.tcp(WEB[0])?.unwrap().name, "a");
        world.start_agent(&[])?;
        client.wait_servers(WEB[0], &["a"])?;
        assert_one_program_each(world)
    })
}

/// The file system may lose its pins while the programs stay attached, and the other way round.
#[test]
fn a_lost_pin_of_a_link_does_not_leave_two_programs() -> Result<()> {
    World::test("lostpin", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        world.kill_agent()?;
        let links = world.bpf_root().join(format!("portway/v{LAYOUT_VERSION}/links"));
        let pins: Vec<PathBuf> =
            std::fs::read_dir(&links)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        ensure!(pins.len() >= ATTACH_TYPES.len(), "{pins:?}");
        std::fs::remove_file(&pins[0])?;
        world.start_agent(&[])?;
        assert_one_program_each(world)?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a"])?;
        eventually(Duration::from_secs(1), "UDP", || {
            ensure!(client.udp(WEB[1])?.is_ok(), "refused");
            Ok(())
        })
    })
}
