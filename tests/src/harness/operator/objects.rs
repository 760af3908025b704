//! Objects that operators work on.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// A Node with an address of its own and the taint that its agent is waited for.
pub fn node(number: u32) -> Value {
    let name = format!("node-{number}");
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"addresses": [
            {"type": "InternalIP", "address": node_address(number).to_string()},
            {"type": "Hostname", "address": name},
        ]},
    })
}

/// Of [`node`].
pub fn node_address(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = number.to_be_bytes();
    Ipv4Addr::new(172, 19, high, low)
}

pub fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A running pod on `node-<node>`, at an address of its own (`number`).
pub fn pod(namespace: &str, name: &str, node: u32, number: u32, labels: &[(&str, &str)]) -> Value {
    let labels: Map<String, Value> =
        labels.iter().map(|&(key, value)| (key.to_owned(), value.into())).collect();
    let address = IpAddr::from((u32::from_be_bytes([10, 128, 0, 0]) + number).to_be_bytes()).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": format!("node-{node}"),
            "serviceAccountName": "default",
            "containers": [{"name": "main", "image": "none"}],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// The same pod as long as it has no address: one request instead of two.
#[must_use]
pub fn pending(mut pod: Value) -> Value {
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    pod
}

/// What an agent writes of a pod: `labels` are its identity's, `key=value`, sorted.
pub fn endpoint(pod: &Value, identity: u32, labels: &[String]) -> Result<Value> {
    let text = |pointer: &str| {
        let text = pod.pointer(pointer).and_then(Value::as_str);
        text.with_context(|| format!("no {pointer}: {pod}"))
    };
    let (namespace, name) = (text("/metadata/namespace")?, text("/metadata/name")?);
    let addresses: Vec<Value> = pod["status"]["podIPs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|ip| json!({"ipv4": ip["ip"]}))
        .collect();
    Ok(json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumEndpoint",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": pod["metadata"]["labels"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": text("/metadata/uid")?},
            ],
        },
        "status": {
            "id": 1,
            "state": "ready",
            "identity": {"id": identity, "labels": labels},
            "networking": {"addressing": addresses, "node": node_of(pod)?.to_string()},
            "service-account": "default",
        },
    }))
}

/// The address of the pod's node.
fn node_of(pod: &Value) -> Result<Ipv4Addr> {
    let name = pod["spec"]["nodeName"].as_str().context("a pod without a node")?;
    let number = name.strip_prefix("node-").and_then(|number| number.parse().ok());
    Ok(node_address(number.with_context(|| format!("{name} is none of the test's nodes"))?))
}

/// As far as a delete or a patch names it.
pub fn named(version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": namespace, "name": name}})
}

pub fn pod_named(namespace: &str, name: &str) -> Value {
    named("v1", "Pod", namespace, name)
}

pub fn node_named(number: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number}")}})
}
