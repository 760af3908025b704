//! Tables that look at themselves after every operation.

use std::collections::BTreeSet;

use portway_datapath::{
    BackendIndex, BackendSlot, Client, Destination, Family, FrontendKey, FrontendValue, LocalAddress,
    Membership, NodeConfig, Record, RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceWord, Settings,
    Tables, Verdict, translate,
};

use super::world::{Answer, NODE, NODE6, SIZES, World, addr, destinations, frontend_keys, inside};
use crate::tables::{FaultyTables, FullTable, MemoryTables, TableOp, TableWriter};

/// What may not be written again yet, and since which grace period.
type Cooling<T> = Vec<(u64, T)>;

pub(super) struct Checker {
    pub(super) tables: MemoryTables,
    pub(super) violations: Vec<String>,
    /// Everything that was written.
    pub(super) ops: Vec<TableOp>,
    destinations: Vec<Destination>,
    /// For each destination, what it may answer.
    allowed: Vec<BTreeSet<Answer>>,
    runs: Cooling<(u32, u32)>,
    maglev: Cooling<(u32, u32)>,
    slots: Cooling<BackendIndex>,
    services: Cooling<ServiceIndex>,
    /// For each destination: the frontends that programs may have read and not followed yet, with what was allowed.
    followers: Vec<Cooling<(FrontendValue, BTreeSet<Answer>)>>,
    period: u64,
    incarnation: u32,
    clients: u64,
    /// Operations that still succeed; none after a crash.
    pub(super) lives: u64,
    /// Where a service's traffic policies change, bits are the intersection of old and new for a while.
    keeps_policies: bool,
    /// Frontends that somebody else's change made wrong: what they answer is not looked at.
    blind: BTreeSet<FrontendKey>,
    is_damaged: bool,
}

impl Checker {
    pub(super) fn new(mut tables: MemoryTables) -> Self {
        tables.config = NodeConfig { host_netns: 1, settings: Settings::new().word() };
        tables.local_addresses.insert(addr(NODE), LocalAddress::new(true));
        tables.local_addresses.insert(addr(NODE6), LocalAddress::new(true));
        Self {
            tables,
            violations: Vec::new(),
            ops: Vec::new(),
            destinations: destinations(),
            allowed: Vec::new(),
            runs: Vec::new(),
            maglev: Vec::new(),
            slots: Vec::new(),
            services: Vec::new(),
            followers: vec![Vec::new(); destinations().len()],
            period: 0,
            incarnation: 0,
            clients: 100,
            lives: u64::MAX,
            keeps_policies: true,
            blind: BTreeSet::new(),
            is_damaged: false,
        }
    }

    /// Somebody else changed the maps: what that made wrong, or may make wrong for a client that comes back, is not
    /// looked at until [`Self::see_again`]; all the rest is. `services` had versions or slots that were
    /// changed.
    pub(super) fn overlook_damage(&mut self, services: &BTreeSet<ServiceIndex>) {
        self.followers.iter_mut().for_each(Vec::clear);
        self.is_damaged = true;
        self.blind = self.wrong("damage").into_iter().map(|(key, _)| key).collect();
        let dialled = self
            .destinations
            .iter()
            .map(|to| (FrontendKey::new(to.addr, to.port, to.protocol), read_frontend(&self.tables, to)));
        let all = frontend_keys().into_iter().map(|key| (key, self.tables.frontend(&key)));
        let is_theirs = |value: Option<FrontendValue>| value.is_some_and(|v| services.contains(&v.service()));
        self.blind.extend(dialled.chain(all).filter(|(_, value)| is_theirs(*value)).map(|(key, _)| key));
    }

    pub(super) fn see_again(&mut self) {
        self.is_damaged = false;
        let blind = std::mem::take(&mut self.blind);
        for (to, followers) in self.destinations.iter().zip(&mut self.followers) {
            if blind.contains(&FrontendKey::new(to.addr, to.port, to.protocol)) {
                followers.clear();
            }
        }
    }

    /// Every destination may answer as one of `worlds` says.
    pub(super) fn allow<'a>(&mut self, worlds: impl IntoIterator<Item = &'a World> + Clone) {
        self.allowed = self
            .destinations
            .iter()
            .map(|to| worlds.clone().into_iter().map(|world| world.answer(to)).collect())
            .collect();
        // Who read a frontend a while ago may also get what was wanted at any time since.
        for (followers, allowed) in self.followers.iter_mut().zip(&self.allowed) {
            followers.iter_mut().for_each(|(_, (_, before))| before.extend(allowed.iter().cloned()));
        }
        let policies =
            worlds.clone().into_iter().flat_map(|w| &w.services).map(|(k, s)| (k, s.flags.bits() & 3));
        let distinct: BTreeSet<_> = policies.collect();
        self.keeps_policies =
            distinct.len() == distinct.iter().map(|(k, _)| k).collect::<BTreeSet<_>>().len();
    }

    /// A grace period that began before this call is over for what was given up before it.
    pub(super) fn period_began(&mut self) -> u64 {
        self.period += 1;
        self.period
    }

    pub(super) fn period_ended(&mut self, period: u64) {
        self.runs.retain(|(since, _)| *since >= period);
        self.maglev.retain(|(since, _)| *since >= period);
        self.slots.retain(|(since, _)| *since >= period);
        self.services.retain(|(since, _)| *since >= period);
        self.followers.iter_mut().for_each(|of_one| of_one.retain(|(since, _)| *since >= period));
    }

    /// Looks every destination up, by two clients: one that comes back and one that is new.
    pub(super) fn look(&mut self, after: &str) {
        let wrong = self.wrong(after).into_iter().filter(|(key, _)| !self.blind.contains(key));
        self.violations.extend(wrong.map(|(_, violation)| violation).collect::<Vec<_>>());
    }

    /// What is wrong with which frontend.
    fn wrong(&mut self, after: &str) -> Vec<(FrontendKey, String)> {
        self.clients += 1;
        let mut wrong = Vec::new();
        for ((to, allowed), followers) in self.destinations.iter().zip(&self.allowed).zip(&mut self.followers)
        {
            let mut report = |violation| {
                wrong.push((FrontendKey::new(to.addr, to.port, to.protocol), violation));
            };
            for (_, (value, before)) in followers.iter() {
                let answer = answer_of(&self.tables, *value);
                if !allowed.contains(&answer) && !before.contains(&answer) {
                    report(format!(
                        "after {after}: who follows an earlier {value:?} of {to:?} gets {answer:?}, not one of {allowed:?}"
                    ));
                }
            }
            if let Some(value) = read_frontend(&self.tables, to) {
                match followers
                    .iter_mut()
                    .find(|(since, (known, _))| (*since, *known) == (self.period, value))
                {
                    Some((_, (_, before))) => before.extend(allowed.iter().cloned()),
                    None => followers.push((self.period, (value, allowed.clone()))),
                }
            }
            for netns in [7, self.clients] {
                let verdict = translate(&self.tables, Client { netns }, *to);
                if !allowed.iter().any(|answer| fits(&verdict, answer)) {
                    report(format!("after {after}: {to:?} got {verdict:?}, not one of {allowed:?}"));
                }
            }
            let answer = published_answer(&self.tables, to);
            if !allowed.contains(&answer) {
                report(format!("after {after}: {to:?} gets {answer:?}, not one of {allowed:?}"));
            }
        }
        for key in frontend_keys() {
            wrong.extend(self.wrong_with(&key, after).into_iter().map(|violation| (key, violation)));
        }
        wrong
    }

    fn wrong_with(&self, key: &FrontendKey, after: &str) -> Vec<String> {
        let Some(value) = self.tables.frontend(key) else { return Vec::new() };
        let index = value.service();
        let Some(run) = self.tables.service(index).and_then(ServiceWord::run) else {
            return vec![format!("after {after}: {key:?} points at {index:?}, which is not published")];
        };
        let header = header(&self.tables, run);
        let mut wrong = Vec::new();
        for set in [Membership::Local, Membership::Cluster] {
            for backend in members(&self.tables, run, &header, set) {
                let slot = self.tables.backend(backend.index).unwrap_or(BackendSlot::EMPTY);
                let is_its = slot.service == index && (slot.addr, slot.port) == (backend.addr, backend.port);
                if !is_its || (self.keeps_policies && slot.members() & set.bit() == 0) {
                    wrong.push(format!("after {after}: {index:?} has {backend:?} with {slot:?}"));
                }
            }
        }
        wrong
    }

    fn check_reuse(&mut self, op: &TableOp) {
        let mut found = None;
        match op {
            TableOp::WriteRun { at, records } => {
                let written = (at.get(), at.get() + records.len() as u32);
                let cooling = self.runs.iter().map(|(_, run)| *run);
                let live = self
                    .published()
                    .filter_map(|(_, word)| word.run())
                    .map(|run| run_extent(&self.tables, run));
                found =
                    cooling.chain(live).find(|extent| overlap(*extent, written)).map(|e| format!("{e:?}"));
            }
            TableOp::WriteMaglev { at, slots } => {
                let written = (*at, at + slots.len() as u32);
                let cooling = self.maglev.iter().map(|(_, tables)| *tables);
                let live =
                    self.published().filter_map(|(_, w)| w.run()).map(|run| maglev_extent(&self.tables, run));
                found =
                    cooling.chain(live).find(|extent| overlap(*extent, written)).map(|e| format!("{e:?}"));
            }
            TableOp::WriteBackend { index, slot } => {
                let live = self.tables.backend(*index).is_some_and(|slot| slot.members() != 0);
                if live || index.get() == 0 || self.slots.iter().any(|(_, cooling)| cooling == index) {
                    found = Some("slot in use".to_owned());
                }
                if slot.incarnation() <= self.incarnation {
                    found = Some("incarnation given twice".to_owned());
                }
                self.incarnation = slot.incarnation();
            }
            TableOp::Publish { service, word } => {
                if word.run().is_some() && self.services.iter().any(|(_, cooling)| cooling == service) {
                    found = Some("index in use".to_owned());
                }
            }
            TableOp::StoreBackendState { .. }
            | TableOp::NameService { .. }
            | TableOp::ForgetService { .. }
            | TableOp::InsertSourceRange { .. }
            | TableOp::DeleteSourceRange { .. }
            | TableOp::InsertFrontend { .. }
            | TableOp::StoreFrontend { .. }
            | TableOp::DeleteFrontend { .. } => {}
        }
        if let Some(found) = found {
            self.violations.push(format!("{op:?} before the grace period is over: {found}"));
        }
    }

    /// What the operation gives up.
    fn note_retired(&mut self, op: &TableOp) {
        match op {
            TableOp::Publish { service, word } => {
                let before = self.tables.service(*service).and_then(ServiceWord::run);
                if let Some(run) = before.filter(|_| !self.is_overlooked(*service)) {
                    self.runs.push((self.period, run_extent(&self.tables, run)));
                    let tables = maglev_extent(&self.tables, run);
                    // A version may keep the tables of the one before.
                    if word.run().is_none_or(|run| maglev_extent(&self.tables, run) != tables) {
                        self.maglev.push((self.period, tables));
                    }
                    if word.run().is_none() {
                        self.services.push((self.period, *service));
                    }
                }
            }
            TableOp::StoreBackendState { index, state } if *state as u32 == 0 => {
                self.slots.push((self.period, *index));
            }
            TableOp::StoreBackendState { .. }
            | TableOp::WriteRun { .. }
            | TableOp::WriteMaglev { .. }
            | TableOp::WriteBackend { .. }
            | TableOp::NameService { .. }
            | TableOp::ForgetService { .. }
            | TableOp::InsertSourceRange { .. }
            | TableOp::DeleteSourceRange { .. }
            | TableOp::InsertFrontend { .. }
            | TableOp::StoreFrontend { .. }
            | TableOp::DeleteFrontend { .. } => {}
        }
    }

    /// Those that something reads which is looked at.
    fn published(&self) -> impl Iterator<Item = (ServiceIndex, ServiceWord)> {
        (1..64)
            .map(ServiceIndex::new)
            .filter_map(|index| Some((index, self.tables.service(index)?)))
            .filter(|(index, _)| !self.is_overlooked(*index))
    }

    /// Whether damage made everything wrong that is answered by this service.
    fn is_overlooked(&self, service: ServiceIndex) -> bool {
        let is_read = |to: &&Destination| {
            read_frontend(&self.tables, to).is_some_and(|value| value.service() == service)
                && !self.blind.contains(&FrontendKey::new(to.addr, to.port, to.protocol))
        };
        self.is_damaged && !self.destinations.iter().any(|to| is_read(&to))
    }
}

/// What stops an operation in these tests.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("the process is dead")]
    Dead,
    #[error(transparent)]
    Table(FullTable),
}

impl TableWriter for Checker {
    type Error = Stopped;

    fn write(&mut self, op: &TableOp) -> Result<(), Stopped> {
        self.lives = self.lives.checked_sub(1).ok_or(Stopped::Dead)?;
        self.check_reuse(op);
        self.note_retired(op);
        self.tables.write(op).map_err(Stopped::Table)?;
        self.ops.push(op.clone());
        let is_read = match op {
            // No program reads them on the socket path.
            TableOp::WriteMaglev { .. }
            | TableOp::NameService { .. }
            | TableOp::ForgetService { .. }
            | TableOp::InsertSourceRange { .. }
            | TableOp::DeleteSourceRange { .. } => false,
            TableOp::WriteRun { .. }
            | TableOp::WriteBackend { .. }
            | TableOp::StoreBackendState { .. }
            | TableOp::Publish { .. }
            | TableOp::InsertFrontend { .. }
            | TableOp::StoreFrontend { .. }
            | TableOp::DeleteFrontend { .. } => true,
        };
        if is_read {
            self.look(&format!("{op:?}"));
        }
        Ok(())
    }
}

pub(super) type Faulty = FaultyTables<Checker>;

fn fits(verdict: &Verdict, answer: &Answer) -> bool {
    match (verdict, answer) {
        (Verdict::Pass(_), Answer::Pass) => true,
        (Verdict::Refuse(_), Answer::OneOf(set)) => set.is_empty(),
        (Verdict::Translate(t), Answer::OneOf(set)) => set.contains(&(t.addr, t.port.get())),
        (Verdict::Pass(_), Answer::OneOf(_)) | (Verdict::Refuse(_) | Verdict::Translate(_), Answer::Pass) => {
            false
        }
    }
}

/// The whole set that the version which answers now can give.
fn published_answer(tables: &MemoryTables, to: &Destination) -> Answer {
    read_frontend(tables, to).map_or(Answer::Pass, |value| answer_of(tables, value))
}

fn read_frontend(tables: &MemoryTables, to: &Destination) -> Option<FrontendValue> {
    let any = match to.addr.family() {
        Family::V4 => addr("0.0.0.0"),
        Family::V6 => addr("::"),
    };
    let on_node = tables.local_address(&to.addr).is_some();
    let exact = tables.frontend(&FrontendKey::new(to.addr, to.port, to.protocol));
    exact.or_else(|| tables.frontend(&FrontendKey::new(any, to.port, to.protocol)).filter(|_| on_node))
}

fn answer_of(tables: &MemoryTables, value: FrontendValue) -> Answer {
    let Some(run) = tables.service(value.service()).and_then(ServiceWord::run) else { return Answer::Pass };
    let Some(kind) = value.kind() else { return Answer::Pass };
    let header = header(tables, run);
    let set = inside(&header, kind);
    Answer::OneOf(members(tables, run, &header, set).into_iter().map(|b| (b.addr, b.port.get())).collect())
}

/// As in the kernel, records that nobody has written are zero.
fn record(tables: &MemoryTables, at: u32) -> Record {
    tables.record(RunOffset::new(at)).unwrap_or_default()
}

fn header(tables: &MemoryTables, run: RunOffset) -> RunHeader {
    RunHeader::from_records(&record(tables, run.get()), &record(tables, run.get().saturating_add(1)))
}

/// Those that lie in the map: a damaged header may say any number.
fn members(tables: &MemoryTables, run: RunOffset, header: &RunHeader, set: Membership) -> Vec<RunBackend> {
    let (start, len) = header.range(set);
    let first = run.get().saturating_add(RunHeader::RECORDS).saturating_add(start);
    let end = first.saturating_add(len).min(SIZES.runs);
    (first..end).map(|at| RunBackend::from_record(&record(tables, at))).collect()
}

fn run_extent(tables: &MemoryTables, run: RunOffset) -> (u32, u32) {
    let len = RunHeader::RECORDS.saturating_add(header(tables, run).backends());
    (run.get(), run.get().saturating_add(len))
}

fn maglev_extent(tables: &MemoryTables, run: RunOffset) -> (u32, u32) {
    let header = header(tables, run);
    // The flags of a Local policy ask for a second table.
    let tables = if header.flags.bits() & 3 == 0 { 1 } else { 2 };
    (header.maglev_at, header.maglev_at.saturating_add(header.maglev_size.saturating_mul(tables)))
}

const fn overlap(a: (u32, u32), b: (u32, u32)) -> bool {
    a.0 < a.1 && b.0 < b.1 && a.0 < b.1 && b.0 < a.1
}
