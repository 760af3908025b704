use std::collections::BTreeMap;
use std::net::IpAddr;

use portway_datapath::{Addr, Family, FrontendKind, Membership, Port, Protocol, RunBackend, ServiceFlags};
use serde::{Deserialize, Serialize};

use super::{ServiceDump, TableDump};

/// A frontend as `portway plan`, `bpf lb list` and `service list` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// `namespace/name` of the service, or of the pod for a host port.
    pub service: String,
    pub port_name: String,
    /// `ClusterIP`, `NodePort`, `ExternalIPs`, `LoadBalancer` or `HostPort`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A NodePort's is `0.0.0.0` or `::`.
    pub address: String,
    pub port: u16,
    pub protocol: String,
    pub backends: BackendSets,
    /// 0 is none.
    pub affinity_seconds: u32,
    /// Prefixes that apply to this frontend, sorted.
    pub source_ranges: Vec<String>,
    /// Sorted: `eTP=Local`, `iTP=Local`.
    pub flags: Vec<String>,
}

/// `ip:port` each, in address order: what a connection may get under the Cluster and under the Local policy, after
/// hints and the terminating fallback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendSets {
    pub cluster: Vec<String>,
    pub local: Vec<String>,
}

/// The rows of a dump, by address (IPv4 first, by number), port and protocol.
pub fn rows(dump: &TableDump) -> Vec<Row> {
    let services: BTreeMap<_, _> = dump.services.iter().map(|s| (s.index, s)).collect();
    let mut ranges: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (service, addr, bits) in &dump.source_ranges {
        ranges.entry(*service).or_default().push(prefix(*addr, *bits));
    }
    let mut rows: Vec<_> = dump
        .frontends
        .iter()
        .filter_map(|(key, value)| {
            let (service, kind) = (services.get(&value.service())?, value.kind()?);
            let protocol = Protocol::from_number(key.protocol)?;
            let source_ranges = if service.header.flags.filters(kind) {
                ranges.get(&service.index).cloned().unwrap_or_default()
            } else {
                Vec::new()
            };
            let order = (key.addr.family(), key.addr, key.port, protocol.name());
            Some((order, row(service, kind, key.addr, key.port, protocol, source_ranges)))
        })
        .collect();
    rows.sort_by_key(|(order, _)| *order);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(
    service: &ServiceDump,
    kind: FrontendKind,
    addr: Addr,
    port: Port,
    protocol: Protocol,
    source_ranges: Vec<String>,
) -> Row {
    let mut flags = Vec::new();
    if service.header.flags.has(ServiceFlags::EXTERNAL_LOCAL) {
        flags.push("eTP=Local".to_owned());
    }
    if service.header.flags.has(ServiceFlags::INTERNAL_LOCAL) {
        flags.push("iTP=Local".to_owned());
    }
    Row {
        service: service.service.clone(),
        port_name: service.port_name.clone(),
        kind: kind.name().to_owned(),
        address: addr.to_string(),
        port: port.get(),
        protocol: protocol.name().to_owned(),
        backends: BackendSets {
            cluster: backends(service, Membership::Cluster),
            local: backends(service, Membership::Local),
        },
        affinity_seconds: service.header.affinity_seconds,
        source_ranges,
        flags,
    }
}

fn backends(service: &ServiceDump, set: Membership) -> Vec<String> {
    let (start, len) = service.header.range(set);
    let mut backends: Vec<&RunBackend> =
        service.backends.iter().skip(start as usize).take(len as usize).collect();
    backends.sort_by_key(|b| (b.addr, b.port));
    backends.into_iter().map(|b| std::net::SocketAddr::new(b.addr.into(), b.port.get()).to_string()).collect()
}

/// `10.0.0.0/8`, `fd00::/64`.
fn prefix(addr: Addr, bits: u8) -> String {
    let bits = match addr.family() {
        Family::V4 => bits.saturating_sub(96),
        Family::V6 => bits,
    };
    format!("{}/{bits}", IpAddr::from(addr))
}
