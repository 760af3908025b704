//! Sizes of the maps from Cilium's keys, whose maps are cut otherwise.

use portway_datapath::RunHeader;
use portway_datapath::layout::Sizes;
use portway_runtime::config::{Invalid, Reader};

/// The least that a map may be told to have: a small cluster fits.
const LEAST: u32 = 256;
/// Slots of Maglev tables that the default budget of 64 MiB pays for.
const MAGLEV_BUDGET: u32 = 64 * 1024 * 1024 / size_of::<u16>() as u32;

/// The sizes, and whether none of them was set.
pub(super) fn read(reader: &mut Reader<'_>) -> (Sizes, bool) {
    let default = Sizes::DEFAULT;
    let mut is_default = true;
    let mut entries = |name| {
        let set = reader.parse(name, entries).unwrap_or_default();
        is_default &= set == 0;
        Some(set).filter(|set| *set != 0)
    };
    let all = entries("bpf-lb-map-max");
    let services = entries("bpf-lb-service-map-max").or(all);
    let backends = entries("bpf-lb-service-backend-map-max").or(all);
    let affinity = entries("bpf-lb-affinity-map-max").or(all);
    let source_ranges = entries("bpf-lb-source-range-map-max").or(all);
    let maglev_services = entries("bpf-lb-maglev-map-max").or(all);
    let frontends = all.unwrap_or(default.frontends).max(services.unwrap_or(0));
    let sockets = reader.number::<u32>("bpf-sock-rev-map-max");
    let algorithm_is_maglev = reader.text("bpf-lb-algorithm") == "maglev";
    let table_size = reader.parse("bpf-lb-maglev-table-size", super::parse::maglev_size).unwrap_or_default();
    let maglev = match maglev_services {
        _ if !algorithm_is_maglev => 1,
        // Two tables a service: one for each traffic policy.
        Some(services) => services.saturating_mul(2).saturating_mul(table_size),
        None => MAGLEV_BUDGET,
    };
    let sizes = Sizes {
        frontends,
        services: services.unwrap_or(default.services),
        runs: match (services, backends) {
            (None, None) => default.runs,
            _ => runs(services.unwrap_or(default.services), backends.unwrap_or(default.backends)),
        },
        backends: backends.unwrap_or(default.backends),
        maglev,
        affinity: affinity.unwrap_or(default.affinity),
        source_ranges: source_ranges.unwrap_or(default.source_ranges),
        local_addresses: default.local_addresses,
        sockets,
        exchanges: sockets / 2,
    };
    (sizes, is_default)
}

/// Records for two versions of everything.
const fn runs(services: u32, backends: u32) -> u32 {
    services.saturating_mul(RunHeader::RECORDS).saturating_add(backends).saturating_mul(2)
}

fn entries(value: &str) -> Result<u32, Invalid> {
    match value.parse() {
        Ok(0) => Ok(0),
        Ok(entries) if entries >= LEAST => Ok(entries),
        Ok(_) => Err(Invalid::new(format!("0, or at least {LEAST}"), "leave it out, or raise it")),
        Err(_) => Err(Invalid::new("", "write a number")),
    }
}
