//! `bench connect`: what a connect costs through a service and directly.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};

use super::client::{Paired, own_cgroup};
use super::objects;
use super::report::{Figure, median, quantile};
use super::resources::{self, Node};

const BENCH: &str = "connect";

/// 40 rounds of 500 connects each way.
const ROUNDS: u32 = 40;
const MANY: u32 = 10_000;

pub fn run(_long: bool) -> Result<Vec<Figure>> {
    let one = Node::start("one", &objects::services_of_one_backend(1))?;
    let many = Node::start("many", &objects::services_of_one_backend(MANY))?;
    let targets: Vec<SocketAddr> = spread(MANY).map(objects::frontend).collect();
    for node in [&one, &many] {
        node.sweep(if std::ptr::eq(node, &one) { &targets[..0] } else { &targets })?;
    }
    one.sweep(&[objects::frontend(0)])?;

    let first = [objects::frontend(0)];
    let (mut few, mut lots, mut random) = (Paired::default(), Paired::default(), Paired::default());
    // The two nodes take turns, so that a machine that speeds up or slows down does so for both.
    for turn in 0..ROUNDS {
        few.extend(measure(&one, &first, 1)?);
        lots.extend(measure(&many, &first, 1)?);
        let from = (turn as usize * 500) % targets.len();
        let batch: Vec<_> = targets.iter().cycle().skip(from).take(500).copied().collect();
        random.extend(measure(&many, &batch, 1)?);
    }
    ensure!(few.service_ns.len() == 20_000 && few.direct_ns.len() == 20_000, "not every connect was made");
    let (service, direct) = (median(&few.service_ns), median(&few.direct_ns));
    let mut figures = vec![
        Figure::trend(BENCH, "direct, median", direct / 1000.0, "us"),
        Figure::trend(BENCH, "through a ClusterIP, median", service / 1000.0, "us"),
        Figure::at_most(BENCH, "through a ClusterIP / direct, medians", service / direct, "x", 1.05),
        Figure::trend(BENCH, "direct, p99", quantile(&few.direct_ns, 0.99) as f64 / 1000.0, "us"),
        Figure::trend(
            BENCH,
            "through a ClusterIP, p99",
            quantile(&few.service_ns, 0.99) as f64 / 1000.0,
            "us",
        ),
        Figure::at_most(
            BENCH,
            "10,000 services / 1 service, medians",
            median(&lots.service_ns) / service,
            "x",
            1.05,
        ),
        // No service is asked twice in a row: what one connect has brought into the caches is of no use to the next.
        Figure::at_most(
            BENCH,
            "10,000 services in random order / 1 service, medians",
            median(&random.service_ns) / service,
            "x",
            1.05,
        ),
    ];
    drop(one);
    figures.extend(run_times(&many, &targets)?);
    Ok(figures)
}

impl Paired {
    fn extend(&mut self, other: Self) {
        self.service_ns.extend(other.service_ns);
        self.direct_ns.extend(other.direct_ns);
    }
}

/// The numbers below `n`, neighbours far apart, so that no cache is warmed by the one before.
fn spread(n: u32) -> impl Iterator<Item = u32> {
    // 7919 is prime to the sizes used here.
    (0..n).map(move |i| (i * 7919) % n)
}

fn measure(node: &Node, targets: &[SocketAddr], rounds: u32) -> Result<Paired> {
    let direct = SocketAddr::new(objects::endpoint(0).into(), objects::PORT);
    let outside = own_cgroup()?;
    let hooked = node.world.cgroup().path();
    let args = [
        "paired".to_owned(),
        hooked.display().to_string(),
        outside.display().to_string(),
        direct.to_string(),
        rounds.to_string(),
    ];
    node.client(&args, targets)
}

/// What the kernel measures of the program itself, in a run of its own: the statistics cost time too.
fn run_times(node: &Node, targets: &[SocketAddr]) -> Result<Vec<Figure>> {
    let program =
        portway_agent::programs::attached(&portway_agent::programs::link_dir(node.world.bpf_root()))?
            .into_iter()
            .find(|attached| attached.hook == portway_agent::programs::Hook::Connect4)
            .context("no program is attached to connect4")?;
    let statistics =
        aya::sys::enable_stats(aya::sys::Stats::RunTime).context("switch program statistics on")?;
    let mut figures = Vec::new();
    let misses = vec![SocketAddr::new(objects::endpoint(0).into(), objects::PORT); 20_000];
    let hits: Vec<_> = targets.iter().cycle().take(20_000).copied().collect();
    for (metric, targets, bar) in [("connect4, a hit", hits, 1200.0), ("connect4, a miss", misses, 300.0)] {
        let before = resources::run_time(program.program)?;
        node.sweep(&targets)?;
        let after = resources::run_time(program.program)?;
        let runs = after.runs - before.runs;
        ensure!(runs >= 20_000, "connect4 ran {runs} times in 20,000 connects");
        figures.push(Figure::at_most(BENCH, metric, (after.ns - before.ns) as f64 / runs as f64, "ns", bar));
    }
    drop(statistics);
    Ok(figures)
}
