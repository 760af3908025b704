use serde::{Deserialize, Serialize};

/// How the nodes of the cluster answer this one's probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterHealth {
    /// Nodes that answer on every path, this one among them.
    pub reachable: u64,
    pub total: u64,
    /// How often a node that answers is probed.
    pub interval_seconds: f64,
    /// This node first, then by name.
    pub nodes: Vec<NodeHealth>,
    /// What keeps this node from probing, or others from probing it.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeHealth {
    pub name: String,
    pub is_this_node: bool,
    /// `reachable`, `unreachable` (a path does not answer) or `unknown` (one was not tried yet).
    pub state: String,
    pub paths: Vec<PathHealth>,
}

/// One way to a node: to an address of its own or of its health endpoint, by an ICMP echo or by HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PathHealth {
    /// `node` or `endpoint`.
    pub to: String,
    pub address: String,
    /// `icmp` or `http`.
    pub protocol: String,
    /// As [`NodeHealth::state`].
    pub state: String,
    /// Of the last probe; absent where it failed.
    pub latency_seconds: Option<f64>,
    /// Seconds since the last probe ended; absent before the first.
    pub last_probe_seconds: Option<f64>,
    pub last_success_seconds: Option<f64>,
    /// Why the last probe failed.
    pub error: Option<String>,
}

/// A node of the cluster as this one sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    pub name: String,
    pub is_this_node: bool,
    pub internal_addresses: Vec<String>,
    pub pod_cidrs: Vec<String>,
    /// Of its health endpoint; empty where endpoints are not probed.
    pub health_addresses: Vec<String>,
    /// As [`NodeHealth::state`].
    pub state: String,
}
