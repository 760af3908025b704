//! The agent's own end under pods that come and go and 200 connections a second between pods, to services and to the
//! world: nobody notices, and nothing is left behind. And a full conntrack map.
//!
//! The short forms restart 8 times each way and flood for 5 s; with `PORTWAY_LONG` 50 times, for both ways of routing, and
//! for 60 s.

#![expect(clippy::print_stdout, reason = "the figures are part of the result")]

mod churn;
mod flood;
mod inventory;
mod load;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portway_datapath::nat::NatMap;
use portway_datapath::{Addr, FlowMap};
use portway_tests::harness::cluster_net::cni::Refused;
use portway_tests::harness::cluster_net::{Node, PodSpec, Routing};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::{ClusterNet, eventually};
use portway_tests::oracle::random::Random;

use churn::Churn;
use inventory::Inventory;
use load::Load;

pub(crate) fn is_long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}

fn routings(short: Routing) -> Vec<Routing> {
    if is_long() { Routing::BOTH.to_vec() } else { vec![short] }
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Told,
    Killed,
}

fn nobody_notices(end: End, routing: Routing) -> Result<()> {
    ClusterNet::test(&format!("churn-{end:?}"), 2, |net| {
        // Few addresses, so that one that is lost is missed.
        let cidrs = ["10.244.1.0/27".to_owned(), "fd00:10:244:1::/64".to_owned()];
        net.manifests().put("node-1", [net.node(1).object_with(&cidrs)])?;
        net.start_agents(routing, &[])?;
        let mut load = Load::start(net)?;
        wait_health_endpoint(net.node(1))?;
        let (before, free) = (Inventory::take(net.node(1))?, free_addresses(net)?);
        let churn = Churn::start(net, load.near())?;
        let mut random = Random::new(std::process::id().into());
        let (mut ready, repeats) = (Vec::new(), if is_long() { 50 } else { 8 });
        for _ in 0..repeats {
            // At any instant of the churn.
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
            match end {
                End::Told => net.node_mut(1).stop_agent()?,
                End::Killed => net.node_mut(1).kill_agent()?,
            }
            std::thread::sleep(Duration::from_micros(random.below(300_000)));
            if end == End::Killed && random.chance(2) {
                // Also in the middle of a start.
                net.node_mut(1).spawn_agent(routing, &[])?;
                std::thread::sleep(Duration::from_micros(random.below(600_000)));
                net.node_mut(1).kill_agent()?;
            }
            let start = Instant::now();
            net.node_mut(1).start_agent(routing, &[])?;
            ready.push(start.elapsed());
        }
        let churned = churn.end()?;
        let what = format!("{end:?} under churn, {routing:?}");
        ready.sort_unstable();
        println!(
            "{what}: {repeats} times, ready after {:?} (median), {:?} (slowest); {churned}",
            ready[ready.len() / 2],
            ready[ready.len() - 1],
        );
        load.end(&what)?;
        let node = net.node(1);
        eventually(Duration::from_secs(10), "what the churn made to be gone", || before.compare(node))?;
        let now = free_addresses(net)?;
        println!(
            "{what}: {free} addresses were free, {now} are; no interface, route, rule, neighbour or entry is left"
        );
        ensure!(now == free, "{} addresses leaked", free - now);
        ensure!(churned.made >= repeats, "too few pods came and went: {churned}");
        Ok(())
    })
}

/// The node's own endpoint comes when it comes, and stays.
fn wait_health_endpoint(node: &Node) -> Result<()> {
    let first = Addr::from(IpAddr::from([10, 244, 1, 1]));
    eventually(Duration::from_secs(10), "the health endpoint", || {
        ensure!(node.tables()?.endpoints()?.contains_key(&first), "it is not there");
        Ok(())
    })
}

/// How many pods node 1 has room for, by making them.
fn free_addresses(net: &ClusterNet) -> Result<usize> {
    let (node, file) = (net.node(1), "fillers");
    let specs: Vec<_> = (0..40).map(|number| PodSpec::new(&format!("filler-{number}"))).collect();
    net.manifests().put(file, specs.iter().map(|spec| spec.object(node.name(), &[])))?;
    let mut pods = Vec::new();
    let mut refused = None;
    for spec in &specs {
        match node.runtime().add(spec)? {
            Ok(pod) => pods.push(pod),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    ensure!(refused.as_ref().is_some_and(|refused| refused.code == Refused::NO_ADDRESS), "{refused:?}");
    pods.iter().try_for_each(|pod| node.delete(pod))?;
    net.manifests().remove(file)?;
    Ok(pods.len())
}

#[test]
fn nobody_notices_that_the_agent_is_told_to_end_while_pods_come_and_go() -> Result<()> {
    routings(Routing::Native).into_iter().try_for_each(|routing| nobody_notices(End::Told, routing))
}

#[test]
fn nobody_notices_that_the_agent_is_killed_while_pods_come_and_go() -> Result<()> {
    routings(Routing::Tunnel).into_iter().try_for_each(|routing| nobody_notices(End::Killed, routing))
}

/// Its sandbox went by a DEL that found no agent, or without a word.
#[test]
fn a_pod_that_went_while_the_agent_was_down_is_in_no_table_after_its_start() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("gone", 2, |net| {
            net.start_agents(routing, &[])?;
            let far = net.serving_pod(2, "far")?;
            net.publish(&web(), far.endpoints())?;
            let stays = net.serving_pod(1, "stays")?;
            wait_health_endpoint(net.node(1))?;
            let before = Inventory::take(net.node(1))?;
            let gone = ["by-del", "by-itself"].map(|name| PodSpec::new(name).without_socket_lb());
            let gone = [net.make(1, &gone[0])?, net.make(1, &gone[1])?];
            net.node(1).wait_programmed()?;
            for pod in &gone {
                let mut client = net.client(pod)?;
                for to in WEB {
                    client.tcp(to)?.unwrap();
                    client.udp(to)?.unwrap();
                }
                for v6 in [false, true] {
                    client.tcp(stays.socket(v6))?.unwrap();
                    client.ping(load::world(v6).ip(), 56)?.unwrap();
                    client.tcp(load::world(v6))?.unwrap();
                }
            }
            let addresses: Vec<Addr> = gone
                .iter()
                .flat_map(|pod| [IpAddr::from(pod.v4).into(), IpAddr::from(pod.v6).into()])
                .collect();
            let flows = traces(net.node(1), &addresses)?;
            ensure!(flows >= 8, "only {flows} entries know of the pods");
            net.node_mut(1).kill_agent()?;
            let [by_del, by_itself] = gone;
            net.node(1).delete(&by_del)?;
            net.forget(&by_del)?;
            net.forget(&by_itself)?;
            drop((by_del, by_itself));
            net.node_mut(1).start_agent(routing, &[])?;
            let node = net.node(1);
            eventually(Duration::from_secs(5), "the pods to be in no table", || {
                before.compare(node)?;
                let left = traces(node, &addresses)?;
                ensure!(left == 0, "{left} entries know of them");
                Ok(())
            })?;
            println!("{routing:?}: {flows} entries knew of the pods, 0 do after the start");
            Ok(())
        })?;
    }
    Ok(())
}

/// Entries of conntrack and NAT with one of these addresses on the pod's side.
fn traces(node: &Node, addresses: &[Addr]) -> Result<usize> {
    let tables = node.tables()?;
    let mut found = 0;
    for map in [FlowMap::Established, FlowMap::New] {
        tables.for_each_flow(map, |key, _| found += usize::from(addresses.contains(&key.local)))?;
    }
    for map in [NatMap::Established, NatMap::New] {
        tables.for_each_nat(map, |key, value| {
            found += usize::from(addresses.contains(&key.local) || addresses.contains(&value.other));
        })?;
    }
    Ok(found)
}
