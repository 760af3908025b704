//! Random objects that the API server would accept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ClientIPConfig, Container, ContainerPort, LoadBalancerIngress, LoadBalancerStatus, Node, Pod, PodIP,
    PodSpec, PodStatus, Service, ServicePort, ServiceSpec, ServiceStatus, SessionAffinityConfig,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;

use super::{NODES, Random, THIS_NODE};
use crate::oracle::world::{Key, Kind, Object};

const CLUSTER_V4: [&str; 4] = ["10.96.0.1", "10.96.0.2", "10.96.0.10", "10.96.9.9"];
const CLUSTER_V6: [&str; 4] = ["fd00:96::1", "fd00:96::2", "fd00:96::a", "fd00:96::99"];
/// Some are cluster addresses of others.
const EXTERNAL: [&str; 7] =
    ["203.0.113.1", "203.0.113.2", "192.0.2.7", "10.96.0.2", "2001:db8::1", "2001:db8::2", "fd00:96::2"];
const RANGES: [&str; 8] = [
    "10.0.0.0/8",
    "10.20.30.40/16",
    "192.0.2.0/24",
    "198.51.100.7/32",
    "0.0.0.0/0",
    "2001:db8::/32",
    "2001:db8:1:2::3/64",
    "::/0",
];
const SERVICE_PORTS: [i32; 3] = [53, 80, 443];
const NODE_PORTS: [i32; 4] = [30_000, 30_001, 30_002, 32_767];
const TARGET_PORTS: [i32; 3] = [8080, 5353, 53];
pub(super) const PORT_NAMES: [&str; 3] = ["http", "dns", "metrics"];
pub(super) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
pub(super) const ZONES: [&str; 2] = ["zone-1", "zone-2"];

pub(super) fn object(random: &mut Random, key: &Key) -> Object {
    match key.kind {
        Kind::Service => Object::Service(service(random, key)),
        Kind::EndpointSlice => Object::EndpointSlice(slice(random, key)),
        Kind::Pod => Object::Pod(pod(random, key)),
        Kind::Node => Object::Node(node(random, key)),
    }
}

pub(super) fn owned(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Few moments, so that objects of the same age meet.
fn metadata(random: &mut Random, key: &Key) -> ObjectMeta {
    let second = 1_700_000_000 + random.below(6) as i64 * 60;
    ObjectMeta {
        name: owned(&key.name),
        namespace: (key.kind != Kind::Node).then(|| key.namespace.clone()),
        uid: Some(format!(
            "{:08x}-0000-4000-8000-{:012x}",
            random.next() as u32,
            random.next() & 0xffff_ffff_ffff
        )),
        creation_timestamp: Timestamp::from_second(second).ok().map(Time),
        resource_version: Some(random.below(100_000).to_string()),
        ..ObjectMeta::default()
    }
}

fn label(meta: &mut ObjectMeta, key: &str, value: &str) {
    meta.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

fn proxy_labels(random: &mut Random, meta: &mut ObjectMeta) {
    if random.chance(3) {
        label(meta, "service.kubernetes.io/service-proxy-name", &random.word(&["other", "portway"]));
    }
    if random.chance(3) {
        label(meta, "service.kubernetes.io/headless", "");
    }
}

fn service(random: &mut Random, key: &Key) -> Service {
    let mut metadata = metadata(random, key);
    proxy_labels(random, &mut metadata);
    let mut spec = ServiceSpec {
        selector: random.maybe(50, |_| BTreeMap::from([("app".to_owned(), key.name.clone())])),
        publish_not_ready_addresses: random.maybe(10, |r| r.chance(50)),
        traffic_distribution: random.maybe(20, |_| "PreferSameZone".to_owned()),
        internal_traffic_policy: random.maybe(60, |r| r.word(&["Cluster", "Local"])),
        session_affinity: random.maybe(50, |r| r.word(&["None", "ClientIP"])),
        ..ServiceSpec::default()
    };
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        spec.session_affinity_config = random.maybe(50, |r| SessionAffinityConfig {
            client_ip: Some(ClientIPConfig { timeout_seconds: r.maybe(80, |r| 1 + r.below(86_400) as i32) }),
        });
    }
    let kind =
        *random.pick(&["ClusterIP", "ClusterIP", "NodePort", "NodePort", "LoadBalancer", "ExternalName"]);
    spec.ports = Some(service_ports(random, kind));
    if kind == "ExternalName" {
        // A cluster IP that the API server would not let through, but a manifest may have: it means nothing.
        spec.cluster_ip = random.maybe(30, |r| r.word(&CLUSTER_V4));
        spec.type_ = owned(kind);
        spec.external_name = owned("db.example.com");
        return Service { metadata, spec: Some(spec), status: None };
    }
    spec.type_ = (kind != "ClusterIP" || random.chance(50)).then(|| kind.to_owned());
    cluster_ips(random, &mut spec, kind);
    spec.external_ips = random.maybe(35, |r| r.some_of(25, &EXTERNAL.map(str::to_owned)));
    let reached_from_outside =
        kind != "ClusterIP" || spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    if reached_from_outside {
        spec.external_traffic_policy = random.maybe(60, |r| r.word(&["Cluster", "Local"]));
    }
    let mut status = None;
    if kind == "LoadBalancer" {
        spec.load_balancer_class = random.maybe(20, |_| "example.com/vip".to_owned());
        spec.load_balancer_source_ranges = random.maybe(50, |r| r.some_of(30, &RANGES.map(str::to_owned)));
        status = random.maybe(85, |r| ServiceStatus {
            load_balancer: Some(LoadBalancerStatus { ingress: r.maybe(90, ingress) }),
            ..ServiceStatus::default()
        });
    }
    Service { metadata, spec: Some(spec), status }
}

fn cluster_ips(random: &mut Random, spec: &mut ServiceSpec, kind: &str) {
    if kind == "ClusterIP" && random.chance(8) {
        spec.cluster_ip = owned("None");
        spec.cluster_ips = random.maybe(70, |_| vec!["None".to_owned()]);
        return;
    }
    let (v4, v6) = (random.word(&CLUSTER_V4), random.word(&CLUSTER_V6));
    let ips = match random.below(6) {
        0 | 1 => vec![v4],
        2 => vec![v6],
        3 | 4 => vec![v4, v6],
        _ => vec![v6, v4],
    };
    spec.cluster_ip = ips.first().cloned();
    let family = |ip: &String| if ip.contains(':') { "IPv6".to_owned() } else { "IPv4".to_owned() };
    spec.ip_families = random.maybe(80, |_| ips.iter().map(family).collect());
    // An object that only names clusterIP is completed from it.
    spec.cluster_ips = (ips.len() > 1 || random.chance(70)).then_some(ips);
}

/// Unique names, unique (port, protocol), unique (node port, protocol).
fn service_ports(random: &mut Random, kind: &str) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::new();
    let count = 1 + random.below(3) as usize;
    let protocol_of = |port: &ServicePort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let mut names = PORT_NAMES;
    random.shuffle(&mut names);
    for name in names.iter().take(count) {
        let protocol = usual_protocol(random, name);
        let name = if count == 1 {
            random.maybe(60, |r| if r.chance(70) { (*name).to_owned() } else { String::new() })
        } else {
            owned(name)
        };
        let mut port = ServicePort {
            name,
            port: *random.pick(&SERVICE_PORTS),
            protocol,
            target_port: random.maybe(60, |r| {
                if r.chance(50) { IntOrString::Int(8080) } else { IntOrString::String("http".to_owned()) }
            }),
            app_protocol: random.maybe(10, |_| "kubernetes.io/h2c".to_owned()),
            node_port: None,
        };
        if kind == "NodePort" || (kind == "LoadBalancer" && random.chance(60)) {
            port.node_port = Some(*random.pick(&NODE_PORTS));
        }
        let clashes = ports.iter().any(|other| {
            protocol_of(other) == protocol_of(&port)
                && (other.port == port.port
                    || (other.node_port.is_some() && other.node_port == port.node_port))
        });
        if !clashes {
            ports.push(port);
        }
    }
    ports
}

/// A port of one name mostly speaks one protocol, or services and slices would hardly ever meet.
fn usual_protocol(random: &mut Random, name: &str) -> Option<String> {
    match (name, random.below(10)) {
        (_, 0) => random.maybe(80, |r| r.word(&PROTOCOLS)),
        ("dns", _) => owned("UDP"),
        ("http", 1..5) => None,
        _ => owned("TCP"),
    }
}

fn ingress(random: &mut Random) -> Vec<LoadBalancerIngress> {
    let mut all = Vec::new();
    for ip in random.some_of(30, &EXTERNAL) {
        all.push(LoadBalancerIngress {
            ip: owned(ip),
            ip_mode: random.maybe(50, |r| r.word(&["VIP", "VIP", "Proxy"])),
            ..LoadBalancerIngress::default()
        });
    }
    if random.chance(10) {
        all.push(LoadBalancerIngress { hostname: owned("lb.example.com"), ..LoadBalancerIngress::default() });
    }
    all
}

fn slice(random: &mut Random, key: &Key) -> EndpointSlice {
    let mut metadata = metadata(random, key);
    if random.chance(96) {
        // Mostly of the service that its name says, at times of another, at times of none.
        let service = key.name.rsplit_once('-').map_or(key.name.as_str(), |(service, _)| service);
        let service = if random.chance(85) { service } else { *random.pick(&["api", "web", "nobody"]) };
        label(&mut metadata, "kubernetes.io/service-name", service);
    }
    proxy_labels(random, &mut metadata);
    let style = HintStyle::of(key);
    let address_type = if random.chance(5) { "FQDN" } else { *random.pick(&["IPv4", "IPv6"]) };
    let count = random.below(7);
    EndpointSlice {
        metadata,
        address_type: address_type.to_owned(),
        endpoints: random.maybe(95, |r| (0..count).map(|_| endpoint(r, address_type, style)).collect()),
        ports: random.maybe(95, endpoint_ports),
    }
}

/// Unique names.
fn endpoint_ports(random: &mut Random) -> Vec<EndpointPort> {
    let mut ports = Vec::new();
    if random.chance(35) {
        ports.push(endpoint_port(random, ""));
    }
    for name in PORT_NAMES {
        if random.chance(75) {
            ports.push(endpoint_port(random, name));
        }
    }
    ports
}

fn endpoint_port(random: &mut Random, name: &str) -> EndpointPort {
    EndpointPort {
        name: (!name.is_empty() || random.chance(50)).then(|| name.to_owned()),
        port: random.maybe(94, |r| if r.chance(75) { TARGET_PORTS[0] } else { *r.pick(&TARGET_PORTS) }),
        protocol: usual_protocol(random, name),
        app_protocol: None,
    }
}

/// What hints the slices of a service have; hints count only if all its ready endpoints have some.
#[derive(Clone, Copy)]
pub(super) enum HintStyle {
    None,
    Zones,
    Nodes,
    Mixed,
}

impl HintStyle {
    pub(super) fn of(slice: &Key) -> Self {
        match (slice.name.split('-').next(), slice.namespace.as_str()) {
            (Some("api"), _) => Self::Zones,
            (Some("web"), "default") => Self::Nodes,
            (Some("dns"), _) => Self::Mixed,
            _ => Self::None,
        }
    }
}

pub(super) fn endpoint(random: &mut Random, address_type: &str, style: HintStyle) -> Endpoint {
    let address = |random: &mut Random| match address_type {
        "IPv4" => format!("10.0.0.{}", 1 + random.below(5)),
        "IPv6" => format!("fd00::{:x}", 8 + random.below(5)),
        _ => format!("host-{}.example.com", random.below(4)),
    };
    let mut addresses = vec![address(random)];
    if random.chance(8) {
        addresses.push(address(random));
    }
    Endpoint {
        addresses,
        conditions: random.maybe(90, conditions),
        node_name: random.maybe(85, |r| (*r.pick(&[THIS_NODE, NODES[0], NODES[1], NODES[2]])).to_owned()),
        zone: random.maybe(70, |r| r.word(&ZONES)),
        hints: hints(random, style),
        hostname: random.maybe(10, |_| "h".to_owned()),
        ..Endpoint::default()
    }
}

/// Ready, serving and terminating as they come about, and any other mix now and then.
pub(super) fn conditions(random: &mut Random) -> EndpointConditions {
    let (ready, serving, terminating) = *random.pick(&[
        (Some(true), Some(true), Some(false)),
        (Some(true), Some(true), Some(false)),
        (Some(false), Some(false), Some(false)),
        (Some(false), Some(true), Some(true)),
        (Some(false), Some(true), Some(true)),
        (Some(false), Some(false), Some(true)),
        (Some(false), None, Some(true)),
        (None, None, None),
    ]);
    if random.chance(85) {
        return EndpointConditions { ready, serving, terminating };
    }
    let any = [None, Some(false), Some(true)];
    EndpointConditions {
        ready: *random.pick(&any),
        serving: *random.pick(&any),
        terminating: *random.pick(&any),
    }
}

pub(super) fn hints(random: &mut Random, style: HintStyle) -> Option<EndpointHints> {
    let (zones, nodes) = match style {
        HintStyle::None => (3, 3),
        HintStyle::Zones => (97, 20),
        HintStyle::Nodes => (80, 96),
        HintStyle::Mixed => (60, 50),
    };
    let for_zones = random.maybe(zones, |r| {
        let names = if r.chance(70) { vec![*r.pick(&ZONES)] } else { r.some_of(60, &ZONES) };
        names.into_iter().map(|name| ForZone { name: name.to_owned() }).collect()
    });
    let for_nodes = random.maybe(nodes, |r| {
        let names = if r.chance(80) { vec![*r.pick(&NODES)] } else { r.some_of(60, &NODES) };
        names.into_iter().map(|name| ForNode { name: name.to_owned() }).collect()
    });
    (for_zones.is_some() || for_nodes.is_some() || random.chance(10))
        .then_some(EndpointHints { for_zones, for_nodes })
}

fn pod(random: &mut Random, key: &Key) -> Pod {
    let metadata = metadata(random, key);
    let mut containers = vec![Container { name: "main".to_owned(), ..Container::default() }];
    if random.chance(30) {
        containers.push(Container { name: "side".to_owned(), ..Container::default() });
    }
    let mut taken = Vec::new();
    for (n, container) in containers.iter_mut().enumerate() {
        container.ports = random.maybe(90, |r| container_ports(r, n, &mut taken));
    }
    let init_containers = random.maybe(30, |r| {
        vec![Container {
            name: "init".to_owned(),
            restart_policy: r.maybe(60, |r| r.word(&["Always", "OnFailure"])),
            ports: Some(container_ports(r, 2, &mut taken)),
            ..Container::default()
        }]
    });
    let spec = PodSpec {
        init_containers,
        node_name: random.maybe(95, |r| (*r.pick(&[THIS_NODE, THIS_NODE, THIS_NODE, NODES[1]])).to_owned()),
        host_network: random.maybe(25, |r| r.chance(30)),
        containers,
        ..PodSpec::default()
    };
    Pod { metadata, spec: Some(spec), status: random.maybe(95, pod_status) }
}

/// Unique (host port, protocol, host IP), as the API server checks.
fn container_ports(
    random: &mut Random,
    container: usize,
    taken: &mut Vec<(i32, String, Option<String>)>,
) -> Vec<ContainerPort> {
    let mut ports = Vec::new();
    for n in 0..random.below(3) {
        let host_port = random.maybe(85, |r| *r.pick(&[53, 30_000]));
        let protocol = random.maybe(70, |r| r.word(&PROTOCOLS));
        let host_ip =
            random.maybe(40, |r| r.word(&["", "0.0.0.0", "::", "192.0.2.7", "203.0.113.1", "2001:db8::1"]));
        if let Some(number) = host_port {
            // One of "" and one of 0.0.0.0 is the same frontend twice in one pod: which wins is nobody's rule.
            let any = |ip: &Option<String>| matches!(ip.as_deref(), None | Some("" | "0.0.0.0" | "::"));
            let name = protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let clashes = taken.iter().any(|(other, proto, ip)| {
                *other == number && *proto == name && (*ip == host_ip || (any(ip) && any(&host_ip)))
            });
            if clashes {
                continue;
            }
            taken.push((number, name, host_ip.clone()));
        }
        ports.push(ContainerPort {
            container_port: 9000 + 10 * container as i32 + n as i32,
            host_ip,
            host_port,
            name: random.maybe(60, |_| format!("p{container}{n}")),
            protocol,
        });
    }
    ports
}

pub(super) fn pod_status(random: &mut Random) -> PodStatus {
    let v4 = format!("10.0.1.{}", 1 + random.below(5));
    let v6 = format!("fd00:1::{}", 1 + random.below(5));
    let ips = match random.below(6) {
        0 => Vec::new(),
        1 | 2 => vec![v4],
        3 => vec![v6],
        4 => vec![v4, v6],
        _ => vec![v6, v4],
    };
    PodStatus {
        phase: random.maybe(95, |r| {
            r.word(&["Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"])
        }),
        pod_ip: ips.first().cloned(),
        pod_ips: (ips.len() > 1 || (!ips.is_empty() && random.chance(70)))
            .then(|| ips.into_iter().map(|ip| PodIP { ip }).collect()),
        ..PodStatus::default()
    }
}

fn node(random: &mut Random, key: &Key) -> Node {
    let mut metadata = metadata(random, key);
    label(&mut metadata, "kubernetes.io/hostname", &key.name);
    if random.chance(80) {
        label(&mut metadata, "topology.kubernetes.io/zone", &random.word(&ZONES));
    }
    Node { metadata, ..Node::default() }
}
