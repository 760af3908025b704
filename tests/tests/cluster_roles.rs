//! That agents and operator ask for what the chart's roles allow, for all of it, and for nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_model::crd::SCHEMA_VERSION_LABEL;
use portway_tests::harness::cluster::asked::{Asked, Permission, permissions};
use portway_tests::harness::cluster::identity::{AGENT, OPERATOR};
use portway_tests::harness::cluster::{ApiClient, ROLES};
use portway_tests::harness::cluster_net::{PodSpec, Routing};
use portway_tests::harness::manifest::{Service, TCP};
use portway_tests::harness::operator::{Places, objects};
use portway_tests::harness::{ClusterNet, ControlPlane, Namespace, Operator, chart, eventually};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Endpoints without a pod are left alone for a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asked for where things happen that this test does not have: who asks, for what, and where that is tested.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (AGENT, "patch events.events.k8s.io", "kubernetes::events::tests: a series of more than one"),
    (AGENT, "delete ciliumidentities.cilium.io", "cluster_identities: a_number_that_means_something_else_…"),
    (OPERATOR, "patch events.events.k8s.io", "kubernetes::events::tests: a series of more than one"),
    (
        OPERATOR,
        "update customresourcedefinitions.apiextensions.k8s.io ciliumendpointslices.cilium.io",
        "here, of the other three",
    ),
    (
        OPERATOR,
        "get leases.coordination.k8s.io portway-operator",
        "kubernetes::lease::tests: after a lost answer",
    ),
];

/// Who makes identities.
const MODE: &str = "--identity-management-mode=both";
const WORK: [&str; 15] = [
    MODE,
    "--identity-gc-interval=2s",
    "--identity-range-test-only=256-65535",
    "--identity-heartbeat-timeout=2s",
    "--enable-cilium-endpoint-slice=true",
    r#"--ces-rate-limits=[{"nodes":0,"limit":100,"burst":200}]"#,
    "--cilium-endpoint-gc-interval=2s",
    "--nodes-gc-interval=2s",
    "--ipam=cluster-pool",
    "--cluster-pool-ipv4-cidr=10.1.0.0/16",
    "--unmanaged-pod-watcher-interval=1",
    "--pod-restart-selector=k8s-app=kube-dns",
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=3s",
    "--leader-election-retry-period=1s",
];

#[test]
fn agents_and_operator_ask_for_all_that_the_chart_allows_them_and_for_nothing_else() -> Result<()> {
    ClusterNet::test_on_api("roles", 2, |net| {
        let client = net.control_plane()?.new_client()?;
        // One definition is missing, the others are of an earlier version.
        let definition = |name: &str| json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}});
        for name in ["ciliumnodes", "ciliumidentities", "ciliumendpoints"] {
            let older = json!({"metadata": {"labels": {SCHEMA_VERSION_LABEL: "0.0.1"}}});
            client.patch(&definition(&format!("{name}.cilium.io")), &older)?;
        }
        let missing = definition("ciliumendpointslices.cilium.io");
        client.delete(&missing)?;
        eventually(Duration::from_secs(20), "the definition to be gone", || {
            let left = client.list(DEFINITIONS)?;
            ensure!(
                left.iter().all(|left| left["metadata"]["name"] != missing["metadata"]["name"]),
                "it is there"
            );
            Ok(())
        })?;
        // A node whose agent's pod is ready, with the taint of those whose is not; and a name server that began before.
        let taint = json!([{"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"}]);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
        client.patch(&node, &json!({"spec": {"taints": taint}}))?;
        let mut agent = objects::pod("kube-system", "portway-agent-1", 1, 1, &[("k8s-app", "portway")]);
        agent["spec"]["hostNetwork"] = json!(true);
        client.create(&agent)?;
        client.create(&objects::pod("kube-system", "kube-dns-1", 1, 2, &[("k8s-app", "kube-dns")]))?;
        // What is left of a node, and of a pod; and a node that has another's prefix.
        let cilium_node = |name: &str, cidrs: &[&str]| json!({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": name}, "spec": {"ipam": {"podCIDRs": cidrs}}});
        client.create(&cilium_node("gone", &[]))?;
        for number in [8, 9] {
            client.create(&objects::node(number))?;
            client.create(&cilium_node(&format!("node-{number}"), &["10.1.0.0/24"]))?;
        }
        client.create(&objects::endpoint(&named("orphan", "uid-of-orphan"), 300, &[])?)?;
        // An agent that was there before: it makes its own CiliumNode, and finds a name taken.
        let taken = objects::endpoint(&named("second", "uid-of-an-earlier-pod"), 300, &[])?;
        client.create(&taken)?;
        net.node_mut(1).start_agent(Routing::Native, &[MODE])?;
        let mut first = net.make(1, &PodSpec::new("first").labelled("app", "old"))?;

        let kubeconfig = net.control_plane()?.kubeconfig_of("operator")?;
        let places = Places { namespace: net.router().clone(), number: 1, kubeconfig };
        let mut operator = Operator::spawn(&places, &WORK)?;
        operator.wait_up()?;
        let done = (|| {
            net.node_mut(2).start_agent(Routing::Native, &[MODE, "--enable-cilium-endpoint-slice=true"])?;
            let second = net.make(2, &PodSpec::new("second").labelled("app", "old"))?;
            net.relabel(&mut first, &[("app", "new")])?;
            // Slices come, are added to, and go.
            wait_for_slice_of(&client, "first")?;
            let third = net.make(1, &PodSpec::new("third").labelled("app", "new"))?;
            wait_for_slice_of(&client, "third")?;
            for pod in [&first, &second, &third] {
                net.remove(pod)?;
            }
            // A pod without an agent: its identity is the operator's to make.
            client.create(&objects::pod("default", "far-away", 9, 4, &[("app", "far")]))?;
            // Said of a Service that cannot be served as it says.
            let refused = Service::new("refused", &["10.96.0.11"]).port("http", TCP, 80);
            client.apply(&refused.external_ips(&["2001:db8::7"]).into())?;
            let mut left = BTreeSet::new();
            let mut touched = 0;
            let waited = eventually(PATIENCE, "every permission to be used", || {
                operator.ensure_running()?;
                // Nodes tell something now and then; who has not heard of them lately deletes nothing.
                touched += 1;
                client
                    .patch(&node, &json!({"metadata": {"annotations": {"touched": touched.to_string()}}}))?;
                left = unused(net.control_plane()?)?;
                ensure!(left.is_empty(), "never asked for: {left:?}");
                Ok(())
            });
            for user in [AGENT, OPERATOR] {
                let refused = net.control_plane()?.asked(user)?.into_iter().filter(|asked| asked.code == 403);
                let refused: Vec<_> = refused.map(|asked| asked.permission.to_string()).collect();
                ensure!(refused.is_empty(), "{user} asked for what no role allows: {refused:?}");
            }
            waited
        })();
        done.with_context(|| operator.log())
    })
}

/// A pod of no node's.
fn named(name: &str, uid: &str) -> Value {
    let mut pod = objects::pod("default", name, 1, 3, &[]);
    pod["metadata"]["uid"] = uid.into();
    pod
}

fn wait_for_slice_of(client: &ApiClient, pod: &str) -> Result<()> {
    eventually(Duration::from_secs(30), &format!("a slice with {pod}"), || {
        let slices = client.list("/apis/cilium.io/v2alpha1/ciliumendpointslices")?;
        let mut endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
        ensure!(endpoints.any(|endpoint| endpoint["name"] == pod), "none of {}", slices.len());
        Ok(())
    })
}

/// Permissions of the roles that nobody has used and that are not said to be used elsewhere.
fn unused(control_plane: &ControlPlane) -> Result<BTreeSet<String>> {
    let mut unused = BTreeSet::new();
    for user in [AGENT, OPERATOR] {
        let asked = control_plane.asked(user)?;
        for permission in permissions(&roles_of(user)?) {
            let text = permission.to_string();
            let is_elsewhere = ELSEWHERE.iter().any(|(who, what, _)| *who == user && *what == text);
            if !is_elsewhere && !asked.iter().any(|asked| uses(asked, &permission)) {
                unused.insert(format!("{user}: {text}"));
            }
        }
    }
    Ok(unused)
}

/// The roles that have the name of this service account.
fn roles_of(user: &str) -> Result<Vec<Value>> {
    let name = user.rsplit(':').next();
    let mut roles = chart::rules(ROLES)?;
    roles.retain(|role| role["metadata"]["name"].as_str() == name && role.get("rules").is_some());
    ensure!(!roles.is_empty(), "the chart has no role {user}");
    Ok(roles)
}

fn uses(asked: &Asked, permission: &Permission) -> bool {
    let Permission { verb, group, resource, name } = permission;
    let of = &asked.permission;
    let is_answered = asked.code < 400 || matches!(asked.code, 404 | 409);
    is_answered
        && (verb, group, resource) == (&of.verb, &of.group, &of.resource)
        && name.as_ref().is_none_or(|name| of.name.as_ref() == Some(name))
}

/// What a set of values does not ask for it does not allow, and the operator does without.
#[test]
fn the_operator_of_every_set_works_with_the_roles_of_that_set() -> Result<()> {
    let mut worked = 0;
    for set in chart::sets()? {
        if chart::object(&set, "Deployment", "portway-operator")?.is_none() {
            continue;
        }
        worked += 1;
        let namespace = Namespace::new("roles")?;
        let control_plane = ControlPlane::start(&namespace)?;
        let client = control_plane.client();
        for rule in chart::rules(&set)? {
            client.delete_if_there(&rule)?;
            client.create(&rule)?;
        }
        let config = chart::config(&set)?;
        let dir = tempfile::tempdir()?;
        for (key, value) in &config {
            std::fs::write(dir.path().join(key), value)?;
        }
        if config["skip-crd-creation"] == "true" {
            control_plane.install_crds()?;
        }
        client.create(&objects::node(1))?;
        client.create(&objects::pod("default", "web", 1, 1, &[("app", "web")]))?;
        let kubeconfig = control_plane.kubeconfig_of("operator")?;
        let places = Places { namespace: namespace.clone(), number: 1, kubeconfig };
        // The set's own leads nowhere.
        let server = format!("--k8s-api-server={}", control_plane.url());
        let mut operator =
            Operator::spawn(&places, &[&format!("--config-dir={}", dir.path().display()), &server])?;
        operator.wait_up()?;
        eventually(Duration::from_secs(30), "the operator to have worked", || {
            operator.ensure_running()?;
            let node = client.get("/apis/cilium.io/v2/ciliumnodes/node-1")?;
            let has_cidr = node.pointer("/spec/ipam/podCIDRs/0").is_some();
            ensure!(has_cidr == (config["ipam"] == "cluster-pool"), "{set}: {node}");
            if config["identity-management-mode"] != "agent" {
                ensure!(
                    !client.list("/apis/cilium.io/v2/ciliumidentities")?.is_empty(),
                    "{set}: no identity"
                );
            }
            Ok(())
        })
        .with_context(|| operator.log())?;
        operator.stop()?;
        let asked = control_plane.asked(OPERATOR)?;
        let refused: Vec<_> = asked.iter().filter(|asked| asked.code == 403).collect();
        ensure!(refused.is_empty() && asked.len() > 10, "{set}: {refused:?}");
    }
    ensure!(worked >= 4, "only {worked} sets have an operator");
    Ok(())
}

/// The list names permissions that there are.
#[test]
fn what_is_used_elsewhere_is_allowed() -> Result<()> {
    for (user, what, _) in ELSEWHERE {
        let roles = permissions(&roles_of(user)?);
        assert!(
            roles.iter().any(|permission| permission.to_string() == *what),
            "{user}: {what} is in no role"
        );
    }
    Ok(())
}
