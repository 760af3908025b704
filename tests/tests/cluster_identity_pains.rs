//! What hurt users of other systems: a test for each class of `pains.md` that pods' identities are about and that needs
//! agents, named after its number.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster::ApiClient;
use portway_tests::harness::cluster_net::cni::Refused;
use portway_tests::harness::cluster_net::{PodSpec, Routing};
use portway_tests::harness::{ClusterNet, Namespace, eventually};
use serde_json::{Value, json};

/// kubelet's limit for a call of the runtime is two minutes; a plugin that says why is better than one that is killed.
const BOUNDED: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

/// Warnings about the pod `name`.
fn warnings(client: &ApiClient, name: &str) -> Result<Vec<Value>> {
    let events = client.list("/api/v1/namespaces/default/events")?;
    let about = |event: &Value| event["involvedObject"]["name"] == name && event["type"] == "Warning";
    Ok(events.into_iter().filter(about).collect())
}

/// <https://github.com/cilium/cilium/issues/35993>: a pod whose identity does not come must not run without one.
#[test]
fn pain_58_a_pod_whose_identity_cannot_be_had_does_not_start_and_says_why() -> Result<()> {
    ClusterNet::test_on_api("pain58", 2, |net| {
        net.start_agents(Routing::Native, &[])?;
        let spec = net.announce(1, &PodSpec::new("new").labelled("app", "nobody-has-seen-this"))?;
        net.control_plane_mut()?.stop_api_server()?;
        let sandbox = Namespace::as_a_runtime_makes_it("new")?;
        let begin = Instant::now();
        let refused = net.node(1).runtime().add_to(&spec, &sandbox)?.err().context("the pod has begun")?;
        let took = begin.elapsed();
        ensure!(took < BOUNDED, "the answer took {took:?}");
        assert_eq!(refused.code, Refused::TRY_AGAIN, "{refused:?}");
        ensure!(format!("{} {}", refused.msg, refused.details).contains("identity"), "{refused:?}");
        let endpoints: Vec<Value> =
            serde_json::from_str(&net.node(1).portway(&["endpoint", "list", "-o", "json"])?)?;
        let ready = |endpoint: &Value| endpoint["pod"]["name"] == "new" && endpoint["state"] == "ready";
        ensure!(!endpoints.iter().any(ready), "it is ready: {endpoints:#?}");
        net.control_plane_mut()?.start_api_server()?;
        // As kubelet does it: again and again.
        let runtime = net.node(1).runtime();
        let pod = eventually(Duration::from_secs(60), "the pod to begin", || {
            runtime.add_to(&spec, &sandbox)?.map_err(Refused::into_error)
        })?;
        net.report_addresses(&pod)?;
        // Watches that have failed for so long are tried again some time later.
        net.wait_agreement(Duration::from_secs(30)).map(drop)
    })
}

/// In the mode `operator` the agent makes no number; a pod waits for the operator, and is told so.
#[test]
fn pain_58_without_an_operator_that_gives_numbers_a_pod_waits_and_says_for_whom() -> Result<()> {
    ClusterNet::test_on_api("pain58-operator", 1, |net| {
        net.start_agents(Routing::Native, &["--identity-management-mode=operator"])?;
        let spec = net.announce(1, &PodSpec::new("new").labelled("app", "web"))?;
        let sandbox = Namespace::as_a_runtime_makes_it("new")?;
        let runtime = net.node(1).runtime();
        let refused = runtime.add_to(&spec, &sandbox)?.err().context("the pod has begun")?;
        ensure!(format!("{} {}", refused.msg, refused.details).contains("operator"), "{refused:?}");
        let client = net.control_plane()?.client();
        eventually(SOON, "a warning about the pod", || {
            let warnings = warnings(client, "new")?;
            ensure!(
                warnings.iter().any(|event| event["message"].to_string().contains("operator")),
                "{warnings:#?}"
            );
            Ok(())
        })?;
        ensure!(client.list("/apis/cilium.io/v2/ciliumidentities")?.is_empty(), "the agent made a number");
        client.create(&json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumIdentity",
            "metadata": {"name": "4711", "labels": {"io.kubernetes.pod.namespace": "default"}},
            "security-labels": {
                "k8s:app": "web",
                "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "default",
                "k8s:io.cilium.k8s.policy.cluster": "default",
                "k8s:io.cilium.k8s.policy.serviceaccount": "default",
                "k8s:io.kubernetes.pod.namespace": "default",
            },
        }))?;
        let pod = eventually(Duration::from_secs(20), "the pod to begin", || {
            runtime.add_to(&spec, &sandbox)?.map_err(Refused::into_error)
        })?;
        net.report_addresses(&pod)?;
        assert_eq!(net.wait_agreement(SOON)?.of_pod("default", "new")?, 4711);
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/34512>: what each pod has of its own uses the numbers up.
#[test]
fn pain_67_where_numbers_run_out_it_is_said_before_and_pods_with_known_labels_begin() -> Result<()> {
    const FREE: u32 = 3;
    ClusterNet::test("pain67", 1, |net| {
        // All but the last ones.
        let taken = 256..=65_535 - FREE;
        let identity = |number: u32| {
            json!({
                "apiVersion": "cilium.io/v2",
                "kind": "CiliumIdentity",
                "metadata": {"name": number.to_string()},
                "security-labels": {"k8s:job": format!("job-{number}")},
            })
        };
        net.manifests().put("identities", taken.clone().map(identity))?;
        net.start_agents(Routing::Native, &[])?;
        let mut given = BTreeSet::new();
        let mut pods = Vec::new();
        for number in 0..FREE {
            let pod =
                net.make(1, &PodSpec::new(&format!("pod-{number}")).labelled("job", &number.to_string()))?;
            // A file is read some time after it is there.
            let identity = eventually(SOON, "the pod's identity", || {
                let identity = net.node(1).ipcache()?.identity(pod.v4.into())?.context("no entry")?;
                ensure!((256..=65_535).contains(&identity), "{identity} is no pod's");
                Ok(identity)
            })?;
            ensure!(!taken.contains(&identity), "{identity} is somebody's");
            ensure!(given.insert(identity), "{identity} is given twice");
            pods.push(pod);
        }
        let said = net.node(1).agent.as_ref().context("no agent runs")?.log();
        ensure!(said.contains("identities of 65280"), "nothing is said of how many there are:\n{said}");
        // None is left.
        let spec = net.announce(1, &PodSpec::new("one-more").labelled("job", "one-more"))?;
        let sandbox = Namespace::as_a_runtime_makes_it("one-more")?;
        let runtime = net.node(1).runtime();
        let refused = runtime.add_to(&spec, &sandbox)?.err().context("a pod began without a number")?;
        let reason = format!("{} {}", refused.msg, refused.details);
        ensure!(reason.contains("65,280 numbers of identities are taken"), "{refused:?}");
        // One that is known is no new one.
        net.make(1, &PodSpec::new("known").labelled("job", "0"))?;
        // One is given back.
        let pod = pods.pop().context("no pods")?;
        net.remove(&pod)?;
        eventually(Duration::from_secs(30), "the number to be free", || {
            runtime.add_to(&spec, &sandbox)?.map_err(Refused::into_error).map(drop)
        })
    })
}

/// <https://github.com/cilium/cilium/issues/25251>: a namespace's label changes under all agents at once.
#[test]
fn pain_69_a_change_that_comes_to_all_agents_at_once_makes_one_number() -> Result<()> {
    ClusterNet::test_on_api("pain69", 3, |net| {
        net.namespace("shop", &[("team", "0")])?;
        net.start_agents(Routing::Native, &[])?;
        let mut pods = Vec::new();
        for node in 1..=3 {
            for app in ["web", "db"] {
                let spec = PodSpec::new(&format!("{app}-{node}")).in_namespace("shop");
                pods.push(net.make(node, &spec.labelled("app", app))?);
            }
        }
        net.wait_agreement(Duration::from_secs(10))?;
        for turn in 1..=10 {
            net.namespace("shop", &[("team", &turn.to_string())])?;
            // Agreement is: one number for each label set, and each pod has that of its labels.
            let objects = net.wait_agreement(SOON)?;
            for app in ["web", "db"] {
                let numbers: BTreeSet<u32> = (1..=3)
                    .map(|node| objects.of_pod("shop", &format!("{app}-{node}")))
                    .collect::<Result<_>>()?;
                assert_eq!(numbers.len(), 1, "{numbers:?}");
            }
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/issues/40617>: agents get another filter one after the other.
#[test]
fn pain_78_while_agents_change_their_label_filter_every_pod_is_somebody() -> Result<()> {
    ClusterNet::test_on_api("pain78", 2, |net| {
        net.start_agents(Routing::Native, &[])?;
        let near = net.make(1, &PodSpec::new("near").labelled("app", "web").labelled("build", "1"))?;
        let far = net.make(2, &PodSpec::new("far").labelled("app", "web").labelled("build", "1"))?;
        let before = net.wait_agreement(Duration::from_secs(10))?;
        let old = before.of_pod("default", "near")?;
        assert_eq!(before.of_pod("default", "far")?, old);
        let watched = [near.v4.into(), near.v6.into(), far.v4.into(), far.v6.into()];
        let watches = [1, 2].map(|number| net.node(number).watch_ipcache(watched.to_vec()));
        for node in [1, 2] {
            net.node_mut(node).stop_agent()?;
            net.node_mut(node).start_agent(Routing::Native, &["--labels=k8s:!build"])?;
        }
        let client = net.control_plane()?.client();
        let number =
            |name: &str| portway_tests::harness::identities::Objects::list(client)?.of_pod("default", name);
        let new = eventually(SOON, "both pods to have the identity of the new filter", || {
            let (near, far) = (number("near")?, number("far")?);
            ensure!(near == far && near != old, "{near} {far}");
            Ok(near)
        })?;
        let identities = portway_tests::harness::identities::Objects::list(client)?.identities()?;
        ensure!(identities.contains_key(&old), "the old identity is gone before its time");
        ensure!(!identities[&new].contains_key("k8s:build"), "{:?}", identities[&new]);
        // Each node learns both pods' new number.
        for node in net.nodes() {
            let ipcache = node.ipcache()?;
            eventually(SOON, "all nodes to have the new number", || {
                for addr in watched {
                    let found = ipcache.identity(addr)?;
                    ensure!(found == Some(new), "{} has {addr} as {found:?}", node.name());
                }
                Ok(())
            })?;
        }
        for watch in watches {
            for (addr, values) in watch?.end()? {
                let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
                assert_eq!(values, [Some(old), Some(new)], "{addr}");
            }
        }
        Ok(())
    })
}

/// <https://github.com/cilium/cilium/pull/39552>: names that are longer than a label's value may be.
#[test]
fn pain_79_a_pod_starts_however_long_its_names_and_labels_are() -> Result<()> {
    ClusterNet::test_on_api("pain79", 1, |net| {
        let (account, namespace) = ("a".repeat(253), "n".repeat(63));
        let (key, value) = (format!("{}/{}", "p".repeat(253), "k".repeat(63)), "v".repeat(63));
        net.namespace(&namespace, &[(&key, &value)])?;
        net.start_agents(Routing::Native, &[])?;
        let spec = PodSpec::new("web").in_namespace(&namespace).account(&account).labelled(&key, &value);
        net.make(1, &spec)?;
        let number = net.wait_agreement(SOON)?.of_pod(&namespace, "web")?;
        let client = net.control_plane()?.client();
        let object = client.get(&format!("/apis/cilium.io/v2/ciliumidentities/{number}"))?;
        assert_eq!(object["metadata"]["labels"], json!({"io.kubernetes.pod.namespace": namespace}));
        let labels = &object["security-labels"];
        assert_eq!(labels["k8s:io.cilium.k8s.policy.serviceaccount"], json!(account), "{object}");
        assert_eq!(labels[format!("k8s:io.cilium.k8s.namespace.labels.{key}")], json!(value), "{object}");
        assert_eq!(labels[format!("k8s:{key}")], json!(value), "{object}");
        Ok(())
    })
}
