//! CiliumEndpoints at a real API server, and the definitions of Portway's kinds.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_agent::endpoints::EndpointIdentity;
use portway_agent::identities::endpoint_objects::{EndpointObjects, News, Wanted};
use portway_datapath::NumericIdentity;
use portway_model::labels::{Label, Labels};
use portway_tests::harness::cluster::portway_client;
use portway_tests::harness::{ControlPlane, Namespace};
use serde_json::{Value, json};

const PATH: &str = "/apis/cilium.io/v2/namespaces/default/ciliumendpoints/web-0";
/// Ten a second for half a minute, as fast as the server goes.
const ROUNDS: u64 = 300;
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(240);

fn pod_uid(round: u64) -> String {
    format!("00000000-0000-4000-8000-{round:012x}")
}

fn wanted(round: u64) -> Wanted {
    let labels = Labels::new([Label::new("k8s", "app", "web")]);
    Wanted {
        namespace: "default".to_owned(),
        pod: "web-0".to_owned(),
        pod_uid: pod_uid(round),
        // Newer than every object that is there.
        pod_created: Some(i64::MAX),
        container: format!("c{round}"),
        endpoint_id: 7,
        addresses: vec![Ipv4Addr::new(10, 0, 1, 200).into()],
        node: Some(Ipv4Addr::new(192, 0, 2, 1).into()),
        identity: EndpointIdentity::new(NumericIdentity::new(300), &labels),
    }
}

/// Until the object is as the agent wants it.
async fn kept(agent: &mut EndpointObjects) {
    while agent.next().await.news != News::Kept {}
}

/// Pain 74 (cilium/cilium#27123): a pod comes again with its name on another node, whose agent writes while the agent of the
/// node before deletes what it had.
#[test]
fn pain_74_a_late_delete_never_hits_the_object_of_a_pods_successor() -> Result<()> {
    let namespace = Namespace::new("pain74")?;
    let control_plane = ControlPlane::start(&namespace)?;
    control_plane.install_crds()?;
    let kubeconfig = control_plane.kubeconfig()?;
    let writes = namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            tokio::time::timeout(LIMIT, moves(&kubeconfig)).await.context("it takes too long")?
        })
    })?;
    // Each pod's object is made and deleted; a delete may come twice, from both nodes.
    ensure!((2 * ROUNDS - 1..=4 * ROUNDS).contains(&writes), "{writes} writes for {ROUNDS} pods");
    Ok(())
}

/// How many writes it took.
async fn moves(kubeconfig: &Path) -> Result<u64> {
    let reader = portway_client(kubeconfig, "reader").await?;
    let mut old = EndpointObjects::new(portway_client(kubeconfig, "node-a").await?, true);
    let mut new = EndpointObjects::new(portway_client(kubeconfig, "node-b").await?, true);
    old.set_synced();
    new.set_synced();
    for round in 0..ROUNDS {
        new.set(wanted(round), true);
        if round == 0 {
            kept(&mut new).await;
        } else {
            old.remove("default", "web-0", &pod_uid(round - 1));
            tokio::join!(kept(&mut new), kept(&mut old));
        }
        let object: Value = serde_json::from_slice(&reader.get(PATH).await?)?;
        let owner = &object["metadata"]["ownerReferences"][0]["uid"];
        ensure!(*owner == json!(pod_uid(round)), "round {round}: the object is {owner}'s");
        std::mem::swap(&mut old, &mut new);
    }
    Ok(old.counts().writes + new.counts().writes)
}

#[test]
fn the_definitions_keep_what_others_write_and_refuse_what_is_no_such_object() -> Result<()> {
    let namespace = Namespace::new("crds")?;
    let control_plane = ControlPlane::start(&namespace)?;
    control_plane.install_crds()?;
    let client = control_plane.client();
    let endpoint = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": "web-0", "namespace": "default"},
        "status": {
            "id": 211, "state": "ready", "identity": {"id": 48861, "labels": ["k8s:app=web"]},
            "networking": {"addressing": [{"ipv4": "10.0.1.200"}], "node": "192.0.2.1"},
            "policy": {"ingress": {"enforcing": false, "state": "<status disabled>"}},
            "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        },
    });
    let made = client.create(&endpoint)?;
    ensure!(made["status"] == endpoint["status"], "{made}");
    let node = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "a"},
        "spec": {
            "addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}], "eni": {"pre-allocate": 8},
            "ipam": {"podCIDRs": ["10.0.1.0/24"], "max-allocate": 16},
        },
    });
    let made = client.create(&node)?;
    ensure!(made["spec"] == node["spec"], "{made}");
    let identity = |labels: Value| {
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": "300"}, "security-labels": labels,
        })
    };
    ensure!(client.create(&identity(json!({"k8s:app": 7}))).is_err(), "a label that is no text");
    let long = "a".repeat(64);
    let made = client.create(&identity(json!({"k8s:app": "web", "k8s:long": long})))?;
    ensure!(made["security-labels"] == json!({"k8s:app": "web", "k8s:long": long}), "{made}");
    let slice = json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {"name": "ces-x"},
        "namespace": "default",
        "endpoints": [{"name": "web-0", "id": 300, "networking": {"addressing": [{"ipv4": "10.0.1.200"}]}}],
    });
    let made = client.create(&slice)?;
    ensure!(made["endpoints"] == slice["endpoints"], "{made}");
    Ok(())
}
