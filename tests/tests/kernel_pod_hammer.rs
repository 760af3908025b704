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
use portway_datapath::{Addr, EndpointValue, IpcacheValue, NumericIdentity};
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
fn an_address_has_its_old_value_or_its_new_one_at_every_moment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let bpf = BpfMount::new(dir.path())?;
    KernelTables::open(bpf.path(), &Sizes::DEFAULT)?;
    let (tables, _) = PodTables::open(bpf.path(), &PodSizes::DEFAULT)?;
    let value = |n: u8| {
        let identity = NumericIdentity::new(256 + u32::from(n));
        IpcacheValue::new(identity, Some(Addr::v6([n; 16])), u32::from_ne_bytes([n; 4]))
    };
    // Of each network: a node's prefix that changes its node, a pod that changes its identity, one that stays, one that
    // comes and goes, and beside them narrower prefixes and pods that come and go.
    let wide = |n| (Addr::v4([10, n, 0, 0]), 112);
    let host = |n, last| (Addr::v4([10, n, 0, last]), 128);
    for n in 0..PREFIXES {
        tables.change_ipcache(host(n, 9), Some(&value(4)))?;
    }
    let write = |round: u64| {
        let which = if round.is_multiple_of(2) { 1 } else { 2 };
        let sometimes = |value| (which == 2).then_some(value);
        for n in 0..PREFIXES {
            tables.change_ipcache(wide(n), Some(&value(which)))?;
            tables.change_ipcache(host(n, 8), Some(&value(which + 10)))?;
            for last in [10, 11, 12] {
                tables.change_ipcache(host(n, last), sometimes(value(last)).as_ref())?;
            }
            tables.change_ipcache((Addr::v4([10, n, 1, 0]), 120), sometimes(value(3)).as_ref())?;
            tables.change_ipcache((Addr::v4([10, n, 0, 8]), 125), sometimes(value(5)).as_ref())?;
        }
        Ok(())
    };
    write(0)?;
    let data = MapData::from_pin(pod_pin_path(bpf.path(), PodMapId::Ipcache))?;
    let trie: LpmTrie<_, Addr, IpcacheValue> = Map::LpmTrie(data).try_into()?;
    let look = || {
        for n in 0..PREFIXES {
            for (last, may_be) in
                [(7, &[1, 2][..]), (8, &[11, 12]), (9, &[4]), (10, &[1, 2, 5, 10]), (200, &[1, 2])]
            {
                let addr = Addr::v4([10, n, 0, last]);
                match trie.get(&Key::new(128, addr), 0) {
                    Ok(found) if may_be.iter().any(|of| found == value(*of)) => {}
                    other => return Ok(Some(format!("{addr}: {other:?}"))),
                }
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
    let value = IpcacheValue::new(NumericIdentity::WORLD, None, 1);
    tables.change_ipcache((pod(0), 120), Some(&value))?;
    tables.change_ipcache((pod(0), 104), Some(&value))?;
    tables.change_ipcache((pod(0), 104), None)?;
    // What is gone already is no error.
    tables.change_ipcache((pod(0), 104), None)?;
    ensure!(tables.reader().ipcache()? == BTreeMap::from([((pod(0), 120), value)]));
    ensure!(tables.reader().ipcache_of(pod(9))? == Some(value));
    ensure!(tables.reader().ipcache_of(Addr::v4([10, 2, 0, 1]))?.is_none());
    let full = (0..65).map(|n| (pod(n), endpoint(n))).collect();
    let error = tables.set_endpoints(&full).map_err(|error| error.to_string());
    ensure!(error == Err("pw_endpoints is full at 64 entries".to_owned()), "{error:?}");
    Ok(())
}
