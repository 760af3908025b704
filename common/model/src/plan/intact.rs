//! Whether the maps still hold what the planner wrote, and putting right what somebody else changed.
//!
//! The planner is the only writer, so any difference is somebody else's work (or a defect). Everything is compared
//! word by word but what programs write themselves; what is free is not looked at, for it is written before it is
//! used.

use portway_datapath::{
    Addr, BackendSlot, Record, RunBackend, RunOffset, ServiceIndex, ServiceName, ServiceWord,
};

use super::damage::Damage;
use super::held::{Held, HeldBackend, Version, Who, part_of_run};
use super::publish::{Writer, print_of};
use super::{Failure, Planner, Problem};
use crate::loadbalancer::Dirty;
use crate::tables::{TableOp, TableReader, TableWriter};

/// Slots of Maglev tables that one look compares: they can be hundreds of megabytes. The next look goes on where this
/// one ended.
const MAGLEV_SLOTS: u32 = 1 << 20;

impl Planner {
    /// What somebody else changed. `maglev_from` is where the look at Maglev tables begins: 0 at first, then what the
    /// last look left there. Costs O(what the maps hold), and writes nothing.
    ///
    /// # Errors
    /// The reader's.
    pub fn damage<R: TableReader>(
        &self,
        tables: &R,
        maglev_from: &mut ServiceIndex,
    ) -> Result<Vec<Damage>, R::Error> {
        let mut damage = Vec::new();
        self.look_at_names(tables, &mut damage)?;
        self.look_at_ranges(tables, &mut damage)?;
        self.look_at_backends(tables, &mut damage)?;
        self.look_at_services(tables, &mut damage)?;
        self.look_at_runs(tables, &mut damage)?;
        self.look_at_maglev(tables, maglev_from, &mut damage)?;
        self.look_at_frontends(tables, &mut damage)?;
        Ok(damage)
    }

    /// Puts it right: words, slots, frontends and what has no reader are written as they were; a service whose
    /// published run or Maglev tables were changed is marked dirty, and the next [`Self::reconcile`] publishes it
    /// anew. What failed is found again by the next look.
    pub fn repair<W: TableWriter>(
        &mut self,
        damage: &[Damage],
        dirty: &mut Dirty,
        tables: &mut W,
    ) -> Vec<Failure<W::Error>> {
        let mut writer = Writer { tables, writes: 0 };
        let mut failures = Vec::new();
        for one in damage {
            let op = match one {
                Damage::Run { service, .. } | Damage::Maglev { service, .. } => {
                    match self.republish(*service, dirty) {
                        Some(op) => op,
                        None => continue,
                    }
                }
                Damage::Service { .. }
                | Damage::Backend { .. }
                | Damage::Name { .. }
                | Damage::SourceRange { .. }
                | Damage::Frontend { .. } => match self.operation(one) {
                    Ok(op) => op,
                    Err(problem) => {
                        failures.push(Failure { subject: one.subject(), problem });
                        continue;
                    }
                },
            };
            if let Err(problem) = writer.write(&op) {
                failures.push(Failure { subject: one.subject(), problem });
            }
        }
        failures
    }

    /// Makes the next reconciliation publish a service anew. One that nobody wants any more has a run that is written
    /// again in place, which this returns.
    fn republish(&mut self, service: ServiceIndex, dirty: &mut Dirty) -> Option<TableOp> {
        let held = self.held.get_mut(&service)?;
        let version = held.version.as_mut()?;
        if let Who::Owner(key) = &held.who {
            version.is_sound = false;
            dirty.services.insert(key.clone());
            return None;
        }
        let (at, records) = (RunOffset::new(version.extent.start), records(version, &held.backends));
        Some(TableOp::WriteRun { at, records })
    }

    fn operation<E>(&self, damage: &Damage) -> Result<TableOp, Problem<E>> {
        Ok(match damage {
            Damage::Service { service, wanted, .. } => TableOp::Publish { service: *service, word: *wanted },
            Damage::Run { service, .. } | Damage::Maglev { service, .. } => {
                TableOp::Publish { service: *service, word: self.word(*service) }
            }
            Damage::Backend { index, held, wanted } if *wanted == BackendSlot::EMPTY => {
                let state = BackendSlot::state_word(held.incarnation(), 0);
                TableOp::StoreBackendState { index: *index, state }
            }
            Damage::Backend { index, held, wanted }
                if held.state != wanted.state
                    && (held.service, held.addr, held.port) == (wanted.service, wanted.addr, wanted.port) =>
            {
                TableOp::StoreBackendState { index: *index, state: wanted.state }
            }
            Damage::Backend { index, wanted, .. } => TableOp::WriteBackend { index: *index, slot: *wanted },
            Damage::Name { service, .. } => match self.held.get(service).and_then(names) {
                Some((name, port)) => {
                    let name = ServiceName::new(name, port).map_err(Problem::Name)?;
                    TableOp::NameService { service: *service, name: Box::new(name) }
                }
                None => TableOp::ForgetService { service: *service },
            },
            Damage::SourceRange { service, addr, bits, is_wanted: true } => {
                TableOp::InsertSourceRange { service: *service, addr: *addr, bits: *bits }
            }
            Damage::SourceRange { service, addr, bits, is_wanted: false } => {
                TableOp::DeleteSourceRange { service: *service, addr: *addr, bits: *bits }
            }
            Damage::Frontend { key, held: None, wanted: Some(value) } => {
                TableOp::InsertFrontend { key: *key, value: *value }
            }
            Damage::Frontend { key, held: Some(_), wanted: Some(value) } => {
                TableOp::StoreFrontend { key: *key, value: *value }
            }
            Damage::Frontend { key, wanted: None, .. } => TableOp::DeleteFrontend { key: *key },
        })
    }

    fn look_at_names<R: TableReader>(&self, tables: &R, damage: &mut Vec<Damage>) -> Result<(), R::Error> {
        let mut seen = 0;
        tables.each_name(&mut |service, name| {
            let wanted = self.held.get(&service).filter(|held| held.named);
            seen += usize::from(wanted.is_some());
            let names = wanted.and_then(names);
            // A name that a run before left without a version is not known.
            if wanted.is_some() && names.is_none_or(|names| names == name.names()) {
                return;
            }
            damage.push(Damage::Name { service, held: Some(text(name.names())), wanted: names.map(text) });
        })?;
        if seen < self.held.values().filter(|held| held.named).count() {
            for (index, held) in self.held.iter().filter(|(_, held)| held.named) {
                if !tables.has_name(*index)? {
                    damage.push(Damage::Name { service: *index, held: None, wanted: names(held).map(text) });
                }
            }
        }
        Ok(())
    }

    fn look_at_ranges<R: TableReader>(&self, tables: &R, damage: &mut Vec<Damage>) -> Result<(), R::Error> {
        let mut found = std::collections::BTreeSet::new();
        tables.each_source_range(&mut |service, addr, bits| {
            let known = self.held.get(&service).is_some_and(|held| has_range(held, (addr, bits)));
            if !known {
                damage.push(Damage::SourceRange { service, addr, bits, is_wanted: false });
            }
            found.insert((service, addr, bits));
        })?;
        let wanted = self
            .held
            .iter()
            .flat_map(|(index, held)| held.ranges.iter().map(|r| (*index, r.prefix.0, r.prefix.1)));
        for (service, addr, bits) in wanted.filter(|range| !found.contains(range)) {
            damage.push(Damage::SourceRange { service, addr, bits, is_wanted: true });
        }
        Ok(())
    }

    fn look_at_backends<R: TableReader>(&self, tables: &R, damage: &mut Vec<Damage>) -> Result<(), R::Error> {
        let mut is_held = vec![false; self.options.sizes.backends as usize];
        for (service, held) in &self.held {
            for backend in &held.backends {
                let (index, wanted) = (backend.slot, slot(*service, backend));
                let held = tables.backend_slot(index)?;
                if held != wanted {
                    damage.push(Damage::Backend { index, held, wanted });
                }
                if let Some(place) = is_held.get_mut(index.get() as usize) {
                    *place = true;
                }
            }
        }
        tables.each_backend_in_use(&mut |index, held| {
            if is_held.get(index.get() as usize) != Some(&true) {
                damage.push(Damage::Backend { index, held, wanted: BackendSlot::EMPTY });
            }
        })
    }

    fn look_at_services<R: TableReader>(&self, tables: &R, damage: &mut Vec<Damage>) -> Result<(), R::Error> {
        let mut published = self.held.iter().filter(|(_, held)| held.version.is_some()).peekable();
        let none = ServiceWord::NONE;
        let mut differs = |service: ServiceIndex, held: ServiceWord, wanted: ServiceWord| {
            let name = self.name(service);
            damage.push(Damage::Service { service, name, held, wanted });
        };
        // Both in order of the index.
        tables.each_service(&mut |service, held| {
            while let Some((missing, _)) = published.next_if(|(index, _)| **index < service) {
                differs(*missing, none, self.word(*missing));
            }
            let wanted =
                published.next_if(|(index, _)| **index == service).map_or(none, |_| self.word(service));
            if held != wanted {
                differs(service, held, wanted);
            }
        })?;
        for (missing, _) in published {
            differs(*missing, none, self.word(*missing));
        }
        Ok(())
    }

    fn look_at_runs<R: TableReader>(&self, tables: &R, damage: &mut Vec<Damage>) -> Result<(), R::Error> {
        for (service, held) in &self.held {
            let Some(version) = held.version.filter(|version| version.is_sound) else { continue };
            let at = RunOffset::new(version.extent.start);
            if !tables.run_is(at, &records(&version, &held.backends))? {
                damage.push(Damage::Run { service: *service, name: self.name(*service) });
            }
        }
        Ok(())
    }

    fn look_at_maglev<R: TableReader>(
        &self,
        tables: &R,
        from: &mut ServiceIndex,
        damage: &mut Vec<Damage>,
    ) -> Result<(), R::Error> {
        let mut left = MAGLEV_SLOTS;
        for (service, held) in self.held.range(*from..) {
            let with_tables = held.version.filter(|version| version.is_sound && version.maglev.len != 0);
            let Some(version) = with_tables else { continue };
            if left == 0 {
                *from = *service;
                return Ok(());
            }
            left = left.saturating_sub(version.maglev.len);
            let slots = tables.maglev_slots(version.maglev.start, version.maglev.len)?;
            if print_of(&slots) != version.maglev_print {
                damage.push(Damage::Maglev { service: *service, name: self.name(*service) });
            }
        }
        *from = ServiceIndex::new(0);
        Ok(())
    }

    fn look_at_frontends<R: TableReader>(
        &self,
        tables: &R,
        damage: &mut Vec<Damage>,
    ) -> Result<(), R::Error> {
        let mut seen = 0;
        tables.each_frontend(&mut |key, held| {
            let wanted = self.frontends.get(&key).copied();
            seen += usize::from(wanted.is_some());
            if wanted != Some(held) {
                damage.push(Damage::Frontend { key, held: Some(held), wanted });
            }
        })?;
        if seen < self.frontends.len() {
            for (key, wanted) in &self.frontends {
                if tables.frontend_value(key)?.is_none() {
                    damage.push(Damage::Frontend { key: *key, held: None, wanted: Some(*wanted) });
                }
            }
        }
        Ok(())
    }

    /// The published word.
    fn word(&self, service: ServiceIndex) -> ServiceWord {
        let version = self.held.get(&service).and_then(|held| held.version);
        version.map_or(ServiceWord::NONE, |version| version.word)
    }

    fn name(&self, service: ServiceIndex) -> Box<str> {
        self.held.get(&service).and_then(names).map(text).unwrap_or_default()
    }
}

/// A run as [`super::publish`] writes it: in order of part, address and port.
fn records(version: &Version, backends: &[HeldBackend]) -> Vec<Record> {
    let mut records = Vec::with_capacity(version.extent.len as usize);
    records.extend(version.header.records());
    for part in 0..3 {
        let of_part = backends.iter().filter(|b| b.published != 0 && part_of_run(b.published) == part);
        records.extend(of_part.map(|b| RunBackend { addr: b.addr, port: b.port, index: b.slot }.record()));
    }
    records
}

fn slot(service: ServiceIndex, backend: &HeldBackend) -> BackendSlot {
    let HeldBackend { addr, port, published: _, stored, slot: _, incarnation } = *backend;
    BackendSlot::new(incarnation, u32::from(stored), service, addr, port)
}

fn has_range(held: &Held, prefix: (Addr, u8)) -> bool {
    held.ranges.binary_search_by_key(&prefix, |range| range.prefix).is_ok()
}

/// The names of service and port that an index has, where it has any that are known.
fn names(held: &Held) -> Option<(&str, &str)> {
    let (service, port) = match &held.who {
        Who::Owner(key) | Who::Former(key) => (key.service(), &*key.port_name),
        Who::Restored { service, port } => (&**service, &**port),
    };
    (held.named && !service.is_empty()).then_some((service, port))
}

fn text((service, port): (&str, &str)) -> Box<str> {
    if port.is_empty() { service.into() } else { format!("{service}:{port}").into() }
}
