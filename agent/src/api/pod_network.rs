use serde::{Deserialize, Serialize};

use super::ClusterHealth;

/// How the pod network is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetworkStatus {
    /// One of each family that pods get addresses of; empty where another plugin gives them.
    pub ipam: Vec<AddressPool>,
    pub routing: Routing,
    pub masquerading: Masquerading,
    /// Absent where nodes are not probed.
    pub cluster_health: Option<ClusterHealth>,
}

/// This node's addresses for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressPool {
    /// `IPv4` or `IPv6`.
    pub family: String,
    pub allocated: u64,
    /// Addresses that can be given; as many as a number holds where there are more.
    pub total: u64,
    pub prefixes: Vec<String>,
}

/// How pods of other nodes are reached; the words of the modes are Cilium's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Routing {
    /// `Tunnel` or `Native`.
    pub inter_host_routing_mode: String,
    /// `vxlan`; absent without a tunnel.
    pub tunnel_protocol: Option<String>,
    /// UDP.
    pub tunnel_port: Option<u16>,
    /// Routes to nodes on the same link are installed.
    pub direct_node_routes: bool,
}

/// What becomes of the source address of what pods send out of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Masquerading {
    pub ipv4: bool,
    pub ipv6: bool,
    /// Not masqueraded to, beside pods and nodes.
    pub native_cidrs: Vec<String>,
}
