use std::time::Duration;

use portway_runtime::config::{Invalid, Reader, parse_duration};

use super::Ipam;
use crate::nodes::{Agents, DiscoveryConfig, ReadinessConfig, Selector, UnmanagedConfig};

/// Nodes, their CiliumNodes, and pods that a node's agent has not taken on; `None` is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// `nodes-gc-interval`; zero is off.
    pub gc_interval: Duration,
    /// `synchronize-k8s-nodes`.
    pub discovery: Option<DiscoveryConfig>,
    pub readiness: Option<ReadinessConfig>,
    pub unmanaged: Option<UnmanagedConfig>,
}

/// CiliumNodes, the condition and unmanaged pods are the pod network's: where there is none, another CNI does that.
pub(super) fn read(reader: &mut Reader<'_>, ipam: &Ipam, namespace: &str) -> Nodes {
    let has_network = *ipam != Ipam::Other;
    let interval = Duration::from_secs(reader.number("unmanaged-pod-watcher-interval"));
    let restarted = reader.parse("pod-restart-selector", selector).flatten().filter(|_| !interval.is_zero());
    let synchronizes = reader.bool("synchronize-k8s-nodes");
    let agents = agents(reader, namespace);
    let readiness = ReadinessConfig {
        agents: agents.clone(),
        taint_key: reader.parse("agent-not-ready-taint-key", taint_key).unwrap_or_default(),
        remove_taint: reader.bool("remove-cilium-node-taints"),
        set_taint: reader.bool("set-cilium-node-taints"),
        set_condition: reader.bool("set-cilium-is-up-condition") && has_network,
        workers: reader.number("taint-sync-workers"),
    };
    let is_asked_for = readiness.remove_taint || readiness.set_taint || readiness.set_condition;
    let discovery = DiscoveryConfig { has_pod_cidrs_of_nodes: *ipam == Ipam::Kubernetes };
    Nodes {
        gc_interval: reader.parse("nodes-gc-interval", parse_duration).unwrap_or_default(),
        discovery: (synchronizes && has_network).then_some(discovery),
        readiness: is_asked_for.then_some(readiness),
        unmanaged: restarted.filter(|_| has_network).map(|selector| UnmanagedConfig {
            agents,
            selector,
            interval,
            has_slices: reader.bool("enable-cilium-endpoint-slice"),
        }),
    }
}

fn agents(reader: &mut Reader<'_>, namespace: &str) -> Agents {
    let bad =
        |text: &str| Invalid::new("", format!("write e.g. k8s-app=portway; {text:?} selects every pod"));
    let labels = reader.parse("cilium-pod-labels", |text| selector(text)?.ok_or_else(|| bad(text)));
    Agents {
        namespace: match reader.text("cilium-pod-namespace") {
            other if other.is_empty() => namespace.to_owned(),
            other => other,
        },
        labels: labels.unwrap_or_else(Selector::nothing),
    }
}

fn selector(text: &str) -> Result<Option<Selector>, Invalid> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    Selector::parse(text)
        .map(Some)
        .map_err(|error| Invalid::new("", format!("{error}: write e.g. k8s-app=kube-dns")))
}

/// As the API server takes it: a name, perhaps after a DNS name and `/`.
fn taint_key(text: &str) -> Result<String, Invalid> {
    let (prefix, name) = text.split_once('/').unwrap_or(("x", text));
    let is_part = |part: &str, most: usize| {
        let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        (1..=most).contains(&part.len())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
            && is_end(part.chars().next())
            && is_end(part.chars().last())
    };
    if is_part(prefix, 253) && is_part(name, 63) {
        return Ok(text.to_owned());
    }
    Err(Invalid::new("", "write e.g. node.cilium.io/agent-not-ready"))
}
