use portway_runtime::config::{Key, Kind};

use super::{INTERVAL, key, switch};

const NODES: &str = "Nodes";

/// In the order of the help.
pub(super) const KEYS: &[Key] = &[
    key(
        NODES,
        "nodes-gc-interval",
        INTERVAL,
        "5m",
        "How often CiliumNodes without a Node are looked for; 0 leaves them",
    ),
    switch(NODES, "synchronize-k8s-nodes", "true", "Make a CiliumNode of each Node"),
    key(
        NODES,
        "agent-not-ready-taint-key",
        Kind::Text("the key of a taint"),
        "node.cilium.io/agent-not-ready",
        "The taint of Nodes on which no agent is ready",
    ),
    switch(NODES, "remove-cilium-node-taints", "true", "Remove the taint from Nodes whose agent is ready"),
    switch(NODES, "set-cilium-node-taints", "false", "Add the taint to Nodes whose agent is not ready"),
    switch(
        NODES,
        "set-cilium-is-up-condition",
        "true",
        "Set NetworkUnavailable of Nodes whose agent is ready to False",
    ),
    key(
        NODES,
        "taint-sync-workers",
        Kind::Integer { min: 1, max: 1000 },
        "10",
        "Nodes whose taints and conditions are written at once",
    ),
    key(
        NODES,
        "cilium-pod-labels",
        Kind::Text("a label selector such as k8s-app=portway"),
        "k8s-app=portway",
        "Labels of the agents' pods",
    ),
    key(
        NODES,
        "cilium-pod-namespace",
        Kind::Text("the name of a Namespace, or nothing"),
        "",
        "Namespace of the agents' pods; nothing is k8s-namespace",
    ),
    key(
        NODES,
        "unmanaged-pod-watcher-interval",
        Kind::Integer { min: 0, max: 86_400 },
        "15",
        "Seconds between looks for pods that began before there was an agent, which are then started anew; 0 is off",
    ),
    key(
        NODES,
        "pod-restart-selector",
        Kind::Text("a label selector such as k8s-app=kube-dns, or nothing"),
        "k8s-app=kube-dns",
        "Pods that are started anew where they have no endpoint; nothing is none",
    ),
];
