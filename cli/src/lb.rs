//! `portway bpf lb list`: from the kernel's maps alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;
use portway_agent::maps::MapReader;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, Family, FrontendKind, Membership, Protocol, ServiceFlags, ServiceIndex,
};
use portway_model::tables::{ServiceDump, TableDump, rows};
use serde::Serialize;

use crate::args::Part;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

pub(crate) fn list(bpf_root: &Path, part: Part, format: Format) -> Result<(), Failure> {
    let dump = MapReader::open(bpf_root).and_then(|maps| maps.dump()).context("reading the kernel's maps")?;
    match (part, format) {
        (Part::All | Part::Frontends, Format::Json) => print_json(&rows(&dump))?,
        (Part::Backends, Format::Json) => print_json(&slots(&dump))?,
        (Part::SourceRanges, Format::Json) => print_json(&source_ranges(&dump))?,
        (Part::All, Format::Text) => print(&everything(&dump))?,
        (Part::Frontends, Format::Text) => print(&frontends(&dump))?,
        (Part::Backends, Format::Text) => print(&slots_table(&slots(&dump)))?,
        (Part::SourceRanges, Format::Text) => print(&source_ranges_table(&source_ranges(&dump)))?,
    }
    Ok(())
}

fn socket(addr: Addr, port: u16) -> String {
    SocketAddr::new(IpAddr::from(addr), port).to_string()
}

/// A frontend with the service that it leads to, in the order of `portway plan`.
struct Listed<'a> {
    frontend: String,
    kind: FrontendKind,
    service: &'a ServiceDump,
}

fn by_index(dump: &TableDump) -> BTreeMap<ServiceIndex, &ServiceDump> {
    dump.services.iter().map(|service| (service.index, service)).collect()
}

fn listed(dump: &TableDump) -> Vec<Listed<'_>> {
    let services = by_index(dump);
    let mut listed: Vec<_> = dump
        .frontends
        .iter()
        .filter_map(|(key, value)| {
            let service = *services.get(&value.service())?;
            let protocol = Protocol::from_number(key.protocol)?;
            let frontend = format!("{}/{}", socket(key.addr, key.port.get()), protocol.name());
            let order = (key.addr.family(), key.addr, key.port, protocol.name());
            Some((order, Listed { frontend, kind: value.kind()?, service }))
        })
        .collect();
    listed.sort_by_key(|(order, _)| *order);
    listed.into_iter().map(|(_, listed)| listed).collect()
}

/// `[ClusterIP, iTP=Local, affinity 10800 s]`: what holds for a frontend of this kind.
fn flags(kind: FrontendKind, service: &ServiceDump) -> String {
    let held = service.header.flags;
    let mut flags = vec![kind.name().to_owned()];
    for (holds, name) in [
        (held.has(ServiceFlags::EXTERNAL_LOCAL), "eTP=Local"),
        (held.has(ServiceFlags::INTERNAL_LOCAL), "iTP=Local"),
        (held.filters(kind), "source ranges"),
    ] {
        if holds {
            flags.push(name.to_owned());
        }
    }
    if service.header.affinity_seconds != 0 {
        flags.push(format!("affinity {} s", service.header.affinity_seconds));
    }
    format!("[{}]", flags.join(", "))
}

/// As in `cilium-dbg bpf lb list`: slot 0 is the service itself.
fn everything(dump: &TableDump) -> String {
    let mut table = Table::new(&["SERVICE ADDRESS", "BACKEND ADDRESS (SERVICE) (SLOT)"]);
    for Listed { frontend, kind, service } in listed(dump) {
        let id = service.index.get();
        let any = if frontend.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        table.row([frontend.clone(), format!("{any} ({id}) (0) {}", flags(kind, service))]);
        for (backend, slot) in service.backends.iter().zip(1..) {
            table.row([
                frontend.clone(),
                format!("{} ({id}) ({slot})", socket(backend.addr, backend.port.get())),
            ]);
        }
    }
    table.to_string()
}

fn frontends(dump: &TableDump) -> String {
    let mut table = Table::new(&["SERVICE ADDRESS", "SERVICE", "NAME", "BACKENDS", "FLAGS"]);
    for Listed { frontend, kind, service } in listed(dump) {
        let mut name = service.service.clone();
        if !service.port_name.is_empty() {
            name = format!("{name}:{}", service.port_name);
        }
        table.row([
            frontend,
            service.index.get().to_string(),
            name,
            service.header.backends().to_string(),
            flags(kind, service),
        ]);
    }
    table.to_string()
}

/// An element of `pw_backends` that is in use.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Slot {
    id: u32,
    incarnation: u32,
    /// `ip:port`.
    address: String,
    service: u32,
    /// The sets that have this backend; none while it waits to be reused.
    members: Vec<&'static str>,
}

fn slots(dump: &TableDump) -> Vec<Slot> {
    dump.backends.iter().map(|(index, slot)| shown_slot(*index, slot)).collect()
}

fn shown_slot(index: BackendIndex, slot: &BackendSlot) -> Slot {
    let members = [(Membership::Cluster, "cluster"), (Membership::Local, "local")]
        .into_iter()
        .filter(|(set, _)| slot.members() & set.bit() != 0)
        .map(|(_, name)| name)
        .collect();
    Slot {
        id: index.get(),
        incarnation: slot.incarnation(),
        address: socket(slot.addr, slot.port.get()),
        service: slot.service.get(),
        members,
    }
}

fn slots_table(slots: &[Slot]) -> String {
    let mut table = Table::new(&["ID", "INCARNATION", "BACKEND ADDRESS", "SERVICE", "STATE"]);
    for slot in slots {
        let state = if slot.members.is_empty() { "free".to_owned() } else { slot.members.join(", ") };
        table.row([
            slot.id.to_string(),
            slot.incarnation.to_string(),
            slot.address.clone(),
            slot.service.to_string(),
            state,
        ]);
    }
    table.to_string()
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Range {
    service_id: u32,
    /// `namespace/name`.
    service: String,
    range: String,
}

fn source_ranges(dump: &TableDump) -> Vec<Range> {
    let services = by_index(dump);
    let name = |index: ServiceIndex| {
        services.get(&index).map_or_else(String::new, |service| service.service.clone())
    };
    dump.source_ranges
        .iter()
        .map(|(service, addr, bits)| {
            let bits = match addr.family() {
                Family::V4 => bits.saturating_sub(96),
                Family::V6 => *bits,
            };
            let range = format!("{}/{bits}", IpAddr::from(*addr));
            Range { service_id: service.get(), service: name(*service), range }
        })
        .collect()
}

fn source_ranges_table(ranges: &[Range]) -> String {
    let mut table = Table::new(&["SERVICE", "NAME", "SOURCE RANGE"]);
    for range in ranges {
        table.row([range.service_id.to_string(), range.service.clone(), range.range.clone()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use portway_datapath::layout::Sizes;
    use portway_datapath::{
        FrontendKey, FrontendValue, Port, RunBackend, RunHeader, RunOffset, ServiceName, ServiceWord,
    };
    use portway_model::tables::{MemoryTables, TableOp, TableWriter as _};

    use super::*;

    /// A service with one backend under both policies and one under Cluster, and an IPv6 one without any.
    fn dump() -> TableDump {
        let (web, dns) = (ServiceIndex::new(7), ServiceIndex::new(8));
        let header = RunHeader {
            flags: ServiceFlags::EXTERNAL_LOCAL.with(ServiceFlags::SOURCE_RANGES),
            affinity_seconds: 10_800,
            local_len: 1,
            cluster_start: 0,
            cluster_len: 2,
            ..RunHeader::default()
        };
        let backends = [(1, 2), (2, 3)].map(|(last, index)| RunBackend {
            addr: Addr::v4([10, 0, 0, last]),
            port: Port::new(8080),
            index: BackendIndex::new(index),
        });
        let records = header.records().into_iter().chain(backends.iter().map(RunBackend::record)).collect();
        let slot = |members| BackendSlot::new(5, members, web, Addr::v4([10, 0, 0, 1]), Port::new(8080));
        let frontend = |addr, port, kind, service| {
            let key = FrontendKey::new(addr, Port::new(port), Protocol::TCP);
            TableOp::InsertFrontend { key, value: FrontendValue::new(&key, kind, service) }
        };
        let name = |service, name| TableOp::NameService {
            service,
            name: Box::new(ServiceName::new(name, "http").unwrap()),
        };
        let (web_run, dns_run) = (RunOffset::new(10), RunOffset::new(20));
        let ops = [
            name(web, "default/web"),
            name(dns, "kube-system/dns"),
            TableOp::InsertSourceRange { service: web, addr: Addr::v4([192, 0, 2, 0]), bits: 96 + 24 },
            TableOp::WriteBackend { index: BackendIndex::new(2), slot: slot(3) },
            TableOp::WriteBackend { index: BackendIndex::new(9), slot: slot(0) },
            TableOp::WriteRun { at: web_run, records },
            TableOp::WriteRun { at: dns_run, records: RunHeader::default().records().to_vec() },
            TableOp::Publish { service: web, word: ServiceWord::new(web_run, 1) },
            TableOp::Publish { service: dns, word: ServiceWord::new(dns_run, 1) },
            frontend(Addr::ANY_V4, 30_080, FrontendKind::NodePort, web),
            frontend(Addr::v4([10, 96, 0, 7]), 80, FrontendKind::ClusterIp, web),
            frontend(Addr::v4([198, 51, 100, 7]), 80, FrontendKind::LoadBalancer, web),
            frontend(Addr::v6([0xfd; 16]), 53, FrontendKind::ClusterIp, dns),
        ];
        let mut tables = MemoryTables::new(Sizes::DEFAULT);
        for op in &ops {
            tables.write(op).unwrap();
        }
        tables.dump()
    }

    #[test]
    fn every_frontend_is_listed_with_its_backends() {
        assert_eq!(everything(&dump()), include_str!("../tests/data/lb.txt"));
    }

    #[test]
    fn frontends_name_their_service() {
        let text = frontends(&dump());
        assert!(text.contains("10.96.0.7:80/TCP"), "{text}");
        assert!(text.contains("7         default/web:http       2          [ClusterIP"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }

    #[test]
    fn slots_tell_the_sets_they_are_in() {
        let slots = slots(&dump());
        assert_eq!(slots.iter().map(|slot| slot.id).collect::<Vec<_>>(), [2, 9]);
        assert_eq!(slots[0].members, ["cluster", "local"]);
        assert!(slots_table(&slots).ends_with("7         free\n"), "{}", slots_table(&slots));
    }

    #[test]
    fn source_ranges_are_prefixes_of_their_family() {
        let range =
            Range { service_id: 7, service: "default/web".to_owned(), range: "192.0.2.0/24".to_owned() };
        assert_eq!(source_ranges(&dump()), [range]);
    }
}
