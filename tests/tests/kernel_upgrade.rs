//! An agent whose maps are other ones takes over from one that ran before: no connection notices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use portway_datapath::layout::LAYOUT_VERSION;
use portway_tests::harness::bpf::{ATTACH_TYPES, attached};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Service, TCP, endpoints};
use portway_tests::harness::probe::{Probe, Protocol, Socket};
use portway_tests::harness::{Beside, Ending, World};

const STICKY: [&str; 2] = ["10.96.0.30:80", "[fd00:10:96::30]:80"];

/// Where this version pins; `v9` and `v0` are others'.
fn ours() -> String {
    format!("v{LAYOUT_VERSION}")
}

/// Counts the programs at each hook, over and over.
struct Watch(Beside<(u64, BTreeMap<&'static str, usize>)>);

impl Watch {
    fn start(cgroup: &Path) -> Result<Self> {
        let cgroup = cgroup.to_owned();
        let watch = move |end: &Ending| {
            let (mut looks, mut wrong) = (0, BTreeMap::new());
            while !end.has_come() {
                let found: BTreeMap<_, _> = attached(&cgroup)?.into_iter().collect();
                for (name, _) in ATTACH_TYPES {
                    let programs = found.get(name).map_or(0, Vec::len);
                    if programs != 1 {
                        wrong.insert(name, programs);
                    }
                }
                looks += 1;
                // The kernel answers under the lock that attaching needs, too.
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok((looks, wrong))
        };
        Beside::start("watch hooks", watch).map(Self)
    }

    /// There never was a moment with none or two.
    fn finish(self) -> Result<()> {
        let (looks, wrong) = self.0.end()?;
        ensure!(wrong.is_empty(), "hooks with another number of programs than one: {wrong:?}");
        // A start takes a tenth of a second.
        ensure!(looks > 20, "looked {looks} times only");
        Ok(())
    }
}

/// New sockets, one after the other: whoever answers is taken for the service, also in the middle of a takeover.
struct Newcomers(Beside<u64>);

impl Newcomers {
    fn start(mut client: Probe) -> Result<Self> {
        let work = move |end: &Ending| {
            let mut sockets = 0;
            while !end.has_come() {
                for to in WEB {
                    let to: SocketAddr = to.parse()?;
                    for answer in [client.tcp(to)?, client.udp(to)?] {
                        let answer = answer.map_err(|errno| anyhow!("{to}: {errno}"))?;
                        ensure!(answer.peer == to, "connected to {to}: {answer:?}");
                        sockets += 1;
                    }
                    let socket = client.open_udp(to.is_ipv6())?;
                    let answer = client.send_to(socket, to)?.map_err(|errno| anyhow!("{to}: {errno}"))?;
                    ensure!(answer.peer == to, "sent to {to}: {answer:?}");
                    client.close(socket)?;
                }
                // The agent needs the machine, too.
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(sockets)
        };
        Beside::start("newcomers", work).map(Self)
    }

    fn finish(self) -> Result<()> {
        let sockets = self.0.end()?;
        ensure!(sockets > 100, "{sockets} sockets only");
        Ok(())
    }
}

/// Sockets that live on while agents come and go.
struct Held {
    client: Probe,
    /// Connected: the frontend, and who answers.
    connected: Vec<(Socket, SocketAddr, String)>,
    /// Unconnected UDP.
    exchanges: Vec<(Socket, SocketAddr, String)>,
    /// Who a client of the sticky service is bound to.
    bound: Vec<String>,
}

impl Held {
    fn open(mut client: Probe) -> Result<Self> {
        let (mut connected, mut exchanges, mut bound) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..24 {
            let to: SocketAddr = WEB[n % 2].parse()?;
            let protocol = if n % 3 == 0 { Protocol::Udp } else { Protocol::Tcp };
            let (socket, answer) = client.connect(protocol, to)?;
            connected.push((socket, to, answer.name));
            let socket = client.open_udp(to.is_ipv6())?;
            let answer = client.send_to(socket, to)?.map_err(|errno| anyhow!("{to}: {errno}"))?;
            exchanges.push((socket, to, answer.name));
        }
        for to in STICKY {
            bound.push(client.tcp(to)?.map_err(|errno| anyhow!("{to}: {errno}"))?.name);
        }
        Ok(Self { client, connected, exchanges, bound })
    }

    /// Each still talks to its backend and takes it for the service.
    fn check(&mut self) -> Result<()> {
        for (socket, to, name) in &self.connected {
            let answer = self.client.again(*socket)?.map_err(|errno| anyhow!("{to}: {errno}"))?;
            ensure!((answer.peer, &answer.name) == (*to, name), "connected to {to}, {name}: {answer:?}");
        }
        for (socket, to, name) in &self.exchanges {
            let answer = self.client.send_to(*socket, *to)?.map_err(|errno| anyhow!("{to}: {errno}"))?;
            ensure!((answer.peer, &answer.name) == (*to, name), "exchange with {to}, {name}: {answer:?}");
        }
        for (to, name) in STICKY.iter().zip(&self.bound) {
            let answer = self.client.tcp(*to)?.map_err(|errno| anyhow!("{to}: {errno}"))?;
            ensure!(&answer.name == name, "bound to {name} at {to}: {answer:?}");
        }
        Ok(())
    }
}

/// Four pods behind two services, and numbers of services and backends that a fresh start would not give again.
fn publish(world: &mut World) -> Result<Held> {
    let pods = world.serving_pods(&["a", "b", "c", "d"])?;
    let all: Vec<_> = pods.iter().collect();
    for n in 0..6 {
        let addr = format!("10.96.1.{n}");
        let first = Service::new(&format!("aaa-{n}"), &[&addr]).port("http", TCP, 80);
        world.publish(&first, endpoints(&all))?;
    }
    world.publish(&web(), endpoints(&all))?;
    let sticky =
        Service::new("sticky", &["10.96.0.30", "fd00:10:96::30"]).port("http", TCP, 80).affinity(600);
    world.publish(&sticky, endpoints(&all))?;
    world.start_agent(&[])?;
    let held = Held::open(world.client(&pods[0])?)?;
    for n in 0..6 {
        world.manifests().remove(&format!("aaa-{n}"))?;
    }
    world.wait_programmed()?;
    Ok(held)
}

/// Stops the agent, does `between` and starts another with `flags`, under 1,000 connects a second.
fn take_over(
    world: &mut World,
    held: &mut Held,
    flags: &[&str],
    between: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let mut load = world.node_client()?;
    let to = [WEB[0].parse()?, WEB[1].parse()?];
    load.start_connects(&to, 2000, 1000)?;
    let watch = Watch::start(world.cgroup().path())?;
    let newcomers = Newcomers::start(world.node_client()?)?;
    world.kill_agent()?;
    between(&world.bpf_root().join("portway"))?;
    held.check().context("while no agent runs")?;
    world.start_agent(flags)?;
    held.check().context("with the new agent")?;
    let tally = load.finish_connects()?;
    ensure!((tally.answers(), tally.failures()) == (2000, 0), "{tally:?}");
    watch.finish()?;
    newcomers.finish()?;
    held.check().context("in the end")?;
    // Nothing is left of the one before.
    let portway = world.bpf_root().join("portway");
    ensure!(names(&portway)? == [ours()], "{:?}", names(&portway)?);
    let maps = names(&portway.join(ours()).join("maps"))?;
    ensure!(maps.iter().all(|name| !name.ends_with("_old")) && maps.len() == 14, "{maps:?}");
    ensure!(names(&portway.join(ours()).join("links"))?.len() == ATTACH_TYPES.len(), "links");
    Ok(())
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// What an agent of version `number` would have left.
fn as_version(number: &'static str) -> impl FnOnce(&Path) -> Result<()> {
    move |portway| Ok(std::fs::rename(portway.join(ours()), portway.join(number))?)
}

fn nothing(_: &Path) -> Result<()> {
    Ok(())
}

#[test]
fn a_newer_and_an_older_layout_version_are_taken_over_from_under_load() -> Result<()> {
    World::test("versions", |world| {
        let mut held = publish(world)?;
        take_over(world, &mut held, &[], as_version("v9"))?;
        take_over(world, &mut held, &[], as_version("v0"))?;
        take_over(world, &mut held, &[], nothing)
    })
}

#[test]
fn each_size_may_change_under_load() -> Result<()> {
    World::test("sizes", |world| {
        let mut held = publish(world)?;
        for flags in [
            &["--bpf-sock-rev-map-max=4096"][..],
            &["--bpf-sock-rev-map-max=4096", "--bpf-lb-affinity-map-max=4096"],
            // The published maps are made anew, and everything has other numbers.
            &["--bpf-lb-service-backend-map-max=20000"],
            &["--bpf-lb-map-max=4096", "--bpf-sock-rev-map-max=100000"],
            &[],
        ] {
            take_over(world, &mut held, flags, nothing).with_context(|| format!("{flags:?}"))?;
        }
        Ok(())
    })
}

/// The new maps were made, and what the old ones held was not copied yet.
#[test]
fn an_agent_killed_while_it_takes_over_is_taken_over_from() -> Result<()> {
    World::test("halfway", |world| {
        let mut held = publish(world)?;
        let halfway = |portway: &Path| -> Result<()> {
            let maps: PathBuf = portway.join(ours()).join("maps");
            for (name, old) in [
                ("pw_sock", "pw_sock_old"),
                ("pw_sock_udp", "pw_udp_old"),
                ("pw_sock_replies", "pw_replies_old"),
                ("pw_affinity", "pw_affinity_old"),
            ] {
                std::fs::rename(maps.join(name), maps.join(old))?;
            }
            Ok(())
        };
        take_over(world, &mut held, &[], halfway)?;
        // Between two versions: the maps are made, and one link was moved.
        take_over(world, &mut held, &[], |portway| {
            std::fs::create_dir_all(portway.join("v9/links"))?;
            std::fs::create_dir_all(portway.join("v9/learned-1"))?;
            std::fs::rename(portway.join(ours()).join("links/recvmsg4"), portway.join("v9/links/recvmsg4"))?;
            Ok(())
        })
    })
}

/// What programs learned may mean something else there.
#[test]
fn of_a_version_that_learns_otherwise_the_programs_are_replaced_and_nothing_is_believed() -> Result<()> {
    World::test("otherwise", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), [a.endpoint(), a.endpoint_v6()])?;
        world.start_agent(&[])?;
        let watch = Watch::start(world.cgroup().path())?;
        world.kill_agent()?;
        let portway = world.bpf_root().join("portway");
        std::fs::rename(portway.join(ours()), portway.join("v9"))?;
        std::fs::remove_dir(portway.join("v9/learned-1"))?;
        world.start_agent(&[])?;
        watch.finish()?;
        assert_eq!(names(&portway)?, [ours()]);
        let mut client = world.node_client()?;
        for to in WEB {
            assert_eq!(client.tcp(to)?.unwrap().name, "a");
        }
        Ok(())
    })
}

/// The process ids of agents that were killed: no process has one of these.
const DEAD: [&str; 2] = ["portway-selftest-4194301", "portway-selftest-4194302"];

#[test]
fn what_self_tests_left_whose_agents_were_killed_goes_with_the_next_start_and_with_cleanup() -> Result<()> {
    World::test("selftests", |world| {
        let cgroup = world.cgroup().path().to_owned();
        let left = || -> Result<Vec<String>> {
            Ok(names(&cgroup)?.into_iter().filter(|name| name.starts_with("portway-selftest-")).collect())
        };
        std::fs::create_dir(cgroup.join(DEAD[0]))?;
        // Somebody lives.
        let other = format!("portway-selftest-{}", std::process::id());
        std::fs::create_dir(cgroup.join(&other))?;
        world.start_agent(&[])?;
        assert_eq!(left()?, std::slice::from_ref(&other));
        world.kill_agent()?;
        std::fs::create_dir(cgroup.join(DEAD[1]))?;
        let done = world.portway(&["cleanup", "--yes"])?;
        assert!(done.contains(DEAD[1]) && !done.contains(&other), "{done}");
        assert_eq!(left()?, std::slice::from_ref(&other));
        Ok(std::fs::remove_dir(cgroup.join(other))?)
    })
}

#[test]
fn cleanup_takes_every_version_and_what_is_half_taken_over() -> Result<()> {
    World::test("cleanversions", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&web(), [a.endpoint(), a.endpoint_v6()])?;
        world.start_agent(&[])?;
        world.kill_agent()?;
        let portway = world.bpf_root().join("portway");
        std::fs::rename(portway.join(ours()), portway.join("v9"))?;
        std::fs::rename(portway.join("v9/maps/pw_sock"), portway.join("v9/maps/pw_sock_old"))?;
        std::fs::create_dir_all(portway.join(ours()).join("learned-1"))?;
        std::fs::create_dir_all(portway.join(ours()).join("links"))?;
        std::fs::rename(portway.join("v9/links/connect4"), portway.join(ours()).join("links/connect4"))?;
        let done = world.portway(&["cleanup", "--yes"])?;
        assert!(
            done.contains(&format!("detached {}/connect4", ours()))
                && done.contains("unpinned v9/pw_sock_old"),
            "{done}"
        );
        assert_eq!(attached(world.cgroup().path())?, []);
        assert!(!portway.exists());
        assert!(world.portway(&["cleanup", "--yes"])?.contains("nothing to clean up"));
        Ok(())
    })
}
