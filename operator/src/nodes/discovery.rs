//! A CiliumNode for each Node, so that pools and other nodes need not wait for its agent.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portway_model::crd::{self, NodeAddress, NodeIpam, NodeSpec, ObjectMeta, OwnerReference, Resource as _};
use serde_json::json;

use crate::controller::{Controller, Now, Pace, Plan};
use crate::observed::{CiliumNode, Kind, Node, Observed};
use crate::write::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CiliumNodes have `spec.podCIDRs` of their Nodes: `ipam=kubernetes`.
    pub has_pod_cidrs_of_nodes: bool,
}

/// Makes CiliumNodes of Nodes, and gives those their addresses that have none at all.
pub struct Discovery {
    config: Config,
}

impl Discovery {
    pub const fn new(config: Config) -> Self {
        Self { config }
    }

    fn create(&self, node: &Node) -> Write {
        let definition = crd::CiliumNode::DEFINITION;
        let name = &*node.meta.name;
        let pod_cidrs: Vec<_> = node.pod_cidrs.iter().map(ToString::to_string).collect();
        let has_pod_cidrs = self.config.has_pod_cidrs_of_nodes && !pod_cidrs.is_empty();
        let object = crd::CiliumNode {
            api_version: definition.api_version(),
            kind: definition.kind.to_owned(),
            metadata: ObjectMeta {
                name: name.to_owned(),
                owner_references: vec![OwnerReference::to_node(name, &node.meta.uid)],
                ..ObjectMeta::default()
            },
            spec: NodeSpec {
                addresses: addresses(node),
                ipam: has_pod_cidrs.then_some(NodeIpam { pod_cidrs }),
                ..NodeSpec::default()
            },
        };
        Write::create(Kind::CiliumNode, name, json!(object), "its Node has none")
    }
}

impl Controller for Discovery {
    fn name(&self) -> &'static str {
        "node-discovery"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Node, Kind::CiliumNode]
    }

    fn pace(&self, _: &Observed) -> Pace {
        Pace { batch: 50, per_second: 50.0 }
    }

    fn plan(&mut self, observed: &Observed, _: Now) -> Plan {
        let cilium_nodes = &observed.cilium_nodes;
        let nodes = observed.nodes.iter().filter(|node| !node.meta.is_deleting);
        let writes = nodes.filter_map(|node| match cilium_nodes.get(&node.meta.name) {
            Some(cilium_node) => fill(node, cilium_node),
            None => (!cilium_nodes.is_there(&node.meta.name)).then(|| self.create(node)),
        });
        Plan { writes: writes.collect(), ..Plan::default() }
    }
}

/// Addresses for an object of somebody else that has none.
fn fill(node: &Node, cilium_node: &CiliumNode) -> Option<Write> {
    let has = &cilium_node.spec.addresses;
    let found = addresses(node);
    if cilium_node.meta.is_deleting || found.is_empty() || has.iter().any(|at| is_of_node(&at.address_type)) {
        return None;
    }
    let addresses: Vec<_> = found.iter().chain(has).collect();
    let body = json!({"spec": {"addresses": addresses}});
    Some(Write::merge(Kind::CiliumNode, &cilium_node.meta, body, "it has no address of its Node"))
}

/// As the agent writes them: those that are addresses, each once.
fn addresses(node: &Node) -> Vec<NodeAddress> {
    let mut seen = BTreeSet::new();
    let of_node = node.addresses.iter().filter(|at| is_of_node(&at.address_type));
    let addresses =
        of_node.filter_map(|at| Some((at.address_type.to_string(), at.address.parse::<IpAddr>().ok()?)));
    let once = addresses.filter(|address| seen.insert(address.clone()));
    once.map(|(address_type, ip)| NodeAddress { address_type, ip: ip.to_string() }).collect()
}

fn is_of_node(address_type: &str) -> bool {
    matches!(address_type, "InternalIP" | "ExternalIP")
}
