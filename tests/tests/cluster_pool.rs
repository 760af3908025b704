//! `ipam=cluster-pool` on a real API server: the addresses of a node's pods are from its CiliumNode, which an operator fills in.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_model::node::Prefix;
use portway_tests::harness::cluster_net::{Pod, Routing};
use portway_tests::harness::manifest::TARGET;
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
