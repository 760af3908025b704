use portway_datapath::Addr;

use super::decode::{self, Kind};
use super::field::{List, Refusals, Shape, misfit};
use super::source_ranges::source_ranges;
use super::{Names, Object, ObjectKind, Service, ServicePort, ServiceType, SourceRanges, raw};

/// `sessionAffinityConfig.clientIP.timeoutSeconds` where it is not given (Service API).
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// The longest that the API allows: a day.
const LONGEST_AFFINITY_SECONDS: i64 = 86_400;

impl Kind for Service {
    type Raw<'a> = raw::Service<'a>;
    const KIND: ObjectKind = ObjectKind::Service;
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[
            List {
                fields: &["nodePort"],
                read_on: &[""],
                ..List::of(&["spec", "ports"], |v| misfit::<raw::ServicePort<'_>>(v))
            },
            List::of(&["spec", "clusterIPs"], |v| misfit::<raw::Text<'_>>(v)),
            List::of(&["spec", "externalIPs"], |v| misfit::<raw::Text<'_>>(v)),
            List::of(&["spec", "loadBalancerSourceRanges"], |v| misfit::<raw::Text<'_>>(v)),
            List::of(&["status", "loadBalancer", "ingress"], |v| misfit::<raw::Ingress<'_>>(v)),
        ],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.uid",
            "spec.externalIPs",
            "spec.loadBalancerSourceRanges",
            "spec.sessionAffinity",
            "spec.sessionAffinityConfig",
            "spec.internalTrafficPolicy",
            "spec.externalTrafficPolicy",
            "status",
        ],
        never_absent: Some("spec.loadBalancerSourceRanges"),
    };

    fn object(raw: raw::Service<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        service(&raw, names, refusals).map(|service| Object::Service(service.into()))
    }
}

fn service(raw: &raw::Service<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Service> {
    let metadata = raw.metadata.as_ref();
    let name = decode::namespaced_name(metadata, names, refusals)?;
    let Some(spec) = &raw.spec else {
        refusals.push("spec", "", "is missing");
        return None;
    };
    let labels = metadata.and_then(|m| m.labels.as_ref());
    let mut service = Service {
        name,
        created: decode::created(metadata, refusals),
        proxy_name: labels.and_then(|l| l.proxy_name.as_deref()).map(|name| names.get(name)),
        labelled_headless: labels.is_some_and(|l| l.headless.is_some()),
        service_type: service_type(spec, refusals)?,
        cluster_ips: Box::default(),
        external_ips: Box::default(),
        ingress_ips: Box::default(),
        source_ranges: SourceRanges::Any,
        ports: Box::default(),
        affinity_seconds: 0,
        internal_local: false,
        external_local: false,
        keep_stale_sockets: false,
    };
    let cluster_ips = written_cluster_ips(spec, refusals);
    if service.service_type == ServiceType::ExternalName || cluster_ips.iter().any(|(_, ip)| *ip == "None") {
        return Some(service);
    }
    service.cluster_ips = one_of_each_family(&cluster_ips, refusals);
    service.external_ips = external_ips(spec, &service, refusals);
    service.ingress_ips = ingress_ips(raw.status.as_ref(), &service, refusals);
    service.source_ranges = source_ranges(spec, refusals);
    service.ports = ports(spec, service.service_type, names, refusals);
    service.affinity_seconds = affinity_seconds(spec, refusals);
    service.internal_local =
        is_local("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref(), refusals);
    service.external_local = external_local(spec, &service, refusals);
    service.keep_stale_sockets = keep_stale_sockets(metadata, refusals);
    Some(service)
}

fn service_type(spec: &raw::ServiceSpec<'_>, refusals: &mut Refusals<'_>) -> Option<ServiceType> {
    match spec.service_type.as_deref() {
        None | Some("" | "ClusterIP") => Some(ServiceType::ClusterIp),
        Some("NodePort") => Some(ServiceType::NodePort),
        Some("LoadBalancer") => Some(ServiceType::LoadBalancer),
        Some("ExternalName") => Some(ServiceType::ExternalName),
        Some(other) => {
            refusals.push(
                "spec.type",
                other,
                "is none of ClusterIP, NodePort, LoadBalancer and ExternalName; the service is left out",
            );
            None
        }
    }
}

/// Path and text of each; `clusterIP` counts where `clusterIPs` is empty.
fn written_cluster_ips<'s>(
    spec: &'s raw::ServiceSpec<'_>,
    refusals: &mut Refusals<'_>,
) -> Vec<(String, &'s str)> {
    let mut ips = Vec::with_capacity(2);
    for (n, ip) in spec.cluster_ips.iter().flatten().enumerate() {
        let field = format!("spec.clusterIPs[{n}]");
        match ip.as_deref() {
            Some(ip) => ips.push((field, ip)),
            None => refusals.push_null(field),
        }
    }
    if spec.cluster_ips.as_ref().is_none_or(Vec::is_empty)
        && let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty())
    {
        ips.push(("spec.clusterIP".to_owned(), ip));
    }
    ips
}

fn one_of_each_family(written: &[(String, &str)], refusals: &mut Refusals<'_>) -> Box<[Addr]> {
    let mut ips: Vec<Addr> = Vec::with_capacity(2);
    for (field, text) in written {
        let Some(addr) = decode::address(|| field.clone(), text, "address", refusals) else {
            continue;
        };
        if ips.iter().any(|ip| ip.family() == addr.family()) {
            let family = decode::family_name(addr.family());
            refusals.push(
                field,
                text,
                format!("is a second {family} address; a service has one of each family"),
            );
        } else {
            ips.push(addr);
        }
    }
    if written.is_empty() {
        refusals.push(
            "spec.clusterIPs",
            "",
            "is missing: the API server gives a service its addresses, a manifest must say them (or \"None\"); \
             the service is not served",
        );
    }
    ips.into()
}

/// Refuses an address whose family the service is not of: none of its ports is served in that family.
fn of_the_services_family(
    field: String,
    text: &str,
    addr: Addr,
    service: &Service,
    refusals: &mut Refusals<'_>,
) -> Option<Addr> {
    if service.cluster_ips.iter().any(|ip| ip.family() == addr.family()) {
        return Some(addr);
    }
    // The reason why nothing is served was given already.
    if !service.cluster_ips.is_empty() {
        let family = decode::family_name(addr.family());
        refusals.push(field, text, format!("is {family}, and the service has no {family} cluster IP"));
    }
    None
}

fn external_ips(spec: &raw::ServiceSpec<'_>, service: &Service, refusals: &mut Refusals<'_>) -> Box<[Addr]> {
    let mut ips = Vec::new();
    for (n, text) in spec.external_ips.iter().flatten().enumerate() {
        let field = || format!("spec.externalIPs[{n}]");
        let Some(text) = text.as_deref() else {
            refusals.push_null(field());
            continue;
        };
        let addr = decode::address(field, text, "address", refusals);
        ips.extend(addr.and_then(|addr| of_the_services_family(field(), text, addr, service, refusals)));
    }
    sorted(ips)
}

fn ingress_ips(
    status: Option<&raw::ServiceStatus<'_>>,
    service: &Service,
    refusals: &mut Refusals<'_>,
) -> Box<[Addr]> {
    let ingress = status.and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_ref());
    let mut ips = Vec::new();
    for (n, ingress) in ingress.into_iter().flatten().enumerate() {
        let field = |name: &str| format!("status.loadBalancer.ingress[{n}]{name}");
        let Some(ingress) = ingress else {
            refusals.push_null(field(""));
            continue;
        };
        // An ingress with a host name alone leads to another load balancer.
        let Some(text) = ingress.ip.as_deref().filter(|ip| !ip.is_empty()) else {
            continue;
        };
        match ingress.ip_mode.as_deref() {
            None | Some("VIP") => {}
            Some("Proxy") => continue,
            Some(other) => {
                refusals.push(field(".ipMode"), other, "is none of VIP and Proxy; the address is left out");
                continue;
            }
        }
        if service.service_type != ServiceType::LoadBalancer {
            refusals.push(
                field(".ip"),
                text,
                "counts only for services of type LoadBalancer; it is left out",
            );
            continue;
        }
        let addr = decode::address(|| field(".ip"), text, "address", refusals);
        ips.extend(addr.and_then(|addr| of_the_services_family(field(".ip"), text, addr, service, refusals)));
    }
    sorted(ips)
}

pub(super) fn sorted<T: Ord>(mut list: Vec<T>) -> Box<[T]> {
    list.sort_unstable();
    list.dedup();
    list.into()
}

fn ports(
    spec: &raw::ServiceSpec<'_>,
    service_type: ServiceType,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Box<[ServicePort]> {
    let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.as_ref().map_or(0, Vec::len));
    for (n, port) in spec.ports.iter().flatten().enumerate() {
        let field = format!("spec.ports[{n}]");
        let Some(raw) = port else {
            refusals.push_null(field);
            continue;
        };
        let Some(port) = service_port(&field, raw, service_type, names, refusals) else {
            continue;
        };
        let taken = ports.iter().any(|before| {
            before.protocol == port.protocol && (before.name == port.name || before.port == port.port)
        });
        if taken {
            let what = format!("{} {}/{}", port.name, port.port, port.protocol);
            refusals.push(
                field,
                what.trim(),
                "has the name or the number of a port before it; it is left out",
            );
        } else {
            ports.push(port);
        }
    }
    ports.into()
}

fn service_port(
    field: &str,
    raw: &raw::ServicePort<'_>,
    service_type: ServiceType,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Option<ServicePort> {
    // All of them before the first `?`: every bad one is named.
    let name = decode::port_name(field, raw.name.as_deref(), names, refusals);
    let protocol = decode::protocol(field, raw.protocol.as_deref(), refusals);
    let port = decode::port(|| format!("{field}.port"), raw.port, "port", refusals);
    let node_port = match raw.node_port {
        None | Some(0) => None,
        Some(number) => match service_type {
            ServiceType::NodePort | ServiceType::LoadBalancer => {
                decode::port(|| format!("{field}.nodePort"), Some(number), "node port", refusals)
            }
            ServiceType::ClusterIp | ServiceType::ExternalName => {
                refusals.push(
                    format!("{field}.nodePort"),
                    &number.to_string(),
                    "counts only for services of type NodePort and LoadBalancer; it is left out",
                );
                None
            }
        },
    };
    if refusals.is_spoiled(field) {
        return None;
    }
    Some(ServicePort { name: name?, protocol: protocol?, port: port?, node_port })
}

fn affinity_seconds(spec: &raw::ServiceSpec<'_>, refusals: &mut Refusals<'_>) -> u32 {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return 0,
        Some("ClientIP") => {}
        Some(other) => {
            refusals.push("spec.sessionAffinity", other, "is none of None and ClientIP; None counts");
            return 0;
        }
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    match client_ip.and_then(|c| c.timeout_seconds) {
        None => DEFAULT_AFFINITY_SECONDS,
        Some(seconds) if (1..=LONGEST_AFFINITY_SECONDS).contains(&seconds) => {
            u32::try_from(seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS)
        }
        Some(seconds) => {
            refusals.push(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                &seconds.to_string(),
                format!("is not in 1 to {LONGEST_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} counts"),
            );
            DEFAULT_AFFINITY_SECONDS
        }
    }
}

fn is_local(field: &str, policy: Option<&str>, refusals: &mut Refusals<'_>) -> bool {
    match policy {
        None | Some("" | "Cluster") => false,
        Some("Local") => true,
        Some(other) => {
            refusals.push(field, other, "is none of Cluster and Local; Cluster counts");
            false
        }
    }
}

/// The external policy is one of services that can be reached from outside (Service API).
fn external_local(spec: &raw::ServiceSpec<'_>, service: &Service, refusals: &mut Refusals<'_>) -> bool {
    let field = "spec.externalTrafficPolicy";
    if !is_local(field, spec.external_traffic_policy.as_deref(), refusals) {
        return false;
    }
    let reachable = match service.service_type {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()),
        ServiceType::ExternalName => false,
    };
    if !reachable {
        refusals.push(
            field,
            "Local",
            "counts only for services of type NodePort and LoadBalancer or with externalIPs; Cluster counts",
        );
    }
    reachable
}

/// Annotation values are strings; Kubernetes has no other form of a boolean there.
fn keep_stale_sockets(metadata: Option<&raw::Metadata<'_>>, refusals: &mut Refusals<'_>) -> bool {
    let annotations = metadata.and_then(|m| m.annotations.as_ref());
    match annotations.and_then(|a| a.keep_stale_sockets.as_deref()) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            let field = "metadata.annotations[portway.io/keep-stale-sockets]";
            refusals.push(field, other, "is none of \"true\" and \"false\"; \"false\" counts");
            false
        }
    }
}
