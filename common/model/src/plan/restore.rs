use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{BackendIndex, BackendSlot, RunHeader, ServiceIndex};

use super::extents::{Extent, Extents};
use super::held::{CLUSTER, Held, HeldBackend, HeldRange, LOCAL, Version, Who, maglev_tables, part_of_run};
use super::numbers::Numbers;
use super::room::{run_len, service_end};
use super::{Options, Planner};
use crate::tables::{ServiceDump, TableDump};

impl Planner {
    /// Adopts what the maps hold, left by a run that ended anywhere between two operations. Nothing is written.
    ///
    /// Everything known before is forgotten, and [`super::Retired`] values from before free nothing. Every restored
    /// service keeps its version until [`Self::reconcile`] finds who wants it: a service with the same names, if one of
    /// its frontends points at it or no frontend does. What nobody wants goes with [`Self::prune`].
    ///
    /// Records and slots that the run before had given up are taken for free: between its end and the first
    /// reconcile the caller waits for a grace period, if programs are attached. Maglev tables are built again, for a
    /// dump does not tell by which seed they were.
    pub fn restore(&mut self, dump: &TableDump) {
        let epoch = self.room.epoch + 1;
        *self = Self::new(self.options);
        self.room.epoch = epoch;

        let slots: BTreeMap<_, _> = dump.backends.iter().map(|(index, slot)| (*index, slot)).collect();
        let mut used_slots = BTreeSet::new();
        for service in &dump.services {
            if let Some(held) = restored_service(service, &slots, &mut used_slots, self.options) {
                self.held.insert(service.index, held);
            }
            self.room.generation = self.room.generation.max(service.word.generation());
        }
        for (index, slot) in &dump.backends {
            self.room.incarnation = self.room.incarnation.max(slot.incarnation());
            // A slot without bits was given up; one with bits was taken or not given up when the run ended.
            if slot.members() as u8 != 0 && used_slots.insert(index.get()) {
                self.leftover(slot.service).backends.push(held_backend(*index, slot, 0));
            }
        }
        for (service, addr, bits) in &dump.source_ranges {
            let range = HeldRange { prefix: (*addr, *bits), wanted: true };
            self.leftover(*service).ranges.push(range);
        }
        for service in &dump.stray_names {
            self.leftover(*service).named = true;
        }
        for (key, value) in &dump.frontends {
            self.leftover(value.service()).add_frontend(*key);
            self.frontends.insert(*key, *value);
        }
        for held in self.held.values_mut() {
            held.backends.sort_by_key(|b| (b.addr, b.port, b.published == 0));
            held.ranges.sort_by_key(|range| range.prefix);
        }
        for (index, held) in self.held.iter().filter(|(_, held)| held.frontends.is_empty()) {
            if let Who::Restored { service, port } = &held.who {
                self.restored.insert((service.clone(), port.clone()), *index);
            }
        }
        self.restore_room(&used_slots, dump.source_ranges.len() as u32);
    }

    fn leftover(&mut self, index: ServiceIndex) -> &mut Held {
        self.held.entry(index).or_insert_with(|| Held::new(Who::unknown()))
    }

    fn restore_room(&mut self, slots: &BTreeSet<u32>, source_ranges: u32) {
        let sizes = self.options.sizes;
        let services = self.held.keys().map(|index| index.get()).collect();
        self.room.services = Numbers::restored(service_end(sizes), &services);
        self.room.slots = Numbers::restored(sizes.backends, slots);
        self.room.source_ranges = source_ranges;

        let versions: Vec<_> = self.held.values_mut().filter_map(|held| held.version.as_mut()).collect();
        let runs: Vec<_> = versions.iter().map(|version| version.extent).collect();
        let tables: Vec<_> = versions.iter().map(|version| version.maglev).collect();
        let (runs, overlaps) = Extents::restored(1, sizes.runs, &runs);
        self.room.runs = runs;
        self.room.maglev = Extents::restored(0, sizes.maglev, &tables).0;
        for (version, overlaps) in versions.into_iter().zip(overlaps) {
            version.is_sound &= !overlaps;
        }
    }
}

/// A published service; `None` where nothing is published.
fn restored_service(
    service: &ServiceDump,
    slots: &BTreeMap<BackendIndex, &BackendSlot>,
    used_slots: &mut BTreeSet<u32>,
    options: Options,
) -> Option<Held> {
    let header = service.header;
    // A damaged header may say any number: a run has no more backends than there are slots in use, and what is nobody's
    // must not keep all others from being written.
    let claimed = header.backends().min(u32::try_from(slots.len()).unwrap_or(u32::MAX));
    let extent = clipped(service.word.run()?.get(), run_len(0).saturating_add(claimed), options.sizes.runs);
    let tables = header.maglev_size.saturating_mul(maglev_tables(header.flags));
    let maglev =
        if tables == 0 { Extent::EMPTY } else { clipped(header.maglev_at, tables, options.sizes.maglev) };
    let mut is_sound = service.backends.len() == header.backends() as usize
        && extent.len == run_len(service.backends.len())
        && tables == 0;
    let mut backends = Vec::with_capacity(service.backends.len());
    let mut place = None;
    for (position, backend) in service.backends.iter().enumerate() {
        let bits = bits_at(&header, position as u32);
        let next = Some((part_of_run(bits), backend.addr, backend.port));
        let slot = slots.get(&backend.index).filter(|slot| {
            slot.service == service.index && slot.addr == backend.addr && slot.port == backend.port
        });
        match slot {
            Some(slot) if bits != 0 && place < next && used_slots.insert(backend.index.get()) => {
                backends.push(held_backend(backend.index, slot, bits));
            }
            Some(_) | None => is_sound = false,
        }
        place = next;
    }
    Some(Held {
        named: !service.service.is_empty(),
        version: Some(Version { extent, header, maglev, maglev_print: 0, word: service.word, is_sound }),
        backends,
        ..Held::new(Who::Restored {
            service: service.service.as_str().into(),
            port: service.port_name.as_str().into(),
        })
    })
}

/// The sets of a position in a run.
fn bits_at(header: &RunHeader, position: u32) -> u8 {
    let is_local = position < header.local_len;
    let is_cluster = position >= header.cluster_start && position - header.cluster_start < header.cluster_len;
    (if is_local { LOCAL } else { 0 }) | (if is_cluster { CLUSTER } else { 0 })
}

fn held_backend(index: BackendIndex, slot: &BackendSlot, published: u8) -> HeldBackend {
    HeldBackend {
        addr: slot.addr,
        port: slot.port,
        published,
        stored: slot.members() as u8,
        slot: index,
        incarnation: slot.incarnation(),
    }
}

/// What lies within the map of an extent that may not.
fn clipped(start: u32, len: u32, size: u32) -> Extent {
    let start = start.min(size);
    Extent { start, len: len.min(size - start) }
}
