//! The node that benchmarks run on; `bench start` and `bench memory`.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::de::DeserializeOwned;

use super::client::{self, Sweep};
use super::objects;
use super::report::{Figure, median, quantile};
use crate::harness::{Agent, Process, World, demo, eventually, process};

/// A node whose only pod answers on every endpoint address of [`objects`].
#[derive(Debug)]
pub struct Node {
    // Dropped first.
    _sink: Process,
    pub world: World,
}

impl Node {
    /// With an agent on a directory that holds `manifests` (one JSON text) from the start.
    pub fn start(name: &str, manifests: &str) -> Result<Self> {
        let mut node = Self::without_agent(name)?;
        if !manifests.is_empty() {
            node.world.manifests().put_text("services.json", manifests)?;
        }
        node.world.start_agent(&[])?;
        Ok(node)
    }

    pub fn without_agent(name: &str) -> Result<Self> {
        let mut world = World::new(name)?;
        let pod = world.pod("backends")?;
        let prefix = format!("{}/{}", objects::ENDPOINTS, objects::ENDPOINT_BITS);
        ip(pod.namespace.command("ip"), &["route", "add", "local", &prefix, "dev", "lo"])?;
        ip(world.node().command("ip"), &["route", "add", &prefix, "via", &pod.v4.to_string()])?;
        pod.namespace.sysctl("core/somaxconn", "65535")?;
        let mut command = pod.namespace.command(process::binary("portway-bench")?);
        command.args(["client", "sink", &SocketAddr::new([0, 0, 0, 0].into(), objects::PORT).to_string()]);
        command.stdin(Stdio::null());
        let sink = Process::spawn("the backends", command)?;
        let at = SocketAddr::new(IpAddr::V4(objects::endpoint(0)), objects::PORT);
        eventually(Duration::from_secs(5), "the backends to listen", || {
            world.node().run(|| Ok(std::net::TcpStream::connect_timeout(&at, Duration::from_secs(1))?))
        })?;
        Ok(Self { _sink: sink, world })
    }

    /// Runs a client of [`super::client`] on the node, in the hooked control group, to its end.
    pub fn client<T: DeserializeOwned>(&self, args: &[String], targets: &[SocketAddr]) -> Result<T> {
        self.start_client(args, targets)?.finish()
    }

    /// As [`Self::client`], not waiting.
    pub fn start_client(&self, args: &[String], targets: &[SocketAddr]) -> Result<Client> {
        Client::start(&self.world, args, targets)
    }

    /// Connects to each target until it succeeds.
    pub fn sweep(&self, targets: &[SocketAddr]) -> Result<Sweep> {
        self.client(&["sweep".to_owned()], targets)
    }
}

/// A running client.
#[derive(Debug)]
pub struct Client {
    process: Process,
    input: Option<ChildStdin>,
}

impl Client {
    /// On the node of `world`, in its hooked control group. It begins when its input ends.
    fn start(world: &World, args: &[String], targets: &[SocketAddr]) -> Result<Self> {
        let mut command = world.node().command(process::binary("portway-bench")?);
        crate::harness::Cgroup::place(world.cgroup().path(), &mut command)?;
        command.arg("client").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn("a client", command)?;
        let mut input = process.take_stdin().context("the client has no input")?;
        let lines: String = targets.iter().map(|target| format!("{target}\n")).collect();
        input.write_all(lines.as_bytes()).context("tell the client its targets")?;
        Ok(Self { process, input: Some(input) })
    }

    /// Ends its input, so that it begins, and reads what it measured.
    pub fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        self.begin();
        let output = self.process.take_stdout().context("the client has no output")?;
        let text = std::io::read_to_string(output).context("read what the client says")?;
        serde_json::from_str(&text)
            .with_context(|| format!("the client said {text:?}; {}", self.process.log()))
    }

    /// Its input and output, for a client that is told more than its targets.
    pub fn pipes(&mut self) -> Result<(ChildStdin, ChildStdout)> {
        let input = self.input.take().context("the client's input is taken")?;
        Ok((input, self.process.take_stdout().context("the client has no output")?))
    }

    /// Ends its input: a client that waited for its targets begins.
    pub fn begin(&mut self) {
        self.input = None;
    }
}

fn ip(mut command: std::process::Command, args: &[&str]) -> Result<()> {
    process::output(command.args(args)).map(drop)
}

/// What the kernel has measured of a program while its statistics were on.
#[derive(Clone, Copy, Debug)]
pub struct RunTime {
    pub ns: u64,
    pub runs: u64,
}

pub fn run_time(program: u32) -> Result<RunTime> {
    for info in aya::programs::loaded_programs() {
        let info = info.context("read the kernel's programs")?;
        if info.id() == program {
            return Ok(RunTime { ns: info.run_time().as_nanos() as u64, runs: info.run_count() });
        }
    }
    anyhow::bail!("the kernel has no program {program}")
}

/// From exec to the first service that answers, on an empty BPF file system, with the demo's manifests.
pub fn start(long: bool) -> Result<Vec<Figure>> {
    const BENCH: &str = "start";
    let mut world = World::new("start")?;
    demo::set_up(&mut world)?;
    let target = demo::WEB.parse()?;
    let places = world.places();
    let mut took = Vec::new();
    for _ in 0..if long { 50 } else { 10 } {
        let mut client = Client::start(&world, &["sweep".to_owned()], &[target])?;
        client.begin();
        let before = client::monotonic()?;
        let agent = Agent::spawn(&places, &[])?;
        let sweep: Sweep = client.finish()?;
        took.push(sweep.finished.saturating_sub(before));
        ensure!(sweep.failures > 0, "the service answered before the agent was started");
        agent.kill()?;
        world.portway(&["cleanup", "--yes"])?;
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    Ok(vec![
        Figure::at_most(BENCH, "exec to first answer, median", median(&took) / 1e6, "ms", 300.0),
        Figure::trend(BENCH, "exec to first answer, slowest", ms(quantile(&took, 1.0)), "ms"),
    ])
}

/// The agent's memory at 10,000 services of 10 endpoints, settled.
pub fn memory() -> Result<Vec<Figure>> {
    const BENCH: &str = "memory";
    const SERVICES: u32 = 10_000;
    let mut node = Node::start("memory", &objects::services(SERVICES, 10))?;
    node.sweep(&(0..SERVICES).map(objects::frontend).collect::<Vec<_>>())?;
    let agent = node.world.agent.take().context("no agent")?;
    let rss = settled(agent.id())?;
    let maps: u64 = portway_agent::maps::KernelTables::open_read_only(node.world.bpf_root())?
        .facts()?
        .iter()
        .filter_map(|map| map.kernel_bytes)
        .sum();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(vec![
        Figure::at_most(BENCH, "RssAnon + RssShmem at 10,000 services x 10 endpoints", mib(rss), "MiB", 80.0),
        Figure::trend(BENCH, "kernel memory of the maps", mib(maps), "MiB"),
    ])
}

/// `RssAnon` + `RssShmem` in bytes once they have stayed the same for three seconds.
pub(super) fn settled(pid: u32) -> Result<u64> {
    let begin = Instant::now();
    let (mut last, mut since) = (rss(pid)?, Instant::now());
    while since.elapsed() < Duration::from_secs(3) {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the agent's memory does not settle");
        std::thread::sleep(Duration::from_millis(100));
        let now = rss(pid)?;
        if now.abs_diff(last) > 1 << 20 {
            (last, since) = (now, Instant::now());
        }
    }
    rss(pid)
}

fn rss(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read the agent's status")?;
    let mut total = 0;
    for name in ["RssAnon:", "RssShmem:"] {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        let kib: u64 =
            line.trim().trim_end_matches(" kB").trim().parse().with_context(|| format!("{name} {line}"))?;
        total += kib * 1024;
    }
    Ok(total)
}
