//! What is left of what is gone, on a real API server: the CiliumNode and the pod CIDR of a Node, and slices once they are
//! switched off.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use portway_tests::harness::cluster::api::has_code;
use portway_tests::harness::operator::agreement::of_slices;
use portway_tests::harness::operator::objects::{endpoint, node, node_named, pod};
use portway_tests::harness::{Replicas, eventually};
use serde_json::Value;

/// A start on a busy machine, in a debug build.
const BEGIN: Duration = Duration::from_secs(20);
/// The garbage collector looks for new kinds every 30 s.
const COLLECTED: Duration = Duration::from_secs(60);
/// So long a node is gone before others get its CIDRs.
const GONE: Duration = Duration::from_secs(60);
/// Enough for whoever waits for a CIDR to get it, and for anything that should not come after that.
const AFTERWARDS: Duration = Duration::from_secs(15);
const POOL: &str = "/api/v1/namespaces/kube-system/configmaps";
const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";
const SLICES: &str = "/apis/cilium.io/v2alpha1/ciliumendpointslices";

/// The pod CIDR of a CiliumNode.
fn cidr(all: &Replicas, number: u32) -> Result<String> {
    let node = all.client().get(&format!("{NODES}/node-{number}"))?;
    let cidr = node["spec"]["ipam"]["podCIDRs"][0].as_str();
    cidr.map(str::to_owned).with_context(|| format!("node-{number} has none: {}", node["spec"]))
}

/// Who had a CIDR one after the other, as the versions of the pool object say it.
fn holders(versions: &[String], cidr: &str) -> Result<Vec<Vec<String>>> {
    let mut holders: Vec<Vec<String>> = Vec::new();
    for line in versions {
        let event: Value = serde_json::from_str(line).with_context(|| format!("read {line}"))?;
        let Some(data) = event["object"]["data"].as_object() else { continue };
        let has = |claim: &Value| {
            let cidrs = claim.as_str().and_then(|claim| claim.split(' ').next()).unwrap_or_default();
            cidrs.split(',').any(|one| one == cidr)
        };
        let of_nodes = data.iter().filter(|(key, _)| !key.starts_with('_'));
        let now = of_nodes.filter(|(_, claim)| has(claim)).map(|(node, _)| node.clone()).collect();
        if holders.last() != Some(&now) {
            holders.push(now);
        }
    }
    Ok(holders)
}

/// The operator does not delete it here: its owner reference is all that does.
#[test]
fn a_cilium_node_goes_with_its_node_by_the_garbage_collector_and_its_cidr_is_freed_once() -> Result<()> {
    let flags = [
        "--ipam=cluster-pool",
        "--cluster-pool-ipv4-cidr=10.44.0.0/24 10.45.0.0/24",
        "--nodes-gc-interval=0",
    ];
    Replicas::test("collected", 1, |all| {
        all.control_plane_mut().start_controllers()?;
        all.client().create_all(vec![node(1), node(2)])?;
        all.start(1, &flags)?;
        let freed = eventually(BEGIN, "the CIDRs of both nodes", || cidr(all, 1).and_then(|_| cidr(all, 2)))?;
        // There is none for it.
        all.client().create(&node(3))?;
        eventually(BEGIN, "node-3 to wait for one", || {
            let node = all.client().get(&format!("{NODES}/node-3"))?;
            let error = node["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default();
            ensure!(error.contains("is free"), "{node}");
            Ok(())
        })?;
        all.client().delete(&node_named(2))?;
        let deleted = Instant::now();
        eventually(COLLECTED, "the CiliumNode to be collected", || {
            match all.client().get(&format!("{NODES}/node-2")) {
                Err(error) if has_code(&error, 404) => Ok(()),
                other => bail!("{other:?}"),
            }
        })?;
        let collected = deleted.elapsed();
        let watcher = all.control_plane().new_client()?;
        // The API server ends it, some time after the CIDR was given again.
        let length = GONE + AFTERWARDS;
        let path = format!(
            "{POOL}?watch=true&resourceVersion=0&timeoutSeconds={}&fieldSelector=metadata.name%3Dportway-pod-cidrs",
            length.as_secs()
        );
        std::thread::scope(|scope| {
            let versions = scope.spawn(move || watcher.watch(&path, length));
            eventually(length, "node-3 to have the CIDR", || {
                let has = cidr(all, 3)?;
                ensure!(has == freed, "it has {has}");
                Ok(())
            })?;
            println!("collected after {collected:?}, given again after {:?}", deleted.elapsed());
            let rest = deleted.elapsed().saturating_sub(collected);
            // The operator may have seen it go some moments before this test.
            ensure!(rest + Duration::from_secs(2) >= GONE, "it rested for {rest:?}");
            let (versions, _) = versions.join().ok().context("the watch panicked")??;
            let holders = holders(&versions, &freed)?;
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            ensure!(holders == [names(&["node-2"]), names(&[]), names(&["node-3"])], "{holders:?}");
            let deletes = all.control_plane().operator_writes()?;
            let deletes: Vec<_> = deletes.iter().filter(|write| write.verb == "delete").collect();
            ensure!(deletes.is_empty(), "{deletes:#?}");
            Ok(())
        })
    })
}

/// What the leader says is left of slices.
fn left(all: &Replicas) -> Result<Vec<String>> {
    let status = all.operator(1)?.status()?;
    let controllers = status["controllers"].as_array().context("no controllers")?;
    let troubles = controllers.iter().filter_map(|of| of["troubles"].as_array()).flatten();
    let of_slices = troubles.filter(|trouble| trouble["reason"] == "SlicesLeft");
    Ok(of_slices.filter_map(|trouble| trouble["message"].as_str()).map(str::to_owned).collect())
}

#[test]
fn slices_that_are_left_when_they_are_switched_off_are_told_of_until_somebody_deletes_them() -> Result<()> {
    let on =
        ["--enable-cilium-endpoint-slice=true", "--ces-max-ciliumendpoints-per-ces=1", "--ipam=kubernetes"];
    Replicas::test("slicesoff", 1, |all| {
        all.client().create(&node(1))?;
        for number in 0..3 {
            let pod = all.client().create(&pod("default", &format!("p{number}"), 1, number, &[]))?;
            all.client().create(&endpoint(&pod, 300, &["k8s:app=web".to_owned()])?)?;
        }
        all.start(1, &on)?;
        eventually(BEGIN, "three slices", || {
            let wrong = of_slices(all.client())?;
            ensure!(wrong.is_empty() && all.client().list(SLICES)?.len() == 3, "{wrong:#?}");
            Ok(())
        })?;
        ensure!(left(all)?.is_empty(), "{:?}", left(all)?);
        all.stop(1)?;

        all.start(1, &["--ipam=kubernetes"])?;
        all.wait_leads(1, BEGIN)?;
        let told = eventually(BEGIN, "the leader to tell of them", || {
            let told = left(all)?;
            ensure!(told.len() == 1, "{told:?}");
            Ok(told)
        })?;
        let command = "kubectl delete ciliumendpointslices.cilium.io --all";
        ensure!(told[0].contains("3 CiliumEndpointSlices") && told[0].contains(command), "{told:?}");
        ensure!(all.operator(1)?.log().contains(command), "its log says nothing of them");
        // Agents may still read them: it deletes none.
        ensure!(all.client().list(SLICES)?.len() == 3, "they are gone");
        for mut slice in all.client().list(SLICES)? {
            slice["apiVersion"] = "cilium.io/v2alpha1".into();
            slice["kind"] = "CiliumEndpointSlice".into();
            all.client().delete(&slice)?;
        }
        eventually(BEGIN, "nothing to be told any more", || {
            let told = left(all)?;
            ensure!(told.is_empty(), "{told:?}");
            Ok(())
        })
    })
}
