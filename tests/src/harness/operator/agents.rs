//! What agents write of their pods, where a test has pods without agents: a CiliumEndpoint as soon as there is an identity.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use portway_model::identity::CLAIM;
use serde_json::{Value, json};

use super::objects::endpoint;
use crate::harness::cluster::ApiClient;
use crate::harness::cluster::api::has_code;
use crate::harness::identities::{Labels, Objects};
use crate::harness::{Beside, ControlPlane, Ending};

const APART: Duration = Duration::from_millis(50);
/// Turns between two reports of a kubelet: who watches Nodes hears of one every second.
const REPORT: u32 = 20;

/// Stands in for the agents of all nodes until its end. It makes no identity, and leaves the CiliumEndpoints of pods that
/// are gone to the operator, as agents of nodes that are gone do.
#[derive(Debug)]
pub struct StandIn(Beside<u32>);

impl StandIn {
    pub fn start(control_plane: &ControlPlane) -> Result<Self> {
        let client = control_plane.new_client()?;
        Beside::start("agents", move |end| work(&client, end)).map(Self)
    }

    /// How many objects it has written.
    pub fn end(self) -> Result<u32> {
        self.0.end()
    }
}

/// An API server that does not answer is asked again; that it does not in the end is an error.
fn work(client: &ApiClient, end: &Ending) -> Result<u32> {
    let mut written = 0;
    for number in 0_u32.. {
        let over = end.has_come();
        let mut turn = turn(client, &mut written);
        if number % REPORT == 0 {
            turn = turn.and_then(|()| report(client, number));
        }
        if over {
            return turn.map(|()| written);
        }
        std::thread::sleep(APART);
    }
    Ok(written)
}

/// What the kubelet of some node says: that it is there still.
fn report(client: &ApiClient, number: u32) -> Result<()> {
    let nodes = client.list("/api/v1/nodes")?;
    let Some(name) = nodes.first().map(|node| &node["metadata"]["name"]) else { return Ok(()) };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    match client.patch(&node, &json!({"metadata": {"annotations": {"reported": number.to_string()}}})) {
        // It has gone meanwhile.
        Err(error) if has_code(&error, 404) => Ok(()),
        other => other.map(drop),
    }
}

fn turn(client: &ApiClient, written: &mut u32) -> Result<()> {
    let objects = Objects::list(client)?;
    let there: BTreeMap<_, &Value> = objects.endpoints.iter().map(|one| (full_name(one), one)).collect();
    for wanted in wanted_endpoints(&objects)? {
        let done = match there.get(&full_name(&wanted)) {
            None => client.create(&wanted),
            Some(there) if owner(there) != owner(&wanted) => replace(client, there, &wanted),
            Some(there) if there["status"] != wanted["status"] => {
                client.patch(&wanted, &json!({"status": wanted["status"]}))
            }
            Some(_) => continue,
        };
        match done {
            Ok(_) => *written += 1,
            // It has changed since the list.
            Err(error) if has_code(&error, 404) || has_code(&error, 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// CiliumEndpoints of all pods that have an identity and are in none yet.
pub fn missing_endpoints(client: &ApiClient) -> Result<Vec<Value>> {
    let objects = Objects::list(client)?;
    let there: BTreeSet<_> = objects.endpoints.iter().map(full_name).collect();
    let wanted = wanted_endpoints(&objects)?.into_iter();
    Ok(wanted.filter(|endpoint| !there.contains(&full_name(endpoint))).collect())
}

/// Of all pods whose labels have an identity.
fn wanted_endpoints(objects: &Objects) -> Result<Vec<Value>> {
    let mut numbers: BTreeMap<Labels, u32> = BTreeMap::new();
    let confirmed = objects.identities.iter().filter(|one| one["metadata"]["annotations"][CLAIM].is_null());
    for identity in confirmed {
        let number = identity["metadata"]["name"].as_str().and_then(|name| name.parse().ok());
        let labels = serde_json::from_value(identity["security-labels"].clone())?;
        numbers.insert(labels, number.context("an identity without a number")?);
    }
    let mut wanted = Vec::new();
    for pod in objects.pods.iter().filter(|pod| is_of_the_pod_network(pod)) {
        // Its namespace may have come after the list of them.
        let Ok(labels) = objects.labels(pod) else { continue };
        let Some(&number) = numbers.get(&labels) else { continue };
        let listed: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        wanted.push(endpoint(pod, number, &listed)?);
    }
    Ok(wanted)
}

/// Namespace and name.
fn full_name(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn is_of_the_pod_network(pod: &Value) -> bool {
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let has_address = pod["status"]["podIPs"].as_array().is_some_and(|ips| !ips.is_empty());
    has_address
        && !is_over
        && pod["metadata"]["deletionTimestamp"].is_null()
        && pod["spec"]["hostNetwork"] != true
}

fn owner(endpoint: &Value) -> &Value {
    &endpoint["metadata"]["ownerReferences"][0]["uid"]
}

/// Another pod's object of the same name goes before.
fn replace(client: &ApiClient, there: &Value, wanted: &Value) -> Result<Value> {
    let metadata = &there["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str(), metadata["name"].as_str());
    let path = format!(
        "/apis/cilium.io/v2/namespaces/{}/ciliumendpoints/{}",
        namespace.context("no namespace")?,
        name.context("no name")?
    );
    let conditions = json!({"preconditions": {"uid": metadata["uid"]}});
    client.request(Method::DELETE, &path, "application/json", Some(&conditions))?;
    client.create(wanted)
}
