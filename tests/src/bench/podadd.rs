//! `bench podadd`: how long a pod waits for its network, from the start of the plugin to its end, the agent warm.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::report::{Figure, median, quantile};
use crate::harness::cluster_net::cni::{Refused, Runtime};
use crate::harness::cluster_net::{Pod, PodSpec, Routing};
use crate::harness::{ClusterNet, Namespace};

const BENCH: &str = "podadd";
/// What kubelet allows a node by default.
const MANY: usize = 110;

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let mut net = ClusterNet::new(BENCH, 2)?;
    net.start_agents(Routing::Native, &[])?;
    let runtime = net.node(1).runtime();
    let singles = if long { 1000 } else { 200 };
    let turns = if long { 10 } else { 3 };
    // As on a node: kubelet has the pod from where the agent has it. The first ones wait for that, and read the programs
    // from disk and the like.
    let warm: Vec<_> = (0..5).map(|_| PodSpec::new("warm")).collect();
    let single: Vec<_> = (0..singles).map(|number| PodSpec::new(&format!("single-{number}"))).collect();
    let many: Vec<_> = (0..turns * MANY).map(|number| PodSpec::new(&format!("many-{number}"))).collect();
    let all = warm.iter().chain(&single).chain(&many);
    net.manifests().put("pods", all.map(|spec| spec.object(net.node(1).name(), &[])))?;
    for spec in warm {
        remove(&runtime, &add(&runtime, &Sandbox::new(spec)?)?.0)?;
    }
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    for spec in single {
        let (pod, took) = add(&runtime, &Sandbox::new(spec)?)?;
        adds.push(took);
        dels.push(remove(&runtime, &pod)?);
    }
    let all = many.chunks(MANY).map(|specs| at_once(&runtime, specs)).collect::<Result<Vec<_>>>()?;
    let ms = |ns: f64| ns / 1e6;
    Ok(vec![
        Figure::trend(BENCH, "ADD of a single pod, median", ms(median(&adds)), "ms"),
        Figure::at_most(BENCH, "ADD of a single pod, p99", ms(quantile(&adds, 0.99) as f64), "ms", 50.0),
        Figure::trend(BENCH, "DEL of a single pod, median", ms(median(&dels)), "ms"),
        Figure::trend(BENCH, "DEL of a single pod, p99", ms(quantile(&dels, 0.99) as f64), "ms"),
        Figure::trend(BENCH, format!("{MANY} pods at once, the last, median"), ms(median(&all)), "ms"),
        Figure::at_most(
            BENCH,
            format!("{MANY} pods at once, the last, slowest time"),
            ms(quantile(&all, 1.0) as f64),
            "ms",
            2000.0,
        ),
    ])
}

/// Made by the runtime, before the plugin is called.
struct Sandbox {
    spec: PodSpec,
    namespace: Namespace,
}

impl Sandbox {
    fn new(spec: PodSpec) -> Result<Self> {
        Ok(Self { namespace: Namespace::as_a_runtime_makes_it(&spec.name)?, spec })
    }
}

/// The pod, and nanoseconds.
fn add(runtime: &Runtime, sandbox: &Sandbox) -> Result<(Pod, u64)> {
    let start = Instant::now();
    let pod = runtime.add_to(&sandbox.spec, &sandbox.namespace)?.map_err(Refused::into_error)?;
    Ok((pod, start.elapsed().as_nanos() as u64))
}

/// Nanoseconds.
fn remove(runtime: &Runtime, pod: &Pod) -> Result<u64> {
    let start = Instant::now();
    runtime.delete(pod)?.map_err(Refused::into_error)?;
    Ok(start.elapsed().as_nanos() as u64)
}

/// Nanoseconds until the last of these pods has its network, all plugins started at the same time.
fn at_once(runtime: &Runtime, specs: &[PodSpec]) -> Result<u64> {
    let sandboxes = specs.iter().cloned().map(Sandbox::new).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let pods = std::thread::scope(|scope| {
        let threads: Vec<_> = sandboxes
            .iter()
            .map(|sandbox| scope.spawn(|| add(runtime, sandbox).map(|(pod, _)| pod)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Pod>>| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked")).flatten()
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })
    .context("make all pods at once")?;
    let took = start.elapsed().as_nanos() as u64;
    let addresses: std::collections::BTreeSet<_> = pods.iter().map(|pod| pod.v4).collect();
    ensure!(addresses.len() == specs.len(), "{} pods have {} addresses", specs.len(), addresses.len());
    pods.iter().try_for_each(|pod| remove(runtime, pod).map(drop))?;
    Ok(took)
}
