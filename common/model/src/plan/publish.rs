use portway_datapath::maglev::{Permutation, populate};
use portway_datapath::{
    BackendIndex, BackendSlot, Record, RunHeader, RunOffset, ServiceFlags, ServiceIndex, ServiceName,
    ServiceWord, layout,
};

use super::MaglevOptions;
use super::cleanup::give_up_leftovers;
use super::extents::Extent;
use super::held::{CLUSTER, Held, HeldBackend, HeldRange, LOCAL, Version, bits, maglev_tables, part_of_run};
use super::outcome::{Problem, Resource, Shortage};
use super::room::{Room, run_len};
use crate::loadbalancer::{DesiredBackend, DesiredService, ServicePortKey};
use crate::tables::{TableOp, TableWriter};

/// Why a service has no Maglev tables though they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaglevLack {
    /// All tables together would exceed the budget. Healed when another service gives up its tables.
    Budget,
    /// More backends than a table has slots.
    TooManyBackends,
}

/// Writes operations and counts them.
pub(super) struct Writer<'a, W> {
    pub(super) tables: &'a mut W,
    pub(super) writes: u64,
}

impl<W: TableWriter> Writer<'_, W> {
    pub(super) fn write(&mut self, op: &TableOp) -> Result<(), Problem<W::Error>> {
        self.tables.write(op).map_err(|error| Problem::Write { map: map_of(op), error })?;
        self.writes += 1;
        Ok(())
    }
}

/// Why a version was not published.
pub(super) enum Trouble<E> {
    Short(Shortage),
    Problem(Problem<E>),
}

impl<E> From<Problem<E>> for Trouble<E> {
    fn from(problem: Problem<E>) -> Self {
        Self::Problem(problem)
    }
}

impl<E> From<Shortage> for Trouble<E> {
    fn from(shortage: Shortage) -> Self {
        Self::Short(shortage)
    }
}

/// What Maglev gives a service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Maglev {
    /// Off, or of no use.
    None,
    /// Slots of each table.
    Tables(u32),
    Lack(MaglevLack),
}

impl Maglev {
    pub(super) fn of(options: Option<MaglevOptions>, wanted: &DesiredService) -> Self {
        match options {
            Some(options) if wanted.reached_from_outside && !wanted.backends.is_empty() => {
                // A slot holds a position in the run.
                let limit = (options.table_size as usize).min(usize::from(u16::MAX));
                if wanted.backends.len() > limit {
                    Self::Lack(MaglevLack::TooManyBackends)
                } else {
                    Self::Tables(options.table_size)
                }
            }
            Some(_) | None => Self::None,
        }
    }

    pub(super) const fn size(self) -> u32 {
        match self {
            Self::Tables(size) => size,
            Self::None | Self::Lack(_) => 0,
        }
    }
}

/// A version in the making.
struct Draft {
    header: RunHeader,
    /// The backends of the run in its order, as positions in the merged list.
    order: Vec<usize>,
    extent: Extent,
    maglev: Extent,
    /// The tables of the version before, which has the same sets.
    keeps_maglev: bool,
}

/// Makes `wanted` the published version of `index`: everything it needs first, then the publishing store.
///
/// Membership bits say whether a client may keep a backend that it is bound to. Until the store they are the union
/// of the old and the new ones; where the traffic policies change, and so the set that rules a frontend, they are the
/// intersection, for a bit of the one set would be taken for the other's. [`complete`] makes them the new ones.
///
/// Where it fails the version before stays; slots and ranges that were written meanwhile are in `held`, for the next
/// try to use or give up.
pub(super) fn publish<W: TableWriter>(
    (index, key): (ServiceIndex, &ServicePortKey),
    held: &mut Held,
    wanted: &DesiredService,
    (maglev, options): (Maglev, Option<MaglevOptions>),
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Trouble<W::Error>> {
    let mut backends = merge(&held.backends, &wanted.backends);
    let new = backends.iter().filter(|(b, _)| !b.has_slot()).count() as u32;
    if new > room.slots.available() {
        return Err(room.shortage(Resource::Backends, new).into());
    }
    let draft = draft(held, &backends, wanted, maglev, room)?;
    let keeps_policies =
        held.version.is_none_or(|before| policies(before.header.flags) == policies(wanted.flags));
    let written = prepare((index, key), held, wanted, (&mut backends, keeps_policies), room, writer)
        .and_then(|()| store(index, &draft, &backends, options, room, writer));
    let (word, print) = match written {
        Ok(written) => written,
        Err(trouble) => {
            // No program has seen them.
            room.runs.release(draft.extent);
            if !draft.keeps_maglev {
                room.maglev.release(draft.maglev);
            }
            held.backends = backends.into_iter().map(|(b, _)| b).filter(HeldBackend::has_slot).collect();
            return Err(trouble);
        }
    };
    held.backends = backends.into_iter().map(|(b, bits)| HeldBackend { published: bits, ..b }).collect();
    held.backends.shrink_to_fit();
    let Draft { header, extent, maglev, keeps_maglev, order: _ } = draft;
    let kept = held.version.filter(|_| keeps_maglev).map(|before| before.maglev_print);
    let maglev_print = kept.unwrap_or(print);
    let version = Version { extent, header, maglev, maglev_print, word, is_sound: true };
    if let Some(before) = held.version.replace(version) {
        room.retire_run(before.extent);
        if !keeps_maglev {
            room.retire_maglev(before.maglev);
        }
    }
    Ok(())
}

/// Gives a published version its final bits and source ranges, and gives up what it does not have.
pub(super) fn complete<W: TableWriter>(
    index: ServiceIndex,
    held: &mut Held,
    wanted: &DesiredService,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Trouble<W::Error>> {
    insert_ranges(index, held, wanted, room, writer)?;
    Ok(give_up_leftovers(index, held, room, writer)?)
}

/// The traffic policies of these flags.
const fn policies(flags: ServiceFlags) -> (bool, bool) {
    (flags.has(ServiceFlags::INTERNAL_LOCAL), flags.has(ServiceFlags::EXTERNAL_LOCAL))
}

/// The held backends and the wanted ones in one order, each with the bits that it should have; new ones have no slot.
fn merge(held: &[HeldBackend], wanted: &[DesiredBackend]) -> Vec<(HeldBackend, u8)> {
    let mut merged = Vec::with_capacity(held.len().max(wanted.len()));
    let mut held = held.iter().copied().peekable();
    for backend in wanted {
        let place = (backend.addr, backend.port);
        while let Some(gone) = held.next_if(|h| (h.addr, h.port) < place) {
            merged.push((gone, 0));
        }
        let known = held.next_if(|h| (h.addr, h.port) == place);
        merged.push((known.unwrap_or_else(|| HeldBackend::without_slot(backend)), bits(backend)));
    }
    merged.extend(held.map(|gone| (gone, 0)));
    merged
}

/// Lays the run out and reserves its records and tables.
fn draft(
    held: &Held,
    backends: &[(HeldBackend, u8)],
    wanted: &DesiredService,
    maglev: Maglev,
    room: &mut Room,
) -> Result<Draft, Shortage> {
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    for (at, (_, bits)) in backends.iter().enumerate().filter(|(_, (_, bits))| *bits != 0) {
        parts[part_of_run(*bits)].push(at);
    }
    let [local_only, both, cluster_only] = parts.each_ref().map(|part| part.len() as u32);
    let mut header = RunHeader {
        flags: wanted.flags,
        affinity_seconds: wanted.affinity_seconds,
        local_len: local_only + both,
        cluster_start: local_only,
        cluster_len: both + cluster_only,
        maglev_size: maglev.size(),
        maglev_at: 0,
    };
    let order = parts.concat();
    let tables = header.maglev_size.saturating_mul(maglev_tables(header.flags));
    let kept = held.version.filter(|before| {
        tables != 0
            && before.is_sound
            && before.header.maglev_size == header.maglev_size
            && before.maglev.len == tables
            && held.has_sets(&wanted.backends)
    });
    let tables = match kept {
        Some(before) => before.maglev,
        None => room.maglev.take(tables).ok_or_else(|| room.shortage(Resource::Maglev, tables))?,
    };
    header.maglev_at = tables.start;
    let len = run_len(order.len());
    let Some(extent) = room.runs.take(len) else {
        if kept.is_none() {
            room.maglev.release(tables);
        }
        return Err(room.shortage(Resource::Runs, len));
    };
    Ok(Draft { header, order, extent, maglev: tables, keeps_maglev: kept.is_some() })
}

/// Everything that a version needs outside its run.
fn prepare<W: TableWriter>(
    (index, key): (ServiceIndex, &ServicePortKey),
    held: &mut Held,
    wanted: &DesiredService,
    (backends, keeps_policies): (&mut [(HeldBackend, u8)], bool),
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Trouble<W::Error>> {
    if !held.named {
        let name = ServiceName::new(key.service(), &key.port_name).map_err(Problem::Name)?;
        writer.write(&TableOp::NameService { service: index, name: Box::new(name) })?;
        held.named = true;
    }
    insert_ranges(index, held, wanted, room, writer)?;
    for (backend, bits) in backends {
        if backend.has_slot() {
            let until = if keeps_policies { backend.stored | *bits } else { backend.stored & *bits };
            store_bits(backend, until, writer)?;
        } else {
            write_slot(index, backend, *bits, room, writer)?;
        }
    }
    Ok(())
}

fn insert_ranges<W: TableWriter>(
    index: ServiceIndex,
    held: &mut Held,
    wanted: &DesiredService,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Trouble<W::Error>> {
    for range in &mut held.ranges {
        range.wanted = wanted.source_ranges.binary_search(&range.prefix).is_ok();
    }
    for prefix in &wanted.source_ranges {
        let Err(at) = held.ranges.binary_search_by_key(prefix, |range| range.prefix) else { continue };
        if room.source_ranges >= room.sizes.source_ranges {
            return Err(room.shortage(Resource::SourceRanges, 1).into());
        }
        writer.write(&TableOp::InsertSourceRange { service: index, addr: prefix.0, bits: prefix.1 })?;
        room.source_ranges += 1;
        held.ranges.insert(at, HeldRange { prefix: *prefix, wanted: true });
    }
    Ok(())
}

/// Gives a slot in use exactly these bits.
pub(super) fn store_bits<W: TableWriter>(
    backend: &mut HeldBackend,
    bits: u8,
    writer: &mut Writer<'_, W>,
) -> Result<(), Problem<W::Error>> {
    if backend.stored == bits {
        return Ok(());
    }
    let state = BackendSlot::state_word(backend.incarnation, u32::from(bits));
    writer.write(&TableOp::StoreBackendState { index: backend.slot, state })?;
    backend.stored = bits;
    Ok(())
}

fn write_slot<W: TableWriter>(
    service: ServiceIndex,
    backend: &mut HeldBackend,
    bits: u8,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Trouble<W::Error>> {
    let Some(incarnation) = room.next_incarnation() else {
        return Err(room.shortage(Resource::Incarnations, 1).into());
    };
    let Some(number) = room.slots.take() else {
        return Err(room.shortage(Resource::Backends, 1).into());
    };
    let index = BackendIndex::new(number);
    let slot = BackendSlot::new(incarnation, u32::from(bits), service, backend.addr, backend.port);
    if let Err(problem) = writer.write(&TableOp::WriteBackend { index, slot }) {
        room.slots.give_back(number);
        return Err(problem.into());
    }
    *backend = HeldBackend { stored: bits, slot: index, incarnation, ..*backend };
    Ok(())
}

/// The run, its tables and the publishing store; the stored word, and [`print_of`] the tables that were written.
fn store<W: TableWriter>(
    index: ServiceIndex,
    draft: &Draft,
    backends: &[(HeldBackend, u8)],
    options: Option<MaglevOptions>,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(ServiceWord, u64), Trouble<W::Error>> {
    let mut print = 0;
    if let Some(options) = options
        && !draft.keeps_maglev
        && draft.maglev.len != 0
    {
        let slots = maglev_slots(draft, backends, options);
        print = print_of(&slots);
        writer.write(&TableOp::WriteMaglev { at: draft.maglev.start, slots })?;
    }
    let at = RunOffset::new(draft.extent.start);
    let mut records: Vec<Record> = Vec::with_capacity(draft.extent.len as usize);
    records.extend(draft.header.records());
    records.extend(draft.order.iter().map(|i| backends[*i].0.record()));
    writer.write(&TableOp::WriteRun { at, records })?;
    let word = ServiceWord::new(at, room.next_generation());
    writer.write(&TableOp::Publish { service: index, word })?;
    Ok((word, print))
}

/// A number by which Maglev tables are known again: 64 bits of a multiplicative hash.
pub(super) fn print_of(slots: &[u16]) -> u64 {
    slots.iter().fold(0x9e37_79b9_7f4a_7c15, |print: u64, slot| {
        (print.rotate_left(5) ^ u64::from(*slot)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// The tables of a version one after the other. Each is built in address order, so that every node agrees, and holds
/// positions in the run.
fn maglev_slots(draft: &Draft, backends: &[(HeldBackend, u8)], options: MaglevOptions) -> Vec<u16> {
    let size = draft.header.maglev_size as usize;
    let mut slots = vec![0; draft.maglev.len as usize];
    for (set, table) in [CLUSTER, LOCAL].into_iter().zip(slots.chunks_mut(size)) {
        let mut members: Vec<(usize, u16)> = draft
            .order
            .iter()
            .enumerate()
            .filter(|(_, i)| backends[**i].1 & set != 0)
            .map(|(position, i)| (*i, position as u16))
            .collect();
        // The merged list is in address order.
        members.sort_unstable();
        let mut permutations: Vec<_> = members
            .iter()
            .map(|(i, _)| {
                let backend = &backends[*i].0;
                Permutation::new(&options.seed, backend.addr, backend.port, options.table_size)
            })
            .collect();
        populate(&mut permutations, table);
        for slot in table.iter_mut() {
            *slot = members.get(usize::from(*slot)).map_or(0, |(_, position)| *position);
        }
    }
    slots
}

const fn map_of(op: &TableOp) -> &'static str {
    match op {
        TableOp::WriteRun { .. } => layout::RUNS,
        TableOp::WriteMaglev { .. } => layout::MAGLEV,
        TableOp::WriteBackend { .. } | TableOp::StoreBackendState { .. } => layout::BACKENDS,
        TableOp::NameService { .. } | TableOp::ForgetService { .. } => layout::SERVICE_NAMES,
        TableOp::InsertSourceRange { .. } | TableOp::DeleteSourceRange { .. } => layout::SOURCE_RANGES,
        TableOp::Publish { .. } => layout::SERVICES,
        TableOp::InsertFrontend { .. } | TableOp::StoreFrontend { .. } | TableOp::DeleteFrontend { .. } => {
            layout::FRONTENDS
        }
    }
}
