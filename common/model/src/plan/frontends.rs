//! Frontends, each with one operation. Among those of one port, one that answers for a single address comes before
//! the one that answers on any address of the node changes, and goes after it: who asks that address falls from the
//! one to the other and never in between.

use portway_datapath::{FrontendKey, FrontendValue};

use super::Planner;
use super::outcome::{Problem, Resource, Subject};
use super::pass::Pass;
use crate::loadbalancer::{Desired, DesiredFrontend};
use crate::tables::{TableOp, TableWriter};

/// Whether it answers on any address of the node.
pub(super) const fn is_wildcard(key: &FrontendKey) -> bool {
    key.addr.is_unspecified()
}

/// The frontend that answers where this one does not exist.
pub(super) fn wildcard(key: &FrontendKey) -> FrontendKey {
    let mut wildcard = *key;
    wildcard.addr = key.addr.any();
    wildcard
}

impl<D: Desired, W: TableWriter> Pass<'_, D, W> {
    /// Does what can be done now of all pending frontends.
    pub(super) fn move_frontends(&mut self) {
        let (mut wildcards, mut deletions) = (Vec::new(), Vec::new());
        for key in self.pending.iter().copied().collect::<Vec<_>>() {
            if is_wildcard(&key) {
                wildcards.push(key);
                continue;
            }
            match self.desired.frontend(&key) {
                Some(wanted) => self.put(&key, wanted),
                None => deletions.push(key),
            }
        }
        for key in wildcards {
            if self.is_right(&key) {
                self.pending.remove(&key);
            } else if !self.has_insert_before(&key) {
                match self.desired.frontend(&key) {
                    Some(wanted) => self.put(&key, wanted),
                    None => self.delete(&key),
                }
            }
        }
        for key in deletions {
            if self.fallback_is_right(&key) {
                self.delete(&key);
            }
        }
    }

    /// Whether an address of this port is about to get a frontend of its own.
    pub(super) fn has_insert_before(&self, wildcard: &FrontendKey) -> bool {
        self.inserts.get(wildcard).is_some_and(|inserts| {
            inserts.iter().any(|key| {
                !self.no_room.contains(key)
                    && self.desired.frontend(key).is_some_and(|wanted| !self.stuck.contains(&wanted.service))
            })
        })
    }

    /// Whether what answers once `key` is deleted is what then should.
    fn fallback_is_right(&self, key: &FrontendKey) -> bool {
        let wildcard = wildcard(key);
        match self.desired.frontend(&wildcard) {
            Some(wanted) => {
                self.stuck.contains(&wanted.service)
                    || (!self.unsettled.contains(&wanted.service) && self.is_right(&wildcard))
            }
            None => !self.pending.contains(&wildcard) || self.is_right(&wildcard),
        }
    }

    /// Whether the maps have what is wanted of it.
    fn is_right(&self, key: &FrontendKey) -> bool {
        let wanted = self.desired.frontend(key).map(|wanted| self.value(key, &wanted));
        match wanted {
            Some(value) => value.is_some() && self.planner.frontends.get(key).copied() == value,
            None => !self.planner.frontends.contains_key(key),
        }
    }

    fn value(&self, key: &FrontendKey, wanted: &DesiredFrontend) -> Option<FrontendValue> {
        let index = self.planner.by_key.get(&wanted.service)?;
        Some(FrontendValue::new(key, wanted.kind, *index))
    }

    /// Inserts a frontend or stores its new word, once its service is published.
    fn put(&mut self, key: &FrontendKey, wanted: DesiredFrontend) {
        if self.unsettled.contains(&wanted.service) || self.tried.contains(key) {
            return;
        }
        let Some(value) = self.value(key, &wanted) else {
            return self.give_up(key, Problem::NoService(wanted.service));
        };
        let before = self.planner.frontends.get(key).copied();
        let op = match before {
            Some(before) if before == value => {
                self.pending.remove(key);
                return;
            }
            Some(_) => TableOp::StoreFrontend { key: *key, value },
            None if self.planner.frontends.len() >= self.planner.options.sizes.frontends as usize => {
                let shortage = self.planner.room.shortage(Resource::Frontends, 1);
                self.no_room.insert(*key);
                return self.give_up(key, Problem::Full(shortage));
            }
            None => TableOp::InsertFrontend { key: *key, value },
        };
        if let Err(problem) = self.writer.write(&op) {
            return self.give_up(key, problem);
        }
        let Planner { held, frontends, room, .. } = &mut *self.planner;
        if let Some(held) = before.and_then(|before| held.get_mut(&before.service())) {
            held.remove_frontend(key);
        }
        let stood_in = before.or_else(|| frontends.get(&wildcard(key)).copied());
        if let Some(held) = stood_in.and_then(|before| held.get_mut(&before.service())) {
            held.note_left(key, room.mark(), true);
        }
        if let Some(held) = held.get_mut(&value.service()) {
            held.add_frontend(*key);
        }
        frontends.insert(*key, value);
        self.pending.remove(key);
        if let Some(inserts) = self.inserts.get_mut(&wildcard(key)) {
            inserts.remove(key);
        }
    }

    fn delete(&mut self, key: &FrontendKey) {
        if self.tried.contains(key) {
            return;
        }
        if let Some(value) = self.planner.frontends.get(key).copied() {
            if let Err(problem) = self.writer.write(&TableOp::DeleteFrontend { key: *key }) {
                return self.give_up(key, problem);
            }
            self.planner.frontends.remove(key);
            let Planner { held, frontends, room, .. } = &mut *self.planner;
            if let Some(held) = held.get_mut(&value.service()) {
                held.remove_frontend(key);
                held.note_left(key, room.mark(), frontends.contains_key(&wildcard(key)));
            }
        }
        self.pending.remove(key);
    }

    fn give_up(&mut self, key: &FrontendKey, problem: Problem<W::Error>) {
        self.tried.insert(*key);
        self.fail(Subject::Frontend(*key), problem);
    }
}
