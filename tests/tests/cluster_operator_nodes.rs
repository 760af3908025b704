//! What the operator writes of nodes, on a real API server: pod CIDRs, CiliumNodes, the taint, the condition, and pods that
//! it starts anew.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::operator::objects::{endpoint, node, node_named, pod};
use portway_tests::harness::{Replicas, eventually};
use serde_json::{Value, json};

const POOL: &str = "/api/v1/namespaces/kube-system/configmaps/portway-pod-cidrs";
const TAINT: &str = "node.cilium.io/agent-not-ready";
const SOON: Duration = Duration::from_secs(20);
/// So long a pod has no endpoint that is started anew.
const OLD: Duration = Duration::from_secs(30);

/// So long a node is gone before others get its CIDRs.
const GONE: Duration = Duration::from_secs(60);

fn cilium_node(all: &Replicas, number: u32) -> Result<Value> {
    all.client().get(&format!("/apis/cilium.io/v2/ciliumnodes/node-{number}"))
}

fn node_of(all: &Replicas, number: u32) -> Result<Value> {
    all.client().get(&format!("/api/v1/nodes/node-{number}"))
}

fn cidrs(all: &Replicas, number: u32) -> Result<Vec<String>> {
    let node = cilium_node(all, number)?;
    let cidrs = node["spec"]["ipam"]["podCIDRs"].as_array().into_iter().flatten();
    Ok(cidrs.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Until the node's CIDRs are these.
fn wait_cidrs(all: &Replicas, number: u32, wanted: &[&str]) -> Result<()> {
    eventually(SOON, &format!("node-{number} to have {wanted:?}"), || {
        let has = cidrs(all, number)?;
        ensure!(has == wanted, "it has {has:?}");
        Ok(())
    })
}

fn error(all: &Replicas, number: u32) -> Result<String> {
    let node = cilium_node(all, number)?;
    Ok(node["status"]["ipam"]["operator-status"]["error"].as_str().unwrap_or_default().to_owned())
}

/// Until the error of the node's CIDRs has `text`; "" is none at all.
fn wait_error(all: &Replicas, number: u32, text: &str) -> Result<()> {
    eventually(SOON, &format!("the error of node-{number} to be {text:?}"), || {
        let error = error(all, number)?;
        ensure!(if text.is_empty() { error.is_empty() } else { error.contains(text) }, "it is {error:?}");
        Ok(())
    })
}

/// A restart would write nothing.
fn nothing_is_left(all: &Replicas, flags: &[&str]) -> Result<()> {
    eventually(SOON, "nothing more to be written", || {
        let writes = all.plan(flags)?;
        ensure!(writes.is_empty(), "{writes:?}");
        Ok(())
    })
}

/// Deletes the pool object, and waits for another one that knows of a node.
fn delete_pool(all: &Replicas, node: &str) -> Result<()> {
    let pool = all.client().get(POOL)?;
    all.client().delete(&pool)?;
    eventually(SOON, "another pool object", || {
        let other = all.client().get(POOL)?;
        ensure!(other["metadata"]["uid"] != pool["metadata"]["uid"], "it is the same");
        ensure!(other["data"][node].is_string() && other["data"]["_epoch"].is_string(), "{other}");
        Ok(())
    })
}

#[test]
fn nodes_get_cidrs_of_the_pools_and_are_told_when_there_are_none_left() -> Result<()> {
    let flags = [
        "--ipam=cluster-pool",
        "--cluster-pool-ipv4-cidr=10.44.0.0/24 10.45.0.0/24",
        "--cluster-pool-ipv6-cidr=fd00:44::/104",
        "--nodes-gc-interval=1s",
    ];
    Replicas::test("opnodes", 1, |all| {
        for number in [1, 2] {
            all.client().create(&node(number))?;
        }
        all.start(1, &flags)?;
        let mut given = Vec::new();
        for number in [1, 2] {
            let has = eventually(SOON, "two CIDRs", || {
                let has = cidrs(all, number)?;
                ensure!(has.len() == 2, "node-{number} has {has:?}");
                Ok(has)
            })?;
            given.extend(has);
            let made = cilium_node(all, number)?;
            ensure!(
                made["metadata"]["ownerReferences"][0]["uid"] == node_of(all, number)?["metadata"]["uid"],
                "{made}"
            );
            ensure!(made["spec"]["addresses"][0]["type"] == "InternalIP", "{made}");
        }
        given.sort_unstable();
        ensure!(given == ["10.44.0.0/24", "10.45.0.0/24", "fd00:44::/112", "fd00:44::1:0/112"], "{given:?}");

        // A third one gets what is left, and is told what is not.
        all.client().create(&node(3))?;
        wait_cidrs(all, 3, &["fd00:44::2:0/112"])?;
        wait_error(all, 3, "no /24 of cluster-pool-ipv4-cidr 10.44.0.0/24,10.45.0.0/24 is free")?;
        nothing_is_left(all, &flags)?;

        // The pool object is deleted: nobody's CIDRs change.
        let before = [cidrs(all, 1)?, cidrs(all, 2)?, cidrs(all, 3)?];
        delete_pool(all, "node-1")?;
        nothing_is_left(all, &flags)?;
        ensure!([cidrs(all, 1)?, cidrs(all, 2)?, cidrs(all, 3)?] == before, "{before:?}");

        // A node that is made anew keeps what it had; one that goes leaves it to the others.
        let first = cidrs(all, 1)?;
        all.client().delete(&cilium_node(all, 1)?)?;
        wait_cidrs(all, 1, &first.iter().map(String::as_str).collect::<Vec<_>>())?;
        all.client().delete(&node_named(2))?;
        let freed = before[1][0].as_str();
        eventually(SOON, "the CiliumNode to go", || {
            let gone = cilium_node(all, 2).is_err();
            ensure!(gone, "it is there");
            Ok(())
        })?;
        let since = Instant::now();
        // Its CIDR rests all the same where the pool object is deleted meanwhile.
        delete_pool(all, "node-2")?;
        eventually(GONE + SOON, "the CIDR of a node that has been gone for a while", || {
            let has = cidrs(all, 3)?;
            ensure!(has == ["fd00:44::2:0/112", freed], "{has:?}");
            Ok(())
        })?;
        // The operator may have seen it go some moments before this test.
        ensure!(since.elapsed() + Duration::from_secs(2) >= GONE, "after {:?}", since.elapsed());
        wait_error(all, 3, "")?;
        nothing_is_left(all, &flags)
    })
}

#[test]
fn of_two_nodes_with_one_cidr_the_younger_is_told_and_neither_is_changed() -> Result<()> {
    let flags = ["--ipam=cluster-pool", "--cluster-pool-ipv4-cidr=10.44.0.0/16"];
    Replicas::test("opclash", 1, |all| {
        let made = |number: u32, cidr: &str| {
            json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": format!("node-{number}")},
                "spec": {"ipam": {"podCIDRs": [cidr]}}})
        };
        all.client().create(&node(1))?;
        all.client().create(&node(2))?;
        all.client().create(&made(1, "10.44.0.0/24"))?;
        let created = cilium_node(all, 1)?["metadata"]["creationTimestamp"].clone();
        // Of another second.
        eventually(SOON, "a younger one", || {
            let younger = all.client().create(&made(2, "10.44.0.0/25"))?;
            if younger["metadata"]["creationTimestamp"] == created {
                all.client().delete(&younger)?;
            }
            ensure!(younger["metadata"]["creationTimestamp"] != created, "they are of one second");
            Ok(())
        })?;
        all.start(1, &flags)?;
        wait_error(
            all,
            2,
            "has 10.44.0.0/25, which overlaps 10.44.0.0/24 of CiliumNode node-1, which is older",
        )?;
        nothing_is_left(all, &flags)?;
        ensure!(
            (cidrs(all, 2)?, error(all, 1)?) == (vec!["10.44.0.0/25".to_owned()], String::new()),
            "changed"
        );
        let gauge = all.operator(1)?.metric("cilium_operator_ipam_nodes")?;
        ensure!(gauge.contains(&(r#"category="total""#.to_owned(), 2.0)), "{gauge:?}");
        all.client().delete(&cilium_node(all, 2)?)?;
        wait_cidrs(all, 2, &["10.44.1.0/24"])?;
        wait_error(all, 2, "")
    })
}

/// The agent's pod of a node, ready or not.
fn agent(node: u32, is_ready: bool) -> Value {
    let mut agent =
        pod("kube-system", &format!("portway-{node}"), node, 100 + node, &[("k8s-app", "portway")]);
    agent["spec"]["hostNetwork"] = json!(true);
    let ready = if is_ready { "True" } else { "False" };
    agent["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
    agent
}

fn tainted(number: u32) -> Value {
    let mut node = node(number);
    node["spec"]["taints"] = json!([
        {"key": TAINT, "effect": "NoSchedule"},
        {"key": "dedicated", "value": "dns", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
    ]);
    node["status"]["conditions"] = json!([
        {"type": "Ready", "status": "True"},
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"},
    ]);
    node
}

fn has_taint(node: &Value) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(|taint| taint["key"] == TAINT)
}

#[test]
fn a_node_loses_its_taint_and_says_that_its_network_is_there_once_its_agent_is_ready() -> Result<()> {
    let flags = ["--ipam=cluster-pool", "--set-cilium-node-taints=true"];
    Replicas::test("optaint", 1, |all| {
        all.client().create(&tainted(1))?;
        all.client().create(&agent(1, false))?;
        // On this one nobody has set the taint.
        let mut untainted = tainted(2);
        untainted["spec"]["taints"] = json!([]);
        all.client().create(&untainted)?;
        all.client().create(&agent(2, false))?;
        all.start(1, &flags)?;
        eventually(SOON, "the taint of node-2", || {
            let node = node_of(all, 2)?;
            ensure!(has_taint(&node), "{}", node["spec"]);
            Ok(())
        })?;
        let node = node_of(all, 1)?;
        ensure!(has_taint(&node) && node["status"]["conditions"][1]["status"] == "True", "{node}");

        all.client().set_status(&agent(1, true))?;
        let node = eventually(SOON, "node-1 to lose its taint", || {
            let node = node_of(all, 1)?;
            ensure!(!has_taint(&node), "{}", node["spec"]);
            Ok(node)
        })?;
        let others = json!([{"key": "dedicated", "value": "dns", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]);
        ensure!(node["spec"]["taints"] == others, "{}", node["spec"]);
        let conditions = node["status"]["conditions"].as_array().context("no conditions")?;
        let up = conditions
            .iter()
            .find(|condition| condition["type"] == "NetworkUnavailable")
            .context("no condition")?;
        let said = [&up["status"], &up["reason"], &up["message"]];
        ensure!(said == ["False", "CiliumIsUp", "Cilium is running on this node"], "{up}");
        ensure!(conditions.len() == 2, "the others are as they were: {conditions:?}");
        nothing_is_left(all, &flags)?;
        ensure!(has_taint(&node_of(all, 2)?), "the agent of node-2 is not ready");
        Ok(())
    })
}

#[test]
fn name_servers_that_never_had_an_endpoint_are_started_anew_and_no_others() -> Result<()> {
    let flags = ["--ipam=cluster-pool", "--unmanaged-pod-watcher-interval=1"];
    Replicas::test("opdns", 1, |all| {
        let api = all.client();
        let dns = |name: &str, number: u32| pod("kube-system", name, 1, number, &[("k8s-app", "kube-dns")]);
        api.create(&node(1))?;
        for (number, name) in [(1, "lost-a"), (2, "lost-b")] {
            api.create(&dns(name, number))?;
        }
        let of_known = endpoint(&api.create(&dns("known", 3))?, 300, &[])?;
        let of_other = endpoint(&api.create(&pod("default", "other", 1, 4, &[]))?, 300, &[])?;
        for object in [&of_known, &of_other, &agent(1, true)] {
            api.create(object)?;
        }
        all.start(1, &flags)?;
        let api = all.client();
        let wait_lost = |wanted: f64| {
            eventually(SOON, &format!("{wanted} lost pods"), || {
                let gauge = all.operator(1)?.metric("cilium_operator_unmanaged_pods")?;
                ensure!(gauge.iter().map(|(_, value)| *value).sum::<f64>() == wanted, "{gauge:?}");
                Ok(())
            })
        };
        wait_lost(2.0)?;
        // Established: the agent is about to write it again.
        api.delete(&of_known)?;
        let path = |name: &str| format!("/api/v1/namespaces/kube-system/pods/{name}");
        for name in ["lost-a", "lost-b"] {
            let mut told = 0;
            eventually(OLD + SOON, "the pod to go", || {
                // The watch of endpoints lives.
                told += 1;
                api.patch(&of_other, &json!({"metadata": {"annotations": {"told": told.to_string()}}}))?;
                // No kubelet confirms that it has ended.
                let there = api.get(&path(name));
                let goes = there.as_ref().map_or(true, |pod| !pod["metadata"]["deletionTimestamp"].is_null());
                ensure!(goes, "{there:?}");
                Ok(())
            })?;
        }
        wait_lost(0.0)?;
        let known = api.get(&path("known"))?;
        ensure!(known["metadata"]["deletionTimestamp"].is_null(), "{known}");
        Ok(())
    })
}
