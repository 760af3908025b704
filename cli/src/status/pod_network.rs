//! The pod network's part of the status.

use portway_agent::api::{
    AddressPool, ClusterHealth, IdentitiesStatus, Masquerading, NodeHealth, PathHealth, PodNetworkStatus,
    Routing, counted,
};

use super::{duration, indented};
use crate::table::Table;

/// Nodes that do not answer and are named without `--verbose`.
const MOST_NAMED: usize = 10;

/// Lines of the brief status, in Cilium's words.
pub(super) fn lines(network: &PodNetworkStatus) -> Vec<[String; 2]> {
    let PodNetworkStatus { ipam, routing, masquerading, cluster_health } = network;
    let mut lines = Vec::new();
    if !ipam.is_empty() {
        lines.push(["IPAM:".to_owned(), ipam.iter().map(pool).collect::<Vec<_>>().join(", ")]);
    }
    lines.push(["Routing:".to_owned(), routed(routing)]);
    lines.push(["Masquerading:".to_owned(), masqueraded(masquerading)]);
    lines.extend(cluster_health.iter().map(|health| ["Cluster health:".to_owned(), reachable(health)]));
    lines
}

/// How many there are, and who makes them.
pub(super) fn identities(status: &IdentitiesStatus) -> [String; 2] {
    let IdentitiesStatus { mode, known, used, waiting, .. } = status;
    let of_pods = counted(*used, "is", "are");
    let waiting = match waiting.len() as u64 {
        0 => String::new(),
        number => format!(", {} waiting", counted(number, "thing is", "things are")),
    };
    let text = format!(
        "{} in the cluster, {of_pods} of this node's pods{waiting}   [{mode}]",
        counted(*known, "CiliumIdentity", "CiliumIdentities")
    );
    ["Identities:".to_owned(), text]
}

fn pool(pool: &AddressPool) -> String {
    let AddressPool { family, allocated, total, prefixes } = pool;
    format!("{family}: {allocated}/{total} allocated from {}", prefixes.join(" "))
}

fn routed(routing: &Routing) -> String {
    let Routing { inter_host_routing_mode, tunnel_protocol, tunnel_port, direct_node_routes } = routing;
    let mut line = format!("Network: {inter_host_routing_mode}");
    if let Some(protocol) = tunnel_protocol {
        let port = tunnel_port.map_or_else(String::new, |port| format!(":{port}"));
        line.push_str(&format!(" [{protocol}{port}]"));
    }
    if *direct_node_routes {
        line.push_str(", with routes to nodes on the same link");
    }
    line
}

fn masqueraded(masquerading: &Masquerading) -> String {
    let Masquerading { ipv4, ipv6, native_cidrs } = masquerading;
    if !ipv4 && !ipv6 {
        return "Disabled".to_owned();
    }
    let word = |on: &bool| if *on { "Enabled" } else { "Disabled" };
    let outside =
        if native_cidrs.is_empty() { String::new() } else { format!("   {}", native_cidrs.join(" ")) };
    format!("BPF{outside}   [IPv4: {}, IPv6: {}]", word(ipv4), word(ipv6))
}

fn reachable(health: &ClusterHealth) -> String {
    let ClusterHealth { reachable, total, interval_seconds, nodes, warnings: _ } = health;
    let unknown = nodes.iter().filter(|node| node.state == "unknown").count();
    if unknown > 0 && unknown == nodes.len() {
        return format!("not known yet of {}", counted(*total, "node", "nodes"));
    }
    let unknown = if unknown == 0 { String::new() } else { format!(", {unknown} not probed yet") };
    format!("{reachable}/{total} reachable{unknown}   (probed every {})", duration(*interval_seconds))
}

/// Who does not answer, and on which paths.
pub(super) fn unreachable(network: &PodNetworkStatus) -> String {
    let Some(health) = &network.cluster_health else { return String::new() };
    let silent: Vec<&NodeHealth> = health.nodes.iter().filter(|node| node.state == "unreachable").collect();
    if silent.is_empty() {
        return String::new();
    }
    let mut table = Table::plain();
    for node in silent.iter().take(MOST_NAMED) {
        let paths = node.paths.iter().filter(|path| path.state == "unreachable");
        for (n, path) in paths.enumerate() {
            let name = if n == 0 { node.name.clone() } else { String::new() };
            let error = path.error.clone().unwrap_or_default();
            table.row([name, way(path), error, last_answer(path)]);
        }
    }
    let mut text = format!("\nNodes that do not answer:\n{}", indented(&table.to_string()));
    let more = silent.len().saturating_sub(MOST_NAMED) as u64;
    if more > 0 {
        let more = counted(more, "more node", "more nodes");
        text.push_str(&format!("  and {more}; --verbose names them\n"));
    }
    text
}

/// Every path to every node.
pub(super) fn full(network: &PodNetworkStatus) -> String {
    let Some(health) = &network.cluster_health else { return String::new() };
    let mut table = Table::new(&["Node", "Path", "State", "Latency", "Last probe", "Last answer"]);
    for node in &health.nodes {
        for (n, path) in node.paths.iter().enumerate() {
            let latency = path.latency_seconds.map(|seconds| format!("{:.3} ms", seconds * 1000.0));
            table.row([
                if n == 0 { node.name.clone() } else { String::new() },
                way(path),
                path.state.clone(),
                latency.unwrap_or_else(|| "-".to_owned()),
                path.last_probe_seconds
                    .map_or_else(|| "-".to_owned(), |ago| format!("{} ago", duration(ago))),
                path.last_success_seconds
                    .map_or_else(|| "-".to_owned(), |ago| format!("{} ago", duration(ago))),
            ]);
        }
    }
    format!("\nCluster health, {}:\n{}", reachable(health), indented(&table.to_string()))
}

/// `endpoint 10.0.3.1 by http`.
fn way(path: &PathHealth) -> String {
    format!("{} {} by {}", path.to, path.address, path.protocol)
}

fn last_answer(path: &PathHealth) -> String {
    match path.last_success_seconds {
        Some(ago) => format!("last answered {} ago", duration(ago)),
        None => "never answered".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> PodNetworkStatus {
        serde_json::from_str(include_str!("../../tests/data/pod-network.json")).unwrap()
    }

    fn text(network: &PodNetworkStatus) -> String {
        let mut table = Table::plain();
        for line in lines(network) {
            table.row(line);
        }
        format!("{table}{}", unreachable(network))
    }

    #[test]
    fn the_status_names_the_node_that_does_not_answer_and_the_path() {
        assert_eq!(text(&network()), include_str!("../../tests/data/pod-network.txt"));
    }

    #[test]
    fn identities_are_counted() {
        let status = IdentitiesStatus {
            mode: "agent".to_owned(),
            known: 12,
            used: 3,
            waiting: vec!["x".to_owned()],
            ..IdentitiesStatus::default()
        };
        assert_eq!(
            identities(&status)[1],
            "12 CiliumIdentities in the cluster, 3 are of this node's pods, 1 thing is waiting   [agent]"
        );
    }

    #[test]
    fn the_full_status_has_every_path() {
        assert_eq!(full(&network()), include_str!("../../tests/data/pod-network-verbose.txt"));
    }

    #[test]
    fn of_nodes_that_were_not_probed_yet_nothing_is_said() {
        let mut network = network();
        let health = network.cluster_health.as_mut().unwrap();
        health.reachable = 0;
        for node in &mut health.nodes {
            node.state = "unknown".to_owned();
        }
        let text = text(&network);
        assert!(text.ends_with("Cluster health:   not known yet of 3 nodes\n"), "{text}");
    }

    #[test]
    fn what_is_off_is_said_or_left_out() {
        let network = PodNetworkStatus {
            routing: Routing {
                inter_host_routing_mode: "Native".to_owned(),
                direct_node_routes: true,
                ..Routing::default()
            },
            ..PodNetworkStatus::default()
        };
        let expected = "Routing:        Network: Native, with routes to nodes on the same link\nMasquerading:   Disabled\n";
        assert_eq!((text(&network), full(&network)), (expected.to_owned(), String::new()));
    }

    #[test]
    fn of_many_nodes_that_do_not_answer_the_first_are_named() {
        let mut network = network();
        let health = network.cluster_health.as_mut().unwrap();
        let silent = health.nodes.iter().find(|node| node.state == "unreachable").unwrap().clone();
        health.nodes.extend((0..12).map(|n| NodeHealth { name: format!("more-{n}"), ..silent.clone() }));
        let text = unreachable(&network);
        assert!(text.contains("  more-8 ") && !text.contains("more-9"), "{text}");
        assert!(text.ends_with("  and 3 more nodes; --verbose names them\n"), "{text}");
    }
}
