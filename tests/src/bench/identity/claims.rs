//! How fast label sets come to their numbers by a real API server.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::try_join_all;
use portway_claims::{Allocator, Change, News};
use portway_datapath::NumericIdentity;
use portway_model::identity::Right;
use portway_model::labels::{Label, Labels};

use super::super::report::{Figure, median, quantile};
use super::BENCH;
use crate::harness::cluster::portway_client;
use crate::harness::{ControlPlane, Namespace};

const LIMIT: Duration = Duration::from_secs(120);
const CLIENTS: usize = 8;
/// Claims of an agent on their way at a time. Many more are refused by the API server's own limit (429).
const TOGETHER: usize = 20;

pub(super) fn run(long: bool) -> Result<Vec<Figure>> {
    let namespace = Namespace::new("claims")?;
    let control_plane = ControlPlane::start(&namespace)?;
    control_plane.install_crds()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let many = if long { 1_000 } else { 300 };
    let (alone, all, same) = namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let alone = claim(&kubeconfig, &label_sets("alone", 100), 1).await?;
            let begin = Instant::now();
            claim(&kubeconfig, &label_sets("many", many), TOGETHER).await?;
            let all = begin.elapsed();
            let sets = label_sets("same", 100);
            let begin = Instant::now();
            let clients = (0..CLIENTS).map(|_| claim(&kubeconfig, &sets, TOGETHER));
            let claimed = try_join_all(clients).await?;
            let same = begin.elapsed();
            let numbers = |claimed: &Claimed| claimed.numbers.clone();
            let first = claimed.first().map(numbers);
            ensure!(claimed.iter().all(|one| Some(numbers(one)) == first), "they do not agree");
            Ok((alone, all, same))
        })
    })?;
    let ms = |ns: f64| ns / 1e6;
    Ok(vec![
        Figure::trend(BENCH, "a claim alone, median", ms(median(&alone.took)), "ms"),
        Figure::trend(BENCH, "a claim alone, p99", ms(quantile(&alone.took, 0.99) as f64), "ms"),
        Figure::trend(
            BENCH,
            "claims of one agent, 20 at a time",
            many as f64 / all.as_secs_f64(),
            "a second",
        ),
        Figure::trend(
            BENCH,
            "claims of 8 agents, the same 100 label sets",
            (CLIENTS * 100) as f64 / same.as_secs_f64(),
            "a second",
        ),
    ])
}

fn label_sets(what: &str, many: usize) -> Vec<Labels> {
    let labels = |number| {
        let namespace = Label::new("k8s", "io.kubernetes.pod.namespace", "default");
        Labels::new([Label::new("k8s", "app", format!("{what}-{number}").as_str()), namespace])
    };
    (0..many).map(labels).collect()
}

struct Claimed {
    numbers: BTreeMap<Labels, NumericIdentity>,
    /// Nanoseconds of each.
    took: Vec<u64>,
}

/// An agent of its own claims `sets`, `together` of them at a time.
async fn claim(kubeconfig: &Path, sets: &[Labels], together: usize) -> Result<Claimed> {
    // An agent's own limit is not what is measured.
    let client = portway_client(kubeconfig, BENCH).await?;
    let mut allocator = Allocator::from_api(client, Right::Create, 0);
    // It has seen everything: nothing.
    allocator.set_synced();
    let mut claimed = Claimed { numbers: BTreeMap::new(), took: Vec::new() };
    for sets in sets.chunks(together) {
        let begin = Instant::now();
        for set in sets {
            allocator.hold(set, None);
        }
        let until = claimed.numbers.len() + sets.len();
        while claimed.numbers.len() < until {
            let next = tokio::time::timeout(LIMIT, allocator.next());
            let Change { labels, news } = next.await.context("claims do not end")?;
            match news {
                News::Settled(number) => {
                    claimed.took.push(begin.elapsed().as_nanos() as u64);
                    claimed.numbers.insert(labels, number);
                }
                // An API server that has too much to do says so; the claim goes on.
                News::Held(_) | News::Obstacle(_) => {}
                News::Lost(_) => bail!("{labels}: {news:?}"),
            }
        }
    }
    Ok(claimed)
}
