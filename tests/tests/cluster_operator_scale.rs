//! Small forms of `bench operator`, on a real API server.

use std::time::Duration;

use anyhow::{Result, ensure};
use portway_tests::bench::operator::{burst, held};

#[test]
fn a_burst_of_pods_comes_to_one_identity_for_each_label_set() -> Result<()> {
    let burst = burst::run(500, 50)?;
    println!("500 pods of 50 label sets: {burst:?}");
    assert_eq!(burst.duplicates, 0);
    ensure!(burst.all < Duration::from_secs(15), "it took {:?}", burst.all);
    Ok(())
}

/// <https://github.com/cilium/cilium/issues/31564>: an operator that starts again writes everything anew.
#[test]
fn pain_72_a_restart_without_a_change_writes_nothing_and_quiet_costs_nothing() -> Result<()> {
    let size = held::Size { nodes: 20, pods: 300, sets: 60 };
    let held = held::run(size, 20)?;
    println!("{size:?}: {held:?}");
    assert_eq!(held.slices, 60);
    assert_eq!(held.writes, 0);
    assert_eq!(held.requests, 0);
    Ok(())
}
