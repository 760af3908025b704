use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use portway_agent::maps::{KernelTables, MapError, MapId};
use portway_datapath::{Counter, RunHeader, RunOffset, ServiceIndex, ServiceWord};
use portway_model::tables::TableOp;

use crate::fixture::*;

#[test]
fn a_reader_needs_no_write_access() {
    let fs = BpfFs::mount();
    let written = {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        tables.dump().unwrap()
    };
    fs.remount_read_only();
    let error = KernelTables::open(fs.root(), &SMALL).unwrap_err();
    assert!(matches!(error, MapError::Pin { .. }), "a writer was let in: {error}");
    let reader = KernelTables::open_read_only(fs.root()).unwrap();
    assert_eq!(reader.dump().unwrap(), written);
    assert_eq!(reader.sizes(), SMALL);
    assert_eq!(reader.counters().unwrap().len(), Counter::ALL.len());
    reader.facts().unwrap();
}

#[test]
fn without_maps_a_reader_says_so() {
    let fs = BpfFs::mount();
    let error = KernelTables::open_read_only(fs.root()).unwrap_err();
    assert!(matches!(error, MapError::NoMaps { .. }), "{error}");
    assert!(error.to_string().starts_with("no Portway maps in "), "{error}");
}

#[test]
fn counters_are_summed_over_the_cpus() {
    let fs = BpfFs::mount();
    let (tables, _) = fs.open();
    // As many as the kernel may ever run; it reads a value for each.
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last = cpus.trim().rsplit(['-', ',']).next().unwrap();
    let cpus = last.parse::<u64>().unwrap() + 1;
    let values: Vec<u8> = (1..=cpus).flat_map(u64::to_ne_bytes).collect();
    fs.map(MapId::Metrics).update(&(Counter::NoBackends as u32).to_ne_bytes(), &values).unwrap();
    let sum = (1..=cpus).sum();
    let wanted: BTreeMap<_, _> =
        Counter::ALL.map(|c| (c, if c == Counter::NoBackends { sum } else { 0 })).into();
    assert_eq!(tables.reader().counters().unwrap(), wanted);
}

#[test]
fn facts_count_what_is_in_use() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    write(&mut tables, &service(1, 1, 0..3));
    write(&mut tables, &service(2, 10, 3..4));
    let facts: BTreeMap<_, _> = tables.reader().facts().unwrap().into_iter().map(|f| (f.id, f)).collect();
    let used = |map| (facts[&map].used, facts[&map].max);
    assert_eq!(used(MapId::Frontends), (Some(2), 64));
    assert_eq!(used(MapId::Services), (Some(2), 32));
    assert_eq!(used(MapId::Runs), (Some(8), 1024));
    assert_eq!(used(MapId::Backends), (Some(4), 128));
    assert_eq!(used(MapId::SourceRanges), (Some(0), 16));
    assert_eq!(used(MapId::Affinity), (None, 64));
    assert!(
        facts.values().all(|f| f.kernel_bytes.is_some_and(|bytes| bytes > 0 || f.used == Some(0))),
        "{facts:?}"
    );
}

/// One writer publishes without pause and gives an index from one service to another; a reader in another mapping
/// never sees a mixture.
#[test]
fn a_dump_beside_a_writer_is_never_a_mixture() {
    const MOVING: ServiceIndex = ServiceIndex::new(30);
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    let reader = KernelTables::open_read_only(fs.root()).unwrap();
    // They are read between the frontends and the service that moves: time for it to do so.
    for n in 6..28 {
        write(&mut tables, &service(n, 200 + n * 8, n..n + 3));
    }
    // Backend n is in slot n and belongs to the version n % 8; version v has the backends with n % 8 == v. Odd
    // versions belong to service A with frontend 1, even ones to B with frontend 2.
    let backends = |version: u32| (0..16).map(move |n| n * 8 + version);
    let publish = |tables: &mut KernelTables, generation: u32| {
        let version = generation % 8;
        let at = 1 + version * 20;
        let header = RunHeader { cluster_len: 16, ..Default::default() };
        let records =
            header.records().into_iter().chain(backends(version).map(|n| backend(n).record())).collect();
        let (mine, other) = if version % 2 == 1 { (1, 2) } else { (2, 1) };
        write(
            tables,
            &[
                TableOp::DeleteFrontend { key: key(other) },
                TableOp::Publish { service: MOVING, word: ServiceWord::NONE },
                TableOp::WriteRun { at: RunOffset::new(at), records },
                TableOp::NameService { service: MOVING, name: name(mine) },
                TableOp::Publish { service: MOVING, word: word(at, generation) },
                TableOp::InsertFrontend { key: key(mine), value: value(mine, MOVING.get()) },
            ],
        );
    };
    let stop = AtomicBool::new(false);
    // Also by a panic of the reader, which would wait for the writer.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut whole, mut with_frontend) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut generation = 0;
            while !stop.load(Ordering::Relaxed) {
                generation += 1;
                publish(&mut tables, generation);
            }
        });
        let _stop = Stop(&stop);
        for _ in 0..3_000 {
            let dump = reader.dump().unwrap();
            let Some(service) = dump.services.iter().find(|service| service.index == MOVING) else {
                continue;
            };
            let version = service.word.generation() % 8;
            let found: Vec<_> = service.backends.iter().map(|b| b.index.get()).collect();
            assert_eq!(
                found,
                backends(version).collect::<Vec<_>>(),
                "of generation {}",
                service.word.generation()
            );
            let owner = if version % 2 == 1 { 1 } else { 2 };
            assert_eq!(service.service, format!("default/web-{owner}"));
            whole += 1;
            for (key, _) in dump.frontends.iter().filter(|(_, value)| value.service() == MOVING) {
                assert_eq!(*key, crate::fixture::key(owner), "of generation {}", service.word.generation());
                with_frontend += 1;
            }
        }
    });
    println!("{whole} dumps held a service, {with_frontend} a frontend");
    assert!(whole > 100 && with_frontend > 100, "the writer and the reader hardly met");
}
