//! Many pods of many label sets at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portway_model::identity::CLAIM;
use serde_json::Value;

use crate::harness::operator::objects::{node, pending, pod};
use crate::harness::{Replicas, eventually};

/// A burst that has not come to its end by then never will.
const LIMIT: Duration = Duration::from_secs(120);
const NODES: u32 = 10;

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// From the first pod to the last.
    pub created: Duration,
    /// From the first pod to where every label set has an identity that can be used.
    pub all: Duration,
    /// Identities beyond one for each label set, tentative ones included, at the end.
    pub duplicates: usize,
}

/// `pods` pods of `sets` label sets, with an operator that gives numbers at 200 requests a second.
pub fn run(pods: u32, sets: u32) -> Result<Burst> {
    let mut all = Replicas::new("burst", 1)?;
    all.client().create_all((1..=NODES).map(node).collect())?;
    all.start_direct(
        1,
        &[
            "--identity-management-mode=operator",
            "--operator-k8s-client-qps=200",
            "--operator-k8s-client-burst=200",
        ],
    )?;
    all.wait_leads(1, Duration::from_secs(20))?;
    let objects: Vec<Value> = (0..pods)
        .map(|number| {
            let app = format!("application-{}", number % sets);
            let name = format!("{app}-{number:05}");
            pending(pod("default", &name, 1 + number % NODES, number, &[("app", &app)]))
        })
        .collect();
    let client = all.control_plane().new_client()?;
    let begin = Instant::now();
    let creating = std::thread::spawn(move || client.create_all(objects).map(|()| begin.elapsed()));
    let wanted = usize::try_from(sets)?;
    eventually(LIMIT, "every label set to have an identity", || {
        let confirmed = confirmed(&all)?;
        ensure!(confirmed.len() >= wanted, "{} of {wanted} have", confirmed.len());
        Ok(())
    })?;
    let took = begin.elapsed();
    let created = creating.join().map_err(|_| anyhow::anyhow!("the creation panicked"))??;
    // Nothing is to come after the last pod.
    let there = eventually(LIMIT, "identities to be all confirmed", || {
        let identities = all.client().list("/apis/cilium.io/v2/ciliumidentities")?;
        let confirmed = confirmed(&all)?;
        ensure!(identities.len() == confirmed.len(), "{} of {}", confirmed.len(), identities.len());
        Ok(confirmed)
    })?;
    let sets: BTreeSet<&String> = there.iter().collect();
    ensure!(sets.len() == wanted, "{} label sets have an identity, not {wanted}", sets.len());
    all.ensure_running()?;
    Ok(Burst { created, all: took, duplicates: there.len() - sets.len() })
}

/// The labels of each identity that can be used.
fn confirmed(all: &Replicas) -> Result<Vec<String>> {
    let identities = all.client().list("/apis/cilium.io/v2/ciliumidentities")?;
    let confirmed = identities.iter().filter(|one| one["metadata"]["annotations"][CLAIM].is_null());
    Ok(confirmed.map(|one| one["security-labels"].to_string()).collect())
}
