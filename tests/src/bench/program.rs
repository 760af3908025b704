//! `bench program` and `bench envelope`: from a rename in the directory to connections.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout};

use anyhow::{Context as _, Result, ensure};

use super::client::{self, Sweep};
use super::cluster::{METRICS, map_writes};
use super::objects;
use super::report::{Figure, quantile};
use super::resources::{Client, Node};

const BENCH: &str = "program";
const SERVICES: u32 = 10_000;

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let mut node = Node::without_agent("program")?;
    node.world.start_agent(&[&format!("--prometheus-serve-addr={METRICS}")])?;
    let text = objects::services(SERVICES, 10);
    let targets: Vec<_> = (0..SERVICES).map(objects::frontend).collect();

    // The client is already trying when the file appears.
    let mut client = node.start_client(&["sweep".to_owned()], &targets)?;
    client.begin();
    let renamed = put(&node, "services.json", &text)?;
    let first: Sweep = client.finish()?;
    ensure!(first.failures > 0, "the services answered before their file appeared");
    let second = node.sweep(&targets)?;
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
    let (total, connects) = (seconds(renamed, first.finished), seconds(second.started, second.finished));
    ensure!(second.failures == 0, "{} connects failed once everything was programmed", second.failures);
    let mut figures = vec![
        Figure::at_most(
            BENCH,
            "rename to the last of 10,000 first connects, without the connects",
            total - connects,
            "s",
            1.0,
        ),
        Figure::trend(BENCH, "the 10,000 connects alone", connects, "s"),
        Figure::trend(BENCH, "size of the file", text.len() as f64 / 1e6, "MB"),
    ];
    figures.extend(changes(&mut node, if long { 1000 } else { 200 })?);
    Ok(figures)
}

/// One endpoint of one service changes, at this size.
fn changes(node: &mut Node, count: u32) -> Result<Vec<Figure>> {
    let pods = node.world.serving_pods(&["even", "odd"])?;
    let target = objects::frontend(SERVICES);
    node.world.manifests().put_text("extra.json", &objects::one_service(SERVICES))?;
    let mut watcher = Watcher::start(node, target)?;
    let mut took = Vec::new();
    let mut writes = Vec::new();
    for (n, pod) in (0..count).zip(pods.iter().cycle()) {
        watcher.expect(&pod.name)?;
        let before = map_writes(node)?;
        let renamed = put(node, "extra-slice.json", &objects::one_endpoint(SERVICES, pod.v4))?;
        let seen = watcher.seen()?;
        // The first one makes the service's first run.
        if n > 0 {
            took.push(seen.saturating_sub(renamed));
            writes.push(map_writes(node)? - before);
        }
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    Ok(vec![
        Figure::trend(
            BENCH,
            "one endpoint change, rename to first connect, median",
            ms(quantile(&took, 0.5)),
            "ms",
        ),
        Figure::at_most(
            BENCH,
            "one endpoint change, rename to first connect, p99",
            ms(quantile(&took, 0.99)),
            "ms",
            10.0,
        ),
        Figure::at_most(
            BENCH,
            "map writes for one endpoint change, most",
            quantile(&writes, 1.0) as f64,
            "writes",
            16.0,
        ),
    ])
}

/// Renames `text` into the directory; the monotonic time just before.
fn put(node: &Node, name: &str, text: &str) -> Result<u64> {
    let staged = node.world.manifests().stage(name, text)?;
    let before = client::monotonic()?;
    staged.publish()?;
    Ok(before)
}

/// A client that connects until it sees a name, again and again.
pub(super) struct Watcher {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _client: Client,
}

impl Watcher {
    pub(super) fn start(node: &Node, target: SocketAddr) -> Result<Self> {
        let mut client = node.start_client(&["watch".to_owned(), target.to_string()], &[])?;
        let (input, output) = client.pipes()?;
        Ok(Self { input, output: BufReader::new(output), _client: client })
    }

    pub(super) fn expect(&mut self, name: &str) -> Result<()> {
        writeln!(self.input, "{name}").context("tell the watcher")
    }

    /// When it saw the name, on the monotonic clock.
    pub(super) fn seen(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("hear the watcher")?;
        line.trim().parse().with_context(|| format!("the watcher said {line:?}"))
    }
}

/// Kubernetes' own envelope with default settings: every sampled frontend answers.
pub fn envelope() -> Result<Vec<Figure>> {
    const BENCH: &str = "envelope";
    let node = Node::start("envelope", &objects::services(SERVICES, 15))?;
    let targets: Vec<_> = (0..SERVICES).step_by(10).map(objects::frontend).collect();
    let sweep = node.sweep(&targets)?;
    let dump = portway_agent::maps::KernelTables::open_read_only(node.world.bpf_root())?.dump()?;
    let endpoints: usize = dump.services.iter().map(|service| service.backends.len()).sum();
    Ok(vec![
        Figure::at_least(BENCH, "services in the maps", dump.services.len() as f64, "services", 10_000.0),
        Figure::at_least(BENCH, "endpoints in the maps", endpoints as f64, "endpoints", 150_000.0),
        Figure::at_least(BENCH, "sampled frontends that answered", targets.len() as f64, "frontends", 1000.0),
        Figure::at_most(BENCH, "connects that failed", sweep.failures as f64, "connects", 0.0),
    ])
}
