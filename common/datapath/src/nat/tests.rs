mod device;
mod flows;
mod oracle;

use core::cell::{Cell, RefCell};
use std::boxed::Box;
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use crate::{Addr, FlowKey, NatKey, NatValue, Port, Reason};

use super::{Inserted, NatDesk, NatFacts, NatFlow, NatMap, NatPorts, NatTables};

pub(super) const NODE: Addr = Addr::v4([192, 168, 0, 1]);
pub(super) const SECOND: u64 = 1_000_000_000;

/// What another CPU does meanwhile.
type Meanwhile = Box<dyn Fn(&Memory)>;

/// The two maps in memory, as the kernel keeps them.
pub(super) struct Memory {
    established: RefCell<HashMap<NatKey, NatValue>>,
    /// With the time of its last use, in steps of `uses`.
    new: RefCell<HashMap<NatKey, (NatValue, u64)>>,
    uses: Cell<u64>,
    pub(super) established_room: Cell<usize>,
    pub(super) new_room: Cell<usize>,
    pub(super) now: Cell<u64>,
    pub(super) full: Cell<u64>,
    /// Runs before the next insert.
    pub(super) meanwhile: RefCell<Option<Meanwhile>>,
    pub(super) own: RefCell<HashSet<Addr>>,
    pub(super) pods: RefCell<HashSet<Addr>>,
    pub(super) inside: RefCell<HashSet<Addr>>,
    pub(super) from_outside: RefCell<HashSet<FlowKey>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            established: RefCell::default(),
            new: RefCell::default(),
            uses: Cell::new(0),
            established_room: Cell::new(usize::MAX),
            new_room: Cell::new(usize::MAX),
            now: Cell::new(SECOND),
            full: Cell::new(0),
            meanwhile: RefCell::default(),
            own: RefCell::new(HashSet::from([NODE])),
            pods: RefCell::default(),
            inside: RefCell::default(),
            from_outside: RefCell::default(),
        }
    }
}

impl Memory {
    /// Every entry of both maps, once for each map it is in.
    pub(super) fn entries(&self) -> Vec<(NatMap, NatKey, NatValue)> {
        let established = self.established.borrow();
        let new = self.new.borrow();
        let first = established.iter().map(|(key, value)| (NatMap::Established, *key, *value));
        let second = new.iter().map(|(key, (value, _))| (NatMap::New, *key, *value));
        first.chain(second).collect()
    }

    pub(super) fn has(&self, map: NatMap, key: &NatKey) -> bool {
        self.entry(map, key).is_some()
    }

    fn entry(&self, map: NatMap, key: &NatKey) -> Option<NatValue> {
        match map {
            NatMap::Established => self.established.borrow().get(key).copied(),
            NatMap::New => {
                let used = self.used();
                self.new.borrow_mut().get_mut(key).map(|(value, at)| {
                    *at = used;
                    *value
                })
            }
        }
    }

    fn used(&self) -> u64 {
        self.uses.set(self.uses.get() + 1);
        self.uses.get()
    }
}

impl NatTables for Memory {
    fn nat(&self, map: NatMap, key: &NatKey, into: &mut NatValue) -> bool {
        // What was there is not to be read where nothing is found.
        *into = NatDesk::EMPTY.value;
        let Some(value) = self.entry(map, key) else { return false };
        *into = value;
        true
    }

    fn insert_nat(&self, map: NatMap, key: &NatKey, value: &NatValue) -> Inserted {
        assert!(value.is_of(key), "a value is written for its key");
        let meanwhile = self.meanwhile.borrow_mut().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile(self);
        }
        match map {
            NatMap::Established => {
                let mut map = self.established.borrow_mut();
                if map.contains_key(key) {
                    return Inserted::Exists;
                }
                if map.len() >= self.established_room.get() {
                    self.full.set(self.full.get() + 1);
                    return Inserted::Full;
                }
                map.insert(*key, *value);
            }
            NatMap::New => {
                let used = self.used();
                let mut map = self.new.borrow_mut();
                if map.contains_key(key) {
                    return Inserted::Exists;
                }
                if map.len() >= self.new_room.get() {
                    let oldest = map.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
                    if let Some(oldest) = oldest {
                        map.remove(&oldest);
                    }
                }
                map.insert(*key, (*value, used));
            }
        }
        Inserted::Done
    }

    fn touch_nat(&self, map: NatMap, key: &NatKey, last_seen: u64, seen: u8) {
        let touch = |value: &mut NatValue| {
            value.last_seen = last_seen;
            value.seen = seen;
        };
        match map {
            NatMap::Established => self.established.borrow_mut().get_mut(key).map(touch),
            NatMap::New => self.new.borrow_mut().get_mut(key).map(|(value, _)| touch(value)),
        };
    }

    fn delete_nat(&self, map: NatMap, key: &NatKey) {
        match map {
            NatMap::Established => self.established.borrow_mut().remove(key).is_some(),
            NatMap::New => self.new.borrow_mut().remove(key).is_some(),
        };
    }

    fn is_own_address(&self, addr: &Addr) -> bool {
        self.own.borrow().contains(addr)
    }

    fn nat_now(&self) -> u64 {
        self.now.get()
    }
}

impl NatFacts for Memory {
    fn is_pod(&self, addr: &Addr) -> bool {
        self.pods.borrow().contains(addr)
    }

    fn is_inside(&self, addr: &Addr) -> bool {
        self.inside.borrow().contains(addr)
    }

    fn began_outside(&self, key: &FlowKey) -> bool {
        self.from_outside.borrow().contains(key)
    }
}

pub(super) fn pod(last: u8) -> Addr {
    Addr::v4([10, 0, 0, last])
}

pub(super) fn world(last: u8) -> Addr {
    Addr::v4([203, 0, 113, last])
}

pub(super) fn masquerade(
    tables: &Memory,
    flow: &NatFlow,
    to: Addr,
    ports: NatPorts,
) -> Result<(Addr, Port), Reason> {
    let mut desk = NatDesk { flow: *flow, ..NatDesk::EMPTY };
    super::masquerade(tables, &mut desk, &to, ports).map(|()| desk.result())
}

pub(super) fn unmasquerade(tables: &Memory, flow: &NatFlow) -> Option<(Addr, Port)> {
    let mut desk = NatDesk { flow: *flow, ..NatDesk::EMPTY };
    super::unmasquerade(tables, &mut desk).then(|| desk.result())
}
