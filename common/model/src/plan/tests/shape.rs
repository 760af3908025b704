//! What maps mean, without the numbers that differ from run to run; and whether a planner knows exactly what they
//! hold.

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{Addr, FrontendKey, FrontendKind, RunHeader};

use super::super::Planner;
use super::world::World;
use crate::loadbalancer::Desired as _;
use crate::plan::Options;
use crate::tables::{MemoryTables, TableDump};

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Service {
    service: String,
    port_name: String,
    frontends: Vec<(FrontendKey, FrontendKind)>,
    header: [[u32; 6]; 2],
    /// In the order of the run.
    backends: Vec<(Addr, u16)>,
    /// Slots with bits, in order of the address.
    slots: Vec<(Addr, u16, u32)>,
    source_ranges: Vec<(Addr, u8)>,
    tables: Vec<u16>,
}

impl Service {
    pub(super) fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }
}

pub(super) fn shape(tables: &MemoryTables) -> Vec<Service> {
    let dump = tables.dump();
    assert_eq!(dump.stray_names, []);
    let published: BTreeSet<_> = dump.services.iter().map(|s| s.index).collect();
    assert!(
        dump.frontends.iter().all(|(key, value)| value.is_of(key) && published.contains(&value.service()))
    );
    assert!(dump.source_ranges.iter().all(|(service, ..)| published.contains(service)));
    let in_use = |slot: &&(_, portway_datapath::BackendSlot)| slot.1.members() != 0;
    assert!(dump.backends.iter().filter(in_use).all(|(_, slot)| published.contains(&slot.service)));
    let mut shape: Vec<_> = dump
        .services
        .iter()
        .map(|s| {
            let of_it = |(_, value): &&(_, portway_datapath::FrontendValue)| value.service() == s.index;
            let mut slots: Vec<_> = dump
                .backends
                .iter()
                .filter(in_use)
                .filter(|(_, slot)| slot.service == s.index)
                .map(|(_, slot)| (slot.addr, slot.port.get(), slot.members()))
                .collect();
            slots.sort();
            let tables_len = s.header.maglev_size * if s.header.flags.bits() & 3 == 0 { 1 } else { 2 };
            let at = s.header.maglev_at;
            Service {
                service: s.service.clone(),
                port_name: s.port_name.clone(),
                frontends: dump
                    .frontends
                    .iter()
                    .filter(of_it)
                    .map(|(k, v)| (*k, v.kind().unwrap()))
                    .collect(),
                header: RunHeader { maglev_at: 0, ..s.header }.records(),
                backends: s.backends.iter().map(|b| (b.addr, b.port.get())).collect(),
                slots,
                source_ranges: dump
                    .source_ranges
                    .iter()
                    .filter(|(service, ..)| *service == s.index)
                    .map(|(_, addr, bits)| (*addr, *bits))
                    .collect(),
                tables: (at..at + tables_len).map(|n| tables.maglev_slot(n).unwrap()).collect(),
            }
        })
        .collect();
    shape.sort();
    shape
}

/// The maps that `world` makes of empty ones.
pub(super) fn from_scratch(world: &World, options: Options) -> Vec<Service> {
    let mut tables = MemoryTables::new(options.sizes);
    let mut dirty = world.everything();
    let outcome = Planner::new(options).reconcile(world, &mut dirty, &mut tables);
    assert!(outcome.is_settled() && dirty.is_empty(), "{outcome:?}");
    shape(&tables)
}

/// Compares what the planner thinks that the maps hold with what they hold.
pub(super) fn assert_exact(planner: &Planner, dump: &TableDump) {
    let frontends: Vec<_> = planner.frontends.iter().map(|(k, v)| (*k, *v)).collect();
    assert_eq!(frontends, dump.frontends);
    let runs: BTreeMap<_, _> =
        planner.held.iter().filter_map(|(index, held)| Some((*index, held.version?.extent.start))).collect();
    assert_eq!(runs, dump.services.iter().map(|s| (s.index, s.word.run().unwrap().get())).collect());
    let mut slots = BTreeMap::new();
    for (index, held) in &planner.held {
        for b in &held.backends {
            let slot = (*index, b.addr, b.port, b.incarnation, u32::from(b.stored));
            assert_eq!(slots.insert(b.slot, slot), None, "slot held twice");
        }
        let pointing: Vec<_> =
            planner.frontends.iter().filter(|(_, v)| v.service() == *index).map(|(k, _)| *k).collect();
        assert_eq!(held.frontends, pointing);
    }
    let in_maps: BTreeMap<_, _> = dump
        .backends
        .iter()
        .filter(|(index, slot)| slot.members() != 0 || slots.contains_key(index))
        .map(|(index, s)| (*index, (s.service, s.addr, s.port, s.incarnation(), s.members())))
        .collect();
    assert_eq!(slots, in_maps);
    let ranges: Vec<_> = planner
        .held
        .iter()
        .flat_map(|(index, held)| held.ranges.iter().map(|r| (*index, r.prefix.0, r.prefix.1)))
        .collect();
    assert_eq!(ranges, dump.source_ranges);
    assert_eq!(planner.room.source_ranges as usize, ranges.len());
}
