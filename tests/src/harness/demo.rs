//! The demo's pods: three of two services, and the manifests that say so.

use anyhow::Result;

use super::cluster_net::{Pod, PodSpec};
use super::{ClusterNet, World};

/// A service of [`set_up`] as a client names it.
pub const WEB: &str = "10.96.0.10:80";

const MANIFESTS: [(&str, &str); 4] = [
    ("web.yaml", include_str!("../../demo/web.yaml")),
    ("cart.yaml", include_str!("../../demo/cart.yaml")),
    ("sticky.yaml", include_str!("../../demo/sticky.yaml")),
    ("empty.yaml", include_str!("../../demo/empty.yaml")),
];

/// Makes the pods and writes the manifests into a world without pods: their addresses stand in the manifests.
pub fn set_up(world: &mut World) -> Result<()> {
    for pod in ["web-1", "web-2", "cart-1"] {
        world.serving_pod(pod)?;
    }
    MANIFESTS.iter().try_for_each(|(name, text)| world.manifests().put_text(name, text))
}

/// The same on two nodes, whose agents run: `web-2` is on the second one. The pods, in the order of their names.
pub fn set_up_cluster(net: &mut ClusterNet) -> Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for (node, name, app) in [(1, "cart-1", "cart"), (1, "web-1", "web"), (2, "web-2", "web")] {
        let pod = net.make(node, &PodSpec::new(name).labelled("app", app))?;
        net.serve(&pod)?;
        pods.push(pod);
    }
    for (name, text) in MANIFESTS {
        net.manifests().put_text(name, &with_addresses(text, &pods))?;
    }
    Ok(pods)
}

/// A manifest with the addresses that these pods have got: the lines of endpoints end with the pods' names.
pub fn with_addresses(text: &str, pods: &[Pod]) -> String {
    let line = |line: &str| {
        let pod = line.rsplit_once("# ").and_then(|(_, name)| pods.iter().find(|pod| pod.name() == name));
        match pod {
            Some(pod) => endpoint_line(pod, line.contains("::")),
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

/// A pod in the endpoints of a slice, as the demo's manifests write it.
pub fn endpoint_line(pod: &Pod, v6: bool) -> String {
    let addr = match pod.address(v6) {
        addr @ std::net::IpAddr::V4(_) => addr.to_string(),
        addr @ std::net::IpAddr::V6(_) => format!("\"{addr}\""),
    };
    let Pod { node, .. } = pod;
    format!("  - {{addresses: [{addr}], conditions: {{ready: true}}, nodeName: {node}}} # {}\n", pod.name())
}
