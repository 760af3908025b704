//! Pins of maps that somebody took away, and what puts them back.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Barrier;

use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;
use portway_agent::maps::{KernelTables, MapId, PinFault, PodMapId, PodTables, pin_dir, pod_pin_path};
use portway_datapath::layout::Sizes;
use portway_tests::harness::mount::BpfMount;

use super::SMALL;

fn opened(root: &Path) -> Result<(KernelTables, PodTables)> {
    let (services, _) = KernelTables::open(root, &Sizes::DEFAULT)?;
    let (pods, _) = PodTables::open(root, &SMALL)?;
    Ok((services, pods))
}

fn names(root: &Path) -> Result<BTreeSet<String>> {
    std::fs::read_dir(pin_dir(root))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn all_names() -> BTreeSet<String> {
    let (services, pods) = (MapId::ALL.map(MapId::name), PodMapId::ALL.map(PodMapId::name));
    services.into_iter().chain(pods).map(str::to_owned).collect()
}

/// As in an agent: one thread looks after the maps of services, another after those of pods, in one directory.
#[test]
fn two_threads_put_pins_back_and_each_leads_to_its_own_map() -> Result<()> {
    const ROUNDS: u32 = 1_000;
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let root = bpf.path();
    let (services, pods) = opened(root)?;
    for round in 0..ROUNDS {
        std::fs::remove_dir_all(pin_dir(root))?;
        let start = Barrier::new(2);
        let mended: Result<()> = std::thread::scope(|scope| {
            let of_pods = scope.spawn(|| -> Result<()> {
                start.wait();
                let mended = pods.mend_pins(root)?;
                Ok(mended.into_iter().find_map(|pin| pin.refused).map_or(Ok(()), Err)?)
            });
            start.wait();
            let of_services =
                services.pin_faults(root)?.into_iter().try_for_each(|fault| services.pin_again(root, fault));
            of_pods.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
            Ok(of_services?)
        });
        let wrong = (services.pin_faults(root)?, pods.pin_faults(root)?);
        ensure!(wrong.0.is_empty() && wrong.1.is_empty(), "round {round}: {wrong:?}, {mended:?}");
        mended.with_context(|| format!("round {round}"))?;
    }
    ensure!(names(root)? == all_names(), "{:?}", names(root)?);
    Ok(())
}

/// A directory in its place is a fault that no rename mends.
#[test]
fn a_pin_that_cannot_be_put_back_keeps_no_other_from_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let root = bpf.path();
    let (_services, pods) = opened(root)?;
    std::fs::remove_dir_all(pin_dir(root))?;
    // Not the last that is looked at.
    let first = PodMapId::ALL[0];
    std::fs::create_dir_all(pod_pin_path(root, first))?;
    let mended = pods.mend_pins(root)?;
    ensure!(mended.len() == PodMapId::ALL.len(), "{mended:?}");
    let refused: Vec<_> = mended.iter().filter(|pin| pin.refused.is_some()).map(|pin| pin.fault).collect();
    ensure!(refused == [PinFault::Other(first)], "{mended:?}");
    ensure!(pods.pin_faults(root)? == [PinFault::Other(first)]);
    Ok(())
}

/// An agent that is killed between a pin and its last name leaves one that keeps a map in memory.
#[test]
fn what_an_agent_left_that_was_killed_while_it_pinned_goes_with_the_next_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let root = bpf.path();
    drop(opened(root)?);
    // The first is of earlier agents.
    for left in ["pw_next", "pw_services_next", "pw_nat_next"] {
        MapData::from_pin(pod_pin_path(root, PodMapId::Traffic))?.pin(pin_dir(root).join(left))?;
    }
    opened(root)?;
    ensure!(names(root)? == all_names(), "{:?}", names(root)?);
    Ok(())
}
