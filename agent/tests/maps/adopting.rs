//! What the programs of an earlier agent have learned comes into maps of other sizes and numbers.

use portway_agent::maps::{Adopted, KernelTables, MapId, Origin, Published};
use portway_datapath::layout::Sizes;
use portway_datapath::{BackendIndex, BackendSlot, Membership};
use portway_model::tables::TableOp;

use crate::fixture::*;

/// `struct AffinityKey` of the client in namespace 7: the cookie in two words, two words of nothing, the service, "by
/// namespace".
fn bound(service: u32) -> Vec<u8> {
    [7, 0, 0, 0, service, 1].map(u32::to_ne_bytes).concat()
}

/// `struct AffinityValue`: a slot and its incarnation, and when it was used.
fn backend_of(slot: u64, incarnation: u64) -> Vec<u8> {
    [incarnation << 32 | slot, 42].map(u64::to_ne_bytes).concat()
}

fn is_pinned(fs: &BpfFs, map: MapId) -> bool {
    fs.pin_of(map).with_file_name(map.earlier_name().unwrap()).exists()
}

#[test]
fn entries_go_into_a_map_of_another_size_as_they_are() {
    let fs = BpfFs::mount();
    {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        fs.map(MapId::Affinity).update(&bound(1), &backend_of(2, 3)).unwrap();
    }
    let larger = Sizes { affinity: SMALL.affinity * 2, ..SMALL };
    let (mut tables, opening) = KernelTables::open(fs.root(), &larger).unwrap();
    assert_eq!(opening.published, Published::Reused);
    assert!(matches!(opening.others[&MapId::Affinity], Origin::Replaced(_)), "{opening:?}");
    assert!(tables.has_earlier() && is_pinned(&fs, MapId::Affinity) && !is_pinned(&fs, MapId::Sock));
    // The programs read it where it is.
    assert_eq!(tables.adopt_unread().unwrap(), Adopted::default());
    assert_eq!(tables.adopt().unwrap(), Adopted { copied: 1, ..Adopted::default() });
    assert_eq!(fs.map(MapId::Affinity).lookup(&bound(1)).unwrap(), backend_of(2, 3));
    assert_eq!(tables.adopt().unwrap(), Adopted { known: 1, ..Adopted::default() });
    tables.forget_earlier().unwrap();
    assert!(!tables.has_earlier() && !is_pinned(&fs, MapId::Affinity));
}

#[test]
fn an_agent_that_ended_before_it_had_copied_leaves_that_to_the_next() {
    let fs = BpfFs::mount();
    fs.open();
    fs.map(MapId::Affinity).update(&bound(1), &backend_of(2, 3)).unwrap();
    let larger = Sizes { affinity: SMALL.affinity * 2, ..SMALL };
    for _ in 0..2 {
        KernelTables::open(fs.root(), &larger).unwrap();
    }
    // Also where the size changes back meanwhile: then two maps have entries.
    fs.map(MapId::Affinity).update(&bound(2), &backend_of(4, 5)).unwrap();
    let (tables, _) = fs.open();
    tables.adopt_unread().unwrap();
    tables.adopt().unwrap();
    for (key, value) in [(bound(1), backend_of(2, 3)), (bound(2), backend_of(4, 5))] {
        assert_eq!(fs.map(MapId::Affinity).lookup(&key).unwrap(), value);
    }
}

#[test]
fn numbers_are_those_of_the_new_set_when_the_published_maps_are_made_anew() {
    let fs = BpfFs::mount();
    {
        let (mut tables, _) = fs.open();
        write(&mut tables, &service(1, 1, 0..3));
        let affinity = fs.map(MapId::Affinity);
        affinity.update(&bound(1), &backend_of(2, 3)).unwrap();
        // A slot that was given to somebody else since, a backend that is gone, and a service that never was.
        affinity.update(&bound(3), &backend_of(1, 9)).unwrap();
        affinity.update(&bound(4), &backend_of(0, 1)).unwrap();
        affinity.update(&bound(5), &backend_of(60, 1)).unwrap();
    }
    let larger = Sizes { runs: SMALL.runs * 2, ..SMALL };
    let (mut tables, opening) = KernelTables::open(fs.root(), &larger).unwrap();
    assert!(matches!(opening.published, Published::Replaced(_)), "{opening:?}");
    assert_eq!(opening.others[&MapId::SockReplies], Origin::Reused);
    // Programs would take the numbers for their own.
    assert!(tables.has_earlier() && !is_pinned(&fs, MapId::Affinity) && is_pinned(&fs, MapId::Sock));
    let moved = backend(2);
    let slot = BackendSlot::new(77, Membership::Cluster.bit(), index(9), moved.addr, moved.port);
    write(
        &mut tables,
        &[
            TableOp::NameService { service: index(9), name: name(1) },
            TableOp::WriteBackend { index: BackendIndex::new(40), slot },
        ],
    );
    let adopted = tables.adopt_unread().unwrap();
    assert_eq!(adopted, Adopted { copied: 1, meaningless: 3, ..Adopted::default() });
    assert_eq!(fs.map(MapId::Affinity).lookup(&bound(9)).unwrap(), backend_of(40, 77));
}
