//! `bench restart`: the agent ends and starts beside 10,000 services, under 500 connections that are held and 1,000
//! new ones a second.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::objects;
use super::report::{Figure, median, quantile};
use crate::harness::fixture::NODE_PORT;
use crate::harness::manifest::{Service, TCP, endpoints};
use crate::harness::world::{NODE_V4, NODE_V6};
use crate::harness::{Probe, World};
use crate::oracle::random::Random;

const BENCH: &str = "restart";
const SERVICES: u32 = 10_000;
/// None of [`objects`].
const CLUSTER_IPS: [&str; 2] = ["10.95.0.10", "fd00:10:95::10"];
/// A service's programs serve all the while; this is how long its changes wait.
const LONGEST_START_MS: f64 = 10_000.0;

pub fn run(long: bool) -> Result<Vec<Figure>> {
    let repeats = if long { 50 } else { 10 };
    let mut world = World::new("restarts")?;
    let pods = world.serving_pods(&["a", "b", "c", "d"])?;
    let web = Service::new("web", &CLUSTER_IPS).node_port("http", TCP, 80, NODE_PORT);
    world.publish(&web, endpoints(&pods.iter().collect::<Vec<_>>()))?;
    world.manifests().put_text("services.json", &objects::services(SERVICES, 2))?;
    world.start_agent(&[])?;
    let mut figures = Vec::new();
    let mut random = Random::new(1);
    for (what, kill) in [("SIGTERM", false), ("kill -9", true)] {
        let mut load = start_load(&world)?;
        let (mut ready, mut differing) = (Vec::new(), 0_u32);
        for _ in 0..repeats {
            // At any instant, also in the middle of the first changes after a start.
            std::thread::sleep(Duration::from_millis(random.below(200)));
            let agent = world.agent.take().context("no agent")?;
            if kill {
                agent.kill()?;
            } else {
                agent.stop()?;
            }
            let before = Instant::now();
            world.start_agent(&[])?;
            ready.push(before.elapsed().as_nanos() as u64);
            differing += u32::from(!is_as_planned(&world)?);
        }
        figures.extend(judge(what, repeats, &mut load, &ready, differing)?);
    }
    Ok(figures)
}

/// One client on the node, for ClusterIPs and NodePorts of both families.
fn start_load(world: &World) -> Result<Probe> {
    let mut to = vec![SocketAddr::from((NODE_V4, NODE_PORT)), SocketAddr::from((NODE_V6, NODE_PORT))];
    for ip in CLUSTER_IPS {
        to.push(SocketAddr::new(ip.parse()?, 80));
    }
    let mut load = world.node_client()?;
    load.start_load(&to, 500, 1000)?;
    Ok(load)
}

fn is_as_planned(world: &World) -> Result<bool> {
    let source = format!("--source-dir={}", world.manifests().path().display());
    let planned = world.portway(&["plan", &source, "--node", crate::harness::world::NODE, "-o", "json"])?;
    Ok(planned == world.portway(&["bpf", "lb", "list", "-o", "json"])?)
}

fn judge(what: &str, repeats: u32, load: &mut Probe, ready: &[u64], differing: u32) -> Result<Vec<Figure>> {
    let tally = load.end_load()?;
    let none = |metric: &str, value: u32, unit| {
        Figure::at_most(BENCH, format!("{what}: {metric}"), value.into(), unit, 0.0)
    };
    let rate = f64::from(tally.new.answers()) * 1000.0 / tally.took_ms.max(1) as f64;
    let ms = |ns: f64| ns / 1e6;
    Ok(vec![
        Figure::trend(BENCH, format!("{what}: times"), repeats.into(), "times"),
        Figure::trend(BENCH, format!("{what}: new connections"), tally.new.answers().into(), "connections"),
        Figure::at_least(BENCH, format!("{what}: new connections a second"), rate, "1/s", 900.0),
        none("new connections that failed", tally.new.failures(), "connections"),
        Figure::at_least(BENCH, format!("{what}: connections held"), tally.held.into(), "connections", 500.0),
        none("of those, broken", tally.exchanges.failures(), "connections"),
        none(
            "answers of another server, or peers that show the backend",
            tally.strangers + tally.unmasked,
            "answers",
        ),
        none("starts after which the maps differ from what is planned", differing, "times"),
        Figure::trend(BENCH, format!("{what}: exec to ready, median"), ms(median(ready)), "ms"),
        Figure::at_most(
            BENCH,
            format!("{what}: exec to ready, slowest"),
            ms(quantile(ready, 1.0) as f64),
            "ms",
            LONGEST_START_MS,
        ),
    ])
}
