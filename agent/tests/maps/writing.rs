use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portway_agent::maps::{AddressChanges, AnyMap, KernelTables, MapError, MapId, Origin, Published};
use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, BackendIndex, LocalAddress, NodeConfig, RunOffset, ServiceName, ServiceWord, Settings,
};
use portway_model::tables::{MemoryTables, TableOp, TableWriter as _};

use crate::fixture::*;

/// An operation that the planner could plan, right or wrong.
fn random_op(numbers: &mut Numbers, generation: u32) -> Vec<TableOp> {
    let service = numbers.below(SMALL.services + 1);
    let frontend = numbers.below(100);
    // Each service has two places for runs, used in turn.
    let at = 1 + service * 24 + (generation % 2) * 12;
    match numbers.below(12) {
        0 | 1 => {
            let first = numbers.below(SMALL.backends - 9);
            let last = first + numbers.below(9);
            vec![
                TableOp::WriteRun { at: RunOffset::new(at), records: run(first..last) },
                TableOp::NameService { service: index(service), name: name(numbers.below(9)) },
                TableOp::Publish { service: index(service), word: word(at, generation) },
            ]
        }
        2 => vec![TableOp::Publish { service: index(service), word: ServiceWord::NONE }],
        3 => vec![TableOp::ForgetService { service: index(service) }],
        4 => {
            let n = numbers.below(SMALL.backends + 2);
            vec![TableOp::WriteBackend { index: BackendIndex::new(n), slot: slot(n, service) }]
        }
        5 => {
            let state = slot(generation, service).state ^ u64::from(numbers.below(4));
            vec![TableOp::StoreBackendState {
                index: BackendIndex::new(numbers.below(SMALL.backends + 2)),
                state,
            }]
        }
        6 | 7 => vec![TableOp::InsertFrontend { key: key(frontend), value: value(frontend, service % 4) }],
        8 => vec![TableOp::StoreFrontend { key: key(frontend), value: value(frontend, service) }],
        9 => vec![TableOp::DeleteFrontend { key: key(frontend) }],
        10 => {
            let at = numbers.below(SMALL.maglev - 10);
            let slots = (0..1 + numbers.below(9)).map(|n| (generation + n) as u16).collect();
            vec![TableOp::WriteMaglev { at, slots }]
        }
        _ => {
            let (addr, bits) = (Addr::v4([10, numbers.below(30) as u8, 0, 0]), 112);
            let service = index(service);
            match numbers.below(3) {
                0 => vec![TableOp::DeleteSourceRange { service, addr, bits }],
                _ => vec![TableOp::InsertSourceRange { service, addr, bits }],
            }
        }
    }
}

#[test]
fn random_operations_give_the_same_dump_as_tables_in_memory() {
    let fs = BpfFs::mount();
    let (mut written, mut refused) = (0, 0);
    for seed in 0..10 {
        for map in MapId::ALL {
            // Not there for `pw_sock` and the first seed.
            drop(std::fs::remove_file(fs.pin_of(map)));
        }
        let (mut kernel, opening) = fs.open();
        assert_eq!(opening.published, Published::Created);
        // Half of the seeds store in place, by a program.
        if seed % 2 == 0 {
            kernel.set_store_program(fs.programs().store_word()).unwrap();
        }
        let mut memory = MemoryTables::new(SMALL);
        let mut numbers = Numbers(seed);
        for generation in 1..2_000 {
            for op in random_op(&mut numbers, generation) {
                let (on_kernel, in_memory) = (kernel.write(&op), memory.write(&op));
                assert_eq!(
                    on_kernel.is_ok(),
                    in_memory.is_ok(),
                    "seed {seed}, {op:?}: {on_kernel:?} {in_memory:?}"
                );
                if on_kernel.is_ok() { written += 1 } else { refused += 1 }
            }
            if generation % 50 == 0 {
                assert_eq!(kernel.dump().unwrap(), memory.dump(), "seed {seed}, operation {generation}");
            }
        }
        assert_eq!(kernel.dump().unwrap(), memory.dump(), "seed {seed}");
        let maglev = fs.map(MapId::Maglev);
        for element in 0..SMALL.maglev / 4 {
            let slots = maglev.lookup(&element.to_ne_bytes()).unwrap();
            for (at, slot) in (element * 4..).zip(slots.chunks_exact(2)) {
                let slot = u16::from_ne_bytes(slot.try_into().unwrap());
                assert_eq!(slot, memory.maglev_slot(at).unwrap_or(0), "seed {seed}, Maglev slot {at}");
            }
        }
    }
    println!("{written} operations written, {refused} refused by both");
    assert!(
        written > 10_000 && refused > 1_000,
        "{written} written, {refused} refused: too few to prove anything"
    );
}

#[test]
fn a_frontend_that_a_program_may_read_changes_only_by_the_store_program() {
    let fs = BpfFs::mount();
    drop(fs.open());
    let (mut tables, opening) = fs.open();
    assert_eq!(opening.published, Published::Reused);
    write(&mut tables, &service(1, 1, 0..1));
    let store = |n, service| TableOp::StoreFrontend { key: key(n), value: value(n, service) };
    let error = tables.write(&store(1, 2)).unwrap_err();
    assert!(
        matches!(error, MapError::NoStoreProgram { map: AnyMap::Service(MapId::Frontends), .. }),
        "{error}"
    );
    tables.set_store_program(fs.programs().store_word()).unwrap();
    write(&mut tables, &[store(1, 2)]);
    assert_eq!(tables.dump().unwrap().frontends, [(key(1), value(1, 2))]);
    let error = tables.write(&store(2, 2)).unwrap_err();
    assert_eq!(error.to_string(), "pw_frontends has no 10.96.0.2:80/TCP");
}

#[test]
fn repeating_an_operation_is_no_error_and_another_value_is() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    let insert = TableOp::InsertFrontend { key: key(1), value: value(1, 1) };
    let delete = TableOp::DeleteFrontend { key: key(1) };
    write(&mut tables, &[insert.clone(), insert.clone()]);
    let error = tables.write(&TableOp::InsertFrontend { key: key(1), value: value(1, 2) }).unwrap_err();
    assert!(matches!(error, MapError::Exists { .. }), "{error}");
    assert_eq!(
        tables.dump().unwrap().frontends,
        [(key(1), value(1, 1))],
        "a failed operation changes nothing"
    );
    write(&mut tables, &[delete.clone(), delete]);
}

#[test]
fn a_full_map_names_the_key_that_makes_room() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    for n in 0..SMALL.frontends {
        write(&mut tables, &[TableOp::InsertFrontend { key: key(n), value: value(n, 1) }]);
    }
    let more = TableOp::InsertFrontend { key: key(999), value: value(999, 1) };
    let error = tables.write(&more).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pw_frontends is full at 64 entries; raise bpf-lb-map-max and restart the agent"
    );
    let range = |n| TableOp::InsertSourceRange { service: index(1), addr: Addr::v4([n, 0, 0, 0]), bits: 104 };
    for n in 0..SMALL.source_ranges as u8 {
        write(&mut tables, &[range(n)]);
    }
    write(&mut tables, &[range(0)]);
    let error = tables.write(&range(99)).unwrap_err();
    assert!(
        matches!(error, MapError::Full { map: AnyMap::Service(MapId::SourceRanges), entries: 16 }),
        "{error}"
    );
    let error = tables
        .write(&TableOp::WriteRun { at: RunOffset::new(SMALL.runs - 2), records: run(0..1) })
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "pw_runs has 1024 elements and no element 1024; raise bpf-lb-service-backend-map-max and restart the agent"
    );
}

#[test]
fn local_addresses_follow_what_is_wanted() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    let addr = |n| Addr::v4([192, 0, 2, n]);
    let wanted = |list: &[(u8, bool)]| -> BTreeMap<_, _> {
        list.iter().map(|(n, node_port)| (addr(*n), LocalAddress::new(*node_port))).collect()
    };
    let first = wanted(&[(1, true), (2, true), (3, false)]);
    let changes = tables.set_local_addresses(&first).unwrap();
    assert_eq!(changes, AddressChanges { inserted: 3, stored: 0, deleted: 0 });
    assert_eq!(tables.reader().local_addresses().unwrap(), first);
    assert_eq!(tables.set_local_addresses(&first).unwrap(), AddressChanges::default());
    for with_program in [false, true] {
        if with_program {
            tables.set_store_program(fs.programs().store_word()).unwrap();
        }
        let second = wanted(&[(1, with_program), (3, true), (4, true)]);
        tables.set_local_addresses(&second).unwrap();
        assert_eq!(tables.reader().local_addresses().unwrap(), second, "with the program: {with_program}");
    }
    let (mut tables, opening) = fs.open();
    assert_eq!(opening.others[&MapId::LocalAddresses], Origin::Reused);
    let error = tables.set_local_addresses(&wanted(&[(1, false), (3, true), (4, true)])).unwrap_err();
    assert!(
        matches!(error, MapError::NoStoreProgram { map: AnyMap::Service(MapId::LocalAddresses), .. }),
        "{error}"
    );
}

#[test]
fn the_configuration_reads_back() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    let config = NodeConfig {
        host_netns: 0x1234_5678_9abc,
        settings: Settings::new().guard_external_ips().protect_node_ports(30_000, 32_767).word(),
    };
    tables.set_config(config).unwrap();
    assert_eq!(tables.reader().config().unwrap(), config);
    assert_eq!(KernelTables::open_read_only(fs.root()).unwrap().config().unwrap(), config);
}

/// CPU time of this thread, which other load on the machine does not lengthen.
#[expect(unsafe_code, reason = "clock_gettime(2)")]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn ten_thousand_services_of_ten_endpoints_are_programmed_in_a_fraction_of_a_second() {
    let fs = BpfFs::mount();
    let (mut tables, _) = KernelTables::open(fs.root(), &Sizes::DEFAULT).unwrap();
    tables.set_store_program(fs.programs().store_word()).unwrap();
    let ops: Vec<_> = (1..=10_000).flat_map(|n| service(n, n * 12, n * 10..n * 10 + 10)).collect();
    let kind = |op: &TableOp| match op {
        TableOp::WriteRun { .. } | TableOp::WriteMaglev { .. } => "runs",
        TableOp::WriteBackend { .. } | TableOp::StoreBackendState { .. } => "backends",
        TableOp::NameService { .. } | TableOp::ForgetService { .. } => "names",
        TableOp::InsertSourceRange { .. } | TableOp::DeleteSourceRange { .. } => "source ranges",
        TableOp::Publish { .. } => "words",
        TableOp::InsertFrontend { .. } | TableOp::StoreFrontend { .. } | TableOp::DeleteFrontend { .. } => {
            "frontends"
        }
    };
    let mut all = Duration::ZERO;
    for what in ["backends", "runs", "names", "words", "frontends"] {
        let (wall, cpu) = (Instant::now(), cpu_time());
        let mut count = 0_u32;
        for op in ops.iter().filter(|op| kind(op) == what) {
            tables.write(op).unwrap();
            count += 1;
        }
        let cpu = cpu_time() - cpu;
        all += cpu;
        println!(
            "{count} {what}: {cpu:?} of CPU ({:?} each), {:?} by the clock",
            cpu / count,
            wall.elapsed()
        );
    }
    let (wall, cpu) = (Instant::now(), cpu_time());
    for n in 1..=10_000 {
        write(&mut tables, &[TableOp::StoreFrontend { key: key(n), value: value(n, n % 10_000 + 1) }]);
    }
    println!("10000 in place: {:?} of CPU, {:?} by the clock", cpu_time() - cpu, wall.elapsed());
    let wall = Instant::now();
    let dump = tables.dump().unwrap();
    println!("dump: {:?}", wall.elapsed());
    assert_eq!((dump.services.len(), dump.frontends.len(), dump.backends.len()), (10_000, 10_000, 100_000));
    drop(tables);
    let wall = Instant::now();
    let (tables, opening) = KernelTables::open(fs.root(), &Sizes::DEFAULT).unwrap();
    println!("taking over: {:?}", wall.elapsed());
    assert_eq!(opening.published, Published::Reused);
    assert_eq!(tables.dump().unwrap().services.len(), 10_000);
    let mut bytes = 0;
    for facts in tables.reader().facts().unwrap() {
        bytes += facts.kernel_bytes.unwrap();
        println!("{facts:?}");
    }
    println!("{} KiB of kernel memory", bytes / 1024);
    // Default sizes, full of 10,000 services: what a node pays.
    assert!(bytes < 70 << 20, "the maps take {bytes} bytes of kernel memory");
    assert!(all < Duration::from_secs(1), "writing took {all:?} of CPU time");
}

#[test]
fn names_of_the_longest_kind_are_kept() {
    let fs = BpfFs::mount();
    let (mut tables, _) = fs.open();
    let long = format!("{}/{}", "n".repeat(63), "s".repeat(253));
    let port = "p".repeat(63);
    write(&mut tables, &service(1, 1, 0..1));
    let name = Box::new(ServiceName::new(&long, &port).unwrap());
    write(&mut tables, &[TableOp::NameService { service: index(1), name }]);
    let service = tables.dump().unwrap().services.remove(0);
    assert_eq!((service.service, service.port_name), (long, port));
}
