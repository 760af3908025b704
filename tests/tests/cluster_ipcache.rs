//! Identities of pods on a real API server, with an agent on each of three nodes: who knows whom, and when.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster_net::arrivals::arrive;
use portway_tests::harness::cluster_net::{Pod, PodSpec, ROUTER_V4, Routing, WORLD_V4, WORLD_V6};
use portway_tests::harness::{ClusterNet, eventually};

/// Of `pw_ipcache`: an address that only a prefix is known of, with no identity.
const UNKNOWN: u32 = 0;
const KNOWN_SETS: u32 = 10;
/// Of a debug build on a busy machine; `bench identity` has 20 new pods a second, and the bar.
const P99: Duration = Duration::from_secs(5);

fn app(number: u32) -> String {
    format!("app-{number}")
}

#[test]
fn a_new_pod_is_known_to_every_node_at_once_and_is_never_the_world() -> Result<()> {
    ClusterNet::test_on_api("ipcache", 3, |net| {
        net.start_agents(Routing::Native, &[])?;
        let first = |set| net.make(2, &PodSpec::new(&format!("first-{set}")).labelled("app", &app(set)));
        let _first: Vec<Pod> = (0..KNOWN_SETS).map(first).collect::<Result<_>>()?;
        let objects = net.wait_agreement(Duration::from_secs(10))?;
        let known: BTreeMap<u32, u32> = (0..KNOWN_SETS)
            .map(|set| Ok((set, objects.of_pod("default", &format!("first-{set}"))?)))
            .collect::<Result<_>>()?;
        let (many, apart) = if is_long() { (220, 50) } else { (40, 250) };
        let specs = (0..many).map(|number| (number % KNOWN_SETS, PodSpec::new(&format!("new-{number}"))));
        let specs: Vec<_> = specs.map(|(set, spec)| (set, spec.labelled("app", &app(set)))).collect();
        let arrivals = arrive(net, 1, specs.iter().map(|(_, spec)| spec), Duration::from_millis(apart))?;
        let (mut lags, mut waits) = (Vec::new(), Vec::new());
        for ((set, _), arrival) in specs.iter().zip(&arrivals) {
            let (name, identity) = (arrival.pod.name(), known[set]);
            assert_eq!(arrival.own, [Some(identity); 2], "{name} began before its node knew it");
            for values in arrival.elsewhere.iter().flatten() {
                let (last, before) = values.split_last().context("nobody has looked")?;
                assert_eq!(last.1, Some(identity), "{name}: {values:?}");
                let unknown = before.iter().all(|(_, value)| matches!(value, None | Some(UNKNOWN)));
                assert!(unknown, "{name} was somebody else: {values:?}");
            }
            lags.push(arrival.until_known_everywhere());
            waits.push(arrival.answered - arrival.called);
        }
        lags.sort_unstable();
        waits.sort_unstable();
        let p99 = lags[(lags.len() - 1) * 99 / 100];
        println!(
            "{} pods: from ADD to both other nodes {:?} (median), {p99:?} (p99); its answer {:?} (median)",
            lags.len(),
            lags[lags.len() / 2],
            waits[waits.len() / 2],
        );
        ensure!(p99 < P99, "from ADD to both other nodes it took {p99:?}");
        net.wait_agreement(Duration::from_secs(5)).map(drop)
    })
}

fn is_long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}

/// Other nodes go from the one identity to the other in one step; both are somebody's all the time.
#[test]
fn a_pod_whose_labels_change_is_moved_in_one_step_on_every_node() -> Result<()> {
    ClusterNet::test_on_api("relabel", 2, |net| {
        net.start_agents(Routing::Tunnel, &[])?;
        let mut pod = net.make(1, &PodSpec::new("pod").labelled("app", "old"))?;
        let old = net.wait_agreement(Duration::from_secs(10))?.of_pod("default", "pod")?;
        let watches = [1, 2].map(|number| net.node(number).watch_ipcache(vec![pod.v4.into(), pod.v6.into()]));
        net.relabel(&mut pod, &[("app", "new"), ("tier", "front")])?;
        let objects = net.wait_agreement(Duration::from_secs(5))?;
        let new = objects.of_pod("default", "pod")?;
        assert_ne!(old, new);
        // The grace period has only begun.
        let identities = objects.identities()?;
        assert!(identities.contains_key(&old), "{old} is gone: {identities:?}");
        // The namespace's labels count as well.
        net.namespace("default", &[("team", "red")])?;
        let third = net.wait_agreement(Duration::from_secs(5))?.of_pod("default", "pod")?;
        assert!(third != old && third != new, "{third}");
        for watch in watches {
            for (addr, values) in watch?.end()? {
                let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
                assert_eq!(values, [Some(old), Some(new), Some(third)], "{addr}");
            }
        }
        Ok(())
    })
}

#[test]
fn every_address_of_the_cluster_and_the_world_has_an_identity() -> Result<()> {
    ClusterNet::test_on_api("addresses", 2, |net| {
        net.start_agents(Routing::Native, &[])?;
        // Checks the nodes' own addresses, too.
        net.wait_agreement(Duration::from_secs(10))?;
        for node in net.nodes() {
            let ipcache = node.ipcache()?;
            // The health endpoints: the first address of each node's range.
            for range in net.nodes().iter().flat_map(|node| node.pod_cidrs()) {
                let (first, _) = range.split_once('/').context("no prefix")?;
                let addr = match first.parse()? {
                    IpAddr::V4(v4) => IpAddr::from((u32::from(v4) + 1).to_be_bytes()),
                    IpAddr::V6(v6) => IpAddr::from((u128::from(v6) + 1).to_be_bytes()),
                };
                eventually(Duration::from_secs(10), "health", || {
                    let found = ipcache.identity(addr)?;
                    ensure!(found == Some(4), "{} has {addr} as {found:?}", node.name());
                    Ok(())
                })?;
            }
            for (addr, wanted) in [(IpAddr::from(WORLD_V4), 9), (WORLD_V6.into(), 10)] {
                assert_eq!(ipcache.identity(addr)?, Some(wanted), "{addr} on {}", node.name());
            }
            // An address of nobody's in a node's range is no part of the world.
            for addr in ["10.244.2.200", "fd00:10:244:2::200"] {
                assert_eq!(ipcache.identity(addr.parse()?)?, Some(UNKNOWN), "{addr} on {}", node.name());
            }
            // The API server is no node: a number that only this node knows.
            let api_server = ipcache.identity(ROUTER_V4.into())?.context("no entry of the API server")?;
            assert!((0x0100_0001..=0x01ff_ffff).contains(&api_server), "{api_server:#x}");
            let shown = node.portway(&["identity", "get", &api_server.to_string()])?;
            assert!(shown.contains("reserved:kube-apiserver"), "{shown}");
            assert!(shown.contains("cidr:172.18.0.1/32"), "{shown}");
        }
        Ok(())
    })
}

/// Nothing that the nodes know of an address that pods have had is left when the pods are gone.
#[test]
fn an_address_belongs_to_its_newest_pod_and_to_nobody_after_it() -> Result<()> {
    ClusterNet::test_on_api("owner", 3, |net| {
        net.start_agents(Routing::Native, &[])?;
        let ipcache = net.node(3).ipcache()?;
        // As of a StatefulSet: the same name on another node, the object of the one before just gone.
        for turn in 0..if is_long() { 100 } else { 20 } {
            let spec = PodSpec::new("web-0").labelled("app", "web");
            let pod = net.make(1 + turn % 2, &spec)?;
            net.remove(&pod)?;
        }
        let last = net.make(1, &PodSpec::new("web-0").labelled("app", "web"))?;
        let identity = net.wait_agreement(Duration::from_secs(5))?.of_pod("default", "web-0")?;
        for v6 in [false, true] {
            assert_eq!(ipcache.identity(last.address(v6))?, Some(identity));
        }
        net.remove(&last)?;
        eventually(Duration::from_secs(5), "the pod to be forgotten", || {
            for v6 in [false, true] {
                let left = ipcache.identity(last.address(v6))?;
                ensure!(left == Some(UNKNOWN), "{} is {left:?}", last.address(v6));
            }
            Ok(())
        })?;
        net.wait_agreement(Duration::from_secs(5)).map(drop)
    })
}
