use std::net::IpAddr;
use std::sync::Arc;

use portway_datapath::Addr;

use super::decode::{self, Kind};
use super::field::{List, Refusals, Shape, misfit};
use super::{HostPort, Names, Object, ObjectKind, Pod, labels, raw};

/// `"false"`: the pod's sockets are left alone, and services are translated at its interface.
pub const SOCKET_LB: &str = "portway.io/socket-lb";
/// The UID that a static pod has at its runtime: what the API server has in its place is named by another one.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

impl Kind for Pod {
    type Raw<'a> = raw::Pod<'a>;
    const KIND: ObjectKind = ObjectKind::Pod;
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[
            List {
                fields: &["ports[]"],
                read_on: &["ports[]"],
                ..List::of(&["spec", "containers"], |v| misfit::<raw::Container<'_>>(v))
            },
            List {
                fields: &["ports[]"],
                read_on: &["ports[]"],
                ..List::of(&["spec", "initContainers"], |v| misfit::<raw::Container<'_>>(v))
            },
            List::of(&["status", "podIPs"], |v| misfit::<raw::PodIp<'_>>(v)),
        ],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.labels",
            "spec.serviceAccountName",
        ],
        never_absent: None,
    };

    fn object(raw: raw::Pod<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        pod(raw, names, refusals).map(|pod| Object::Pod(pod.into()))
    }
}

fn pod(raw: raw::Pod<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Pod> {
    let (metadata, labels) = raw.metadata.map(raw::LabelledMetadata::take).unzip();
    let metadata = metadata.as_ref();
    let name = decode::namespaced_name(metadata, names, refusals)?;
    let (spec, status) = (raw.spec.as_ref(), raw.status.as_ref());
    let in_node_network = spec.is_some_and(|s| s.host_network == Some(true));
    let mut host_ports = match spec {
        Some(spec) if !in_node_network => host_ports(spec, names, refusals),
        Some(_) | None => Vec::new(),
    };
    // Of a pod without host ports no address is used, so none of it is refused and a change of it is none.
    let used = !host_ports.is_empty();
    let ips = if used { ips(status, refusals) } else { Box::default() };
    if !ips.is_empty() {
        host_ports.retain(|port| of_the_pods_family(port, &ips, refusals));
    }
    Some(Pod {
        uid: Arc::from(metadata.and_then(|m| m.uid.as_deref()).unwrap_or("")),
        created: match metadata.and_then(|m| m.creation_timestamp.as_deref()) {
            Some(_) if used => decode::created(metadata, refusals),
            text => text.and_then(super::time::parse),
        },
        node: spec.and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty()).map(|node| names.get(node)),
        live: !matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed")),
        ips,
        host_ports: host_ports.into(),
        labels: labels::labels(labels.unwrap_or_default(), names, refusals),
        service_account: spec
            .and_then(|s| s.service_account_name.as_deref())
            .filter(|account| !account.is_empty())
            .map(|account| names.get(account)),
        annotations: annotations(metadata),
        name,
    })
}

/// Those that say how the pod's network is, and which static pod it stands for.
fn annotations(metadata: Option<&raw::Metadata<'_>>) -> Box<[(&'static str, Arc<str>)]> {
    let Some(annotations) = metadata.and_then(|m| m.annotations.as_ref()) else { return Box::default() };
    let said = [(MIRROR, &annotations.mirror), (SOCKET_LB, &annotations.socket_lb)];
    let said = said.into_iter().filter_map(|(key, value)| Some((key, Arc::from(value.as_deref()?))));
    said.collect()
}

/// `podIP` counts where `podIPs` is empty.
fn ips(status: Option<&raw::PodStatus<'_>>, refusals: &mut Refusals<'_>) -> Box<[Addr]> {
    let Some(status) = status else {
        return Box::default();
    };
    let mut written = Vec::with_capacity(2);
    for (n, ip) in status.pod_ips.iter().flatten().enumerate() {
        match ip.as_ref().and_then(|ip| ip.ip.as_deref()) {
            Some(ip) => written.push((format!("status.podIPs[{n}].ip"), ip)),
            None => refusals.push_null(format!("status.podIPs[{n}]")),
        }
    }
    if status.pod_ips.as_ref().is_none_or(Vec::is_empty)
        && let Some(ip) = status.pod_ip.as_deref().filter(|ip| !ip.is_empty())
    {
        written.push(("status.podIP".to_owned(), ip));
    }
    let mut ips: Vec<Addr> = Vec::with_capacity(2);
    for (field, text) in written {
        if let Some(addr) = decode::address(|| field, text, "address", refusals)
            && ips.iter().all(|ip| ip.family() != addr.family())
        {
            ips.push(addr);
        }
    }
    ips.into()
}

fn host_ports(spec: &raw::PodSpec<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Vec<HostPort> {
    let mut ports = Vec::new();
    for (list, containers) in [("initContainers", &spec.init_containers), ("containers", &spec.containers)] {
        for (c, container) in containers.iter().flatten().enumerate() {
            let Some(container) = container else {
                refusals.push_null(format!("spec.{list}[{c}]"));
                continue;
            };
            // An init container that restarts runs beside the others; any other is over when the pod serves.
            if list == "initContainers" && container.restart_policy.as_deref() != Some("Always") {
                continue;
            }
            for (p, port) in container.ports.iter().flatten().enumerate() {
                let field = format!("spec.{list}[{c}].ports[{p}]");
                match port {
                    None => refusals.push_null(field),
                    Some(port) => ports.extend(host_port(&field, port, names, refusals)),
                }
            }
        }
    }
    ports
}

fn host_port(
    field: &str,
    raw: &raw::ContainerPort<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<HostPort> {
    let number = raw.host_port.filter(|port| *port != 0);
    if number.is_none() && !refusals.is_spoiled(field) {
        return None;
    }
    // All of them before the first `?`: every bad one is named.
    let name = decode::port_name(field, raw.name.as_deref(), names, refusals);
    let protocol = decode::protocol(field, raw.protocol.as_deref(), refusals);
    let host_port = number
        .and_then(|port| decode::port(|| format!("{field}.hostPort"), Some(port), "host port", refusals));
    let container_port =
        decode::port(|| format!("{field}.containerPort"), raw.container_port, "host port", refusals);
    let host_ip = match raw.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
        None => Some(None),
        Some(ip) => host_ip(field, ip, refusals).map(Some),
    };
    if refusals.is_spoiled(field) {
        return None;
    }
    Some(HostPort {
        name: name?,
        protocol: protocol?,
        host_port: host_port?,
        container_port: container_port?,
        host_ip: host_ip?,
    })
}

/// Refuses a host port on an address of a family that the pod does not have.
fn of_the_pods_family(port: &HostPort, ips: &[Addr], refusals: &mut Refusals<'_>) -> bool {
    let Some(host_ip) = port.host_ip.filter(|host_ip| ips.iter().all(|ip| ip.family() != host_ip.family()))
    else {
        return true;
    };
    let family = decode::family_name(host_ip.family());
    refusals.push(
        "spec.containers[].ports[].hostIP",
        &host_ip.to_string(),
        format!("is {family}, and the pod has no {family} address; the host port is left out"),
    );
    false
}

fn host_ip(field: &str, text: &str, refusals: &mut Refusals<'_>) -> Option<Addr> {
    match text.parse::<IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Some(Addr::from(ip)),
        // A frontend on loopback would take every pod's own loopback from it.
        Ok(_) | Err(_) => decode::address(|| format!("{field}.hostIP"), text, "host port", refusals),
    }
}
