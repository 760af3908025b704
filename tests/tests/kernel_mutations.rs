//! Random changes one after the other on the kernel's own maps, one write in ten failing: what the maps hold after
//! every operation is the old or the new state of every frontend, and in the end what the oracle says.
//!
//! 2,000 changes. No program is attached; the maps are read back after each operation.

use anyhow::{Context as _, Result, anyhow};
use portway_agent::maps::{KernelTables, MapError, pin_dir};
use portway_agent::programs::Loader;
use portway_model::tables::{TableDump, TableOp, TableWriter};
use portway_tests::comparison::lookups::Allowed;
use portway_tests::comparison::walk::{Observed, SIZES, look_at_dump, walk};
use portway_tests::harness::mount::BpfMount;

struct OnKernel(KernelTables);

impl TableWriter for OnKernel {
    type Error = MapError;

    fn write(&mut self, op: &TableOp) -> Result<(), MapError> {
        self.0.write(op)
    }
}

impl Observed for OnKernel {
    fn read(&self) -> Result<TableDump, String> {
        self.0.dump().map_err(|error| error.to_string())
    }

    fn look(&self, allowed: &Allowed, netns: u64) -> Result<u64, String> {
        look_at_dump(&self.read()?, allowed, netns)
    }
}

#[test]
fn the_kernel_maps_hold_the_old_or_the_new_state_after_every_operation() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let (mut tables, _) = KernelTables::open(bpf.path(), &SIZES)?;
    let programs = Loader::new()?.load(&pin_dir(bpf.path())).context("loading the programs")?;
    tables.set_store_program(programs.store_word())?;
    let summary = walk(OnKernel(tables), 1, 2_000).map_err(|wrong| anyhow!(wrong))?;
    println!("0 differences, {summary:?}");
    Ok(())
}
