//! What hurt users of other systems: a test for each class of `pains.md` that the operator's objects are about, named after
//! its number. Rows 75 and 76 are in `cluster_operator.rs`, 67 in `cluster_operator_gc.rs`, 72 in
//! `cluster_operator_scale.rs`; what agents have to do with them is in `cluster_identity_pains.rs` and
//! `cluster_endpoints.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use portway_tests::harness::cluster_net::{PodSpec, Routing};
use portway_tests::harness::fault::RequestFault;
use portway_tests::harness::identities::Objects;
use portway_tests::harness::operator::agents::missing_endpoints;
use portway_tests::harness::operator::agreement::of_slices;
use portway_tests::harness::operator::objects::{named, namespace, node, pod, pod_named};
use portway_tests::harness::operator::replicas::SHORT_LEASE;
use portway_tests::harness::operator::{ALL_WORK, Census, Places, Replicas, StandIn};
use portway_tests::harness::{ClusterNet, Operator, eventually};
use serde_json::{Value, json};

const BEGIN: Duration = Duration::from_secs(20);
const IDENTITIES: &str = "/apis/cilium.io/v2/ciliumidentities";

fn flags(more: &[&'static str]) -> Vec<&'static str> {
    [&ALL_WORK[..], &SHORT_LEASE, more].concat()
}

fn slices_agree(all: &Replicas) -> Result<()> {
    eventually(BEGIN, "slices to be what the endpoints are", || {
        let wrong = of_slices(all.client())?;
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/25251>: several identities of one label set, when a namespace's label changes.
#[test]
fn pain_69_a_namespace_whose_labels_change_has_one_identity_for_each_label_set() -> Result<()> {
    Replicas::test("pain69", 2, |all| {
        all.client().create(&node(1))?;
        all.client().create(&namespace("shop", json!({"team": "0"})))?;
        let census = Census::start(all.control_plane())?;
        let agents = StandIn::start(all.control_plane())?;
        for number in [1, 2] {
            all.start(number, &flags(&[]))?;
        }
        let pods = (0..30).map(|number| {
            pod("shop", &format!("pod-{number}"), 1, number, &[("app", &format!("set-{}", number % 5))])
        });
        all.client().create_all(pods.collect())?;
        all.wait_agreement(BEGIN * 2)?;
        for turn in 1..=5 {
            let labels = json!({"metadata": {"labels": {"team": turn.to_string()}}});
            all.client().patch(&namespace("shop", json!({})), &labels)?;
            all.wait_agreement(BEGIN)?;
        }
        agents.end()?;
        census.end().map(drop)
    })
}

/// <https://github.com/cilium/cilium/issues/19877>: the identity of an endpoint is collected while its object is away.
#[test]
fn pain_70_an_identity_that_was_collected_in_use_comes_back_with_its_number() -> Result<()> {
    ClusterNet::test_on_api("pain70", 1, |net| {
        net.start_agents(Routing::Native, &[])?;
        let pod = net.make(1, &PodSpec::new("web").labelled("app", "web"))?;
        let number = net.wait_agreement(BEGIN)?.of_pod("default", "web")?;
        let watch = net.node(1).watch_ipcache(vec![pod.v4.into(), pod.v6.into()])?;
        net.node_mut(1).kill_agent()?;
        // Nothing refers to it any more, and the pod runs.
        let endpoint = named("cilium.io/v2", "CiliumEndpoint", "default", "web");
        net.control_plane()?.client().delete(&endpoint)?;
        let kubeconfig = net.control_plane()?.kubeconfig_of("operator")?;
        let places = Places { namespace: net.router().clone(), number: 1, kubeconfig };
        let flags = [
            "--ipam=kubernetes",
            "--identity-range-test-only=256-65535",
            "--identity-gc-interval=1s",
            "--identity-heartbeat-timeout=1s",
        ];
        let mut operator = Operator::spawn(&places, &flags)?;
        operator.wait_up()?;
        eventually(BEGIN, "the identity to be collected", || {
            let left = net.control_plane()?.client().list(IDENTITIES)?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })?;
        net.node_mut(1).start_agent(Routing::Native, &[])?;
        let again = net.wait_agreement(BEGIN)?.of_pod("default", "web")?;
        assert_eq!(again, number);
        for (addr, values) in watch.end()? {
            let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
            assert_eq!(values, [Some(number)], "{addr}");
        }
        // What is used stays, however often it is looked at.
        let runs = |operator: &Operator| -> Result<f64> {
            let runs = operator.metric("cilium_operator_identity_gc_runs")?;
            Ok(runs.iter().map(|(_, value)| value).sum())
        };
        let begin = runs(&operator)?;
        eventually(BEGIN, "the collector to run", || {
            let now = runs(&operator)?;
            ensure!(now >= begin + 3.0, "{begin} {now}");
            Ok(())
        })?;
        assert_eq!(net.wait_agreement(BEGIN)?.of_pod("default", "web")?, number);
        operator.ensure_running()
    })
}

/// <https://github.com/cilium/cilium/issues/24581>: what has gone while no operator ran stays in slices.
#[test]
fn pain_71_endpoints_that_went_while_no_operator_ran_are_in_no_slice() -> Result<()> {
    Replicas::test("pain71", 1, |all| {
        all.client().create(&node(1))?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        let name = |number: u32| format!("pod-{number}");
        let pods = (0..100).map(|number| pod("default", &name(number), 1, number, &[("app", "web")]));
        all.client().create_all(pods.collect())?;
        let endpoints = eventually(BEGIN, "all pods to have an identity", || {
            let endpoints = missing_endpoints(all.client())?;
            ensure!(endpoints.len() == 100, "{} have", endpoints.len());
            Ok(endpoints)
        })?;
        all.client().create_all(endpoints)?;
        slices_agree(all)?;
        all.kill(1)?;
        for number in 5..100 {
            all.client().delete(&pod_named("default", &name(number)))?;
            all.client().delete(&named("cilium.io/v2", "CiliumEndpoint", "default", &name(number)))?;
        }
        // Somebody's slice is lost, too, and one is there that says what is not so.
        let slices = all.client().list("/apis/cilium.io/v2alpha1/ciliumendpointslices")?;
        let slice = slices.first().context("no slice")?;
        let mut twin = json!({
            "apiVersion": "cilium.io/v2alpha1",
            "kind": "CiliumEndpointSlice",
            "metadata": {"name": "ces-of-another"},
            "namespace": slice["namespace"],
            "endpoints": slice["endpoints"],
        });
        all.client().create(&twin)?;
        twin["metadata"]["name"] = slice["metadata"]["name"].clone();
        all.client().delete(&twin)?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        slices_agree(all)?;
        let left: usize = all
            .client()
            .list("/apis/cilium.io/v2alpha1/ciliumendpointslices")?
            .iter()
            .map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len))
            .sum();
        assert_eq!(left, 5);
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/27123>: the late delete of an object hits the one of the pod's successor.
#[test]
fn pain_74_a_late_delete_of_the_operators_never_hits_a_successors_object() -> Result<()> {
    Replicas::test("pain74", 1, |all| {
        all.client().create(&node(1))?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        let agents = StandIn::start(all.control_plane())?;
        let first = pod("default", "db-0", 1, 1, &[("app", "db")]);
        all.client().create(&first)?;
        all.wait_agreement(BEGIN)?;
        let held = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&held);
        all.proxy(1).on_requests(move |asked| {
            if asked.method != Method::DELETE || !asked.path.ends_with("/ciliumendpoints/db-0") {
                return RequestFault::None;
            }
            count.fetch_add(1, Ordering::Relaxed);
            RequestFault::Hold
        });
        all.client().delete(&first)?;
        eventually(BEGIN, "the operator to remove the object", || {
            ensure!(held.load(Ordering::Relaxed) > 0, "it does not");
            Ok(())
        })?;
        // The successor, with its own object, before the delete arrives.
        let second = pod("default", "db-0", 1, 2, &[("app", "db")]);
        let uid = all.client().create(&second)?["metadata"]["uid"].clone();
        let object = || -> Result<Value> {
            all.client().get("/apis/cilium.io/v2/namespaces/default/ciliumendpoints/db-0")
        };
        eventually(BEGIN, "the successor to have its object", || {
            let owner = object()?["metadata"]["ownerReferences"][0]["uid"].clone();
            ensure!(owner == uid, "it is of {owner}");
            Ok(())
        })?;
        let before = object()?;
        all.proxy(1).behave();
        all.proxy(1).release();
        let deletes = eventually(BEGIN, "the late deletes to arrive", || {
            let writes = all.control_plane().operator_writes()?;
            let deletes: Vec<_> = writes
                .into_iter()
                .filter(|write| write.verb == "delete" && write.resource == "ciliumendpoints")
                .collect();
            let wanted = held.load(Ordering::Relaxed);
            ensure!(deletes.len() >= wanted, "{} of {wanted} have arrived", deletes.len());
            Ok(deletes)
        })?;
        ensure!(deletes.iter().all(|write| !write.is_done()), "{deletes:#?}");
        assert_eq!(object()?["metadata"]["uid"], before["metadata"]["uid"]);
        all.wait_agreement(BEGIN)?;
        agents.end().map(drop)
    })
}

/// The label `build` of each identity.
fn builds(all: &Replicas) -> Result<BTreeSet<Option<String>>> {
    let identities = all.client().list(IDENTITIES)?;
    let build = |one: &Value| one["security-labels"]["k8s:build"].as_str().map(str::to_owned);
    Ok(identities.iter().map(build).collect())
}

/// <https://github.com/cilium/cilium/issues/40617>: operators get another filter one after the other.
#[test]
fn pain_78_while_operators_change_their_label_filter_old_and_new_identities_are_there() -> Result<()> {
    Replicas::test("pain78", 2, |all| {
        all.client().create(&node(1))?;
        let census = Census::start(all.control_plane())?;
        all.start(1, &flags(&[]))?;
        all.wait_leads(1, BEGIN)?;
        let pods = (0..6).map(|number| {
            let build = number.to_string();
            pod("default", &format!("pod-{number}"), 1, number, &[("app", "web"), ("build", &build)])
        });
        all.client().create_all(pods.collect())?;
        let old: BTreeSet<_> = (0..6).map(|number: u32| Some(number.to_string())).collect();
        eventually(BEGIN, "an identity for each build", || {
            let sets = builds(all)?;
            ensure!(sets == old, "{sets:?}");
            Ok(())
        })?;
        all.client().create_all(missing_endpoints(all.client())?)?;
        let mut both = old.clone();
        both.insert(None);
        all.start(2, &flags(&["--labels=k8s:!build"]))?;
        all.stop(1)?;
        all.wait_leads(2, BEGIN)?;
        eventually(BEGIN, "an identity of the new filter", || {
            let sets = builds(all)?;
            ensure!(sets == both, "{sets:?}");
            Ok(())
        })?;
        // And back.
        all.start(1, &flags(&[]))?;
        all.stop(2)?;
        all.wait_leads(1, BEGIN)?;
        eventually(BEGIN, "it to have looked at all pods", || {
            let status = all.operator(1)?.status()?;
            let found = status["controllers"].as_array().into_iter().flatten();
            let done = found.filter(|one| one["name"] == "identities").any(|one| {
                let state = one["state"].as_str().unwrap_or_default();
                one["wanted"] == 6 && state.contains("6 have their identity")
            });
            ensure!(done, "{status}");
            Ok(())
        })?;
        assert_eq!(builds(all)?, both);
        census.end().map(drop)
    })
}

/// <https://github.com/cilium/cilium/pull/39552>: names that are longer than a label's value may be.
#[test]
fn pain_79_the_operator_makes_an_identity_however_long_names_and_labels_are() -> Result<()> {
    Replicas::test("pain79", 1, |all| {
        let (account, name) = ("a".repeat(253), "n".repeat(63));
        let (key, value) = (format!("{}/{}", "p".repeat(253), "k".repeat(63)), "v".repeat(63));
        all.client().create(&node(1))?;
        all.client().create(&namespace(&name, json!({&key: &value})))?;
        let agents = StandIn::start(all.control_plane())?;
        all.start(1, &flags(&[]))?;
        let mut object = pod(&name, "web", 1, 1, &[(&key, &value)]);
        object["spec"]["serviceAccountName"] = account.clone().into();
        all.client().create(&object)?;
        all.wait_agreement(BEGIN * 2)?;
        let number = Objects::list(all.client())?.of_pod(&name, "web")?;
        let identity = all.client().get(&format!("{IDENTITIES}/{number}"))?;
        assert_eq!(identity["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": name}));
        let labels = &identity["security-labels"];
        assert_eq!(labels["k8s:io.cilium.k8s.policy.serviceaccount"], json!(account), "{identity}");
        assert_eq!(labels[format!("k8s:io.cilium.k8s.namespace.labels.{key}")], json!(value), "{identity}");
        agents.end().map(drop)
    })
}
