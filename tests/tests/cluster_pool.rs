//! `ipam=cluster-pool` on a real API server: the addresses of a node's pods are from its CiliumNode, which an operator fills
//! in: the test in its place, or Portway's own.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_model::node::Prefix;
use portway_tests::harness::cluster_net::{Pod, Routing};
use portway_tests::harness::manifest::TARGET;
use portway_tests::harness::operator::{Operator, Places};
use portway_tests::harness::{ClusterNet, eventually};
use serde_json::{Value, json};

/// None of those that the Nodes have.
fn given(number: u8) -> [String; 2] {
    [format!("10.44.{number}.0/24"), format!("fd00:44:{number}::/112")]
}

fn cilium_node(net: &ClusterNet, number: u8) -> Result<Value> {
    let path = format!("/apis/cilium.io/v2/ciliumnodes/{}", net.node(number).name());
    net.control_plane()?.client().get(&path)
}

/// What an operator does once the agent has made its node's object.
fn give(net: &ClusterNet, number: u8) -> Result<()> {
    let object = eventually(Duration::from_secs(20), "a CiliumNode", || cilium_node(net, number))?;
    let patch = json!({"spec": {"ipam": {"podCIDRs": given(number)}}});
    net.control_plane()?.client().patch(&object, &patch).map(drop)
}

fn is_from(pod: &Pod, number: u8) -> Result<()> {
    for (addr, prefix) in [IpAddr::from(pod.v4), pod.v6.into()].into_iter().zip(given(number)) {
        let prefix = Prefix::parse(&prefix).context("a prefix")?;
        ensure!(prefix.contains(addr.into()), "{} has {addr}, not of {prefix}", pod.name());
    }
    Ok(())
}

fn reaches(net: &ClusterNet, from: &Pod, to: &Pod) -> Result<()> {
    for addr in [IpAddr::from(to.v4), to.v6.into()] {
        let server = net.client(from)?.servers(SocketAddr::new(addr, TARGET))?;
        ensure!(server == BTreeSet::from([to.name().to_owned()]), "{addr}: {server:?}");
    }
    Ok(())
}

#[test]
fn pods_have_addresses_of_what_their_cilium_node_is_given_and_keep_them_over_a_restart() -> Result<()> {
    ClusterNet::test_on_api("pool", 2, |net| {
        let flags = ["--ipam=cluster-pool"];
        for number in [1, 2] {
            net.node_mut(number).spawn_agent(Routing::Tunnel, &flags)?;
        }
        for number in [1, 2] {
            give(net, number)?;
            net.node_mut(number).wait_ready()?;
        }
        let (a, b) = (net.serving_pod(1, "a")?, net.serving_pod(2, "b")?);
        is_from(&a, 1)?;
        is_from(&b, 2)?;
        reaches(net, &a, &b)?;
        reaches(net, &b, &a)?;
        net.node_mut(1).kill_agent()?;
        reaches(net, &b, &a)?;
        net.node_mut(1).start_agent(Routing::Tunnel, &flags)?;
        reaches(net, &b, &a)?;
        let c = net.pod(1, "c")?;
        is_from(&c, 1)?;
        ensure!((c.v4, c.v6) != (a.v4, a.v6), "given twice: {}", c.v4);
        // What the agent writes of its node leaves what the operator has written.
        let written = cilium_node(net, 1)?;
        ensure!(written["spec"]["ipam"]["podCIDRs"] == json!(given(1)), "{written}");
        Ok(())
    })
}

#[test]
fn pods_reach_each_other_at_addresses_that_the_operator_gave_their_nodes() -> Result<()> {
    ClusterNet::test_on_api("poolop", 2, |net| {
        let control_plane = net.control_plane()?;
        let places = Places {
            namespace: control_plane.namespace().clone(),
            number: 1,
            kubeconfig: control_plane.kubeconfig_of("operator")?,
        };
        let pools = ["--cluster-pool-ipv4-cidr=10.44.0.0/16", "--cluster-pool-ipv6-cidr=fd00:44::/104"];
        let flags = ["--ipam=cluster-pool", pools[0], pools[1]];
        let mut operator = Operator::spawn(&places, &flags)?;
        for number in [1, 2] {
            net.node_mut(number).spawn_agent(Routing::Tunnel, &["--ipam=cluster-pool"])?;
        }
        let mut given = BTreeSet::new();
        for number in [1, 2] {
            net.node_mut(number).wait_ready().context(operator.log())?;
            let node = cilium_node(net, number)?;
            let cidrs = node["spec"]["ipam"]["podCIDRs"].as_array().context("no CIDRs")?;
            given.extend(cidrs.iter().map(ToString::to_string));
        }
        ensure!(given.len() == 4, "each node has two of its own: {given:?}");
        let (a, b) = (net.serving_pod(1, "a")?, net.serving_pod(2, "b")?);
        for pod in [&a, &b] {
            for (addr, pool) in [IpAddr::from(pod.v4), pod.v6.into()].into_iter().zip(pools) {
                let pool =
                    pool.split_once('=').and_then(|(_, pool)| Prefix::parse(pool)).context("a pool")?;
                ensure!(pool.contains(addr.into()), "{} has {addr}, not of {pool}", pod.name());
            }
        }
        reaches(net, &a, &b)?;
        reaches(net, &b, &a)?;
        // Agents and operator do not undo each other's work: once the CiliumNodes say everything they are at rest.
        for number in [1, 2] {
            eventually(Duration::from_secs(20), "where the node's health is asked", || {
                let node = cilium_node(net, number)?;
                let health = &node["spec"]["health"];
                ensure!(health["ipv4"].is_string() && health["ipv6"].is_string(), "{node}");
                Ok(())
            })?;
        }
        let versions = |net: &ClusterNet| -> Result<Vec<Value>> {
            [1, 2]
                .into_iter()
                .map(|number| Ok(cilium_node(net, number)?["metadata"]["resourceVersion"].clone()))
                .collect()
        };
        let before = versions(net)?;
        net.node_mut(1).kill_agent()?;
        net.node_mut(1).start_agent(Routing::Tunnel, &["--ipam=cluster-pool"])?;
        reaches(net, &b, &a)?;
        ensure!(versions(net)? == before, "written again: {before:?}, {:?}", versions(net)?);
        operator.ensure_running()
    })
}
