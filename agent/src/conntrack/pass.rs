use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::nat::NatMap;
use portway_datapath::{Addr, BackendRef, FlowKey, FlowMap, FlowValue, NatKey, NatValue, Protocol};
use portway_model::tables::TableReader as _;

use super::life::Facts;
use crate::config::FlowTimeouts;
use crate::maps::{MapError, MapReader, PodMapId, PodTables};

const FLOWS: [FlowMap; 2] = [FlowMap::Established, FlowMap::New];
const NATS: [NatMap; 2] = [NatMap::Established, NatMap::New];

/// Why an entry was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// Nothing was seen of it for so long as its state allows.
    Idle,
    /// Its pod is gone.
    Endpoint,
    /// UDP: its backend serves no more.
    Backend,
}

/// What is known to be whole: what is missing from it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// `pw_endpoints`.
    pub endpoints: bool,
    /// `pw_backends`.
    pub services: bool,
}

/// What a pass found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub tables: BTreeMap<PodMapId, Table>,
    /// By map and reason.
    pub removed: BTreeMap<(PodMapId, Ended), u64>,
}

/// A map after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub left: u64,
    pub max: u64,
    /// Where it is full, the entry that was used least recently goes.
    pub makes_room: bool,
}

/// Removes what is over. One at a time for a set of maps.
#[derive(Debug)]
pub struct Collector {
    tables: PodTables,
    services: MapReader,
    timeouts: FlowTimeouts,
}

/// What all entries of a pass are judged by.
struct Judge<'a> {
    now: u64,
    trust: Trust,
    /// The addresses of pods that live.
    endpoints: BTreeSet<Addr>,
    /// The node's own.
    node: BTreeSet<Addr>,
    /// Of pods that ended, and when.
    forgotten: &'a BTreeMap<Addr, u64>,
}

impl Judge<'_> {
    /// Whether there was no such pod when the pass began.
    fn was_gone(&self, addr: &Addr) -> bool {
        self.trust.endpoints && !self.endpoints.contains(addr)
    }

    /// Whether the pod ended after the entry was last seen: its successor's come later.
    fn is_forgotten(&self, addr: &Addr, last_seen: u64) -> bool {
        self.forgotten.get(addr).is_some_and(|ended| last_seen <= *ended)
    }
}

impl Collector {
    pub fn new(tables: PodTables, services: MapReader, timeouts: FlowTimeouts) -> Self {
        Self { tables, services, timeouts }
    }

    /// Looks at every entry once, and removes what is over at `now`, nanoseconds on the coarse monotonic clock. `forgotten`: pods that
    /// ended, and when.
    ///
    /// An entry is looked at again just before it is removed. What a program sees of it in the microsecond after that is
    /// lost: the next packet makes it anew.
    ///
    /// # Errors
    /// The kernel refuses; what was removed by then is.
    pub fn pass(
        &mut self,
        now: u64,
        trust: Trust,
        forgotten: &BTreeMap<Addr, u64>,
    ) -> Result<Passed, MapError> {
        let reader = self.tables.reader();
        let judge = Judge {
            now,
            trust,
            endpoints: reader.endpoints()?.into_keys().collect(),
            node: self.services.local_addresses()?.into_keys().collect(),
            forgotten,
        };
        let mut passed = Passed::default();
        for map in FLOWS {
            let (mut left, mut failed) = (0, None);
            reader.for_each_flow(map, |key, value| {
                left += 1;
                if failed.is_none() {
                    failed = self.flow(&judge, map, key, value, &mut passed).err();
                }
            })?;
            failed.map_or(Ok(()), Err)?;
            passed.tables.insert(PodMapId::of_flows(map), self.table(PodMapId::of_flows(map), left));
        }
        for map in NATS {
            let (mut left, mut failed) = (0, None);
            reader.for_each_nat(map, |key, value| {
                left += 1;
                if failed.is_none() {
                    failed = self.nat(&judge, map, key, value, &mut passed).err();
                }
            })?;
            failed.map_or(Ok(()), Err)?;
            passed.tables.insert(PodMapId::of_nats(map), self.table(PodMapId::of_nats(map), left));
        }
        for ((map, _), number) in &passed.removed {
            if let Some(table) = passed.tables.get_mut(map) {
                table.left = table.left.saturating_sub(*number);
            }
        }
        Ok(passed)
    }

    fn table(&self, map: PodMapId, left: u64) -> Table {
        let makes_room = matches!(map, PodMapId::ConntrackNew | PodMapId::NatNew);
        Table { left, max: self.tables.reader().max(map).into(), makes_room }
    }

    fn flow(
        &self,
        judge: &Judge<'_>,
        map: FlowMap,
        key: &FlowKey,
        value: &FlowValue,
        passed: &mut Passed,
    ) -> Result<(), MapError> {
        let own = |value: &FlowValue| Facts::of_flow(key, value, map == FlowMap::Established);
        let facts = own(value);
        if self.is_gone(judge, &key.local)?
            || [key.local, key.peer, value.other].iter().any(|addr| judge.is_forgotten(addr, value.last_seen))
        {
            return self.end_flow(map, key, Ended::Endpoint, passed);
        }
        if key.kind == FlowKey::SERVICE && judge.trust.services && self.backend_is_gone(key, value)? {
            return self.end_flow(map, key, Ended::Backend, passed);
        }
        // Alone, in the state that keeps longest: most entries are told by that.
        if !facts.is_over(judge.now, facts.life(&self.timeouts)) {
            return Ok(());
        }
        let reader = self.tables.reader();
        let mut others = Vec::new();
        for (map, other) in partner(key, value).into_iter().flat_map(|other| FLOWS.map(|map| (map, other))) {
            // One that leads elsewhere is of another flow, and says nothing of this one.
            let found = reader.flow(map, &other)?.filter(|value| partner(&other, value) == Some(*key));
            others.extend(found.map(|value| (map, other, value)));
        }
        let Some(again) = reader.flow(map, key)? else { return Ok(()) };
        let facts = others.iter().fold(own(&again), |facts, (map, key, value)| {
            facts.and(Facts::of_flow(key, value, *map == FlowMap::Established))
        });
        if !facts.is_over(judge.now, facts.life(&self.timeouts)) {
            return Ok(());
        }
        self.end_flow(map, key, Ended::Idle, passed)?;
        for (map, key, _) in others {
            self.end_flow(map, &key, Ended::Idle, passed)?;
        }
        Ok(())
    }

    /// Whether nobody has this address of a pod: not when the pass began, nor now. A pass takes its time, and pods begin
    /// meanwhile.
    fn is_gone(&self, judge: &Judge<'_>, addr: &Addr) -> Result<bool, MapError> {
        Ok(judge.was_gone(addr) && self.tables.reader().endpoint(addr)?.is_none())
    }

    /// Only of UDP: a TCP connection keeps its backend for as long as it lives.
    fn backend_is_gone(&self, key: &FlowKey, value: &FlowValue) -> Result<bool, MapError> {
        if key.protocol != Protocol::UDP.number() {
            return Ok(false);
        }
        let backend = BackendRef::from_word(value.backend);
        let slot = self.services.backend_slot(backend.index())?;
        let serves = slot.incarnation() == backend.incarnation()
            && slot.members() != 0
            && slot.service == value.service
            && (slot.addr, slot.port) == (value.other, value.other_port);
        Ok(!serves)
    }

    fn nat(
        &self,
        judge: &Judge<'_>,
        map: NatMap,
        key: &NatKey,
        value: &NatValue,
        passed: &mut Passed,
    ) -> Result<(), MapError> {
        let pod = if key.half == NatKey::OUT { key.local } else { value.other };
        let is_over = judge.is_forgotten(&pod, value.last_seen)
            || (!judge.node.contains(&pod) && self.is_gone(judge, &pod)?);
        if is_over {
            return self.end_nat(map, key, Ended::Endpoint, passed);
        }
        let established = map == NatMap::Established;
        let facts = Facts::of_nat(key, value, None, established);
        // A FIN is half of an end.
        let may_be_closed = facts.is_closed || value.seen & FlowValue::FIN != 0;
        if !facts.is_over(judge.now, Facts { is_closed: may_be_closed, ..facts }.nat_life(&self.timeouts)) {
            return Ok(());
        }
        let reader = self.tables.reader();
        let half = if key.half == NatKey::OUT { NatKey::IN } else { NatKey::OUT };
        let partner =
            NatKey::new((value.other, value.other_port), (key.peer, key.peer_port), key.protocol, half);
        let mut others = Vec::new();
        for map in NATS {
            // A half whose port was given to another flow leads there.
            let leads_back =
                |other: &NatValue| (other.other, other.other_port) == (key.local, key.local_port);
            others.extend(reader.nat(map, &partner)?.filter(leads_back).map(|value| (map, value)));
        }
        let Some(again) = reader.nat(map, key)? else { return Ok(()) };
        let established = established || others.iter().any(|(map, _)| *map == NatMap::Established);
        let facts = match others.as_slice() {
            [] => Facts::of_nat(key, &again, None, established),
            [first, rest @ ..] => rest
                .iter()
                .fold(Facts::of_nat(key, &again, Some(&first.1), established), |facts, (_, other)| {
                    facts.and(Facts::of_nat(key, &again, Some(other), established))
                }),
        };
        if !facts.is_over(judge.now, facts.nat_life(&self.timeouts)) {
            return Ok(());
        }
        self.end_nat(map, key, Ended::Idle, passed)?;
        for (map, _) in others {
            self.end_nat(map, &partner, Ended::Idle, passed)?;
        }
        Ok(())
    }

    fn end_flow(&self, map: FlowMap, key: &FlowKey, why: Ended, passed: &mut Passed) -> Result<(), MapError> {
        if self.tables.delete_flow(map, key)? {
            *passed.removed.entry((PodMapId::of_flows(map), why)).or_default() += 1;
        }
        Ok(())
    }

    fn end_nat(&self, map: NatMap, key: &NatKey, why: Ended, passed: &mut Passed) -> Result<(), MapError> {
        if self.tables.delete_nat(map, key)? {
            *passed.removed.entry((PodMapId::of_nats(map), why)).or_default() += 1;
        }
        Ok(())
    }
}

/// The other entry of a flow to a service by packets.
fn partner(key: &FlowKey, value: &FlowValue) -> Option<FlowKey> {
    let kind = if key.kind == FlowKey::SERVICE { FlowKey::PLAIN } else { FlowKey::SERVICE };
    let local = (key.local, value.other_local_port(key.local_port));
    Some(FlowKey::new(local, value.other()?, key.protocol, kind))
}

impl Ended {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Endpoint => "endpoint",
            Self::Backend => "backend",
        }
    }
}
