//! What a node has of pods, seen from outside the agent.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use portway_tests::harness::cluster_net::cni::{Answer, Refused};
use portway_tests::harness::cluster_net::{Node, Pod};
use portway_tests::harness::process;
use serde_json::Value;

pub(super) fn refused(answer: Answer) -> Result<Refused> {
    match answer {
        Err(refused) => Ok(refused),
        Ok(value) => bail!("the plugin did not refuse: {value}"),
    }
}

pub(super) fn json_of(node: &Node, args: &[&str]) -> Result<Value> {
    let text = node.portway(&[args, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| format!("{args:?} is no JSON: {text}"))
}

/// The pods' links of a node.
pub(super) fn links(node: &Node) -> Result<BTreeSet<String>> {
    let text = node.ip(&["-brief", "link", "show"])?;
    let names = text.lines().filter_map(|line| line.split(['@', ' ']).next());
    Ok(names.filter(|name| portway_agent::endpoints::is_link_name(name)).map(str::to_owned).collect())
}

/// Everything that a node has of pods: links, routes to `10.244`, entries of tables, addresses in use.
pub(super) fn traces(node: &Node) -> Result<[usize; 4]> {
    let routes = |family| node.ip(&[family, "route", "show", "proto", "80"]);
    let to_pods = |text: String| text.lines().filter(|line| line.contains(" dev pw")).count();
    let tables = node.tables()?;
    Ok([
        links(node)?.len(),
        to_pods(routes("-4")?) + to_pods(routes("-6")?),
        tables.endpoints()?.len() + tables.netns()?.len(),
        json_of(node, &["ipam"])?["addresses"].as_array().map_or(0, Vec::len),
    ])
}

pub(super) fn in_pod(pod: &Pod, args: &[&str]) -> Result<String> {
    process::output(pod.namespace.command("ip").args(args))
}

/// The node's end of a pod's link.
pub(super) fn link_of(node: &Node, pod: &Pod) -> Result<String> {
    let endpoint = json_of(node, &["endpoint", "get", pod.name()])?;
    Ok(endpoint["link"]["name"].as_str().context("no name")?.to_owned())
}
