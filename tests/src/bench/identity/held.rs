//! What it costs a node to know 10,000 identities and 150,000 addresses.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portway_agent::maps::PodMapId;
use serde_json::{Value, json};

use super::super::report::{Figure, median};
use super::super::resources::settled;
use super::BENCH;
use crate::harness::cluster_net::{Node, Routing};
use crate::harness::{ClusterNet, ControlPlane, eventually};
use crate::oracle::random::Random;

const IDENTITIES: u32 = 10_000;
/// Dual stack: two addresses each.
const ENDPOINTS: u32 = 75_000;
const FIRST: u32 = 1000;
const CHUNK: u32 = 5_000;

pub(super) fn run(long: bool) -> Result<Vec<Figure>> {
    let mut net = ClusterNet::on_api("identity-held", 1)?;
    create(net.control_plane()?, IDENTITIES, identity)?;
    net.start_agents(Routing::Native, &[])?;
    let before = settled(agent(net.node(1))?)?;
    create(net.control_plane()?, ENDPOINTS, endpoint)?;
    wait_known(net.node(1), ENDPOINTS - 1, Duration::from_secs(300))?;
    let after = settled(agent(net.node(1))?)?;
    let maps = net.node(1).tables()?.facts();
    let map = maps.iter().find(|map| map.id == PodMapId::Ipcache).context("no facts of pw_ipcache")?;
    let lookup = lookup(net.node(1), if long { 1_000_000 } else { 100_000 })?;
    let turns = if long { 10 } else { 3 };
    let lists = (0..turns).map(|_| bare_list(net.control_plane()?)).collect::<Result<Vec<_>>>()?;
    let mut rebuilds = Vec::new();
    for turn in 1..=turns {
        rebuilds.push(rebuild(&mut net, turn)?);
    }
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let held = "10,000 identities and 150,000 addresses";
    Ok(vec![
        Figure::trend(BENCH, "agent's memory with 10,000 identities", mib(before as f64), "MiB"),
        Figure::at_most(
            BENCH,
            "150,000 addresses more, agent's memory",
            mib(after as f64 - before as f64),
            "MiB",
            60.0,
        ),
        Figure::trend(
            BENCH,
            format!("{held}, pw_ipcache"),
            mib(map.kernel_bytes.unwrap_or_default() as f64),
            "MiB",
        ),
        Figure::trend(BENCH, format!("{held}, a lookup by a system call, median"), lookup, "ns"),
        Figure::trend(
            BENCH,
            format!("{held}, the pages of a bare list of the endpoints, median"),
            median(&lists) / 1e9,
            "s",
        ),
        // The agent's own part of it, without the API server's, has a bar: `kernel_ipcache` judges it in a release build.
        Figure::trend(
            BENCH,
            format!("{held}, start to what changed meanwhile, median"),
            median(&rebuilds) / 1e9,
            "s",
        ),
    ])
}

fn agent(node: &Node) -> Result<u32> {
    Ok(node.agent.as_ref().context("no agent runs")?.id())
}

/// Objects `0..many`.
fn create(control_plane: &ControlPlane, many: u32, object: fn(u32) -> Value) -> Result<()> {
    for from in (0..many).step_by(CHUNK as usize) {
        control_plane.client().create_all((from..many.min(from + CHUNK)).map(object).collect())?;
    }
    Ok(())
}

fn labels(number: u32) -> Value {
    json!({
        "k8s:app": format!("application-{number}"),
        "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "default",
        "k8s:io.cilium.k8s.policy.cluster": "default",
        "k8s:io.cilium.k8s.policy.serviceaccount": "default",
        "k8s:io.kubernetes.pod.namespace": "default",
    })
}

fn identity(number: u32) -> Value {
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumIdentity",
        "metadata": {
            "name": (FIRST + number).to_string(),
            "labels": {"io.kubernetes.pod.namespace": "default"},
        },
        "security-labels": labels(number),
    })
}

/// In a range of pods that no node of the network has.
fn addresses(number: u32) -> [IpAddr; 2] {
    let v4 = u32::from_be_bytes([10, 128, 0, 0]) + number;
    let v6 =
        u128::from_be_bytes([0xfd, 0, 0, 0x10, 1, 0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) + u128::from(number);
    [IpAddr::from(v4.to_be_bytes()), IpAddr::from(v6.to_be_bytes())]
}

fn of_endpoint(number: u32, version: u32) -> u32 {
    (number + version) % IDENTITIES
}

fn endpoint(number: u32) -> Value {
    endpoint_with(number, of_endpoint(number, 0))
}

fn endpoint_with(number: u32, identity: u32) -> Value {
    let [v4, v6] = addresses(number);
    let listed: Vec<String> = labels(identity)
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let name = format!("application-{}-5d8f7c9b6-{number:05}", number % IDENTITIES);
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumEndpoint",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": format!("application-{identity}")},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": name,
                "uid": format!("00000000-0000-4000-8000-{number:012}"),
            }],
        },
        "status": {
            "id": number % 60_000 + 1,
            "state": "ready",
            "identity": {"id": FIRST + identity, "labels": listed},
            "networking": {
                "addressing": [{"ipv4": v4.to_string(), "ipv6": v6.to_string()}],
                "node": format!("172.19.{}.{}", number / 110 / 250, number / 110 % 250 + 1),
            },
        },
    })
}

/// Until the node has both addresses of endpoint `number` as its first identity.
fn wait_known(node: &Node, number: u32, limit: Duration) -> Result<()> {
    let (ipcache, wanted) = (node.ipcache()?, FIRST + of_endpoint(number, 0));
    eventually(limit, "the last address to be known", || {
        for addr in addresses(number) {
            let found = ipcache.identity(addr)?;
            ensure!(found == Some(wanted), "{addr} is {found:?}, not {wanted}");
        }
        Ok(())
    })
}

/// Nanoseconds of a lookup of an address that is there.
fn lookup(node: &Node, many: u32) -> Result<f64> {
    const TOGETHER: u32 = 100;
    let (ipcache, mut random, mut took) = (node.ipcache()?, Random::new(1), Vec::new());
    for _ in 0..many / TOGETHER {
        let wanted: Vec<IpAddr> = (0..TOGETHER)
            .map(|_| addresses(random.below(ENDPOINTS.into()) as u32)[random.below(2) as usize])
            .collect();
        let begin = Instant::now();
        for addr in &wanted {
            ensure!(ipcache.identity(*addr)?.is_some_and(|found| found >= FIRST), "{addr} is unknown");
        }
        took.push(begin.elapsed().as_nanos() as u64 / u64::from(TOGETHER));
    }
    Ok(median(&took))
}

/// Nanoseconds that the API server takes for the endpoints' pages, asked for one after the other as a watch does.
fn bare_list(control_plane: &ControlPlane) -> Result<u64> {
    let begin = Instant::now();
    let mut next = String::new();
    loop {
        let path = format!("/apis/cilium.io/v2/ciliumendpoints?limit=500&continue={next}");
        let page = control_plane.client().get(&path)?;
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(token) if !token.is_empty() => token.clone_into(&mut next),
            Some(_) | None => return Ok(begin.elapsed().as_nanos() as u64),
        }
    }
}

/// Nanoseconds from an agent's start to the last of some endpoints that changed while there was none.
fn rebuild(net: &mut ClusterNet, turn: u32) -> Result<u64> {
    net.node_mut(1).stop_agent()?;
    let changed: Vec<(u32, u32)> = (0..10)
        .map(|n| n * (ENDPOINTS / 10) + ENDPOINTS / 20)
        .map(|number| (number, of_endpoint(number, turn)))
        .collect();
    let client = net.control_plane()?.client();
    for &(number, identity) in &changed {
        let object = endpoint_with(number, identity);
        client.patch(&object, &json!({"status": {"identity": object["status"]["identity"]}}))?;
    }
    let begin = Instant::now();
    net.node_mut(1).spawn_agent(Routing::Native, &[])?;
    let ipcache = net.node(1).ipcache()?;
    eventually(Duration::from_secs(60), "what changed to be known", || {
        for &(number, identity) in &changed {
            for addr in addresses(number) {
                let found = ipcache.identity(addr)?;
                ensure!(found == Some(FIRST + identity), "{addr} is {found:?}");
            }
        }
        Ok(())
    })?;
    let took = begin.elapsed().as_nanos() as u64;
    net.node_mut(1).wait_ready()?;
    Ok(took)
}
