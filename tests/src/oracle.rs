//! What `portway plan` must print, worked out the slow way: from all objects at once, by comparing everything with
//! everything, and from the Kubernetes API text alone.
//!
//! Goes in: typed Kubernetes objects and the name of a node. Comes out: the rows of that node. It uses the types of
//! k8s-openapi and nothing of Portway, so it cannot share a mistake with the model it judges. Speed is no aim;
//! being obviously right is: each rule stands once, next to the text it comes from.
//!
//! It expects objects that the API server would accept. What malformed ones do is the business of `bad_values.rs`.

mod endpoints;
mod pods;
pub mod random;
mod services;
pub mod world;

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

/// Every object there is.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub services: Vec<Service>,
    pub slices: Vec<EndpointSlice>,
    pub pods: Vec<Pod>,
    pub nodes: Vec<Node>,
}

/// Whose rows are asked for, and the settings that change them, each under the name of its flag (`flags.md`, "Agent,
/// honoured").
#[derive(Clone, Debug)]
pub struct OracleConfig {
    pub node: String,
    pub k8s_service_proxy_name: String,
    pub enable_ipv4: bool,
    pub enable_ipv6: bool,
    pub enable_svc_source_range_check: bool,
    pub bpf_lb_source_range_all_types: bool,
    pub enable_external_ips: bool,
    pub enable_host_port: bool,
    pub enable_session_affinity: bool,
    pub enable_service_topology: bool,
    pub enable_k8s_terminating_endpoint: bool,
}

impl OracleConfig {
    /// With the flags' defaults.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            k8s_service_proxy_name: String::new(),
            enable_ipv4: true,
            enable_ipv6: true,
            enable_svc_source_range_check: true,
            bpf_lb_source_range_all_types: false,
            enable_external_ips: true,
            enable_host_port: true,
            enable_session_affinity: true,
            enable_service_topology: true,
            enable_k8s_terminating_endpoint: true,
        }
    }
}

/// A frontend, with the fields of a row of `portway plan -o json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OracleRow {
    pub service: String,
    pub port_name: String,
    pub kind: &'static str,
    pub address: IpAddr,
    pub port: u16,
    pub protocol: String,
    pub cluster: Vec<String>,
    pub local: Vec<String>,
    pub affinity_seconds: u32,
    pub source_ranges: Vec<String>,
    pub flags: Vec<&'static str>,
}

/// A frontend that an object wants. Several may want the same one.
struct Claim {
    row: OracleRow,
    /// Of the object that wants it.
    created: Timestamp,
}

/// The rows of `config.node`, sorted by address (IPv4 first, by number), port, protocol.
pub fn oracle(objects: &Objects, config: &OracleConfig) -> Vec<OracleRow> {
    let mut claims = services::claims(objects, config);
    claims.extend(pods::claims(objects, config));
    claims.retain(|claim| if claim.row.address.is_ipv4() { config.enable_ipv4 } else { config.enable_ipv6 });
    let mut rows: Vec<OracleRow> = Vec::new();
    for claim in &claims {
        let same_frontend = |other: &&Claim| frontend(&other.row) == frontend(&claim.row);
        let loses = claims.iter().filter(same_frontend).any(|other| precedence(other) < precedence(claim));
        if !loses && !rows.contains(&claim.row) {
            rows.push(claim.row.clone());
        }
    }
    rows.sort_by(|a, b| frontend(a).cmp(&frontend(b)));
    rows
}

/// What a client dials. `IpAddr` puts IPv4 first, then compares by number.
fn frontend(row: &OracleRow) -> (IpAddr, u16, &str) {
    (row.address, row.port, &row.protocol)
}

/// The smallest owns the frontend: "ClusterIP before LoadBalancer, ExternalIPs, NodePort, HostPort; then the older,
/// then namespace/name" (design.md, Clashes); among host ports the newest live pod (issue 3).
fn precedence(claim: &Claim) -> (usize, i64, &str) {
    const RANKS: [&str; 5] = ["ClusterIP", "LoadBalancer", "ExternalIPs", "NodePort", "HostPort"];
    let rank = RANKS.iter().position(|kind| *kind == claim.row.kind).unwrap_or(RANKS.len());
    let age = claim.created.as_second();
    (rank, if claim.row.kind == "HostPort" { -age } else { age }, &claim.row.service)
}

/// `namespace/name`.
fn full_name(meta: &ObjectMeta) -> String {
    format!("{}/{}", meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default())
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// The label `service.kubernetes.io/service-proxy-name` hands an object to the proxy of that name;
/// `service.kubernetes.io/headless` marks what no proxy serves (well-known labels). The EndpointSlice controller
/// copies both from a service to its slices, and kube-proxy lists neither services nor slices that it must not serve.
fn is_for_this_proxy(meta: &ObjectMeta, config: &OracleConfig) -> bool {
    let proxy_name = label(meta, "service.kubernetes.io/service-proxy-name");
    let is_ours = match config.k8s_service_proxy_name.as_str() {
        "" => proxy_name.is_none(),
        ours => proxy_name == Some(ours),
    };
    is_ours && label(meta, "service.kubernetes.io/headless").is_none()
}

fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map(|time| time.0).unwrap_or_default()
}

/// `ip:port`, `[ip]:port`.
fn socket(addr: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(addr, port).to_string()
}

fn any_address(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}
