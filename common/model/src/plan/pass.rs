use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{FrontendKey, ServiceIndex};

use super::held::{Held, Who};
use super::outcome::{Failure, Outcome, Problem, Resource, Shortage, Subject};
use super::publish::{Maglev, MaglevLack, Trouble, Writer, complete, publish};
use super::{Planner, cleanup, frontends};
use crate::loadbalancer::{Desired, DesiredService, Dirty, ServicePortKey};
use crate::tables::TableWriter;

/// Rounds in which services wait for frontends that leave them, before those that still wait are published at a
/// second index. Each costs a look at what is left; chains of more services than this are not worth more.
const ROUNDS: usize = 8;

/// One reconciliation.
pub(super) struct Pass<'a, D, W: TableWriter> {
    pub(super) planner: &'a mut Planner,
    pub(super) desired: &'a D,
    pub(super) writer: Writer<'a, W>,
    /// What is looked at.
    services: BTreeSet<ServicePortKey>,
    /// Frontends that are not what is wanted yet.
    pub(super) pending: BTreeSet<FrontendKey>,
    /// Those of `pending` that are to be inserted where a frontend answers, or is to answer, on any address of the
    /// node: by the latter.
    pub(super) inserts: BTreeMap<FrontendKey, BTreeSet<FrontendKey>>,
    /// Those of `pending` that failed: not tried twice in one pass.
    pub(super) tried: BTreeSet<FrontendKey>,
    /// Those of `tried` that found no room.
    pub(super) no_room: BTreeSet<FrontendKey>,
    /// Those of `services` whose published version is not the wanted one.
    pub(super) unsettled: BTreeSet<ServicePortKey>,
    /// Those of `unsettled` that wait for frontends to leave.
    deferred: BTreeSet<ServicePortKey>,
    /// Those of `unsettled` that go on after a grace period, for programs may still come to them by a frontend that
    /// left, or after another one of these.
    delayed: BTreeSet<ServicePortKey>,
    /// Released services that go after a grace period, for the same reason.
    lingering: BTreeSet<Subject>,
    /// Those of `unsettled` that found no room.
    short: BTreeMap<ServicePortKey, Shortage>,
    /// Those of `short` that no grace period helps: frontends don't wait for them.
    pub(super) stuck: BTreeSet<ServicePortKey>,
    /// Services whose version is right and whose leftovers failed to go.
    pub(super) unclean: BTreeSet<ServicePortKey>,
    failures: Vec<Failure<W::Error>>,
}

/// Where a changed service may be published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At its index, unless frontends that are not its own still point there.
    InPlace,
    /// At a second index in that case.
    Elsewhere,
}

impl<'a, D: Desired, W: TableWriter> Pass<'a, D, W> {
    pub(super) fn new(planner: &'a mut Planner, desired: &'a D, tables: &'a mut W, dirty: Dirty) -> Self {
        let Dirty { services, frontends } = dirty;
        Self {
            planner,
            desired,
            writer: Writer { tables, writes: 0 },
            services,
            pending: frontends,
            inserts: BTreeMap::new(),
            tried: BTreeSet::new(),
            no_room: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            deferred: BTreeSet::new(),
            delayed: BTreeSet::new(),
            lingering: BTreeSet::new(),
            short: BTreeMap::new(),
            stuck: BTreeSet::new(),
            unclean: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn run(mut self, dirty: &mut Dirty) -> Outcome<W::Error> {
        self.collect();
        for key in self.services.clone() {
            self.settle(&key, Place::InPlace);
        }
        self.move_frontends();
        self.settle_deferred();
        self.clean_up();
        self.let_go_of_the_stuck();
        self.finish(dirty)
    }

    /// Adds the services that frontends need, and those that Maglev tables have room for now.
    fn collect(&mut self) {
        for frontend in &self.pending {
            let Some(wanted) = self.desired.frontend(frontend) else { continue };
            let index = self.planner.by_key.get(&wanted.service);
            if index.and_then(|index| self.planner.held.get(index)).is_none_or(|held| held.version.is_none())
            {
                self.services.insert(wanted.service);
            }
            let wildcard = frontends::wildcard(frontend);
            if wildcard != *frontend
                && !self.planner.frontends.contains_key(frontend)
                && (self.planner.frontends.contains_key(&wildcard) || self.pending.contains(&wildcard))
            {
                self.inserts.entry(wildcard).or_default().insert(*frontend);
            }
        }
        if let Some(options) = self.planner.options.maglev {
            let over_budget =
                self.planner.without_maglev.iter().filter(|(_, lack)| **lack == MaglevLack::Budget);
            let longest = 2 * options.table_size;
            // No more than there is room for, however long the list.
            let room = self.planner.room.maglev.free() / options.table_size;
            if self.planner.room.maglev.fits(longest) {
                self.services.extend(over_budget.map(|(key, _)| key.clone()).take(room as usize));
            }
        }
        self.unsettled = self.services.clone();
    }

    /// Publishes a service if it differs, or notes why not.
    fn settle(&mut self, key: &ServicePortKey, place: Place) {
        self.deferred.remove(key);
        let Some(wanted) = self.desired.service(key) else {
            if let Some(index) = self.planner.by_key.remove(key) {
                self.planner.release(index);
            }
            self.planner.without_maglev.remove(key);
            self.unsettled.remove(key);
            return;
        };
        let known = self.planner.by_key.get(key).copied().or_else(|| self.adopt(key));
        let Some(index) = known.or_else(|| self.planner.new_index(key)) else {
            let shortage = self.planner.room.shortage(Resource::Services, 1);
            self.short.insert(key.clone(), shortage);
            return;
        };
        self.planner.by_key.insert(key.clone(), index);
        let result = if self.is_published(index, key, &wanted) {
            Ok(())
        } else if !self.is_shared(index, key) {
            if !self.is_quiet(index) {
                self.delayed.insert(key.clone());
                return;
            }
            self.publish(index, key, &wanted)
        } else if place == Place::InPlace {
            self.deferred.insert(key.clone());
            return;
        } else {
            self.publish_elsewhere(index, key, &wanted)
        };
        // Before that a frontend that came could be answered with a backend that the service had before it.
        match result.and_then(|()| self.complete(key, &wanted)) {
            Ok(()) => {
                self.unsettled.remove(key);
            }
            Err(Trouble::Short(shortage)) => {
                self.short.insert(key.clone(), shortage);
            }
            Err(Trouble::Problem(problem)) => self.fail(Subject::Service(key.clone()), problem),
        }
    }

    /// An index without an owner that a frontend of this service points at, or none does, if the names agree.
    fn adopt(&mut self, key: &ServicePortKey) -> Option<ServiceIndex> {
        let planner = &mut *self.planner;
        let index = self.desired.frontends_of(key).iter().find_map(|frontend| {
            let index = planner.frontends.get(frontend)?.service();
            planner.held.get(&index)?.who.can_become(key).then_some(index)
        });
        let by_names = |restored: &mut BTreeMap<_, _>| {
            let names = (key.service().into(), (*key.port_name).into());
            if restored.is_empty() { None } else { restored.remove(&names) }
        };
        let index = index.or_else(|| by_names(&mut planner.restored))?;
        planner.held.get_mut(&index)?.who = Who::Owner(key.clone());
        planner.released.remove(&index);
        Some(index)
    }

    fn is_published(&self, index: ServiceIndex, key: &ServicePortKey, wanted: &DesiredService) -> bool {
        let held = self.planner.held.get(&index);
        held.is_some_and(|held| self.planner.is_published(held, key, wanted))
    }

    /// Whether a version published at `index` would be seen by who asks something that is not this service's, or not
    /// as it is: a frontend that is to change, or one that answers for an address that gets its own.
    fn is_shared(&self, index: ServiceIndex, key: &ServicePortKey) -> bool {
        let Some(held) = self.planner.held.get(&index) else { return false };
        held.frontends.iter().any(|frontend| {
            let now = self.planner.frontends.get(frontend).and_then(|value| value.kind());
            let stays = self
                .desired
                .frontend(frontend)
                .is_some_and(|wanted| wanted.service == *key && Some(wanted.kind) == now);
            !stays || (frontends::is_wildcard(frontend) && self.has_insert_before(frontend))
        })
    }

    /// Whether every program that comes to `index` comes by a frontend that points there.
    fn is_quiet(&mut self, index: ServiceIndex) -> bool {
        let Planner { held, room, .. } = &mut *self.planner;
        held.get(&index)
            .is_none_or(|held| held.version.is_none() || held.left.is_none_or(|left| room.is_over(left.mark)))
    }

    fn complete(&mut self, key: &ServicePortKey, wanted: &DesiredService) -> Result<(), Trouble<W::Error>> {
        let Planner { held, by_key, room, .. } = &mut *self.planner;
        let Some(index) = by_key.get(key) else { return Ok(()) };
        match held.get_mut(index) {
            Some(held) => complete(*index, held, wanted, room, &mut self.writer),
            None => Ok(()),
        }
    }

    fn publish(
        &mut self,
        index: ServiceIndex,
        key: &ServicePortKey,
        wanted: &DesiredService,
    ) -> Result<(), Trouble<W::Error>> {
        let Planner { options, held, room, without_maglev, .. } = &mut *self.planner;
        let Some(held) = held.get_mut(&index) else { return Ok(()) };
        let mut maglev = Maglev::of(options.maglev, wanted);
        let mut result =
            publish((index, key), held, wanted, (maglev, options.maglev), room, &mut self.writer);
        if let Err(Trouble::Short(Shortage { resource: Resource::Maglev, .. })) = result
            && !room.waits(Resource::Maglev)
        {
            maglev = Maglev::Lack(MaglevLack::Budget);
            result = publish((index, key), held, wanted, (maglev, options.maglev), room, &mut self.writer);
        }
        if result.is_ok() {
            match maglev {
                Maglev::Lack(lack) => without_maglev.insert(key.clone(), lack),
                Maglev::None | Maglev::Tables(_) => without_maglev.remove(key),
            };
        }
        result
    }

    /// Publishes at a second index and makes the service's frontends move there.
    fn publish_elsewhere(
        &mut self,
        index: ServiceIndex,
        key: &ServicePortKey,
        wanted: &DesiredService,
    ) -> Result<(), Trouble<W::Error>> {
        let Some(second) = self.planner.new_index(key) else {
            return Err(self.planner.room.shortage(Resource::Services, 1).into());
        };
        if let Err(trouble) = self.publish(second, key, wanted) {
            self.planner.release(second);
            return Err(trouble);
        }
        self.planner.by_key.insert(key.clone(), second);
        self.planner.release(index);
        let own = |frontend: &&FrontendKey| {
            self.desired.frontend(frontend).is_some_and(|wanted| wanted.service == *key)
        };
        if let Some(held) = self.planner.held.get(&index) {
            self.pending.extend(held.frontends.iter().filter(own));
        }
        Ok(())
    }

    /// Services that frontends had to leave first: in place after a grace period where they have left or will, and at
    /// a second index where they can't before it.
    fn settle_deferred(&mut self) {
        for round in 0.. {
            let before = self.deferred.len();
            if before == 0 {
                return;
            }
            for key in self.deferred.clone() {
                if self.follows_a_delayed_one(&key) {
                    self.deferred.remove(&key);
                    self.delayed.insert(key);
                } else {
                    self.settle(&key, if round < ROUNDS { Place::InPlace } else { Place::Elsewhere });
                }
            }
            if self.deferred.len() == before
                && let Some(first) = self.deferred.first().cloned()
            {
                self.settle(&first, Place::Elsewhere);
            }
            self.move_frontends();
        }
    }

    /// Whether a frontend that is to leave this service goes to one that a grace period lets go on.
    fn follows_a_delayed_one(&self, key: &ServicePortKey) -> bool {
        let index = self.planner.by_key.get(key);
        let Some(held) = index.and_then(|index| self.planner.held.get(index)) else { return false };
        !self.delayed.is_empty()
            && held
                .frontends
                .iter()
                .filter_map(|frontend| self.desired.frontend(frontend))
                .any(|wanted| wanted.service != *key && self.delayed.contains(&wanted.service))
    }

    /// Removes the released services that no frontend points at.
    fn clean_up(&mut self) {
        let gone = |index: &&ServiceIndex| {
            self.planner.held.get(index).is_none_or(|held: &Held| held.frontends.is_empty())
        };
        for index in self.planner.released.iter().filter(gone).copied().collect::<Vec<_>>() {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: ServiceIndex) {
        let Planner { held, room, released, .. } = &mut *self.planner;
        if let Some(leftover) = held.get_mut(&index) {
            let subject = match &leftover.who {
                Who::Owner(key) | Who::Former(key) => Subject::Service(key.clone()),
                Who::Restored { .. } => Subject::Leftover(index),
            };
            if let Some(left) = leftover.left
                && leftover.version.is_some()
                && !room.is_over(left.moved)
            {
                match &subject {
                    Subject::Service(key) => self.unclean.insert(key.clone()),
                    // It has no key that could stay dirty.
                    Subject::Frontend(_) | Subject::Leftover(_) => self.pending.insert(left.key),
                };
                self.lingering.insert(subject);
                return;
            }
            if let Err(problem) = cleanup::remove(index, leftover, room, &mut self.writer) {
                if let Subject::Service(key) = &subject {
                    self.unclean.insert(key.clone());
                }
                self.fail(subject, problem);
                return;
            }
            held.remove(&index);
            room.retire_service(index);
        }
        released.remove(&index);
    }

    /// Where a service has no room and no grace period will give it any, frontends that could make room by going do
    /// not wait for it.
    fn let_go_of_the_stuck(&mut self) {
        self.stuck = self
            .short
            .iter()
            .filter(|(_, shortage)| !self.planner.room.waits(shortage.resource))
            .map(|(key, _)| key.clone())
            .collect();
        if !self.pending.is_empty() && (!self.stuck.is_empty() || !self.no_room.is_empty()) {
            self.move_frontends();
            self.clean_up();
        }
    }

    fn finish(mut self, dirty: &mut Dirty) -> Outcome<W::Error> {
        let mut waiting = std::mem::take(&mut self.lingering);
        waiting.extend(std::mem::take(&mut self.delayed).into_iter().map(Subject::Service));
        for (key, shortage) in std::mem::take(&mut self.short) {
            if self.planner.room.waits(shortage.resource) {
                waiting.insert(Subject::Service(key));
            } else {
                self.fail(Subject::Service(key), Problem::Full(shortage));
            }
        }
        let Self { unsettled, unclean, pending, failures, writer, .. } = self;
        dirty.services.extend(unsettled);
        dirty.services.extend(unclean);
        dirty.frontends.extend(pending);
        Outcome { writes: writer.writes, failures, waiting }
    }

    pub(super) fn fail(&mut self, subject: Subject, problem: Problem<W::Error>) {
        self.failures.push(Failure { subject, problem });
    }
}
