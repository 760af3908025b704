//! Which endpoints a service port has, and which of them a connection may get.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::{Objects, OracleConfig, is_for_this_proxy, label, socket};

/// `ip:port` each, in order of number.
pub(super) struct Sets {
    pub(super) cluster: Vec<String>,
    pub(super) local: Vec<String>,
}

/// An endpoint of a slice.
struct Candidate<'a> {
    addr: IpAddr,
    port: u16,
    endpoint: &'a Endpoint,
    /// (name of its slice, position there): a total order.
    place: (String, usize),
}

/// The sets under the Cluster and under the Local policy, after hints and the terminating fallback.
pub(super) fn sets(
    objects: &Objects,
    config: &OracleConfig,
    service: &Service,
    port: &ServicePort,
    ipv4: bool,
) -> Sets {
    let all = candidates(objects, config, service, port, ipv4);
    // "Duplicates across slices: ready beats serving-and-terminating beats the rest; then slice name order".
    let preferred = |a: &Candidate<'_>| {
        !all.iter().any(|b| {
            (b.addr, b.port) == (a.addr, a.port)
                && (usefulness(b.endpoint), &b.place) < (usefulness(a.endpoint), &a.place)
        })
    };
    let mut endpoints: Vec<&Candidate<'_>> = all.iter().filter(|candidate| preferred(candidate)).collect();
    endpoints.sort_by_key(|candidate| (candidate.addr, candidate.port));

    let ready: Vec<_> = endpoints.iter().copied().filter(|c| usefulness(c.endpoint) == 0).collect();
    let closing: Vec<_> = endpoints
        .iter()
        .copied()
        .filter(|c| usefulness(c.endpoint) == 1 && config.enable_k8s_terminating_endpoint)
        .collect();
    let is_local = |c: &&Candidate<'_>| c.endpoint.node_name.as_deref() == Some(config.node.as_str());
    let (local_ready, local_closing): (Vec<_>, Vec<_>) = (
        ready.iter().copied().filter(is_local).collect(),
        closing.iter().copied().filter(is_local).collect(),
    );

    let hinted = if config.enable_service_topology {
        by_hints(&ready, &config.node, zone(objects, config))
    } else {
        ready.clone()
    };
    Sets {
        cluster: names(if ready.is_empty() { &closing } else { &hinted }),
        local: names(if local_ready.is_empty() { &local_closing } else { &local_ready }),
    }
}

fn names(candidates: &[&Candidate<'_>]) -> Vec<String> {
    candidates.iter().map(|c| socket(c.addr, c.port)).collect()
}

/// 0 ready, 1 serving and terminating, 2 neither. "A nil value should be interpreted as" true, true and false
/// (EndpointConditions).
fn usefulness(endpoint: &Endpoint) -> u8 {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(true);
    let terminating = conditions.terminating.unwrap_or(false);
    match (ready, serving && terminating) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// Node hints if every ready endpoint has some and one names this node; else zone hints likewise; else all of them
/// (kube-proxy's CategorizeEndpoints; issue 3: "all, when the zone has none").
fn by_hints<'a>(ready: &[&'a Candidate<'a>], node: &str, zone: Option<&str>) -> Vec<&'a Candidate<'a>> {
    let named = |hints: fn(&Endpoint) -> Vec<String>, name: &str| -> Option<Vec<&'a Candidate<'a>>> {
        let every_one_has = ready.iter().all(|c| !hints(c.endpoint).is_empty());
        let for_us: Vec<_> =
            ready.iter().copied().filter(|c| hints(c.endpoint).iter().any(|h| h == name)).collect();
        (every_one_has && !for_us.is_empty()).then_some(for_us)
    };
    named(node_hints, node).or_else(|| named(zone_hints, zone?)).unwrap_or_else(|| ready.to_vec())
}

fn node_hints(endpoint: &Endpoint) -> Vec<String> {
    let hints = endpoint.hints.clone().unwrap_or_default();
    hints.for_nodes.unwrap_or_default().into_iter().map(|hint| hint.name).collect()
}

fn zone_hints(endpoint: &Endpoint) -> Vec<String> {
    let hints = endpoint.hints.clone().unwrap_or_default();
    hints.for_zones.unwrap_or_default().into_iter().map(|hint| hint.name).collect()
}

/// The node's label `topology.kubernetes.io/zone`.
fn zone<'a>(objects: &'a Objects, config: &OracleConfig) -> Option<&'a str> {
    let node =
        objects.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(config.node.as_str()))?;
    label(&node.metadata, "topology.kubernetes.io/zone")
}

/// Every endpoint of every slice "in the service's namespace whose `kubernetes.io/service-name` label contains the
/// service's name" (EndpointSlice), of the family, whose port of the same name and protocol has a number.
fn candidates<'a>(
    objects: &'a Objects,
    config: &OracleConfig,
    service: &Service,
    port: &ServicePort,
    ipv4: bool,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    let wanted_type = if ipv4 { "IPv4" } else { "IPv6" };
    for slice in &objects.slices {
        let is_of_service = slice.metadata.namespace == service.metadata.namespace
            && label(&slice.metadata, "kubernetes.io/service-name") == service.metadata.name.as_deref();
        if !is_of_service || !is_for_this_proxy(&slice.metadata, config) || slice.address_type != wanted_type
        {
            continue;
        }
        for number in numbers(slice, port) {
            for (position, endpoint) in slice.endpoints.iter().flatten().enumerate() {
                // "No semantics are defined for additional addresses beyond the first" (Endpoint).
                let Some(addr) = endpoint.addresses.first().and_then(|a| a.parse().ok()) else { continue };
                let place = (slice.metadata.name.clone().unwrap_or_default(), position);
                found.push(Candidate { addr, port: number, endpoint, place });
            }
        }
    }
    found
}

/// "This must match the 'name' field in the EndpointPort" (ServicePort); protocols default to TCP; a port without a
/// number is of no use here (EndpointPort: "EndpointSlices used for other purposes may have a nil port").
fn numbers(slice: &EndpointSlice, port: &ServicePort) -> Vec<u16> {
    let protocol = |p: &Option<String>| p.clone().unwrap_or_else(|| "TCP".to_owned());
    slice
        .ports
        .iter()
        .flatten()
        .filter(|p| p.name.clone().unwrap_or_default() == port.name.clone().unwrap_or_default())
        .filter(|p| protocol(&p.protocol) == protocol(&port.protocol))
        .filter_map(|p| p.port)
        .map(|number| number as u16)
        .collect()
}
