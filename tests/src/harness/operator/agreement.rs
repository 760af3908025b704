//! Whether an operator has done what there is to do, by the objects alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Replicas;
use super::census::{self, overlapping_ranges};
use crate::harness::cluster::ApiClient;
use crate::harness::eventually;
use crate::harness::identities::Objects;

/// Endpoints of a slice, at most: the default of `ces-max-ciliumendpoints-per-ces`.
const ROOM: usize = 100;

impl Replicas {
    /// Until pods, identities, endpoints, slices and nodes are what they make of each other with
    /// [`ALL_WORK`](super::ALL_WORK).
    pub fn wait_agreement(&self, limit: Duration) -> Result<()> {
        eventually(limit, "all objects to agree", || {
            let client = self.client();
            let mut found = Objects::list(client)?.disagreements()?;
            found.extend(of_nodes(client)?);
            found.extend(of_slices(client)?);
            ensure!(found.is_empty(), "{found:#?}");
            Ok(())
        })
    }
}

/// Every Node has a CiliumNode with a range of its own, and no other CiliumNode is there.
pub fn of_nodes(client: &ApiClient) -> Result<Vec<String>> {
    let nodes = by_name(client.list("/api/v1/nodes")?)?;
    let cilium_nodes: census::Objects = by_name(client.list("/apis/cilium.io/v2/ciliumnodes")?)?;
    let mut found = overlapping_ranges(&cilium_nodes)?;
    for name in nodes.keys() {
        match cilium_nodes.get(name) {
            None => found.push(format!("the node {name} has no CiliumNode")),
            Some(node) => {
                let ranges = node["spec"]["ipam"]["podCIDRs"].as_array().map_or(0, Vec::len);
                if ranges != 1 {
                    found.push(format!("the CiliumNode {name} has {ranges} ranges"));
                }
            }
        }
    }
    let lost = cilium_nodes.keys().filter(|name| !nodes.contains_key(*name));
    found.extend(lost.map(|name| format!("the CiliumNode {name} is of no Node")));
    Ok(found)
}

/// Every CiliumEndpoint stands as it is in exactly one slice of its namespace, and nothing else does.
pub fn of_slices(client: &ApiClient) -> Result<Vec<String>> {
    let endpoints = client.list("/apis/cilium.io/v2/ciliumendpoints")?;
    let slices = client.list("/apis/cilium.io/v2alpha1/ciliumendpointslices")?;
    let mut found = Vec::new();
    let mut listed: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for slice in &slices {
        let (name, namespace) = (text(slice, "/metadata/name")?, text(slice, "/namespace")?);
        let entries = slice["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        if entries.is_empty() || entries.len() > ROOM {
            found.push(format!("the slice {name} has {} endpoints", entries.len()));
        }
        for entry in entries {
            listed.entry((namespace, text(entry, "/name")?)).or_default().push(entry);
        }
    }
    let mut there = BTreeSet::new();
    for endpoint in &endpoints {
        let key = (text(endpoint, "/metadata/namespace")?, text(endpoint, "/metadata/name")?);
        there.insert(key);
        let status = &endpoint["status"];
        match listed.get(&key).map(Vec::as_slice) {
            None => found.push(format!("{key:?} is in no slice")),
            Some([entry]) => {
                if entry["id"] != status["identity"]["id"] || entry["networking"] != status["networking"] {
                    found.push(format!("{key:?} is {status}, in its slice {entry}"));
                }
            }
            Some(entries) => found.push(format!("{key:?} is in slices {} times", entries.len())),
        }
    }
    let lost = listed.keys().filter(|key| !there.contains(*key));
    found.extend(lost.map(|key| format!("{key:?} is in a slice and no endpoint")));
    Ok(found)
}

fn by_name(objects: Vec<Value>) -> Result<BTreeMap<String, Value>> {
    objects.into_iter().map(|object| Ok((text(&object, "/metadata/name")?.to_owned(), object))).collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}: {object}"))
}
