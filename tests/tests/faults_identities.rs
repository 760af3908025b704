//! The agent's own end while pods' labels change on a real API server: identities stay what they are, every node comes
//! to what the objects say, and nobody writes what is written already.
//!
//! The short form restarts 5 times each way; with `PORTWAY_LONG` 20 times.

#![expect(clippy::print_stdout, reason = "the figures are part of the result")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster::{ApiClient, Write};
use portway_tests::harness::cluster_net::{Pod, PodSpec, Routing};
use portway_tests::harness::{Beside, ClusterNet, Ending};
use portway_tests::oracle::random::Random;
use serde_json::json;

const ROUTING: Routing = Routing::Tunnel;
/// The bar.
const SOON: Duration = Duration::from_secs(5);
/// Label sets that pods move among.
const SETS: u64 = 6;
/// Pods of each node whose labels change, and whose do not.
const MOVING: u32 = 3;
const STAYING: u32 = 2;

fn repeats() -> u32 {
    if std::env::var_os("PORTWAY_LONG").is_some() { 20 } else { 5 }
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Told,
    Killed,
}

#[test]
fn an_agent_that_is_told_to_end_under_label_churn_comes_back_to_what_the_objects_say() -> Result<()> {
    all_agree_after(End::Told)
}

#[test]
fn an_agent_that_is_killed_under_label_churn_comes_back_to_what_the_objects_say() -> Result<()> {
    all_agree_after(End::Killed)
}

fn all_agree_after(end: End) -> Result<()> {
    ClusterNet::test_on_api(&format!("labels-{end:?}"), 3, |net| {
        net.start_agents(ROUTING, &[])?;
        let (mut moving, mut staying) = (Vec::new(), Vec::new());
        for node in 1..=3 {
            for number in 0..MOVING {
                let spec = PodSpec::new(&format!("moving-{node}-{number}"));
                moving.push(net.make(node, &spec.labelled("app", "set-0"))?);
            }
            for number in 0..STAYING {
                let spec = PodSpec::new(&format!("staying-{node}-{number}"));
                staying.push(net.make(node, &spec.labelled("app", &format!("staying-{number}")))?);
            }
        }
        let objects = net.wait_agreement(Duration::from_secs(10))?;
        let addresses: Vec<IpAddr> =
            staying.iter().flat_map(|pod| [IpAddr::from(pod.v4), pod.v6.into()]).collect();
        let watches: Vec<_> =
            net.nodes().iter().map(|node| node.watch_ipcache(addresses.clone())).collect::<Result<_>>()?;
        let mut random = Random::new(std::process::id().into());
        let (mut agreed, mut changes) = (Vec::new(), 0);
        for _ in 0..repeats() {
            let churn = Churn::start(net, &moving, random.below(u64::MAX))?;
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
            finish(net, end)?;
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
            if end == End::Killed && random.chance(2) {
                // Also in the middle of a start.
                net.node_mut(1).spawn_agent(ROUTING, &[])?;
                std::thread::sleep(Duration::from_micros(random.below(600_000)));
                net.node_mut(1).kill_agent()?;
            }
            net.node_mut(1).start_agent(ROUTING, &[])?;
            changes += churn.end()?;
            let begin = Instant::now();
            net.wait_agreement(SOON)?;
            agreed.push(begin.elapsed());
        }
        // What is written already is not written again, by whoever starts.
        std::thread::sleep(GRACE);
        net.wait_agreement(SOON)?;
        let before = net.control_plane()?.writes()?;
        for _ in 0..repeats() {
            finish(net, end)?;
            net.node_mut(1).start_agent(ROUTING, &[])?;
            net.wait_agreement(SOON)?;
        }
        let after = net.control_plane()?.writes()?;
        let more = after.get(before.len()..).context("the record has become shorter")?;
        let still: Vec<&Write> = more.iter().collect();
        for watch in watches {
            for (addr, values) in watch.end()? {
                let identity = objects.addresses()?.get(&addr).copied();
                let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
                assert_eq!(values, [identity], "{addr} changed without a cause");
            }
        }
        agreed.sort_unstable();
        println!(
            "{end:?}: {} times under {changes} changes of labels; all nodes agree after {:?} (median), {:?} (slowest); \
             {} writes before, {} in {} more starts",
            agreed.len(),
            agreed[agreed.len() / 2],
            agreed[agreed.len() - 1],
            before.len(),
            still.len(),
            repeats(),
        );
        ensure!(changes > 10, "labels changed {changes} times only");
        ensure!(still.is_empty(), "nothing had changed, and was written: {still:#?}");
        Ok(())
    })
}

/// Of `identity-change-grace-period`, and more.
const GRACE: Duration = Duration::from_secs(7);

fn finish(net: &mut ClusterNet, end: End) -> Result<()> {
    match end {
        End::Told => net.node_mut(1).stop_agent(),
        End::Killed => net.node_mut(1).kill_agent(),
    }
}

/// A thread that moves pods from label set to label set, one every 50 ms.
struct Churn(Beside<u32>);

impl Churn {
    fn start(net: &ClusterNet, pods: &[Pod], seed: u64) -> Result<Self> {
        let client = net.control_plane()?.new_client()?;
        let pods: Vec<String> = pods.iter().map(|pod| pod.name().to_owned()).collect();
        Beside::start("churn of labels", move |end| churn(&client, &pods, seed, end)).map(Self)
    }

    /// How many changes there were.
    fn end(self) -> Result<u32> {
        self.0.end()
    }
}

fn churn(client: &ApiClient, pods: &[String], seed: u64, end: &Ending) -> Result<u32> {
    let (mut random, mut changes) = (Random::new(seed), 0);
    while !end.has_come() {
        let pod = &pods[random.below(pods.len() as u64) as usize];
        let object =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "default"}});
        let app = format!("set-{}", random.below(SETS));
        client.patch(&object, &json!({"metadata": {"labels": {"app": app}}}))?;
        changes += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(changes)
}
