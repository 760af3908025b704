//! Many hands at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portway_agent::ipcache::Ipcache;
use portway_datapath::{Addr, NumericIdentity};
use portway_model::ipcache::{EndpointAddress, EndpointSource};
use portway_model::k8s::Uid;

use super::{World, node_address, nodes};

/// An address's writer waits for no comparison and no list, however large the table, and nothing that it writes meanwhile is
/// taken for somebody else's change.
#[test]
fn while_the_table_is_compared_and_listed_addresses_are_written() -> Result<()> {
    const PODS: u32 = 40_000;
    let world = World::new(65_536)?;
    let tables = world.tables()?;
    let ipcache = Ipcache::new(true, false);
    ipcache.attach(tables.clone())?;
    ipcache.set_nodes(&nodes(2)?, &BTreeSet::new(), true)?;
    let told = |pod: u32, identity: u32| {
        let [_, high, middle, low] = pod.to_be_bytes();
        EndpointAddress {
            addr: Addr::v4([11, high, middle, low]),
            identity: NumericIdentity::new(identity),
            node: Some(node_address(1)),
            uid: Uid::new(&pod.to_string()),
            created: None,
        }
    };
    for pod in 0..PODS {
        ipcache.upsert(EndpointSource::Object, &told(pod, 300))?;
    }
    let looks = AtomicBool::new(true);
    let (took, longest, writes) = std::thread::scope(|scope| -> Result<_> {
        let looker = scope.spawn(|| -> Result<Duration> {
            let began = Instant::now();
            let found = (0..3).try_for_each(|_| -> Result<()> {
                let found = ipcache.compare(true)?;
                ensure!(found.differences.is_empty() && found.refused.is_none(), "{:?}", found.differences);
                ensure!(ipcache.list().len() > PODS as usize / 2);
                Ok(())
            });
            looks.store(false, Ordering::Relaxed);
            found.map(|()| began.elapsed() / 6)
        });
        let (mut longest, mut writes) = (Duration::ZERO, 0);
        while looks.load(Ordering::Relaxed) {
            let began = Instant::now();
            let told = told(writes * 7919 % PODS, 301 + writes / PODS);
            match writes % 3 {
                0 => ipcache.remove(EndpointSource::Object, told.addr, told.uid)?,
                _ => ipcache.upsert(EndpointSource::Object, &told)?,
            }
            longest = longest.max(began.elapsed());
            writes += 1;
        }
        let took = looker.join().map_err(|_| anyhow::anyhow!("the looker panicked"))??;
        Ok((took, longest, writes))
    })?;
    println!("a comparison or list took {took:?}; of {writes} writes the longest {longest:?}");
    // A write that waits for one of them to its end takes longer than the mean of both.
    ensure!(longest < took, "a write took {longest:?} of {took:?}");
    ensure!(ipcache.compare(true)?.differences.is_empty());
    let status = ipcache.status();
    ensure!((status.healed, status.outstanding) == (0, 0), "{status:?}");
    ensure!(status.entries == tables.reader().ipcache()?.len() as u64, "{status:?}");
    Ok(())
}
