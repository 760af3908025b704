//! From nothing, or from what an earlier agent left, to maps and programs that are ready to be written and attached.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use aya::maps::MapInfo;
use aya::programs::loaded_programs;
use portway_datapath::layout::Sizes;

use crate::api;
use crate::config::Config;
use crate::maps::{
    KernelTables, MapId, MapReader, Opening, PodOpening, PodTables, Published, pin_dir, pin_path,
};
use crate::network;
use crate::programs::{
    Attached, Loader, Programs, attached, detach_filters, detach_interfaces, link_dir, of_other_versions,
    selftest,
};

/// What a start found and made.
pub(super) struct Started {
    pub(super) tables: KernelTables,
    /// Where there is a pod network.
    pub(super) pods: Option<(PodTables, PodOpening)>,
    pub(super) programs: Programs,
    pub(super) self_test: Vec<api::Check>,
    /// Programs of an earlier agent run, on maps that were taken over.
    pub(super) takes_over: bool,
    /// Programs of an earlier agent run on maps that are not these: only they know what is served.
    pub(super) serves_elsewhere: bool,
}

/// Opens or makes the maps, loads the programs and tries the errno contract. Blocks for some hundred milliseconds.
///
/// # Errors
/// The kernel refused a map or a program, or does not keep the contract; what an earlier agent attached goes on.
pub(super) fn start(config: &Config) -> anyhow::Result<Started> {
    let began = Instant::now();
    // Parsing the object and making the maps take about as long, and know nothing of each other.
    let loader = std::thread::Builder::new().name("loader".to_owned()).spawn(Loader::new);
    let loader = loader.context("cannot start a thread")?;
    let (mut tables, opening) = open_maps(config)?;
    // The socket programs read one of them.
    let pods = match &config.pod_network {
        Some(network) => Some(PodTables::open(&config.bpf_root, &network.sizes)?),
        None => {
            end_pod_network(config)?;
            None
        }
    };
    let mut loader = loader.join().map_err(|_| anyhow!("the loader panicked"))??;
    let report = selftest::run(&mut loader, &config.cgroup_root, selftest::probe_command())?;
    let programs = loader.load(&pin_dir(&config.bpf_root))?;
    tables.set_store_program(programs.store_word()).context("cannot keep the program pw_store_word")?;
    tracing::debug!(took = ?began.elapsed(), programs = ?programs.loaded(), "programs loaded");
    tracing::info!(
        passed = report.passed.len(),
        unsupported = report.unsupported.len(),
        took = ?report.took,
        "the kernel keeps the errno contract"
    );
    let running = attached(&link_dir(&config.bpf_root))?;
    let serves_elsewhere = serves_elsewhere(config, &running)?;
    Ok(Started {
        serves_elsewhere,
        pods,
        tables,
        programs,
        self_test: checks(&report),
        takes_over: opening.published == Published::Reused && !running.is_empty(),
    })
}

/// Ends what an agent with a pod network left at interfaces and among routes: nobody keeps them any more.
fn end_pod_network(config: &Config) -> anyhow::Result<()> {
    let bpf_root = &config.bpf_root;
    let removed = network::remove_routes(&config.state_dir)?;
    if !PodTables::are_pinned(bpf_root) {
        return Ok(network::forget(&config.state_dir)?);
    }
    let mut detached = detach_interfaces(bpf_root)?;
    detached.extend(detach_filters()?);
    let maps = PodTables::unpin(bpf_root)?;
    network::forget(&config.state_dir)?;
    tracing::warn!(
        ?detached,
        ?maps,
        ?removed,
        "the pod network of an earlier agent is off now: its programs were detached"
    );
    Ok(())
}

/// Whether programs that are attached translate by other maps than the pinned ones: those are new, or were filled by an
/// agent that ended before it put its programs in place.
fn serves_elsewhere(config: &Config, running: &[Attached]) -> anyhow::Result<bool> {
    if of_other_versions(&link_dir(&config.bpf_root))? {
        return Ok(true);
    }
    if running.is_empty() {
        return Ok(false);
    }
    let services = pin_path(&config.bpf_root, MapId::Services);
    let services = MapInfo::from_pin(&services).context("cannot look at pw_services")?.id();
    let mut is_used = false;
    for program in loaded_programs().filter_map(Result::ok) {
        if running.iter().any(|attached| attached.program == program.id()) {
            let maps = program.map_ids().context("cannot look at a program's maps")?;
            is_used |= maps.is_some_and(|maps| maps.contains(&services));
        }
    }
    Ok(!is_used)
}

fn open_maps(config: &Config) -> anyhow::Result<(KernelTables, Opening)> {
    let sizes = if config.sizes_are_default { grown(&config.bpf_root, config.sizes) } else { config.sizes };
    let (tables, opening) = KernelTables::open(&config.bpf_root, &sizes)?;
    match &opening.published {
        Published::Reused | Published::Created => tracing::info!(maps = %opening.published, "kernel maps"),
        Published::Replaced(_) => tracing::warn!(
            maps = %opening.published,
            "kernel maps; programs of the earlier agent serve from the old ones until the first sync"
        ),
    }
    for (map, origin) in &opening.others {
        tracing::debug!(map = map.name(), %origin, "kernel map");
    }
    Ok((tables, opening))
}

/// Sizes that nobody set: the default ones, twice those of pinned maps that are more than three quarters full, and
/// never less than pinned ones have, so that a restart does not make them anew without need.
fn grown(bpf_root: &Path, default: Sizes) -> Sizes {
    let pinned = MapReader::open(bpf_root).and_then(|reader| Ok((reader.sizes(), reader.facts()?)));
    let Ok((pinned, facts)) = pinned else {
        // None, or none that can be read: opening them says why.
        return default;
    };
    let size = |map: MapId, default: u32, pinned: u32, versions: u64| {
        let used = facts.iter().find(|fact| fact.id == map).and_then(|fact| fact.used).unwrap_or_default();
        grow(default, pinned, u64::from(used) * versions)
    };
    Sizes {
        frontends: size(MapId::Frontends, default.frontends, pinned.frontends, 1),
        services: size(MapId::Services, default.services, pinned.services, 1),
        // Half of them is for second versions.
        runs: size(MapId::Runs, default.runs, pinned.runs, 2),
        backends: size(MapId::Backends, default.backends, pinned.backends, 1),
        source_ranges: size(MapId::SourceRanges, default.source_ranges, pinned.source_ranges, 1),
        maglev: default.maglev,
        affinity: default.affinity,
        local_addresses: default.local_addresses,
        sockets: default.sockets,
        exchanges: default.exchanges,
    }
}

/// Entries of a map that had `pinned` and holds `used`.
fn grow(default: u32, pinned: u32, used: u64) -> u32 {
    let is_full = used * 4 > u64::from(pinned) * 3;
    default.max(if is_full { pinned.saturating_mul(2) } else { pinned })
}

fn checks(report: &selftest::Report) -> Vec<api::Check> {
    let selftest::Report { passed, unsupported, took: _ } = report;
    let check = |check: &selftest::Check, detail: &str| api::Check {
        name: check.to_string(),
        ok: true,
        detail: detail.to_owned(),
    };
    let passed = passed.iter().map(|c| check(c, "as expected"));
    let unsupported = unsupported.iter().map(|c| check(c, "the kernel has no IPv6"));
    passed.chain(unsupported).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_are_nearly_full_double_and_none_shrinks() {
        assert_eq!(grow(1000, 1000, 0), 1000);
        assert_eq!(grow(1000, 1000, 750), 1000);
        assert_eq!(grow(1000, 1000, 751), 2000);
        // As large as it was, though little is left in it: a restart does not make it anew.
        assert_eq!(grow(1000, 4000, 10), 4000);
        assert_eq!(grow(1000, 500, 10), 1000);
        assert_eq!(grow(1000, u32::MAX, u64::from(u32::MAX)), u32::MAX);
    }
}
