//! The agent's own end, seen from 500 connections that are held and 1,000 new ones a second: nobody notices it.
//!
//! The short form restarts 20 times each way and replaces the programs 5 times; with `PORTWAY_LONG` 50 times each.

#![expect(clippy::print_stdout, reason = "the figures are part of the result")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_agent::maps::KernelTables;
use portway_agent::programs::{attached as links, link_dir};
use portway_tests::comparison::lookups::check_bits;
use portway_tests::harness::bpf::{ATTACH_TYPES, attached};
use portway_tests::harness::fixture::{WEB, node_port_web};
use portway_tests::harness::manifest::{Endpoint, Service, TCP, endpoints};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::{Agent, Ending, Pod, Probe, World, eventually, meanwhile};
use portway_tests::oracle::random::Random;

/// Connections held, and new ones a second, by the two clients together.
const HELD: u32 = 500;
const PER_SECOND: u32 = 1000;
/// Services whose backends change from version to version; the first ones are under load.
const MANY: u32 = 300;
const MANY_UNDER_LOAD: u32 = 8;
/// Longer than a start takes on a busy machine: where a kill can hit it.
const START: Duration = Duration::from_millis(600);

fn repeats(short: u32) -> u32 {
    if std::env::var_os("PORTWAY_LONG").is_some() { 50 } else { short }
}

fn many(n: u32) -> [u8; 4] {
    [10, 97, (n / 250) as u8, (n % 250) as u8 + 1]
}

/// The whole directory in a state of its own: services come, go, move to other addresses, and change their backends.
/// Those under load always have some of the serving pods.
fn publish_version(world: &World, pods: &[Pod], version: u32) -> Result<()> {
    let mut random = Random::new(version.into());
    let mut objects = Vec::new();
    for n in 0..MANY {
        let under_load = n < MANY_UNDER_LOAD;
        if !under_load && random.chance(10) {
            continue;
        }
        // A quarter of the others answer on each other's addresses from one version to the next.
        let at = if under_load || n % 4 > 0 { n } else { MANY + (n + version * 4) % MANY };
        let address = std::net::Ipv4Addr::from(many(at)).to_string();
        let service = Service::new(&format!("many-{n}"), &[&address]).port("http", TCP, 80);
        let backends: Vec<Endpoint> = if under_load {
            let first = random.below(4) as usize;
            let count = 1 + random.below(4) as usize;
            (first..first + count).map(|n| pods[n % pods.len()].endpoint()).collect()
        } else {
            (0..random.below(6)).map(|_| Endpoint::new([10, 245, 0, random.below(250) as u8 + 1])).collect()
        };
        objects.extend(service.with_endpoints(backends));
    }
    world.manifests().put("many", objects)
}

/// A node whose clients ask without pause.
struct Load {
    pods: Vec<Pod>,
    probes: Vec<Probe>,
    random: Random,
}

impl Load {
    fn start(world: &mut World) -> Result<Self> {
        let pods = world.serving_pods(&["a", "b", "c", "d"])?;
        let client = world.pod("client")?;
        world.publish(&node_port_web(), endpoints(&pods.iter().collect::<Vec<_>>()))?;
        publish_version(world, &pods, 0)?;
        world.start_agent(&[])?;
        world.wait_programmed()?;
        let mut to: Vec<SocketAddr> = ["172.18.0.10:30080", "[fd00:172:18::10]:30080"]
            .into_iter()
            .chain(WEB)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let mut probes = vec![world.node_client()?, world.client(&client)?];
        // A backend that leaves one of these keeps its connections: it is a backend of `web` all the time.
        to.extend((0..MANY_UNDER_LOAD).map(|n| SocketAddr::from((many(n), 80))));
        for probe in &mut probes {
            probe.start_load(&to, HELD / 2, PER_SECOND / 2)?;
        }
        Ok(Self { pods, probes, random: Random::new(std::process::id().into()) })
    }

    /// At a random instant within `most`.
    fn pause(&mut self, most: Duration) {
        std::thread::sleep(Duration::from_micros(self.random.below(most.as_micros() as u64)));
    }

    /// Prints what the clients saw, and fails where they noticed anything.
    fn end(&mut self, what: &str, ready: &[Duration]) -> Result<()> {
        for (probe, who) in self.probes.iter_mut().zip(["node", "pod"]) {
            let tally = probe.end_load()?;
            println!("{what}, {who}: {}", tally.summary());
            // A quarter of what was asked for.
            tally.ensure_undisturbed(4, HELD / 2, PER_SECOND / 8)?;
        }
        let mut sorted = ready.to_vec();
        sorted.sort_unstable();
        if let (Some(middle), Some(last)) = (sorted.get(sorted.len() / 2), sorted.last()) {
            println!("{what}: {} starts, ready after {middle:?} (median), {last:?} (slowest)", sorted.len());
        }
        Ok(())
    }
}

/// Starts the agent, and says how long it took to be ready.
fn timed_start(world: &mut World) -> Result<Duration> {
    let before = Instant::now();
    world.start_agent(&[])?;
    Ok(before.elapsed())
}

/// What the kernel has is what the manifests say, slot by slot, and each hook has one program.
fn assert_as_wanted(world: &World) -> Result<()> {
    world.wait_programmed()?;
    eventually(Duration::from_secs(2), "each backend's bits", || {
        let dump = KernelTables::open_read_only(world.bpf_root())?.dump()?;
        check_bits(&dump).map_err(anyhow::Error::msg)
    })?;
    one_program_each(world).map(drop)
}

/// The one program of each hook.
fn one_program_each(world: &World) -> Result<Vec<(&'static str, u32)>> {
    let programs = attached(world.cgroup().path())?;
    ensure!(programs.len() == ATTACH_TYPES.len(), "hooks without a program: {programs:?}");
    programs
        .into_iter()
        .map(|(name, ids)| match ids.as_slice() {
            [id] => Ok((name, *id)),
            _ => anyhow::bail!("{name} has the programs {ids:?}"),
        })
        .collect()
}

#[test]
fn no_connection_notices_that_the_agent_is_told_to_end_and_starts_again() -> Result<()> {
    World::test("sigterm", |world| {
        let mut load = Load::start(world)?;
        let mut ready = Vec::new();
        for n in 1..=repeats(20) {
            load.pause(Duration::from_millis(100));
            world.agent.take().context("no agent runs")?.stop()?;
            publish_version(world, &load.pods, n)?;
            ready.push(timed_start(world)?);
            assert_as_wanted(world)?;
        }
        load.end("SIGTERM", &ready)
    })
}

#[test]
fn no_connection_notices_that_the_agent_is_killed_at_any_instant() -> Result<()> {
    World::test("kill9", |world| {
        let mut load = Load::start(world)?;
        let (mut ready, mut kills) = (Vec::new(), 0);
        for n in 1..=repeats(20) {
            // In the middle of a large change ...
            publish_version(world, &load.pods, 2 * n)?;
            load.pause(Duration::from_millis(150));
            world.kill_agent()?;
            kills += 1;
            // ... and in the middle of a start, whose first reconcile is as large.
            if n % 2 == 0 {
                publish_version(world, &load.pods, 2 * n + 1)?;
                let half_started = Agent::spawn(&world.places(), &[])?;
                load.pause(START);
                half_started.kill()?;
                kills += 1;
            }
            ready.push(timed_start(world)?);
            assert_as_wanted(world)?;
        }
        load.end(&format!("kill -9 ({kills})"), &ready)
    })
}

#[test]
fn no_connection_notices_that_the_programs_are_replaced() -> Result<()> {
    World::test("replace", |world| {
        let mut load = Load::start(world)?;
        let mut ready = Vec::new();
        for _ in 0..repeats(5) {
            let (before, pinned) = (one_program_each(world)?, links(&link_dir(world.bpf_root()))?);
            world.agent.take().context("no agent runs")?.stop()?;
            let group = world.cgroup().path().to_owned();
            let (took, looks) = meanwhile(|| timed_start(world), |end| watch_programs(&group, end))?;
            ready.push(took);
            ensure!(looks > 10, "the hooks were looked at {looks} times only");
            // Other programs, in the links of before: replaced, not attached beside.
            let after = one_program_each(world)?;
            for ((hook, old), (_, new)) in before.iter().zip(&after) {
                ensure!(old != new, "{hook} has program {old} still");
            }
            let now = links(&link_dir(world.bpf_root()))?;
            for (old, new) in pinned.iter().zip(&now) {
                ensure!(old.link == new.link && old.program != new.program, "{old:?} became {new:?}");
            }
            assert_as_wanted(world)?;
        }
        load.end("programs replaced", &ready)
    })
}

/// Looks at the hooks without pause: each must have one program all the time.
fn watch_programs(group: &std::path::Path, end: &Ending) -> Result<u32> {
    let mut looks = 0;
    while !end.has_come() {
        for (hook, ids) in attached(group)? {
            ensure!(ids.len() == 1, "{hook} has the programs {ids:?} at once");
        }
        looks += 1;
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(looks)
}

/// Two would write the same memory.
#[test]
fn a_second_agent_is_refused_and_changes_nothing() -> Result<()> {
    World::test("lock", |world| {
        let mut load = Load::start(world)?;
        let before = one_program_each(world)?;
        let mut places = world.places();
        places.state = places.state.join("second");
        std::fs::create_dir(&places.state)?;
        for n in 1..=3 {
            publish_version(world, &load.pods, n)?;
            let mut second = Agent::spawn(&places, &["--agent-health-port=9880"])?;
            let status = second.wait_ended(Duration::from_secs(10))?;
            ensure!(!status.success() && second.log().contains("another process"), "{}", second.log());
            assert_as_wanted(world)?;
        }
        assert_eq!(one_program_each(world)?, before);
        load.end("second agent", &[])
    })
}

/// How long the agent is away.
fn down_for() -> Duration {
    Duration::from_secs(if std::env::var_os("PORTWAY_LONG").is_some() { 600 } else { 2 })
}

/// A pod's address may belong to another service by the time the agent is back: whoever the old one had sent there
/// must not be sent there again.
#[test]
fn five_seconds_after_a_long_absence_nothing_is_wrong() -> Result<()> {
    World::test("absence", |world| {
        let pods = world.serving_pods(&["a", "b", "c"])?;
        let [a, b, c] = &pods[..] else { anyhow::bail!("no three pods") };
        let at = |n: u32| std::net::Ipv4Addr::from(many(n)).to_string();
        let put = |world: &World, n: u32, pods: &[&Pod]| {
            let service = Service::new(&format!("many-{n}"), &[&at(n)]).port("http", TCP, 80).affinity(600);
            world.publish(&service, pods.iter().map(|pod| pod.endpoint()))
        };
        let sticky = Service::new("sticky", &["10.96.0.30"]).port("http", TCP, 80).port("quic", "UDP", 80);
        let stable = Service::new("stable", &["10.96.0.40"]).port("http", TCP, 80);
        let sticky = sticky.affinity(600);
        for n in 0..60 {
            put(world, n, &[a])?;
        }
        world.publish(&sticky, [a.endpoint()])?;
        world.publish(&stable, [c.endpoint()])?;
        world.start_agent(&[])?;
        let (mut client, mut load) = (world.node_client()?, world.node_client()?);
        // Everything that the node remembers of a client leads to `a`.
        let (udp, first) = client.connect(Protocol::Udp, "10.96.0.30:80")?;
        assert_eq!((first.name.as_str(), client.tcp("10.96.0.30:80")?.unwrap().name.as_str()), ("a", "a"));
        let all: Vec<SocketAddr> = (0..60).map(|n| SocketAddr::from((many(n), 80))).collect();
        assert_eq!(client.connects(&all, 60, 0)?.by_name.get("a"), Some(&60));
        load.start_load(&["10.96.0.40:80".parse()?], 10, 200)?;
        world.kill_agent()?;
        let away = Instant::now();
        // A third goes, a third moves to another pod, a third stays; the address of `a` is another service's now.
        for n in 0..20 {
            world.manifests().remove(&format!("many-{n}"))?;
        }
        for n in 20..40 {
            put(world, n, &[b])?;
        }
        world.publish(&sticky, [b.endpoint()])?;
        world.publish(&Service::new("heir", &[&at(0)]).port("http", TCP, 80), [a.endpoint()])?;
        while away.elapsed() < down_for() {
            // While it is down, the services are as they were.
            let tally = client.connects(&all, 60, 200)?;
            assert_eq!((tally.by_name.get("a"), tally.failures()), (Some(&60), 0), "{tally:?}");
        }
        let started = Instant::now();
        world.agent = Some(Agent::spawn(&world.places(), &[])?);
        world.wait_programmed()?;
        let took = started.elapsed();
        ensure!(took < Duration::from_secs(5), "it took {took:?}");
        let mut wrong = BTreeSet::new();
        for n in 0..60 {
            let wanted: &[&str] = match n {
                0 | 40.. => &["a"],
                1..20 => &["ENETUNREACH"],
                20..40 => &["b"],
            };
            let found = client.servers((many(n).into(), 80))?;
            if found != wanted.iter().map(|&name| name.to_owned()).collect() {
                wrong.insert((n, found));
            }
        }
        println!("away {:?}; as wanted {took:?} after its start; wrong entries: {}", down_for(), wrong.len());
        assert_eq!(wrong, BTreeSet::new());
        assert_eq!(client.servers("10.96.0.30:80")?, ["b".to_owned()].into());
        assert_eq!(client.udp_servers("10.96.0.30:80")?, ["b".to_owned()].into());
        client.close(udp)?;
        let tally = load.end_load()?;
        ensure!(tally.trouble().is_none(), "{:?}", tally.trouble());
        Ok(())
    })
}
