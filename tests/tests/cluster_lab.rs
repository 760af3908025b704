//! A real cluster without kube-proxy: kubelet and containerd start pods through Portway's plugin, CoreDNS and the
//! services are reached by it.
//!
//! One test for each kind of routing, since a cluster takes seconds to come up; each asks what a user would miss first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_agent::api::Ipam;
use portway_model::node::Prefix;
use portway_tests::harness::cluster_net::Routing;
use portway_tests::harness::lab::pods::{LabPod, daemon_set};
use portway_tests::harness::lab::{Lab, SLOWLY, addresses, condition};
use portway_tests::harness::{eventually, process};
use serde_json::{Value, json};

/// The app whose sockets the agent's programs see.
const WEB: &str = "web";
/// The app that opted out: its packets are translated on their way.
const PLAIN: &str = "plain";
const NODE_PORT: u16 = 30_080;
/// Of the pods of [`WEB`], each on its node.
const HOST_PORT: u16 = 18_080;
/// Every change has been told to everybody long before.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_cluster_with_native_routing_works_without_kube_proxy() -> Result<()> {
    works("lab-native", Routing::Native)
}

#[test]
fn a_cluster_with_a_tunnel_works_without_kube_proxy() -> Result<()> {
    works("lab-tunnel", Routing::Tunnel)
}

fn works(name: &str, routing: Routing) -> Result<()> {
    Lab::test(name, |lab| {
        no_node_is_ready_without_an_agent(lab)?;
        lab.start_agents(routing, &[])?;
        lab.start_dns()?;
        let client = lab.control_plane().client();
        client.apply(&daemon_set(WEB, &json!({}), Some(HOST_PORT)))?;
        client.apply(&daemon_set(PLAIN, &json!({"portway.io/socket-lb": "false"}), None))?;
        client.apply(&service())?;
        lab.wait_nodes_ready()?;
        let (web, plain) = (lab.wait_pods(WEB)?, lab.wait_pods(PLAIN)?);
        lab.wait_dns()?;
        pods_have_addresses_of_their_nodes_ranges(lab, web.values().chain(plain.values()))?;
        pods_reach_each_other_as_themselves(lab, &web)?;
        for client in web.values().chain(plain.values()) {
            the_service_is_reached_by_name(lab, client, &web)?;
        }
        ports_of_a_node_are_reached_from_it(lab, &web)?;
        an_agent_that_died_takes_nothing_away(lab, routing, &web)?;
        pods_that_go_leave_nothing(lab)
    })
}

/// The plugin's configuration is what kubelet waits for, and the agent writes it.
fn no_node_is_ready_without_an_agent(lab: &Lab) -> Result<()> {
    let nodes = eventually(SLOWLY, "both nodes to report", || {
        let nodes = lab.control_plane().client().list("/api/v1/nodes")?;
        let reported = nodes.iter().filter(|node| condition(node, "Ready").is_some()).count();
        ensure!(reported == lab.nodes().len(), "{reported} of them have");
        Ok(nodes)
    })?;
    for node in nodes {
        let ready = condition(&node, "Ready").context("it says nothing")?;
        assert_eq!(ready["status"], "False", "{ready}");
        assert!(ready["message"].to_string().contains("cni"), "{ready}");
    }
    Ok(())
}

/// `web`, both families, TCP and UDP, with node ports.
fn service() -> Value {
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 80, "targetPort": 8080, "protocol": protocol, "nodePort": NODE_PORT});
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": WEB, "namespace": "default"},
        "spec": {
            "type": "NodePort",
            "ipFamilyPolicy": "RequireDualStack",
            "selector": {"app": WEB},
            "ports": [port("http", "TCP"), port("datagrams", "UDP")],
        },
    })
}

fn pods_have_addresses_of_their_nodes_ranges<'a>(
    lab: &Lab,
    pods: impl Iterator<Item = &'a LabPod>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for pod in pods {
        let node = lab.control_plane().client().get(&format!("/api/v1/nodes/{}", pod.node))?;
        let ranges = node["spec"]["podCIDRs"].as_array().context("it has no ranges")?;
        assert_eq!((ranges.len(), pod.addresses.len()), (2, 2), "{ranges:?} {pod:?}");
        for (range, address) in ranges.iter().zip(&pod.addresses) {
            let prefix = range.as_str().and_then(Prefix::parse).context("it has a range that is none")?;
            assert!(prefix.contains((*address).into()), "{address} of {} is not in {range}", pod.name);
            assert!(seen.insert(*address), "{address} is given twice");
        }
    }
    Ok(())
}

/// On one node and across nodes, in both families; the server sees the client's own address.
fn pods_reach_each_other_as_themselves(lab: &Lab, pods: &BTreeMap<String, LabPod>) -> Result<()> {
    for (client, server) in pods.values().flat_map(|client| pods.values().map(move |server| (client, server)))
    {
        for (v6, protocol) in [(false, "tcp"), (false, "udp"), (true, "tcp"), (true, "udp")] {
            let own = client.socket(v6)?.ip();
            let answer =
                eventually(SOON, "an answer", || lab.ask(client, protocol, &server.socket(v6)?.to_string()))
                    .with_context(|| format!("{} asks {} by {protocol}", client.name, server.name))?;
            assert_eq!(answer, format!("{} {own}", server.name), "{protocol} from {}", client.name);
        }
    }
    Ok(())
}

/// By its whole name and by that in the client's own namespace; every backend gets its turn.
fn the_service_is_reached_by_name(
    lab: &Lab,
    client: &LabPod,
    servers: &BTreeMap<String, LabPod>,
) -> Result<()> {
    for (protocol, name) in [("tcp", "web.default.svc.cluster.local"), ("udp", "web")] {
        every_server_answers(servers, || lab.ask(client, protocol, &format!("{name}:80")))
            .with_context(|| format!("{} on {} asks {name} by {protocol}", client.name, client.node))?;
    }
    Ok(())
}

/// Asks until each of `servers`, and nobody else, has answered.
fn every_server_answers(
    servers: &BTreeMap<String, LabPod>,
    mut ask: impl FnMut() -> Result<String>,
) -> Result<()> {
    let wanted: BTreeSet<_> = servers.values().map(|server| server.name.clone()).collect();
    let mut answered = BTreeSet::new();
    eventually(SOON, "an answer of every server", || {
        let answer = ask()?;
        let name = answer.split(' ').next().context("an empty answer")?.to_owned();
        assert!(wanted.contains(&name), "{name} answers, which is none of {wanted:?}");
        answered.insert(name);
        ensure!(answered == wanted, "only {answered:?} answered");
        Ok(())
    })
}

/// From a process of the node, at its own address and on loopback: every backend behind the node port, the node's own
/// pod behind the host port.
fn ports_of_a_node_are_reached_from_it(lab: &Lab, web: &BTreeMap<String, LabPod>) -> Result<()> {
    for (number, node) in (1..).zip(lab.nodes()) {
        for address in [addresses(number).0, Ipv4Addr::LOCALHOST] {
            let own = BTreeMap::from([(node.name().to_owned(), web[node.name()].clone())]);
            for (port, servers) in [(NODE_PORT, web), (HOST_PORT, &own)] {
                let url = format!("http://{address}:{port}/who");
                every_server_answers(servers, || {
                    let mut curl = node.machine().command("curl")?;
                    process::output(curl.args([
                        "--silent",
                        "--show-error",
                        "--fail",
                        "--max-time",
                        "3",
                        &url,
                    ]))
                })
                .with_context(|| format!("{} asks {url}", node.name()))?;
            }
        }
    }
    Ok(())
}

/// `kill -9`: what runs goes on; and a pod that went meanwhile is known to be gone after the start.
fn an_agent_that_died_takes_nothing_away(
    lab: &mut Lab,
    routing: Routing,
    web: &BTreeMap<String, LabPod>,
) -> Result<()> {
    lab.kill_agent(1)?;
    let [one, two] = ["node-1", "node-2"].map(|node| &web[node]);
    for (client, server) in [(one, two), (two, one)] {
        assert_eq!(
            lab.ask(client, "tcp", &server.socket(false)?.to_string())?,
            format!("{} {}", server.name, client.socket(false)?.ip())
        );
    }
    every_server_answers(web, || lab.ask(one, "tcp", "web:80"))?;
    lab.start_agent(1, routing, &[])?;
    // A new pod gets its links from the new agent.
    lab.delete_pod(one)?;
    let web = eventually(SLOWLY, "the pod's successor", || {
        let pods = lab.wait_pods(WEB)?;
        ensure!(pods["node-1"].uid != one.uid, "it is still {}", one.name);
        Ok(pods)
    })?;
    pods_reach_each_other_as_themselves(lab, &web)
}

/// Addresses and interfaces of pods that were deleted are free, the others' are not.
fn pods_that_go_leave_nothing(lab: &Lab) -> Result<()> {
    for app in [WEB, PLAIN] {
        lab.control_plane().client().delete(&daemon_set(app, &json!({}), None))?;
    }
    for node in lab.nodes() {
        eventually(SLOWLY, "what two pods had to be free", || {
            let ipam: Ipam = serde_json::from_str(&node.portway(&["ipam", "-o", "json"])?)?;
            let left: BTreeSet<_> =
                ipam.addresses.iter().map(|taken| (taken.endpoint, &taken.owner)).collect();
            ensure!(left.iter().all(|(_, owner)| !owner.starts_with("default/")), "{left:?}");
            let links = node.pod_links()?;
            ensure!(links.len() == left.len(), "of {left:?} there are {links:?}");
            Ok(())
        })
        .with_context(|| format!("on {}", node.name()))?;
    }
    Ok(())
}
