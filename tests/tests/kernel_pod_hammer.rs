//! What an agent writes into the maps of the pod network.
//!
//! Of the trie on two CPUs: it writes without pause, a reader looks up. What it finds is the old value or the new one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData};
use portway_agent::maps::{EntryChanges, KernelTables, PodMapId, PodTables, pod_pin_path};
use portway_datapath::layout::{PodSizes, Sizes};
use portway_datapath::{Addr, EndpointValue, IpcacheValue};
use portway_tests::harness::mount::BpfMount;

const LONG: Duration = Duration::from_secs(5);
/// Prefixes that stay; as many come and go.
const PREFIXES: u8 = 64;

fn pod(n: u8) -> Addr {
    Addr::v4([10, 1, 0, n])
}

fn endpoint(n: u8) -> EndpointValue {
    EndpointValue { ifindex: n.into(), id: n.into(), flags: 0, mac: [n; 6], node_mac: [n; 6] }
}

/// Runs `write` again and again while `look` does, which returns what is wrong. How often each ran.
fn hammer(
    mut write: impl FnMut(u64) -> Result<()>,
    mut look: impl FnMut() -> Result<Option<String>> + Send,
) -> Result<[u64; 2]> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| -> Result<u64> {
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                if let Some(wrong) = look()? {
                    return Err(anyhow!("look {looks}: {wrong}"));
                }
                looks += 1;
            }
            Ok(looks)
        });
        let (began, mut writes) = (Instant::now(), 0);
        let written = loop {
            if began.elapsed() > LONG || looker.is_finished() {
                break Ok(writes);
            }
            if let Err(error) = write(writes) {
                break Err(error);
            }
            writes += 1;
        };
        over.store(true, Ordering::Relaxed);
        let looks = looker.join().map_err(|_| anyhow!("the reader panicked"))??;
        Ok([written?, looks])
    })
}

#[test]
fn a_prefix_has_its_old_value_or_its_new_one_at_every_moment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    KernelTables::open(bpf.path(), &Sizes::DEFAULT)?;
    let (tables, _) = PodTables::open(bpf.path(), &PodSizes::DEFAULT)?;
    let value = |n: u8| IpcacheValue::new(Some(Addr::v6([n; 16])), u32::from_ne_bytes([n; 4]));
    // The nodes' prefixes, of which each changes its node; between them narrower ones come and go.
    let entries = |which: u8| -> BTreeMap<(Addr, u8), IpcacheValue> {
        let wide = (0..PREFIXES).map(|n| ((Addr::v4([10, n, 0, 0]), 112), value(which)));
        let narrow = (0..PREFIXES).filter(|_| which == 2).map(|n| ((Addr::v4([10, n, 1, 0]), 120), value(3)));
        wide.chain(narrow).collect()
    };
    let versions = [entries(1), entries(2)];
    tables.set_ipcache(&versions[0])?;
    let data = MapData::from_pin(pod_pin_path(bpf.path(), PodMapId::Ipcache))?;
    let trie: LpmTrie<_, Addr, IpcacheValue> = Map::LpmTrie(data).try_into()?;
    let write = |n: u64| {
        tables.set_ipcache(&versions[usize::from(n.is_multiple_of(2))])?;
        Ok(())
    };
    let look = || {
        for n in 0..PREFIXES {
            let addr = Addr::v4([10, n, 0, 7]);
            match trie.get(&Key::new(128, addr), 0) {
                Ok(found) if found == value(1) || found == value(2) => {}
                other => return Ok(Some(format!("{addr}: {other:?}"))),
            }
        }
        Ok(None)
    };
    let [writes, looks] = hammer(write, look)?;
    ensure!(writes > 100 && looks > 100, "{writes} writes, {looks} looks");
    Ok(())
}

#[test]
fn tables_become_what_is_wanted_and_calls_that_change_nothing_write_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    let (tables, _) = PodTables::open(bpf.path(), &PodSizes { endpoints: 64, ..PodSizes::DEFAULT })?;
    let changes = |inserted, deleted| EntryChanges { inserted, deleted };
    ensure!(tables.set_endpoint(pod(7), endpoint(5))? == changes(1, 0));
    ensure!(tables.set_endpoint(pod(7), endpoint(5))? == changes(0, 0));
    // An address that goes to another pod is nobody's in between.
    ensure!(tables.set_endpoint(pod(7), endpoint(6))? == changes(1, 1));
    let wanted = BTreeMap::from([(pod(7), endpoint(6)), (pod(8), endpoint(7))]);
    ensure!(tables.set_endpoints(&wanted)? == changes(1, 0));
    ensure!(tables.delete_endpoint(pod(8))? && !tables.delete_endpoint(pod(8))?);
    let value = |flags| IpcacheValue::new(None, flags);
    let entries = BTreeMap::from([((pod(0), 120), value(1)), ((pod(0), 104), value(2))]);
    ensure!(tables.set_ipcache(&entries)? == changes(2, 0));
    let other = BTreeMap::from([((pod(0), 120), value(4))]);
    ensure!(tables.set_ipcache(&other)? == changes(1, 1));
    ensure!(tables.set_ipcache(&other)? == changes(0, 0));
    ensure!(tables.reader().ipcache()? == other);
    let full = (0..65).map(|n| (pod(n), endpoint(n))).collect();
    let error = tables.set_endpoints(&full).map_err(|error| error.to_string());
    ensure!(error == Err("pw_endpoints is full at 64 entries".to_owned()), "{error:?}");
    Ok(())
}
