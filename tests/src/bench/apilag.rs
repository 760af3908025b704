//! `bench apilag`: from the API server's acknowledgement of a change to the first connection on the new backend, and
//! beside it what a bare watch needs to see the change at all.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::cluster::{Lab, map_writes, thread_time};
use super::program::Watcher;
use super::report::{Figure, quantile};
use super::{client, objects};
use crate::harness::cluster::identity::ADMIN_TOKEN;
use crate::harness::{ControlPlane, Pod, Process};

const BENCH: &str = "apilag";
const FEW: u32 = 1_000;
const MANY: u32 = 10_000;
/// The service whose backend changes.
const SERVICE: u32 = 7;
/// Several looks of the audit.
const IDLE: Duration = Duration::from_secs(20);
/// Changes come alone: those of a stream without a pause are taken several at a time (see bench `churn`).
const APART: Duration = Duration::from_millis(120);
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let changes = if long { 1000 } else { 200 };
    let mut lab = Lab::start("apilag")?;
    lab.create_services(1, FEW + 1)?;
    lab.start_agent()?;
    let pods = lab.node.world.serving_pods(&["even", "odd"])?;
    let few = measure(&lab, &pods, changes)?;
    lab.create_services(FEW + 1, MANY + 1)?;
    let targets: Vec<_> = (1..=MANY).filter(|n| *n != SERVICE).map(objects::frontend).collect();
    lab.node.sweep(&targets)?;
    let many = measure(&lab, &pods, changes)?;
    Ok(figures(&few, &many))
}

/// Of each change: nanoseconds after the acknowledgement, 0 where it was seen before that. Of one change on average:
/// operations on the maps and nanoseconds of the agent's processor time.
#[derive(Default)]
struct Measured {
    watch: Vec<u64>,
    connection: Vec<u64>,
    writes: f64,
    cpu_ns: f64,
}

fn measure(lab: &Lab, pods: &[Pod], changes: u32) -> Result<Measured> {
    // So that the first change is one.
    lab.change(SERVICE, objects::endpoint(SERVICE))?;
    let bare = BareWatch::start(&lab.control_plane, &format!("service-{SERVICE}-"))?;
    let mut watcher = Watcher::start(&lab.node, objects::frontend(SERVICE))?;
    let mut measured = Measured::default();
    let agent = lab.agent()?;
    // The agent looks at its maps all the time; that is no change's.
    let before = thread_time(agent)?;
    std::thread::sleep(IDLE);
    let idle = (thread_time(agent)? - before) as f64 / IDLE.as_secs_f64();
    let (mut writes, mut cpu, mut due) = (0, 0, Instant::now());
    let mut begin = due;
    for (n, pod) in (0..=changes).zip(pods.iter().cycle()) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = Instant::now() + APART;
        watcher.expect(&pod.name)?;
        lab.change(SERVICE, pod.v4)?;
        let acknowledged = client::monotonic()?;
        let connected = watcher.seen()?;
        let seen = bare.seen()?;
        if n == 0 {
            // That one only set the scene. A scrape reads whole maps: none while changes are measured.
            writes = map_writes(&lab.node)?;
            cpu = thread_time(agent)?;
            begin = Instant::now();
        } else {
            measured.watch.push(seen.saturating_sub(acknowledged));
            measured.connection.push(connected.saturating_sub(acknowledged));
        }
    }
    let cpu = (thread_time(agent)? - cpu) as f64 - idle * begin.elapsed().as_secs_f64();
    measured.cpu_ns = cpu / f64::from(changes);
    measured.writes = (map_writes(&lab.node)? - writes) as f64 / f64::from(changes);
    Ok(measured)
}

fn figures(few: &Measured, many: &Measured) -> Vec<Figure> {
    let ms = |samples: &[u64], q| quantile(samples, q) as f64 / 1e6;
    let mut figures = Vec::new();
    for (at, measured) in [("1,000", few), ("10,000", many)] {
        for (what, samples) in [("a bare watch", &measured.watch), ("first connection", &measured.connection)]
        {
            for (name, q) in [("median", 0.5), ("p99", 0.99)] {
                let metric = format!("{at} services, acknowledged to {what}, {name}");
                figures.push(Figure::trend(BENCH, metric, ms(samples, q), "ms"));
            }
        }
    }
    let more = ms(&many.connection, 0.99) - ms(&many.watch, 0.99);
    let at_most = |metric: &str, value, unit, bar| Figure::at_most(BENCH, metric, value, unit, bar);
    figures.extend([
        at_most("10,000 services, first connection after a bare watch, p99", more, "ms", 10.0),
        Figure::trend(BENCH, "map writes for one change", many.writes, "writes"),
        at_most("map writes for one change, 10,000 services / 1,000", many.writes / few.writes, "x", 1.05),
        Figure::trend(BENCH, "agent's CPU for one change", many.cpu_ns / 1e3, "us"),
        at_most("agent's CPU for one change, 10,000 services / 1,000", many.cpu_ns / few.cpu_ns, "x", 1.5),
    ]);
    figures
}

/// `curl` on a watch of all slices: what the API server itself needs.
struct BareWatch {
    seen: Receiver<Result<u64>>,
    curl: Process,
}

impl BareWatch {
    /// Tells when an event of a slice came whose name begins with `prefix`.
    fn start(control_plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let list = control_plane.client().get(&format!("{SLICES}?limit=1"))?;
        let version = list.pointer("/metadata/resourceVersion").and_then(|v| v.as_str());
        let version = version.context("a list without a version")?;
        let mut curl = control_plane.namespace().command("curl");
        // On loopback of a namespace of the test; curl takes a certificate for self-signed that has its issuer's name.
        curl.args(["-sSN", "--insecure"]);
        curl.args(["-H", &format!("Authorization: Bearer {ADMIN_TOKEN}")]);
        curl.arg(format!("{}{SLICES}?watch=1&resourceVersion={version}", control_plane.url()));
        curl.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut curl = Process::spawn("a bare watch", curl)?;
        let output = BufReader::new(curl.take_stdout().context("curl has no output")?);
        let (sender, seen) = channel();
        let wanted = format!("\"name\":\"{prefix}");
        std::thread::Builder::new().name("bare watch".to_owned()).spawn(move || {
            for line in output.lines() {
                let told = match line {
                    Ok(line) if !line.contains(&wanted) => continue,
                    Ok(_) => client::monotonic(),
                    Err(error) => Err(error.into()),
                };
                if sender.send(told).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { seen, curl })
    }

    /// When it saw the next one, on the monotonic clock.
    fn seen(&self) -> Result<u64> {
        match self.seen.recv_timeout(Duration::from_secs(10)) {
            Ok(seen) => seen,
            Err(RecvTimeoutError::Timeout) => bail!("a bare watch has seen no change for 10 s"),
            Err(RecvTimeoutError::Disconnected) => bail!("the bare watch ended: {}", self.curl.log()),
        }
    }
}
