//! What more services cost: time in proportion to them, and one change the same whatever their number.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use nix::time::{ClockId, clock_gettime};
use portway_datapath::layout::Sizes;
use portway_model::loadbalancer::Config;
use portway_model::tables::{MemoryTables, TableOp, TableWriter};
use portway_tests::bench::objects;
use portway_tests::comparison::Pipeline;

struct Counted {
    inner: MemoryTables,
    operations: u64,
}

impl TableWriter for Counted {
    type Error = <MemoryTables as TableWriter>::Error;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error> {
        self.operations += 1;
        self.inner.write(op)
    }
}

/// Nanoseconds of processor time of this thread: others may be busy.
fn cpu() -> Result<f64> {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64)
}

struct Cost {
    all_ns: f64,
    all_operations: u64,
    change_operations: u64,
}

/// From manifests to tables, and then one endpoint of one service changes.
fn cost(services: u32) -> Result<Cost> {
    let text = objects::services(services, 2);
    let (pod_a, pod_b) = (objects::endpoint(services * 2 + 1), objects::endpoint(services * 2 + 2));
    let mut pipeline = Pipeline::new(Config::new("node-1"));
    let mut tables = Counted { inner: MemoryTables::new(Sizes::DEFAULT), operations: 0 };
    let settle = |pipeline: &mut Pipeline, tables: &mut Counted| {
        pipeline.settle(tables, 5).map_err(|wrong| anyhow!(wrong))
    };
    let before = cpu()?;
    pipeline.file(Path::new("all"), Some(text.as_bytes()));
    settle(&mut pipeline, &mut tables)?;
    let all_ns = cpu()? - before;
    let all_operations = tables.operations;
    let slice = Path::new("slice");
    pipeline.file(slice, Some(objects::one_endpoint(7, pod_a).as_bytes()));
    settle(&mut pipeline, &mut tables)?;
    pipeline.pass_grace_period();
    let before = tables.operations;
    pipeline.file(slice, Some(objects::one_endpoint(7, pod_b).as_bytes()));
    settle(&mut pipeline, &mut tables)?;
    Ok(Cost { all_ns, all_operations, change_operations: tables.operations - before })
}

/// <https://github.com/kubernetes/kubernetes/issues/139513>
#[test]
fn pain_83_a_first_sync_costs_in_proportion_and_a_change_costs_what_changed() -> Result<()> {
    // The better of two: a page fault of the first is not the second's.
    let best = |services| -> Result<Cost> {
        let (one, other) = (cost(services)?, cost(services)?);
        Ok(if one.all_ns < other.all_ns { one } else { other })
    };
    let (few, many) = (best(2000)?, best(8000)?);
    println!(
        "2,000 services: {:.0} ms, {} operations; 8,000: {:.0} ms, {} operations; one change: {} operations",
        few.all_ns / 1e6,
        few.all_operations,
        many.all_ns / 1e6,
        many.all_operations,
        many.change_operations
    );
    assert_eq!(many.all_operations, few.all_operations * 4);
    assert_eq!(many.change_operations, few.change_operations);
    // Four times as many: sorted sets cost a little more each. A square would be 16.
    ensure!(many.all_ns < few.all_ns * 8.0, "{} ms became {} ms", few.all_ns / 1e6, many.all_ns / 1e6);
    Ok(())
}
