//! `portway bpf ipcache`: who is where, from the kernel's map alone. `portway ip list`: the same as the agent wants it.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use portway_agent::api::{IpcacheEntry, path};
use portway_agent::maps::PodReader;
use portway_datapath::Addr;
use portway_model::node::Prefix;

use crate::agent::Agent;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::table::Table;

pub(crate) fn list(bpf_root: &Path, format: Format) -> Result<(), Failure> {
    show(&read(bpf_root)?, format)
}

pub(crate) fn get(bpf_root: &Path, address: IpAddr, format: Format) -> Result<(), Failure> {
    let entries = read(bpf_root)?;
    let entry = longest(&entries, address);
    let entry =
        entry.ok_or_else(|| anyhow!("no prefix in pw_ipcache holds {address}: nobody is known there"))?;
    match format {
        Format::Json => Ok(print_json(entry)?),
        Format::Text => show(std::slice::from_ref(entry), format),
    }
}

pub(crate) fn ip_list(agent: &Agent, format: Format) -> Result<(), Failure> {
    let entries: Vec<IpcacheEntry> = agent.get(path::ADDRESSES)?;
    show(&entries, format)
}

fn read(bpf_root: &Path) -> Result<Vec<IpcacheEntry>, Failure> {
    let entries = PodReader::open(bpf_root).and_then(|maps| maps.ipcache_entries());
    let entries = entries.context("reading the kernel's maps")?;
    Ok(entries.iter().map(|(key, value)| IpcacheEntry::new(*key, value)).collect())
}

/// The entry that programs find.
fn longest(entries: &[IpcacheEntry], address: IpAddr) -> Option<&IpcacheEntry> {
    let address = Addr::from(address);
    let holds =
        |entry: &&IpcacheEntry| Prefix::parse(&entry.prefix).is_some_and(|prefix| prefix.contains(address));
    let bits = |entry: &&IpcacheEntry| Prefix::parse(&entry.prefix).map(Prefix::bits);
    entries.iter().filter(holds).max_by_key(bits)
}

fn show(entries: &[IpcacheEntry], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => Ok(print_json(&entries)?),
        Format::Text => Ok(print(&table(entries))?),
    }
}

fn table(entries: &[IpcacheEntry]) -> String {
    let mut table = Table::new(&["PREFIX", "IDENTITY", "TUNNEL ENDPOINT", "FLAGS", "LABELS"]);
    for entry in entries {
        let tunnel = entry.tunnel_endpoint.map(|node| node.to_string());
        table.row([
            entry.prefix.clone(),
            entry.identity.to_string(),
            tunnel.unwrap_or_else(|| "-".to_owned()),
            if entry.flags.is_empty() { "-".to_owned() } else { entry.flags.join(",") },
            entry.labels.join(","),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use portway_datapath::{IpcacheValue, NumericIdentity};

    use super::*;

    fn entry(prefix: &str, identity: u32, flags: u32, tunnel: Option<&str>) -> IpcacheEntry {
        let prefix = Prefix::parse(prefix).unwrap();
        let tunnel = tunnel.map(|node| Addr::from(node.parse::<IpAddr>().unwrap()));
        let value = IpcacheValue::new(NumericIdentity::new(identity), tunnel, flags);
        IpcacheEntry::new((prefix.addr(), prefix.bits()), &value)
    }

    fn entries() -> [IpcacheEntry; 4] {
        [
            entry("::/0", 2, 0, None),
            entry("0.0.0.0/0", 2, 0, None),
            entry("10.0.2.0/24", 0, 5, Some("192.0.2.2")),
            entry("10.0.2.7/32", 4711, 5, Some("192.0.2.2")),
        ]
    }

    #[test]
    fn an_entry_is_a_line_with_its_way_and_the_labels_that_are_known() {
        let expected = "\
PREFIX        IDENTITY   TUNNEL ENDPOINT   FLAGS         LABELS
::/0          2          -                 -             reserved:world
0.0.0.0/0     2          -                 -             reserved:world
10.0.2.0/24   0          192.0.2.2         inside,pods
10.0.2.7/32   4711       192.0.2.2         inside,pods
";
        assert_eq!(table(&entries()), expected);
    }

    #[test]
    fn an_address_is_of_the_longest_prefix_of_its_family() {
        let entries = entries();
        let found =
            |address: &str| longest(&entries, address.parse().unwrap()).map(|entry| entry.prefix.as_str());
        assert_eq!(found("10.0.2.7"), Some("10.0.2.7/32"));
        assert_eq!(found("10.0.2.8"), Some("10.0.2.0/24"));
        assert_eq!(found("198.51.100.1"), Some("0.0.0.0/0"));
        assert_eq!(found("2001:db8::1"), Some("::/0"));
    }
}
