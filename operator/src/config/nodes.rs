use std::time::Duration;

use portway_runtime::config::{Reader, parse_duration};

/// Nodes, their CiliumNodes, and pods that a node's agent has not taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// `nodes-gc-interval`; zero is off.
    pub gc_interval: Duration,
    /// `synchronize-k8s-nodes`: CiliumNodes are made from Nodes.
    pub synchronize: bool,
    /// The taint of nodes whose agent is not ready.
    pub taint_key: String,
    pub remove_taints: bool,
    pub set_taints: bool,
    /// `NetworkUnavailable` is set to `False` where the agent is up.
    pub set_is_up_condition: bool,
    /// Labels of agents' pods: `k8s-app=portway`, several separated by commas.
    pub agent_labels: String,
    /// Namespace of agents' pods.
    pub agent_namespace: String,
    /// `None`: they are left alone.
    pub unmanaged_pods: Option<UnmanagedPods>,
}

/// Pods without an endpoint that are to be started anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmanagedPods {
    pub interval: Duration,
    /// `k8s-app=kube-dns`, several separated by commas.
    pub labels: String,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Nodes {
    let interval = Duration::from_secs(reader.number("unmanaged-pod-watcher-interval"));
    let labels = reader.text("pod-restart-selector");
    // For one worker or for ten: a turn's writes are at once.
    reader.number::<u32>("taint-sync-workers");
    Nodes {
        gc_interval: reader.parse("nodes-gc-interval", parse_duration).unwrap_or_default(),
        synchronize: reader.bool("synchronize-k8s-nodes"),
        taint_key: reader.text("agent-not-ready-taint-key"),
        remove_taints: reader.bool("remove-cilium-node-taints"),
        set_taints: reader.bool("set-cilium-node-taints"),
        set_is_up_condition: reader.bool("set-cilium-is-up-condition"),
        agent_labels: reader.text("cilium-pod-labels"),
        agent_namespace: match reader.text("cilium-pod-namespace") {
            namespace if namespace.is_empty() => reader.text("k8s-namespace"),
            namespace => namespace,
        },
        unmanaged_pods: (!interval.is_zero() && !labels.is_empty())
            .then_some(UnmanagedPods { interval, labels }),
    }
}
