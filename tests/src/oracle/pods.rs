//! Frontends of host ports.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};

use super::{Claim, Objects, OracleConfig, OracleRow, any_address, created, full_name, socket};

/// Of the pods of this node that live in a network namespace of their own and have not ended: "Succeeded: all
/// containers have terminated and will not be restarted", "Failed" likewise (PodStatus.phase).
pub(super) fn claims(objects: &Objects, config: &OracleConfig) -> Vec<Claim> {
    let mut claims = Vec::new();
    for pod in objects.pods.iter().filter(|_| config.enable_host_port) {
        let Some(spec) = &pod.spec else { continue };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_here = spec.node_name.as_deref() == Some(config.node.as_str());
        if !is_here || spec.host_network == Some(true) || matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        for port in containers(spec).flat_map(|container| container.ports.iter().flatten()) {
            claims.extend(pod_ips(pod).into_iter().filter_map(|pod_ip| claim(pod, port, pod_ip)));
        }
    }
    claims
}

/// All that run at the same time: the containers, and the init containers whose restart policy Always makes them
/// sidecars (Container.restartPolicy).
fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let sidecars =
        spec.init_containers.iter().flatten().filter(|init| init.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars)
}

/// `hostIP`: "What host IP to bind the external port to"; without one, any address of the node in the pod's families.
fn claim(pod: &Pod, port: &ContainerPort, pod_ip: IpAddr) -> Option<Claim> {
    let host_port = port.host_port.filter(|n| *n != 0)?;
    let address = match port.host_ip.as_deref() {
        None | Some("") => any_address(pod_ip),
        Some(ip) => ip.parse().ok().filter(|ip: &IpAddr| ip.is_ipv4() == pod_ip.is_ipv4())?,
    };
    let backend = socket(pod_ip, port.container_port as u16);
    Some(Claim {
        row: OracleRow {
            service: full_name(&pod.metadata),
            port_name: port.name.clone().unwrap_or_default(),
            kind: "HostPort",
            address,
            port: host_port as u16,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            cluster: vec![backend.clone()],
            local: vec![backend],
            affinity_seconds: 0,
            source_ranges: Vec::new(),
            flags: Vec::new(),
        },
        created: created(&pod.metadata),
    })
}

/// "podIPs holds the IP addresses allocated to the pod. If this field is specified, the 0th entry must match the
/// podIP field" (PodStatus).
fn pod_ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else { return Vec::new() };
    let listed: Vec<String> = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    let all = if listed.is_empty() { Vec::from_iter(status.pod_ip.clone()) } else { listed };
    all.iter().filter_map(|ip| ip.parse().ok()).collect()
}
