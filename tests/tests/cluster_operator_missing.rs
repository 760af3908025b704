//! What an operator misses for a while, on a real API server: kinds whose definitions are deleted under it, and verbs that
//! its role gets late. Each is noticed within half a minute, by the watch that ends or by a look that costs little.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_model::crd::definitions;
use portway_tests::harness::eventually;
use portway_tests::harness::operator::objects::{named, node, pod};
use portway_tests::harness::operator::{ALL_WORK, Replicas};
use serde_json::{Value, json};

/// A start on a busy machine, in a debug build.
const BEGIN: Duration = Duration::from_secs(20);
/// What is there again is worked on by then.
const NOTICED: Duration = Duration::from_secs(30);
/// For so long nothing is granted: whoever waits twice as long after each refusal waits for more than [`NOTICED`] by then.
const REFUSED_FOR: Duration = Duration::from_secs(70);
/// In the second half of that: little more than one a second.
const MOST_REQUESTS: u64 = 40;
/// So many that they are refused as a kind.
const NODES_OF_TEST: u32 = 8;
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NODES: &str = "/apis/cilium.io/v2/ciliumnodes";

/// The pod CIDRs of all CiliumNodes.
fn cidrs(all: &Replicas) -> Result<Vec<Value>> {
    let cidrs = all.client().list(NODES)?.into_iter().map(|node| node["spec"]["ipam"]["podCIDRs"].clone());
    Ok(cidrs.collect())
}

fn wait_cidrs(all: &Replicas, limit: Duration, nodes: usize) -> Result<Vec<Value>> {
    eventually(limit, &format!("pod CIDRs of {nodes} nodes"), || {
        let cidrs = cidrs(all)?;
        ensure!(cidrs.len() == nodes && cidrs.iter().all(Value::is_array), "{cidrs:?}");
        Ok(cidrs)
    })
}

#[test]
fn definitions_that_are_deleted_under_a_leader_are_made_anew_and_worked_on() -> Result<()> {
    Replicas::test("deleted", 1, |all| {
        all.client().create_all(vec![node(1), node(2)])?;
        all.start(1, &ALL_WORK)?;
        all.wait_leads(1, BEGIN)?;
        let before = wait_cidrs(all, BEGIN, 2)?;
        for (file, _) in definitions() {
            let name = file.trim_end_matches(".yaml");
            let path = format!("{DEFINITIONS}/{name}");
            let old = all.client().get(&path)?["metadata"]["uid"].clone();
            all.client().delete(&named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name))?;
            let begin = Instant::now();
            eventually(NOTICED, &format!("another {name}"), || {
                let new = all.client().get(&path)?;
                ensure!(new["metadata"]["uid"] != old, "it is the same");
                let conditions = new["status"]["conditions"].as_array().context("no conditions")?;
                let is_served = |of: &Value| of["type"] == "Established" && of["status"] == "True";
                ensure!(conditions.iter().any(is_served), "{conditions:?}");
                Ok(())
            })?;
            let made = begin.elapsed();
            eventually(NOTICED, "its watch to live", || {
                let status = all.operator(1)?.status()?;
                ensure!(status["missing_kinds"] == json!([]), "{}", status["missing_kinds"]);
                let watches = status["watches"].as_array().context("no watches")?;
                let is_well = |of: &Value| of["synced"] == true && of["state"] != "retrying";
                ensure!(watches.iter().all(is_well), "{watches:#?}");
                Ok(())
            })?;
            println!("{name}: made anew after {made:?}, watched after {:?}", begin.elapsed());
            ensure!(begin.elapsed() <= NOTICED, "{name} took {:?}", begin.elapsed());
            if name.starts_with("ciliumnodes") {
                let after = wait_cidrs(all, NOTICED.saturating_sub(begin.elapsed()), 2)?;
                println!("{name}: worked on after {:?}", begin.elapsed());
                ensure!(after == before, "{after:?} {before:?}");
            }
        }
        Ok(())
    })
}

/// Its status, once it runs for so long.
fn wait_age(all: &Replicas, age: Duration) -> Result<Value> {
    eventually(age + BEGIN, &format!("an operator that runs for {age:?}"), || {
        let status = all.operator(1)?.status()?;
        ensure!(status["uptime_seconds"].as_f64() >= Some(age.as_secs_f64()), "not yet");
        Ok(status)
    })
}

/// Takes the rules of the operator's cluster role that `is_taken` out of it; gives the role as it was.
fn take_rules(all: &Replicas, is_taken: impl Fn(&Value) -> bool) -> Result<Value> {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/portway-operator";
    let role = all.client().get(path)?;
    let rules = role["rules"].as_array().context("no rules")?;
    let left: Vec<_> = rules.iter().filter(|rule| !is_taken(rule)).collect();
    ensure!(left.len() < rules.len(), "no such rules: {rules:#?}");
    all.client().patch(&role, &json!({"rules": left}))?;
    Ok(role)
}

#[test]
fn verbs_that_the_role_gets_late_are_used_soon_after() -> Result<()> {
    Replicas::test("granted", 1, |all| {
        let names = |rule: &Value, resource: &str| {
            rule["resources"].as_array().is_some_and(|of| of.iter().any(|one| one == resource))
        };
        let role = take_rules(all, |rule| {
            ["ciliumnodes", "ciliumidentities", "customresourcedefinitions"].iter().any(|of| names(rule, of))
        })?;
        // CiliumNodes are seen and cannot be written, identities not even seen, and one kind is not there.
        let reads =
            json!({"apiGroups": ["cilium.io"], "resources": ["ciliumnodes"], "verbs": ["list", "watch"]});
        let mut rules =
            all.client().get("/apis/rbac.authorization.k8s.io/v1/clusterroles/portway-operator")?;
        let rules = rules["rules"].as_array_mut().context("no rules")?;
        rules.push(reads);
        all.client().patch(&role, &json!({"rules": rules}))?;
        let name = "ciliumendpointslices.cilium.io";
        all.client().delete(&named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name))?;
        let nodes = (1..=NODES_OF_TEST).map(node);
        all.client().create_all(nodes.chain([pod("default", "web", 1, 1, &[("app", "web")])]).collect())?;
        all.start(1, &ALL_WORK)?;
        all.wait_leads(1, BEGIN)?;
        let begin = wait_age(all, REFUSED_FOR / 2)?;
        let status = wait_age(all, REFUSED_FOR)?;
        let requests = |status: &Value| status["api_server"]["requests"].as_u64().context("no requests");
        let requests = requests(&status)?.saturating_sub(requests(&begin)?);
        println!("{requests} requests in {:?} of refusals", REFUSED_FOR / 2);
        ensure!(requests <= MOST_REQUESTS, "{requests} requests");
        let text = status.to_string();
        for what in ["ciliumidentities", "customresourcedefinitions", "cannot create resource"] {
            ensure!(text.contains(what), "it does not say that it lacks {what}: {status:#}");
        }
        ensure!(all.client().list(NODES)?.is_empty(), "it was not refused");

        all.client().patch(&role, &json!({"rules": role["rules"]}))?;
        let begin = Instant::now();
        let left = || NOTICED.saturating_sub(begin.elapsed());
        eventually(left(), "the definition", || {
            all.client().get(&format!("{DEFINITIONS}/{name}")).map(drop)
        })?;
        println!("the definition was made after {:?}", begin.elapsed());
        eventually(left(), "the pod's identity", || {
            let identities = all.client().list("/apis/cilium.io/v2/ciliumidentities")?.len();
            ensure!(identities == 1, "{identities}");
            Ok(())
        })?;
        println!("the identity was made after {:?}", begin.elapsed());
        wait_cidrs(all, left(), NODES_OF_TEST as usize)?;
        println!("all CiliumNodes were made after {:?}", begin.elapsed());
        Ok(())
    })
}
