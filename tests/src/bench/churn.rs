//! `bench churn`: 100 endpoint changes a second at 1,000 services, for the agent and for kube-proxy in nftables mode.
//!
//! One after the other on the same API server, with the same changes: each has the machine for itself, and none pays
//! for another's.

mod kube_proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_model::tables::Row;

use super::cluster::{Lab, cpu_seconds};
use super::objects;
use super::report::Figure;
use crate::harness::{World, eventually};
use crate::oracle::random::Random;
use kube_proxy::KubeProxy;

const BENCH: &str = "churn";
const SERVICES: u32 = 1_000;
const PER_SECOND: u32 = 100;
/// All that a proxy may need after the last change.
const SETTLED: Duration = Duration::from_secs(10);
const FIRST_SYNC: Duration = Duration::from_secs(60);

/// The one backend of each service.
type Backends = BTreeMap<u32, BTreeSet<Ipv4Addr>>;

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let seconds = if long { 60 } else { 20 };
    let mut lab = Lab::start("churn")?;
    lab.create_services(1, SERVICES + 1)?;
    let mut wanted: Backends = (1..=SERVICES).map(|n| (n, [objects::endpoint(n)].into())).collect();
    lab.start_agent()?;
    let (pid, world) = (lab.agent()?, &lab.node.world);
    let ours = churn(&lab, &mut wanted, seconds, pid, || agent_backends(world))?;
    lab.node.world.kill_agent()?;
    let mut figures = ours.figures("Portway");
    let mut theirs = Vec::new();
    for (name, period) in [("kube-proxy, default sync period", None), ("kube-proxy, 1 ms", Some("1ms"))] {
        let proxy = KubeProxy::start(&lab.control_plane, period)?;
        let measured = churn(&lab, &mut wanted, seconds, proxy.id(), || proxy.backends())?;
        figures.extend(measured.figures(name));
        theirs.push(measured.cpu);
    }
    // Stale entries are ours to have none of; what others have is told.
    figures.push(Figure::at_most(
        BENCH,
        "Portway: stale backends at the end, bar",
        ours.stale,
        "backends",
        0.0,
    ));
    if let [default, eager] = theirs[..] {
        figures.push(Figure::at_most(
            BENCH,
            "CPU, Portway / kube-proxy, default sync period",
            ours.cpu / default,
            "x",
            0.2,
        ));
        figures.push(Figure::trend(BENCH, "CPU, Portway / kube-proxy, 1 ms", ours.cpu / eager, "x"));
    }
    Ok(figures)
}

struct Measured {
    changes_per_second: f64,
    cpu: f64,
    /// Services whose backends are not what was written last.
    stale: f64,
    settled: Duration,
}

impl Measured {
    fn figures(&self, who: &str) -> Vec<Figure> {
        let Self { changes_per_second, cpu, stale, settled } = self;
        vec![
            Figure::at_least(BENCH, format!("{who}: changes a second"), *changes_per_second, "1/s", 90.0),
            Figure::trend(BENCH, format!("{who}: CPU"), *cpu, "s"),
            Figure::trend(BENCH, format!("{who}: stale backends at the end"), *stale, "backends"),
            Figure::trend(
                BENCH,
                format!("{who}: from the last change to none stale"),
                settled.as_secs_f64() * 1e3,
                "ms",
            ),
        ]
    }
}

/// Changes one endpoint after the other on a beat, and waits until `backends` are what was written.
fn churn(
    lab: &Lab,
    wanted: &mut Backends,
    seconds: u32,
    pid: u32,
    backends: impl Fn() -> Result<Backends>,
) -> Result<Measured> {
    eventually(FIRST_SYNC, "the services to be there before the first change", || {
        let stale = stale(wanted, &backends()?);
        ensure!(stale == 0, "{stale} are not");
        Ok(())
    })?;
    let mut random = Random::new(seconds.into());
    let cpu = cpu_seconds(pid)?;
    let begin = Instant::now();
    let count = seconds * PER_SECOND;
    for n in 0..count {
        let due = begin + Duration::from_secs(1) / PER_SECOND * n;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let service = 1 + random.below(SERVICES.into()) as u32;
        let addr = objects::endpoint(SERVICES + 1 + random.below(100_000) as u32);
        lab.change(service, addr)?;
        wanted.insert(service, [addr].into());
    }
    let (took, last) = (begin.elapsed(), Instant::now());
    let settled = eventually(SETTLED, "no backend to be stale", || {
        let stale = stale(wanted, &backends()?);
        ensure!(stale == 0, "{stale} services have other backends than were written last");
        Ok(last.elapsed())
    });
    let stale = if settled.is_ok() { 0 } else { stale(wanted, &backends()?) };
    Ok(Measured {
        changes_per_second: f64::from(count) / took.as_secs_f64(),
        cpu: cpu_seconds(pid)? - cpu,
        stale: stale as f64,
        settled: settled.unwrap_or(SETTLED),
    })
}

fn stale(wanted: &Backends, found: &Backends) -> usize {
    wanted.iter().filter(|(service, backends)| found.get(service) != Some(backends)).count()
}

/// What the kernel's maps hold.
fn agent_backends(world: &World) -> Result<Backends> {
    let rows: Vec<Row> = serde_json::from_str(&world.portway(&["bpf", "lb", "list", "-o", "json"])?)?;
    let mut all = Backends::new();
    for row in rows {
        let Some(number) = row.service.strip_prefix("bench/service-") else { continue };
        let addrs = row.backends.cluster.iter().map(|backend| {
            let addr: std::net::SocketAddrV4 =
                backend.parse().with_context(|| format!("no address: {backend}"))?;
            Ok(*addr.ip())
        });
        all.insert(number.parse()?, addrs.collect::<Result<_>>()?);
    }
    Ok(all)
}
