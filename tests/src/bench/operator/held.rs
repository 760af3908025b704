//! A large cluster in which nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::harness::operator::agents::missing_endpoints;
use crate::harness::operator::agreement::{of_nodes, of_slices};
use crate::harness::operator::objects::{node, pod};
use crate::harness::{Replicas, eventually};

const LIMIT: Duration = Duration::from_secs(240);
const SLICES: &str = "/apis/cilium.io/v2alpha1/ciliumendpointslices";
/// Everything that there is to do, as fast as it can be done; what a quiet cluster costs is of the defaults.
const FLAGS: [&str; 10] = [
    "--identity-management-mode=operator",
    "--enable-cilium-endpoint-slice=true",
    r#"--ces-rate-limits=[{"nodes":0,"limit":500,"burst":1000}]"#,
    "--ipam=cluster-pool",
    "--cluster-pool-ipv4-cidr=10.0.0.0/9",
    "--cluster-pool-ipv4-mask-size=24",
    "--limit-ipam-api-qps=500",
    "--limit-ipam-api-burst=1000",
    "--operator-k8s-client-qps=500",
    "--operator-k8s-client-burst=1000",
];

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub nodes: u32,
    pub pods: u32,
    /// Label sets of pods.
    pub sets: u32,
}

/// What it costs.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub slices: usize,
    /// From the end of one operator to where the next one leads.
    pub restart: Duration,
    /// Of the operator that was started last, besides its lease.
    pub writes: usize,
    /// Anonymous memory, in bytes, after the quiet time.
    pub memory: u64,
    /// In the quiet time, besides its lease and its watches.
    pub requests: usize,
}

/// Fills a cluster of `size`, starts the operator again, and looks at it for `quiet` seconds.
pub fn run(size: Size, quiet: u64) -> Result<Held> {
    let mut all = Replicas::new("held", 1)?;
    all.start(1, &FLAGS)?;
    all.wait_leads(1, Duration::from_secs(20))?;
    fill(&all, size)?;
    let slices = all.client().list(SLICES)?.len();
    let before = work(&all)?;
    ensure!(before > 0, "the operator has written nothing");
    all.stop(1)?;
    let begin = Instant::now();
    all.start(1, &FLAGS)?;
    all.wait_leads(1, LIMIT)?;
    let restart = begin.elapsed();
    // Its lists and its first turns are no part of the quiet.
    let seen = settled(&all)?;
    std::thread::sleep(Duration::from_secs(quiet));
    let requests = all.proxy(1).seen();
    let quiet = requests.get(seen..).context("the record has become shorter")?;
    let requests =
        quiet.iter().filter(|seen| !seen.asked.is_watch() && !seen.asked.path.contains("/leases")).count();
    let memory = all.operator(1)?.memory()?;
    let writes = work(&all)?.saturating_sub(before);
    all.ensure_running()?;
    Ok(Held { slices, restart, writes, memory, requests })
}

/// Nodes, pods and what agents make of them, until the operator has nothing left to do.
fn fill(all: &Replicas, size: Size) -> Result<()> {
    all.client().create_all((1..=size.nodes).map(node).collect())?;
    let objects = (0..size.pods).map(|number| {
        let app = format!("application-{}", number % size.sets);
        let name = format!("{app}-{number:05}");
        let labels = [("app", app.as_str()), ("tier", "front"), ("team", "red")];
        pod("default", &name, 1 + number % size.nodes, number, &labels)
    });
    all.client().create_all(objects.collect::<Vec<Value>>())?;
    let wanted = usize::try_from(size.pods)?;
    let endpoints = eventually(LIMIT, "all pods to have an identity", || {
        let endpoints = missing_endpoints(all.client())?;
        ensure!(endpoints.len() == wanted, "{} of {wanted} have", endpoints.len());
        Ok(endpoints)
    })?;
    all.client().create_all(endpoints)?;
    eventually(LIMIT, "nodes and slices to be as they should", || {
        let mut wrong = of_nodes(all.client())?;
        wrong.extend(of_slices(all.client())?);
        ensure!(wrong.is_empty(), "{} are not, such as {:?}", wrong.len(), wrong.first());
        Ok(())
    })
}

/// How many writes besides those of the lease there were.
fn work(all: &Replicas) -> Result<usize> {
    let writes = all.control_plane().operator_writes()?;
    Ok(writes.iter().filter(|write| write.resource != "leases").count())
}

/// How many requests there were when ten seconds had passed without one but of lease and watches.
fn settled(all: &Replicas) -> Result<usize> {
    let begin = Instant::now();
    loop {
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs(10));
        let seen = all.proxy(1).seen();
        let busy = seen
            .iter()
            .any(|seen| seen.at >= from && !seen.asked.is_watch() && !seen.asked.path.contains("/leases"));
        if !busy {
            return Ok(seen.len());
        }
        ensure!(begin.elapsed() < LIMIT, "the operator does not settle");
    }
}
