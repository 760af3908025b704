use std::net::{IpAddr, SocketAddr};

use anyhow::anyhow;
use portway_agent::api::{Service, path};
use portway_model::tables::Row;

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

pub(crate) fn list(agent: &Agent, format: Format) -> Result<(), Failure> {
    let services: Vec<Service> = agent.get(path::SERVICES)?;
    show(&services, format)
}

pub(crate) fn get(agent: &Agent, name: &str, format: Format) -> Result<(), Failure> {
    let mut services: Vec<Service> = agent.get(path::SERVICES)?;
    services.retain(|service| is_meant(service, name));
    if services.is_empty() {
        return Err(
            anyhow!("no service {name} with a frontend; `portway service list` shows them all").into()
        );
    }
    show(&services, format)
}

/// `name` is an ID, `namespace/name`, or the name alone.
fn is_meant(service: &Service, name: &str) -> bool {
    let full = service.row.service.as_str();
    let short = full.split_once('/').map_or(full, |(_, short)| short);
    name.parse().is_ok_and(|id: u32| id == service.id && id != 0) || full == name || short == name
}

fn show(services: &[Service], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => Ok(print_json(&services)?),
        Format::Text => Ok(print(&text(services))?),
    }
}

/// Columns as in `cilium-dbg service list`, then what it lacks: whose frontend it is.
fn text(services: &[Service]) -> String {
    let mut table = Table::new(&["ID", "Frontend", "Service Type", "Backend", "Service"]);
    for Service { id, row } in services {
        for (n, cells) in lines(row).into_iter().enumerate() {
            let id = if n == 0 { id.to_string() } else { String::new() };
            table.row(std::iter::once(id).chain(cells));
        }
    }
    table.to_string()
}

/// The same for rows that have no ID, because no map holds them.
pub(crate) fn planned(rows: &[Row]) -> String {
    let mut table = Table::new(&["Frontend", "Service Type", "Backend", "Service"]);
    for line in rows.iter().flat_map(lines) {
        table.row(line);
    }
    table.to_string()
}

/// Frontend, type, backend and service; a line for each backend, and one where there is none.
fn lines(row: &Row) -> Vec<[String; 4]> {
    let mut backends = backends(row).into_iter().zip(1..).map(|(backend, n)| format!("{n} => {backend}"));
    let first = backends.next().unwrap_or_default();
    let mut lines = vec![[frontend(row), row.kind.clone(), first, owner(row)]];
    lines.extend(backends.map(|backend| [String::new(), String::new(), backend, String::new()]));
    lines
}

/// `10.96.0.1:443/TCP`, `[fd00::1]:53/UDP`.
fn frontend(row: &Row) -> String {
    match row.address.parse::<IpAddr>() {
        Ok(ip) => format!("{}/{}", SocketAddr::new(ip, row.port), row.protocol),
        Err(_) => format!("{}:{}/{}", row.address, row.port, row.protocol),
    }
}

/// `default/web:http`, then the policies that are not the default.
fn owner(row: &Row) -> String {
    let mut owner = row.service.clone();
    if !row.port_name.is_empty() {
        owner.push(':');
        owner.push_str(&row.port_name);
    }
    for flag in &row.flags {
        owner.push(' ');
        owner.push_str(flag);
    }
    owner
}

/// Each backend with the policies under which it is chosen: `(active)` under both or where all policies are Cluster.
fn backends(row: &Row) -> Vec<String> {
    let has_local_policy = row.flags.iter().any(|flag| flag.ends_with("=Local"));
    let (cluster, local) = (&row.backends.cluster, &row.backends.local);
    let mut shown: Vec<_> = cluster
        .iter()
        .map(|backend| match (has_local_policy, local.contains(backend)) {
            (false, _) | (true, true) => format!("{backend} (active)"),
            (true, false) => format!("{backend} (active, not for Local)"),
        })
        .collect();
    if has_local_policy {
        let only_local = local.iter().filter(|backend| !cluster.contains(backend));
        shown.extend(only_local.map(|backend| format!("{backend} (active, for Local only)")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services() -> Vec<Service> {
        serde_json::from_str(include_str!("../tests/data/services.json")).unwrap()
    }

    #[test]
    fn the_list_has_a_line_for_each_backend() {
        assert_eq!(text(&services()), include_str!("../tests/data/services.txt"));
    }

    #[test]
    fn a_service_is_found_by_id_by_name_and_by_full_name() {
        let services = services();
        let count = |name: &str| services.iter().filter(|service| is_meant(service, name)).count();
        assert_eq!((count("1"), count("kubernetes"), count("default/kubernetes")), (1, 1, 1));
        assert_eq!((count("0"), count("other/kubernetes"), count("99")), (0, 0, 0));
    }
}
