//! Nodes probe each other: who does not answer is named with the path, comes back by itself, and nothing else changes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_agent::api::{ClusterHealth, Node, PathHealth, Status};
use portway_datapath::EndpointId;
use portway_tests::harness::cluster_net::Routing;
use portway_tests::harness::{ClusterNet, cluster_net, eventually, process};

/// An unreachable node is probed again after 5 s and then ever less often; the others each 83 s.
const LIMIT: Duration = Duration::from_secs(60);
const METRICS: &str = "127.0.0.1:9962";
const HEALTHZ: &str = "127.0.0.1:10256";
const FLAGS: [&str; 2] = [
    "--prometheus-serve-addr=127.0.0.1:9962",
    "--kube-proxy-replacement-healthz-bind-address=127.0.0.1:10256",
];

fn status(node: &cluster_net::Node) -> Result<Status> {
    let text = node.portway(&["status", "-o", "json"])?;
    serde_json::from_str(&text).with_context(|| text)
}

fn health(node: &cluster_net::Node) -> Result<ClusterHealth> {
    status(node)?.pod_network.and_then(|network| network.cluster_health).context("nodes are not probed")
}

/// After a probe of all of them.
fn probed(node: &cluster_net::Node) -> Result<Vec<Node>> {
    let text = node.portway(&["node", "list", "--probe", "-o", "json"])?;
    serde_json::from_str(&text).with_context(|| text)
}

fn wait_for_all(node: &cluster_net::Node, number: u64) -> Result<()> {
    eventually(LIMIT, "all nodes to be reachable", || {
        let health = health(node)?;
        ensure!((health.reachable, health.total) == (number, number), "{}: {health:#?}", node.name());
        Ok(())
    })
}

fn paths(health: &ClusterHealth, node: &str, state: &str) -> Vec<String> {
    let paths = health.nodes.iter().filter(|found| found.name == node).flat_map(|found| &found.paths);
    let shown = |path: &PathHealth| format!("{} {} {}", path.to, path.address, path.protocol);
    paths.filter(|path| path.state == state).map(shown).collect()
}

/// The links of the node's end of pods and of the health endpoint.
fn links(node: &cluster_net::Node) -> Result<Vec<String>> {
    let all = node.ip(&["-o", "link", "show", "type", "veth"])?;
    let names = all.lines().filter_map(|line| line.split([':', '@']).nth(1));
    Ok(names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("pw")).collect())
}

#[test]
fn a_node_that_does_not_answer_is_named_and_comes_back_and_forwarding_knows_nothing_of_it() -> Result<()> {
    for routing in Routing::BOTH {
        ClusterNet::test("health", 3, |net| {
            net.start_agents(routing, &FLAGS)?;
            net.nodes().iter().try_for_each(|node| wait_for_all(node, 3))?;
            let first = net.node(1);
            // ICMP and HTTP, in both families, to node and endpoint.
            for node in net.nodes() {
                assert_eq!(paths(&health(first)?, node.name(), "reachable").len(), 8, "{}", node.name());
            }
            let text = first.portway(&["status"])?;
            for line in [
                "Cluster health:         3/3 reachable   (probed every 1m23s)",
                "IPAM:                   IPv4: 1/254 allocated from 10.244.1.0/24, IPv6: 1/",
                "Masquerading:           BPF ",
            ] {
                assert!(text.contains(line), "{line}\n{text}");
            }
            assert!(!text.contains("Nodes that do not answer"), "{text}");

            process::output(net.router().command("ip").args(["link", "set", "node-3", "down"]))?;
            let list = first.portway(&["node", "list", "--probe"])?;
            let state = |name: &str| {
                let line = list.lines().find(|line| line.starts_with(name)).unwrap_or_default();
                line.split_whitespace().last().unwrap_or_default().to_owned()
            };
            assert_eq!(
                (state("node-1"), state("node-2"), state("node-3")),
                ("yes".into(), "yes".into(), "NO".into())
            );
            let text = first.portway(&["status"])?;
            for line in [
                "2/3 reachable",
                "Nodes that do not answer:\n  node-3   node 172.18.0.13 by icmp",
                "endpoint fd00:10:244:3::1 by http",
            ] {
                assert!(text.contains(line), "{line}\n{text}");
            }
            // It has no say in anything.
            let now = status(first)?;
            assert!(now.ready && now.waiting_for.is_empty(), "{now:#?}");
            let healthz = first.namespace().http_get(HEALTHZ.parse()?, "/healthz")?;
            assert!(healthz.contains("\"nodeEligible\": true"), "{healthz}");
            let metrics = first.namespace().http_get(METRICS.parse()?, "/metrics")?;
            let source = r#"{source_cluster="default",source_node_name="node-1"}"#;
            for line in [
                format!("cilium_unreachable_nodes{source} 1"),
                format!("cilium_unreachable_health_endpoints{source} 1"),
                r#"cilium_endpoint_state{endpoint_state="ready"} 1"#.to_owned(),
                r#"cilium_ipam_capacity{family="ipv4"} 253"#.to_owned(),
            ] {
                assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
            }
            for name in [
                r#"cilium_forward_count_total{direction="INGRESS"}"#,
                r#"cilium_drop_count_total{direction="EGRESS",reason="invalid-source"}"#,
                r#"cilium_bpf_map_pressure{map_name="pw_conntrack"}"#,
            ] {
                assert!(metrics.lines().any(|found| found.starts_with(name)), "{name}\n{metrics}");
            }

            // Nobody asks for it.
            process::output(net.router().command("ip").args(["link", "set", "node-3", "up"]))?;
            wait_for_all(first, 3)?;

            // A node that is gone is not probed.
            net.manifests().remove("node-3")?;
            wait_for_all(first, 2)
        })?;
    }
    Ok(())
}

#[test]
fn an_endpoint_that_nobody_reaches_is_told_from_its_node_and_made_anew() -> Result<()> {
    ClusterNet::test("health-endpoint", 2, |net| {
        net.start_agents(Routing::Tunnel, &[])?;
        net.nodes().iter().try_for_each(|node| wait_for_all(node, 2))?;
        let (first, second) = (net.node(1), net.node(2));
        let [link] = links(second)?.try_into().map_err(|all| anyhow::anyhow!("links of node-2: {all:?}"))?;
        second.ip(&["link", "delete", &link])?;
        let nodes = probed(first)?;
        assert_eq!(nodes[1].state, "unreachable", "{nodes:#?}");
        assert_eq!(nodes[1].health_addresses, ["10.244.2.1", "fd00:10:244:2::1"]);
        let seen = health(first)?;
        let endpoint =
            ["10.244.2.1 icmp", "10.244.2.1 http", "fd00:10:244:2::1 icmp", "fd00:10:244:2::1 http"];
        assert_eq!(paths(&seen, "node-2", "unreachable"), endpoint.map(|path| format!("endpoint {path}")));
        assert_eq!(paths(&seen, "node-2", "reachable").len(), 4);
        // Its own node notices, and does something.
        probed(second)?;
        eventually(LIMIT, "the endpoint to be made anew", || {
            let nodes = probed(first)?;
            ensure!(nodes[1].state == "reachable", "{nodes:#?}");
            Ok(())
        })
    })
}

#[test]
fn an_agent_that_is_killed_leaves_no_health_endpoint_and_the_next_one_has_its_own() -> Result<()> {
    ClusterNet::test("health-restart", 2, |net| {
        net.start_agents(Routing::Native, &FLAGS)?;
        net.nodes().iter().try_for_each(|node| wait_for_all(node, 2))?;
        let entries = |net: &ClusterNet| -> Result<Vec<String>> {
            let endpoints = net.node(1).tables()?.endpoints()?;
            let health = endpoints.iter().filter(|(_, value)| value.id == EndpointId::HEALTH.get());
            Ok(health.map(|(addr, _)| addr.to_string()).collect())
        };
        assert_eq!(entries(net)?, ["10.244.1.1", "fd00:10:244:1::1"]);
        net.node_mut(1).kill_agent()?;
        // The kernel takes namespaces down when it comes to it.
        eventually(LIMIT, "the link to go with its agent", || {
            let left = links(net.node(1))?;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(())
        })?;
        net.node_mut(1).start_agent(Routing::Native, &FLAGS)?;
        wait_for_all(net.node(1), 2)?;
        assert_eq!((entries(net)?.len(), links(net.node(1))?.len()), (2, 1));
        probed(net.node(2))?;
        wait_for_all(net.node(2), 2)?;
        // Switched off, nothing of it is left.
        net.node_mut(1).stop_agent()?;
        net.node_mut(1).start_agent(Routing::Native, &["--enable-endpoint-health-checking=false"])?;
        eventually(LIMIT, "the endpoint to be gone", || {
            let (entries, links) = (entries(net)?, links(net.node(1))?);
            ensure!(entries.is_empty() && links.is_empty(), "{entries:?} {links:?}");
            Ok(())
        })?;
        let port: SocketAddr = "127.0.0.1:4240".parse()?;
        let hello = net.node(1).namespace().http_get(port, "/hello")?;
        assert!(hello.starts_with("HTTP/1.1 200 OK\r\n"), "{hello}");
        Ok(())
    })
}
