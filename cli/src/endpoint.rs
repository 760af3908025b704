//! `portway endpoint` and `portway ipam`: the pods of this node, and who has which address.

use anyhow::anyhow;
use portway_agent::api::{Endpoint, EndpointChange, Ipam, path};

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;
use crate::time::utc;

pub(crate) fn list(agent: &Agent, format: Format) -> Result<(), Failure> {
    let endpoints: Vec<Endpoint> = agent.get(path::ENDPOINTS)?;
    match format {
        Format::Json => Ok(print_json(&endpoints)?),
        Format::Text => Ok(print(&list_text(&endpoints))?),
    }
}

pub(crate) fn get(agent: &Agent, name: &str, format: Format) -> Result<(), Failure> {
    let id = find(agent, name)?;
    let endpoint: Endpoint = agent.get(&format!("{}/{id}", path::ENDPOINTS))?;
    match format {
        Format::Json => Ok(print_json(&endpoint)?),
        Format::Text => Ok(print(&get_text(&endpoint))?),
    }
}

pub(crate) fn log(agent: &Agent, name: &str, format: Format) -> Result<(), Failure> {
    let id = find(agent, name)?;
    let log: Vec<EndpointChange> = agent.get(&format!("{}/{id}/log", path::ENDPOINTS))?;
    match format {
        Format::Json => Ok(print_json(&log)?),
        Format::Text => Ok(print(&log_text(&log))?),
    }
}

pub(crate) fn ipam(agent: &Agent, format: Format) -> Result<(), Failure> {
    let ipam: Ipam = agent.get(path::IPAM)?;
    match format {
        Format::Json => Ok(print_json(&ipam)?),
        Format::Text => Ok(print(&ipam_text(&ipam))?),
    }
}

/// The number of the one endpoint that is meant.
fn find(agent: &Agent, name: &str) -> Result<u16, Failure> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let endpoints: Vec<Endpoint> = agent.get(path::ENDPOINTS)?;
    let meant: Vec<_> = endpoints.iter().filter(|endpoint| is_meant(endpoint, name)).collect();
    match meant[..] {
        [endpoint] => Ok(endpoint.id),
        [] => Err(anyhow!("no endpoint {name}; `portway endpoint list` shows them all").into()),
        _ => {
            let ids: Vec<_> = meant.iter().map(|endpoint| endpoint.id.to_string()).collect();
            Err(anyhow!("{name} is several endpoints: {}; name one by its number", ids.join(", ")).into())
        }
    }
}

/// `name` is `namespace/name`, the name alone, an address, or how the container's ID begins.
fn is_meant(endpoint: &Endpoint, name: &str) -> bool {
    endpoint.name() == name
        || endpoint.pod.name == name
        || name.parse().is_ok_and(|addr| endpoint.addresses.contains(&addr))
        || (name.len() >= 8 && endpoint.attachment.container.starts_with(name))
}

fn address(endpoint: &Endpoint, is_v4: bool) -> String {
    let of_family = endpoint.addresses.iter().filter(|addr| addr.is_ipv4() == is_v4);
    of_family.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn list_text(endpoints: &[Endpoint]) -> String {
    let mut table = Table::new(&[
        "ENDPOINT",
        "POD",
        "IPv4",
        "IPv6",
        "INTERFACE",
        "SOCKET LB",
        "STATUS",
        "IDENTITY",
        "LABELS",
    ]);
    for endpoint in endpoints {
        table.row([
            endpoint.id.to_string(),
            endpoint.name(),
            address(endpoint, true),
            address(endpoint, false),
            endpoint.link.name.clone(),
            socket_lb(endpoint).to_owned(),
            endpoint.state.to_string(),
            identity(endpoint),
            endpoint
                .identity
                .iter()
                .flat_map(|identity| &identity.labels)
                .cloned()
                .collect::<Vec<_>>()
                .join(","),
        ]);
    }
    table.to_string()
}

/// Its number, where it has one.
fn identity(endpoint: &Endpoint) -> String {
    endpoint.identity.as_ref().map_or_else(|| "-".to_owned(), |identity| identity.id.to_string())
}

fn socket_lb(endpoint: &Endpoint) -> &'static str {
    if endpoint.socket_lb { "yes" } else { "no" }
}

fn get_text(endpoint: &Endpoint) -> String {
    let link = &endpoint.link;
    let mut table = Table::plain();
    let chained = if link.is_chained { ", made by another plugin" } else { "" };
    for (name, value) in [
        ("Endpoint", endpoint.id.to_string()),
        ("Status", endpoint.state.to_string()),
        ("Identity", identity(endpoint)),
        ("Pod", endpoint.name()),
        ("Pod UID", endpoint.pod.uid.clone()),
        ("IPv4", address(endpoint, true)),
        ("IPv6", address(endpoint, false)),
        ("Interface", format!("{} ({}, {}{chained})", link.name, link.ifindex, link.node_mac)),
        ("In the pod", format!("{} ({}, MTU {})", endpoint.attachment.interface, link.pod_mac, link.mtu)),
        ("Container", endpoint.attachment.container.clone()),
        ("Network namespace", format!("{} (cookie {})", endpoint.netns, endpoint.netns_cookie)),
        ("Socket LB", socket_lb(endpoint).to_owned()),
        ("Created", utc(endpoint.created)),
    ] {
        table.row([format!("{name}:"), value]);
    }
    for (n, label) in endpoint.identity.iter().flat_map(|identity| &identity.labels).enumerate() {
        table.row([if n == 0 { "Labels:" } else { "" }, label]);
    }
    table.to_string()
}

fn log_text(log: &[EndpointChange]) -> String {
    let mut table = Table::new(&["TIMESTAMP", "STATE", "REASON"]);
    for change in log {
        table.row([utc(change.at), change.state.to_string(), change.reason.clone()]);
    }
    table.to_string()
}

fn ipam_text(ipam: &Ipam) -> String {
    let mut pools = Table::new(&["PREFIX", "ADDRESSES", "USED", "RESTING", ""]);
    for pool in &ipam.pools {
        let retired = if pool.is_retired { "no longer this node's" } else { "" };
        pools.row([
            pool.prefix.clone(),
            if pool.size == u64::MAX { "unlimited".to_owned() } else { pool.size.to_string() },
            pool.used.to_string(),
            pool.resting.to_string(),
            retired.to_owned(),
        ]);
    }
    let mut addresses = Table::new(&["ADDRESS", "ENDPOINT", "POD"]);
    for address in &ipam.addresses {
        addresses.row([address.address.to_string(), address.endpoint.to_string(), address.owner.clone()]);
    }
    format!("{pools}\n{addresses}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> Vec<Endpoint> {
        serde_json::from_str(include_str!("../tests/data/endpoints.json")).unwrap()
    }

    #[test]
    fn an_endpoint_is_a_line_of_the_list() {
        assert_eq!(list_text(&endpoints()), include_str!("../tests/data/endpoints.txt"));
    }

    #[test]
    fn an_endpoint_is_found_by_pod_by_address_and_by_container() {
        let endpoints = endpoints();
        let ids = |name: &str| {
            endpoints
                .iter()
                .filter(|endpoint| is_meant(endpoint, name))
                .map(|endpoint| endpoint.id)
                .collect::<Vec<_>>()
        };
        assert_eq!((ids("default/web-0"), ids("web-0"), ids("10.244.1.5")), (vec![2], vec![2, 3], vec![2]));
        assert_eq!((ids("8f3a1c5d77"), ids("fd00:10:244:1::6"), ids("8f3a")), (vec![2], vec![3], vec![]));
    }

    #[test]
    fn a_log_has_a_line_for_each_change_and_pools_say_what_is_left() {
        let log = log_text(&Vec::from(endpoints()[0].log.clone()));
        assert!(log.ends_with("2026-11-30T10:00:00.012Z   ready      its pod can start\n"), "{log}");
        let ipam: Ipam = serde_json::from_str(
            r#"{"pools":[{"prefix":"10.244.1.0/24","size":253,"used":1,"resting":2,"isRetired":false}],
                "addresses":[{"address":"10.244.1.5","endpoint":2,"owner":"default/web-0"}]}"#,
        )
        .unwrap();
        assert_eq!(
            ipam_text(&ipam),
            "PREFIX          ADDRESSES   USED   RESTING\n10.244.1.0/24   253         1      2\n\n\
             ADDRESS      ENDPOINT   POD\n10.244.1.5   2          default/web-0\n"
        );
    }
}
