//! From what is wanted to map operations, in an order that is right after every single one.
//!
//! ```text
//! Dirty, Desired ──► Planner::reconcile ──► TableOps, one by one through a TableWriter
//!                        │                    1 name, source ranges, slots and bits (union of old and new), run
//!                        │                    2 Publish: one store switches every frontend of the service
//!                        │                    3 bits lowered, source ranges removed
//!                        │                    4 frontends: insert, store in place, delete
//!                        │                    5 services that no frontend points at
//!                        └─► take_retired ──► the caller waits for a grace period ──► reclaim
//! ```
//!
//! **Invariants**, after every operation and so also after a crash:
//! - Who asks a frontend gets the backends that it had, or those that it should have; never a mixture, and nothing
//!   (or a refusal) only where that is the old or the new state.
//! - A frontend points at a published service. A published run and a slot that a run names are never edited; only
//!   the membership bits of a slot are.
//! - That also holds for a program that read a frontend a while ago and follows it now: what a frontend has left
//!   changes or goes only after a grace period.
//! - Records, slots, Maglev tables and service indices that a program may still look at are not written again before
//!   [`Planner::reclaim`].
//! - An operation that failed has changed neither the maps nor the planner's view of them.
//!
//! Two services can depend on each other: a frontend that leaves a service must be gone before the service changes,
//! and the service that takes it must be published before it comes. Where that is a circle (two ports that swap their
//! names, a frontend that can't leave for lack of room), a service is published at a second index and its frontends
//! are moved there; it loses its clients' affinity, and nothing else.
//!
//! A change costs what changed: the size of the dirty services, whatever the number of the others.

mod cleanup;
mod damage;
mod difference;
mod extents;
mod frontends;
mod held;
mod intact;
mod numbers;
mod outcome;
mod pass;
mod publish;
mod restore;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::layout::Sizes;
use portway_datapath::maglev::Seed;
use portway_datapath::{FrontendKey, FrontendValue, ServiceIndex};

pub use damage::Damage;
pub use difference::{Aspect, Difference};
pub use outcome::{Failure, Outcome, Problem, Shortage, Subject};
pub use publish::MaglevLack;
pub use room::Retired;

use crate::loadbalancer::{Desired, DesiredService, Dirty, ServicePortKey};
use crate::tables::TableWriter;
use held::{Held, Who, maglev_tables};
use pass::Pass;
use publish::Maglev;
use room::Room;

/// What a planner needs to know of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The sizes that the maps really have.
    pub sizes: Sizes,
    /// `None` chooses backends at random. `sizes.maglev` is the budget of all tables together, in slots.
    pub maglev: Option<MaglevOptions>,
}

/// Every node of a cluster must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevOptions {
    /// Slots of a table: a prime.
    pub table_size: u32,
    pub seed: Seed,
}

/// What the maps hold, and how they become what is wanted. One owner; nobody else writes the maps.
#[derive(Debug)]
pub struct Planner {
    options: Options,
    /// Every index that has anything in any map: a version, slots, ranges, a name, frontends that point at it.
    held: BTreeMap<ServiceIndex, Held>,
    /// The index of a service port. Under construction as long as [`Held::version`] is `None`.
    by_key: BTreeMap<ServicePortKey, ServiceIndex>,
    /// Indices that belong to nobody and go as soon as no frontend points at them.
    released: BTreeSet<ServiceIndex>,
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    /// Restored indices that no frontend points at, by the names of service and port.
    restored: BTreeMap<(Box<str>, Box<str>), ServiceIndex>,
    room: Room,
    without_maglev: BTreeMap<ServicePortKey, MaglevLack>,
}

/// How full the maps are, in entries; retired ones count as long as they are not reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub frontends: u32,
    pub services: u32,
    /// Records of `pw_runs`.
    pub runs: u32,
    pub backends: u32,
    /// Slots of `pw_maglev`.
    pub maglev: u32,
    pub source_ranges: u32,
}

impl Planner {
    /// For maps that are empty.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            held: BTreeMap::new(),
            by_key: BTreeMap::new(),
            released: BTreeSet::new(),
            frontends: BTreeMap::new(),
            restored: BTreeMap::new(),
            room: Room::new(options.sizes),
            without_maglev: BTreeMap::new(),
        }
    }

    /// Makes the maps what `desired` says of everything in `dirty`.
    ///
    /// What succeeded leaves `dirty`. What failed, waits for a grace period or found no room stays, for the next
    /// call; what the maps hold of it is its last good version. Equal content writes nothing. Frontends and services
    /// that `dirty` does not name are left alone, but for frontends of `desired` that would otherwise be answered by
    /// a version that is not theirs.
    pub fn reconcile<D: Desired, W: TableWriter>(
        &mut self,
        desired: &D,
        dirty: &mut Dirty,
        tables: &mut W,
    ) -> Outcome<W::Error> {
        Pass::new(self, desired, tables, std::mem::take(dirty)).run(dirty)
    }

    /// Removes what [`Self::restore`] found and nobody wants: to be called once every source has synced.
    ///
    /// Looks at everything that the maps hold, so it also finds what was never marked dirty. What fails stays in
    /// `dirty` or is tried again by the next [`Self::reconcile`].
    pub fn prune<D: Desired, W: TableWriter>(
        &mut self,
        desired: &D,
        dirty: &mut Dirty,
        tables: &mut W,
    ) -> Outcome<W::Error> {
        dirty.merge(self.everything());
        self.restored.clear();
        let unowned = self.held.iter().filter(|(_, held)| !matches!(held.who, Who::Owner(_)));
        self.released.extend(unowned.map(|(index, _)| *index));
        self.reconcile(desired, dirty, tables)
    }

    /// Everything that the maps hold. A full comparison reconciles this together with [`Desired::everything`].
    pub fn everything(&self) -> Dirty {
        Dirty {
            services: self.by_key.keys().cloned().collect(),
            frontends: self.frontends.keys().copied().collect(),
        }
    }

    /// Where the service port is published, or will be.
    pub fn service_index(&self, key: &ServicePortKey) -> Option<ServiceIndex> {
        self.by_key.get(key).copied()
    }

    /// Services that would have Maglev tables but choose at random, for `status`.
    pub fn without_maglev(&self) -> &BTreeMap<ServicePortKey, MaglevLack> {
        &self.without_maglev
    }

    pub fn usage(&self) -> Usage {
        Usage {
            frontends: self.frontends.len() as u32,
            services: self.room.services.used(),
            runs: self.room.runs.used(),
            backends: self.room.slots.used(),
            maglev: self.room.maglev.used(),
            source_ranges: self.room.source_ranges,
        }
    }

    /// What programs may still look at, and nobody else does: to be handed to [`Self::reclaim`] after a grace period
    /// that began after this call. `None` where nothing waits for one.
    pub fn take_retired(&mut self) -> Option<Retired> {
        self.room.take_retired()
    }

    /// Makes retired records, slots, tables and indices free, and dirty services that wait for them able to go on.
    pub fn reclaim(&mut self, retired: Retired) {
        self.room.reclaim(retired);
    }

    /// Whether what is held for `key` is `wanted`, as far as there is room for Maglev tables.
    fn is_published(&self, held: &Held, key: &ServicePortKey, wanted: &DesiredService) -> bool {
        let size = Maglev::of(self.options.maglev, wanted).size();
        if held.is(wanted, size) {
            return true;
        }
        let goes_without = self.without_maglev.get(key) == Some(&MaglevLack::Budget)
            && !self.room.maglev.fits(size * maglev_tables(wanted.flags));
        goes_without && held.is(wanted, 0)
    }

    /// An index for a service that has none yet.
    fn new_index(&mut self, key: &ServicePortKey) -> Option<ServiceIndex> {
        let index = ServiceIndex::new(self.room.services.take()?);
        self.held.insert(index, Held::new(Who::Owner(key.clone())));
        Some(index)
    }

    /// Takes the index from its service port; its frontends go on as they are until they have moved.
    fn release(&mut self, index: ServiceIndex) {
        if let Some(held) = self.held.get_mut(&index) {
            held.who = match std::mem::replace(&mut held.who, Who::unknown()) {
                Who::Owner(key) | Who::Former(key) => Who::Former(key),
                restored @ Who::Restored { .. } => restored,
            };
            self.released.insert(index);
        }
    }
}
