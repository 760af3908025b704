//! The maps of the pod network in memory, for tests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::vec::Vec;

use super::{FlowMap, NetworkWord, PacketTables};
use crate::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendRef, BackendSlot, Counter, DeviceValue, Direction,
    EndpointValue, ExchangeKey, ExchangeValue, Family, FlowKey, FlowValue, FragmentKey, FragmentValue,
    FrontendKey, FrontendKind, FrontendValue, IpcacheValue, LocalAddress, Membership, NetnsOptions,
    NodeConfig, NodeNetwork, Port, Protocol, Reason, Record, ReplyKey, ReplyValue, RunBackend, RunHeader,
    RunOffset, ServiceIndex, ServiceWord, Tables,
};

/// Flows are numbered: a reference to one is good as long as the tables are.
pub(crate) struct Memory {
    pub(crate) now: u64,
    /// Entries that `pw_conntrack` has room for.
    pub(crate) room: usize,
    /// `pw_ct_new` refuses.
    pub(crate) refuses_new: bool,
    pub(crate) switches: u64,
    flows: RefCell<Vec<FlowValue>>,
    places: RefCell<HashMap<FlowKey, (FlowMap, usize)>>,
    pub(crate) dropped: RefCell<BTreeMap<Reason, u64>>,
    affinity: RefCell<HashMap<AffinityKey, AffinityValue>>,
    frontends: HashMap<FrontendKey, FrontendValue>,
    services: HashMap<u32, ServiceWord>,
    records: HashMap<u32, Record>,
    backends: HashMap<u32, BackendSlot>,
    random: Cell<u32>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            now: 1_000_000_000_000,
            room: usize::MAX,
            refuses_new: false,
            switches: NodeNetwork::SERVICES,
            flows: RefCell::default(),
            places: RefCell::default(),
            dropped: RefCell::default(),
            affinity: RefCell::default(),
            frontends: HashMap::new(),
            services: HashMap::new(),
            records: HashMap::new(),
            backends: HashMap::new(),
            random: Cell::new(1),
        }
    }

    /// The entry of a flow and where it is.
    pub(crate) fn entry(&self, key: &FlowKey) -> Option<(FlowMap, FlowValue)> {
        let (map, at) = *self.places.borrow().get(key)?;
        Some((map, self.flows.borrow()[at]))
    }

    pub(crate) fn entries(&self) -> usize {
        self.places.borrow().len()
    }

    /// As the least recently used entry goes, or as user space removes one.
    pub(crate) fn forget(&self, key: &FlowKey) {
        self.places.borrow_mut().remove(key);
    }

    /// A version of the service 1 at `frontend`, ClusterIP: of these backends, by slot. Slots that are not named serve no more.
    pub(crate) fn serve(
        &mut self,
        frontend: (Addr, Port, Protocol),
        affinity_seconds: u32,
        backends: &[(u32, Addr, Port)],
    ) {
        let service = ServiceIndex::new(1);
        let header =
            RunHeader { affinity_seconds, cluster_len: backends.len() as u32, ..RunHeader::default() };
        let at = 100 * (self.records.len() as u32 / 100 + 1);
        let mut records = header.records().to_vec();
        for slot in self.backends.values_mut() {
            slot.state = BackendSlot::state_word(slot.incarnation(), 0);
        }
        for (slot, addr, port) in backends {
            let index = BackendIndex::new(*slot);
            records.push(RunBackend { addr: *addr, port: *port, index }.record());
            let members = Membership::Cluster.bit();
            self.backends.insert(*slot, BackendSlot::new(7, members, service, *addr, *port));
        }
        self.records.extend((at..).zip(records));
        self.services.insert(1, ServiceWord::new(RunOffset::new(at), 1));
        let key = FrontendKey::new(frontend.0, frontend.1, frontend.2);
        self.frontends.insert(key, FrontendValue::new(&key, FrontendKind::ClusterIp, service));
    }

    /// The service goes.
    pub(crate) fn stop_serving(&mut self) {
        self.frontends.clear();
    }

    fn change(&self, flow: usize, change: impl FnOnce(&mut FlowValue)) {
        change(&mut self.flows.borrow_mut()[flow]);
    }
}

impl PacketTables for Memory {
    type Flow = (FlowMap, usize);

    fn network(&self, word: NetworkWord) -> u64 {
        match word {
            NetworkWord::Switches => self.switches,
            NetworkWord::Tunnel
            | NetworkWord::NatPorts
            | NetworkWord::TcpTimeouts
            | NetworkWord::OtherTimeouts
            | NetworkWord::ServiceTimeouts => 0,
        }
    }

    fn hairpin(&self, _: Family) -> Addr {
        Addr::v4([169, 254, 42, 1])
    }

    fn endpoint(&self, _: &Addr) -> Option<&EndpointValue> {
        None
    }

    fn ipcache(&self, _: &Addr) -> Option<IpcacheValue> {
        None
    }

    fn device(&self, _: u32) -> Option<DeviceValue> {
        None
    }

    fn fragment(&self, _: &FragmentKey) -> Option<FragmentValue> {
        None
    }

    fn set_fragment(&self, _: &FragmentKey, _: FragmentValue) {}

    fn flow(&self, key: &FlowKey) -> Option<Self::Flow> {
        let found = *self.places.borrow().get(key)?;
        assert_eq!(self.flows.borrow()[found.1].tag, key.tag(), "{key:?}");
        Some(found)
    }

    fn flow_or_moving(&self, key: &FlowKey) -> Option<Self::Flow> {
        self.flow(key)
    }

    fn flow_map(&self, flow: Self::Flow) -> FlowMap {
        flow.0
    }

    fn read_flow(&self, flow: Self::Flow) -> FlowValue {
        self.flows.borrow()[flow.1]
    }

    fn count_flow(&self, flow: Self::Flow, direction: Direction, bytes: u32) {
        self.change(flow.1, |value| match direction {
            Direction::Egress => {
                value.packets_out += 1;
                value.bytes_out += u64::from(bytes);
            }
            Direction::Ingress => {
                value.packets_in += 1;
                value.bytes_in += u64::from(bytes);
            }
        });
    }

    fn set_last_seen(&self, flow: Self::Flow, now: u64) {
        self.change(flow.1, |value| value.last_seen = now);
    }

    fn set_seen(&self, flow: Self::Flow, direction: Direction, seen: u8) {
        self.change(flow.1, |value| match direction {
            Direction::Egress => value.seen_out = seen,
            Direction::Ingress => value.seen_in = seen,
        });
    }

    fn set_flags(&self, flow: Self::Flow, flags: u16) {
        self.change(flow.1, |value| value.flags = flags);
    }

    fn set_other(
        &self,
        flow: Self::Flow,
        other: (Addr, Port),
        other_local_port: Port,
        service: ServiceIndex,
        backend: BackendRef,
    ) {
        self.change(flow.1, |value| {
            (value.other, value.other_port) = other;
            value.other_local_port = other_local_port;
            value.service = service;
            value.backend = backend.word();
        });
    }

    fn insert_flow(&self, key: &FlowKey, write: impl FnOnce(&mut FlowValue)) -> Option<Self::Flow> {
        let mut value = FlowValue::new(key, 0, 0);
        write(&mut value);
        if self.refuses_new {
            self.count_packet(Reason::MapFull, Direction::Egress, 0);
            return None;
        }
        let mut flows = self.flows.borrow_mut();
        let place = *self.places.borrow_mut().entry(*key).or_insert_with(|| {
            flows.push(value);
            (FlowMap::New, flows.len() - 1)
        });
        Some(place)
    }

    fn establish_flow(&self, key: &FlowKey, flow: Self::Flow) -> Self::Flow {
        let established =
            || self.places.borrow().values().filter(|(map, _)| *map == FlowMap::Established).count();
        if self.room != usize::MAX && established() >= self.room {
            self.count_packet(Reason::MapFull, Direction::Egress, 0);
            return flow;
        }
        let place = (FlowMap::Established, flow.1);
        self.places.borrow_mut().insert(*key, place);
        place
    }

    fn count_packet(&self, reason: Reason, _: Direction, _: u32) {
        *self.dropped.borrow_mut().entry(reason).or_default() += 1;
    }
}

impl Tables for Memory {
    fn config(&self) -> NodeConfig {
        NodeConfig::default()
    }

    fn netns(&self, _: u64) -> Option<NetnsOptions> {
        None
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.frontends.get(key).copied()
    }

    fn local_address(&self, _: &Addr) -> Option<LocalAddress> {
        None
    }

    fn service(&self, index: ServiceIndex) -> Option<ServiceWord> {
        self.services.get(&index.get()).copied()
    }

    fn record(&self, at: RunOffset) -> Option<Record> {
        self.records.get(&at.get()).copied()
    }

    fn backend(&self, index: BackendIndex) -> Option<BackendSlot> {
        self.backends.get(&index.get()).copied()
    }

    fn affinity(&self, key: &AffinityKey) -> Option<AffinityValue> {
        self.affinity.borrow().get(key).copied()
    }

    fn set_affinity(&self, key: &AffinityKey, value: AffinityValue) {
        self.affinity.borrow_mut().insert(*key, value);
    }

    fn exchange(&self, _: &ExchangeKey) -> Option<ExchangeValue> {
        None
    }

    fn set_exchange(&self, _: &ExchangeKey, _: ExchangeValue) {}

    fn reply(&self, _: &ReplyKey) -> Option<ReplyValue> {
        None
    }

    fn set_reply(&self, _: &ReplyKey, _: ReplyValue) {}

    fn random(&self) -> u32 {
        let next = self.random.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random.set(next);
        next
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn count(&self, _: Counter) {}
}
