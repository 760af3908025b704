//! What ends while an operator has much to do, on a real API server: its own time, and a kind that it works on.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::eventually;
use portway_tests::harness::operator::objects::{named, node, pod};
use portway_tests::harness::operator::{ALL_WORK, Replicas};

const NODES: u32 = 400;
const AFTER_A_RELEASE: Duration = Duration::from_secs(2);
/// A start on a busy machine, in a debug build.
const BEGIN: Duration = Duration::from_secs(20);
/// A definition is looked at after 2 s at most, and served within some more.
const BACK: Duration = Duration::from_secs(30);
const NODES_OF_CILIUM: &str = "/apis/cilium.io/v2/ciliumnodes";
const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";

#[test]
fn a_leader_that_is_told_to_end_amid_writes_gives_the_lease_back_at_once() -> Result<()> {
    Replicas::test("backlog", 2, |all| {
        let slow = ["--operator-k8s-client-qps=50", "--operator-k8s-client-burst=50"];
        let flags = [&ALL_WORK[..], &slow].concat();
        all.start(1, &flags)?;
        all.wait_leads(1, BEGIN)?;
        all.start(2, &flags)?;
        all.client().create_all((1..=NODES).map(node).collect())?;
        eventually(BEGIN, "the leader to be amid its work", || {
            let made = all.client().list(NODES_OF_CILIUM)?.len();
            ensure!(made >= 10, "{made} CiliumNodes");
            Ok(())
        })?;
        let begin = Instant::now();
        let took = all.stop(1)?;
        let made = all.client().list(NODES_OF_CILIUM)?.len();
        all.wait_leads(2, AFTER_A_RELEASE + BEGIN)?;
        let release = begin.elapsed();
        println!(
            "ended after {took:?} with {made} of {NODES} CiliumNodes made; the other leads after {release:?}"
        );
        ensure!(made < NODES as usize, "it had nothing to do any more");
        ensure!(release <= AFTER_A_RELEASE, "it took {release:?}");
        Ok(())
    })
}

#[test]
fn a_definition_that_is_deleted_is_made_again_and_its_work_goes_on() -> Result<()> {
    Replicas::test("undefined", 1, |all| {
        all.start(1, &ALL_WORK)?;
        all.wait_leads(1, BEGIN)?;
        let client = all.client();
        client.create_all(vec![node(1), pod("default", "before", 1, 1, &[("app", "before")])])?;
        let identities = |count: usize| {
            let there = client.list(IDENTITIES)?.len();
            ensure!(there == count, "{there} identities");
            Ok(())
        };
        eventually(BEGIN, "the pod's identity", || identities(1))?;
        let definition = "ciliumidentities.cilium.io";
        client.delete(&named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition))?;
        let begin = Instant::now();
        eventually(BACK, "the operator to know that the kind is gone", || {
            let status = all.operator(1)?.status()?;
            let watches = status["watches"].as_array().context("watches")?;
            let watch =
                watches.iter().find(|watch| watch["kind"] == "CiliumIdentity").context("the watch")?;
            ensure!(watch["errors"]["404"].as_u64() >= Some(1), "{watch}");
            Ok(())
        })?;
        client.create_all(vec![pod("default", "after", 1, 2, &[("app", "after")])])?;
        eventually(BACK, "identities of both pods", || identities(2))?;
        let status = all.operator(1)?.status()?;
        println!("the kind was back and both pods had identities after {:?}", begin.elapsed());
        ensure!(status["missing_kinds"].as_array().is_some_and(Vec::is_empty), "{}", status["missing_kinds"]);
        Ok(())
    })
}
