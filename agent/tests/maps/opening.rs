use portway_agent::maps::{
    AnyMap, Inconsistency, KernelTables, LayoutDifference, LayoutField, MapError, MapId, MapKind, MapLayout,
    Origin, Published, Reason,
};
use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, FrontendKind, FrontendValue, RunHeader, RunOffset, ServiceWord};
use portway_model::tables::{TableDump, TableOp, TableWriter as _};

use crate::bpf::{Info, Raw, pin};
use crate::fixture::*;

/// A map as it should be.
fn wanted(map: MapId) -> Info {
    let MapLayout { id: _, kind, key_size, value_size, entries, flags } = map.layout(&SMALL);
    [kind as u32, key_size, value_size, entries, flags]
}

#[test]
fn the_first_start_creates_every_map() {
    let fs = BpfFs::mount();
    let (tables, opening) = fs.open();
    assert_eq!(opening.published, Published::Created);
    for (map, origin) in &opening.others {
        assert_eq!(*origin, Origin::Created, "{map}");
    }
    for map in MapId::ALL {
        assert_eq!(fs.map(map).info(), wanted(map), "{map}");
    }
    assert_eq!(tables.sizes(), SMALL);
    assert_eq!(tables.dump().unwrap(), TableDump::default());
}

#[test]
fn a_restart_finds_what_was_written() {
    let fs = BpfFs::mount();
    let written = {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        write(&mut tables, &service(2, 10, 3..4));
        let range =
            TableOp::InsertSourceRange { service: index(1), addr: Addr::v4([10, 0, 0, 0]), bits: 104 };
        write(&mut tables, &[range]);
        tables.dump().unwrap()
    };
    assert_eq!(written.services.len(), 2);
    assert_eq!(written.services[0].service, "default/web-1");
    assert_eq!(written.services[0].backends, (0..3).map(backend).collect::<Vec<_>>());
    assert_eq!(written.frontends, [(key(1), value(1, 1)), (key(2), value(2, 2))]);
    assert_eq!(written.source_ranges, [(index(1), Addr::v4([10, 0, 0, 0]), 104)]);
    assert_eq!(written.backends.len(), 4);
    let (tables, opening) = fs.open();
    assert_eq!(opening.published, Published::Reused);
    assert_eq!(tables.dump().unwrap(), written);
}

/// Pins a map of another layout in place of one.
fn pin_changed(fs: &BpfFs, map: MapId, info: Info) {
    let raw = Raw::create(info).unwrap_or_else(|e| panic!("{map} as {info:?}: {e}"));
    let path = fs.pin_of(map);
    std::fs::remove_file(&path).unwrap();
    raw.pin(&path).unwrap();
}

/// The map with one field changed to what the kernel makes, too; `None` where it makes no such map.
fn changed(map: MapId, field: LayoutField) -> Option<Info> {
    let (hash, array, no_prealloc, readable_by_programs_alone, mmapable) = (1, 2, 1, 1 << 7, 1 << 10);
    let [kind, key, value, entries, flags] = wanted(map);
    let is_array = matches!(map.layout(&SMALL).kind, MapKind::Array | MapKind::PerCpuArray);
    match field {
        LayoutField::Kind if kind == hash => Some([array, 4, value, entries, 0]),
        LayoutField::Kind => Some([hash, key, value, entries, 0]),
        LayoutField::KeySize => (!is_array).then_some([kind, key + 4, value, entries, flags]),
        LayoutField::ValueSize => Some([kind, key, value + 8, entries, flags]),
        LayoutField::Entries => Some([kind, key, value, entries + 1, flags]),
        LayoutField::Flags => {
            let flags = match map.layout(&SMALL).kind {
                MapKind::Array => flags ^ mmapable,
                MapKind::Hash => flags ^ no_prealloc,
                MapKind::PerCpuArray | MapKind::LruHash | MapKind::LpmTrie => {
                    flags | readable_by_programs_alone
                }
            };
            Some([kind, key, value, entries, flags])
        }
    }
}

fn replaced(origin: Origin) -> Option<LayoutDifference> {
    match origin {
        Origin::Replaced(difference) => Some(difference),
        Origin::Reused | Origin::Created => None,
    }
}

#[test]
fn a_difference_in_any_field_of_any_layout_is_caught() {
    const FIELDS: [LayoutField; 5] = [
        LayoutField::Kind,
        LayoutField::KeySize,
        LayoutField::ValueSize,
        LayoutField::Entries,
        LayoutField::Flags,
    ];
    let fs = BpfFs::mount();
    fs.open();
    let mut caught = 0;
    for map in MapId::ALL {
        for field in FIELDS {
            let Some(info) = changed(map, field) else { continue };
            pin_changed(&fs, map, info);
            let (_, opening) = fs.open();
            let found = match opening.published {
                Published::Replaced(Reason::Layout(difference)) if map.is_published() => Some(difference),
                Published::Reused if !map.is_published() => replaced(opening.others[&map]),
                Published::Replaced(_) | Published::Reused | Published::Created => None,
            };
            let found = found.unwrap_or_else(|| panic!("{map} as {info:?}: {opening:?}"));
            assert_eq!((found.map, found.field), (AnyMap::Service(map), field), "{found}");
            assert_eq!(fs.map(map).info(), wanted(map), "after {found}");
            assert_eq!(fs.open().1.published, Published::Reused, "after {found}");
            caught += 1;
        }
    }
    // Arrays, six of them, have keys of one size.
    assert_eq!(caught, 14 * 5 - 6);
}

#[test]
fn something_that_is_no_map_is_replaced() {
    let fs = BpfFs::mount();
    fs.open();
    let programs = fs.programs();
    let path = fs.pin_of(MapId::Runs);
    std::fs::remove_file(&path).unwrap();
    pin(programs.store_word(), &path).unwrap();
    let (_, opening) = fs.open();
    let Published::Replaced(Reason::Layout(found)) = opening.published else { panic!("{opening:?}") };
    assert_eq!((found.map, found.field, found.found), (AnyMap::Service(MapId::Runs), LayoutField::Kind, 0));
}

#[test]
fn a_missing_pin_makes_the_published_maps_anew_and_the_old_ones_live_on() {
    let fs = BpfFs::mount();
    let (mut old, _) = fs.open();
    write(&mut old, &service(1, 1, 0..3));
    let written = old.dump().unwrap();
    std::fs::remove_file(fs.pin_of(MapId::Backends)).unwrap();
    let (mut new, opening) = fs.open();
    assert_eq!(opening.published, Published::Replaced(Reason::Missing(MapId::Backends)));
    assert_eq!(new.dump().unwrap(), TableDump::default());
    write(&mut new, &service(2, 1, 0..1));
    assert_eq!(old.dump().unwrap(), written, "programs that still use the old maps see no change");
}

#[test]
fn maps_that_contradict_each_other_are_made_anew() {
    type Damage = (&'static str, Vec<TableOp>, fn(&Inconsistency) -> bool);
    let publish = |service, run| TableOp::Publish { service: index(service), word: word(run, 5) };
    let huge = RunHeader { cluster_len: u32::MAX, cluster_start: 1, local_len: 1, ..RunHeader::default() };
    let crooked = RunHeader { cluster_len: 1, cluster_start: 0, local_len: 2, ..RunHeader::default() };
    let with_gap = RunHeader { cluster_len: 1, cluster_start: 2, local_len: 1, ..RunHeader::default() };
    let write_run =
        |header: RunHeader| TableOp::WriteRun { at: RunOffset::new(1), records: header.records().into() };
    let foreign = FrontendValue::new(&key(9), FrontendKind::ClusterIp, index(1));
    let empty = || TableOp::WriteRun { at: RunOffset::new(30), records: run(0..0) };
    let damages: [Damage; 11] = [
        ("a word past the end", vec![publish(1, SMALL.runs)], |i| {
            matches!(i, Inconsistency::RunPastEnd { .. })
        }),
        ("half a header", vec![publish(1, SMALL.runs - 1)], |i| {
            matches!(i, Inconsistency::RunPastEnd { .. })
        }),
        ("too many backends", vec![write_run(huge)], |i| matches!(i, Inconsistency::RunPastEnd { .. })),
        ("a set past its run", vec![write_run(crooked)], |i| matches!(i, Inconsistency::Header { .. })),
        ("two services in one run", vec![publish(3, 1)], |i| {
            matches!(i, Inconsistency::Backend { .. } | Inconsistency::RunsOverlap { .. })
        }),
        ("two empty services in one run", vec![empty(), publish(4, 30), publish(5, 30)], |i| {
            matches!(i, Inconsistency::RunsOverlap { .. })
        }),
        ("a backend of neither set", vec![write_run(with_gap)], |i| {
            matches!(i, Inconsistency::Header { .. })
        }),
        (
            "a backend of another service",
            vec![TableOp::WriteBackend { index: backend(1).index, slot: slot(1, 2) }],
            |i| matches!(i, Inconsistency::Backend { .. }),
        ),
        (
            "a frontend of an unpublished service",
            vec![TableOp::InsertFrontend { key: key(9), value: value(9, 9) }],
            |i| matches!(i, Inconsistency::FrontendService { .. }),
        ),
        (
            "a service taken from under its frontend",
            vec![TableOp::Publish { service: index(2), word: ServiceWord::NONE }],
            |i| matches!(i, Inconsistency::FrontendService { .. }),
        ),
        ("a value of another frontend", vec![TableOp::InsertFrontend { key: key(8), value: foreign }], |i| {
            matches!(i, Inconsistency::FrontendValue { .. })
        }),
    ];
    let fs = BpfFs::mount();
    for (what, damage, expected) in damages {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        write(&mut tables, &service(2, 10, 3..4));
        let (_, opening) = fs.open();
        assert_eq!(opening.published, Published::Reused, "before {what}");
        write(&mut tables, &damage);
        let (tables, opening) = fs.open();
        let Published::Replaced(Reason::Inconsistent(found)) = opening.published else {
            panic!("{what}: {opening:?}")
        };
        assert!(expected(&found), "{what}: {found}");
        assert_eq!(tables.dump().unwrap(), TableDump::default(), "{what}");
    }
}

#[test]
fn whatever_an_agent_that_died_left_is_taken_over() {
    let fs = BpfFs::mount();
    let mut ops = service(1, 1, 0..3);
    ops.extend([
        // A new version at another place, then the service goes.
        TableOp::WriteBackend { index: backend(5).index, slot: slot(5, 1) },
        TableOp::WriteRun { at: RunOffset::new(20), records: run(5..6) },
        TableOp::Publish { service: index(1), word: word(20, 2) },
        TableOp::StoreBackendState { index: backend(0).index, state: slot(0, 1).state & !0xffff_ffff },
        TableOp::DeleteFrontend { key: key(1) },
        TableOp::Publish { service: index(1), word: ServiceWord::NONE },
        TableOp::ForgetService { service: index(1) },
    ]);
    for op in &ops {
        let (mut tables, opening) = fs.open();
        assert!(
            matches!(opening.published, Published::Created | Published::Reused),
            "{opening:?} before {op:?}"
        );
        tables.write(op).unwrap();
    }
    assert_eq!(fs.open().1.published, Published::Reused);
}

#[test]
fn a_failed_creation_leaves_the_old_maps() {
    let fs = BpfFs::mount();
    let written = {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        tables.dump().unwrap()
    };
    let error = KernelTables::open(fs.root(), &Sizes { backends: u32::MAX, ..SMALL }).unwrap_err();
    assert!(matches!(error, MapError::Create { map: AnyMap::Service(MapId::Backends), .. }), "{error}");
    assert!(error.to_string().contains("lower bpf-lb-service-backend-map-max"), "{error}");
    let (tables, opening) = fs.open();
    assert_eq!(opening.published, Published::Reused);
    assert_eq!(tables.dump().unwrap(), written);
}

#[test]
fn a_directory_that_is_no_bpf_file_system_is_refused() {
    let fs = BpfFs::unmounted();
    let error = KernelTables::open(fs.root(), &SMALL).unwrap_err();
    assert!(matches!(error, MapError::NotBpfFs { .. }), "{error}");
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
}
