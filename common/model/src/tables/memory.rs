mod reader;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendSlot, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendValue, LocalAddress, NetnsOptions, NodeConfig, Record, ReplyKey, ReplyValue,
    RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceName, ServiceWord, Tables,
};

use super::{ServiceDump, TableDump, TableOp, TableWriter};

/// The maps in memory: what `portway plan` writes to and tests look connections up in.
///
/// As strict as the kernel's: an element past the end, an insert of a key that exists and a store to one that does
/// not are errors.
#[derive(Debug)]
pub struct MemoryTables {
    sizes: Sizes,
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    services: BTreeMap<ServiceIndex, ServiceWord>,
    records: BTreeMap<RunOffset, Record>,
    maglev: BTreeMap<u32, u16>,
    backends: BTreeMap<BackendIndex, BackendSlot>,
    names: BTreeMap<ServiceIndex, ServiceName>,
    source_ranges: BTreeMap<(ServiceIndex, Addr, u8), ()>,
    pub local_addresses: BTreeMap<Addr, LocalAddress>,
    /// By the cookies of network namespaces.
    pub netns: BTreeMap<u64, NetnsOptions>,
    pub config: NodeConfig,
    /// Nanoseconds on the coarse monotonic clock; tests move it.
    pub now: u64,
    affinity: RefCell<HashMap<AffinityKey, AffinityValue>>,
    exchanges: RefCell<HashMap<ExchangeKey, ExchangeValue>>,
    replies: RefCell<HashMap<ReplyKey, ReplyValue>>,
    random: Cell<u64>,
    counters: RefCell<BTreeMap<Counter, u64>>,
}

/// What a map refuses.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FullTable {
    #[error("{map} has {entries} entries and no room for another; raise its size")]
    Full { map: &'static str, entries: u32 },
    #[error("{map} has no element {element}")]
    OutOfRange { map: &'static str, element: u32 },
    #[error("frontend {addr}:{port}/{protocol} {problem}")]
    Frontend { addr: Addr, port: u16, protocol: u8, problem: &'static str },
}

impl MemoryTables {
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            frontends: BTreeMap::new(),
            services: BTreeMap::new(),
            records: BTreeMap::new(),
            maglev: BTreeMap::new(),
            backends: BTreeMap::new(),
            names: BTreeMap::new(),
            source_ranges: BTreeMap::new(),
            local_addresses: BTreeMap::new(),
            netns: BTreeMap::new(),
            config: NodeConfig::default(),
            now: 1_000_000_000_000,
            affinity: RefCell::default(),
            exchanges: RefCell::default(),
            replies: RefCell::default(),
            random: Cell::new(1),
            counters: RefCell::default(),
        }
    }

    /// What a program has counted.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.borrow().get(&counter).copied().unwrap_or(0)
    }

    /// A slot of the Maglev tables.
    pub fn maglev_slot(&self, at: u32) -> Option<u16> {
        self.maglev.get(&at).copied()
    }

    /// Everything that user space has written, in order.
    pub fn dump(&self) -> TableDump {
        let services: Vec<_> =
            self.services.iter().filter_map(|(index, word)| self.service_dump(*index, *word)).collect();
        let is_published =
            |index: &ServiceIndex| services.binary_search_by_key(index, |service| service.index).is_ok();
        let stray_names = self.names.keys().copied().filter(|index| !is_published(index)).collect();
        TableDump {
            frontends: self.frontends.iter().map(|(k, v)| (*k, *v)).collect(),
            services,
            source_ranges: self.source_ranges.keys().copied().collect(),
            backends: self
                .backends
                .iter()
                .filter(|(_, slot)| slot.incarnation() != 0)
                .map(|(index, slot)| (*index, *slot))
                .collect(),
            stray_names,
        }
    }

    /// A run ends with its map, whatever its header says.
    fn service_dump(&self, index: ServiceIndex, word: ServiceWord) -> Option<ServiceDump> {
        let run = word.run()?;
        let header = RunHeader::from_records(&self.record(run)?, &self.record(run.plus(1))?);
        let first = run.get() + RunHeader::RECORDS;
        let end = first.saturating_add(header.backends()).min(self.sizes.runs);
        let records = (first..end).filter_map(|at| self.record(RunOffset::new(at)));
        let backends = records.map(|record| RunBackend::from_record(&record)).collect();
        let (service, port_name) = self.names.get(&index).map_or(("", ""), ServiceName::names);
        Some(ServiceDump {
            index,
            word,
            header,
            backends,
            service: service.to_owned(),
            port_name: port_name.to_owned(),
        })
    }
}

fn in_range(map: &'static str, element: u32, size: u32) -> Result<(), FullTable> {
    if element < size { Ok(()) } else { Err(FullTable::OutOfRange { map, element }) }
}

fn frontend_problem(key: &FrontendKey, problem: &'static str) -> FullTable {
    FullTable::Frontend { addr: key.addr, port: key.port.get(), protocol: key.protocol, problem }
}

fn has_room(map: &'static str, len: usize, size: u32) -> Result<(), FullTable> {
    if len < size as usize { Ok(()) } else { Err(FullTable::Full { map, entries: size }) }
}

impl TableWriter for MemoryTables {
    type Error = FullTable;

    fn write(&mut self, op: &TableOp) -> Result<(), FullTable> {
        use portway_datapath::layout;
        match op {
            TableOp::WriteRun { at, records } => {
                in_range(layout::RUNS, at.get() + records.len() as u32 - 1, self.sizes.runs)?;
                for (n, record) in records.iter().enumerate() {
                    self.records.insert(at.plus(n as u32), *record);
                }
            }
            TableOp::WriteMaglev { at, slots } => {
                in_range(layout::MAGLEV, at + slots.len() as u32 - 1, self.sizes.maglev)?;
                for (n, slot) in slots.iter().enumerate() {
                    self.maglev.insert(at + n as u32, *slot);
                }
            }
            TableOp::WriteBackend { index, slot } => {
                in_range(layout::BACKENDS, index.get(), self.sizes.backends)?;
                self.backends.insert(*index, *slot);
            }
            TableOp::StoreBackendState { index, state } => {
                in_range(layout::BACKENDS, index.get(), self.sizes.backends)?;
                self.backends.entry(*index).or_insert(BackendSlot::EMPTY).state = *state;
            }
            TableOp::NameService { service, name } => {
                self.names.insert(*service, **name);
            }
            TableOp::ForgetService { service } => {
                self.names.remove(service);
            }
            TableOp::InsertSourceRange { service, addr, bits } => {
                let key = (*service, *addr, *bits);
                if !self.source_ranges.contains_key(&key) {
                    has_room(layout::SOURCE_RANGES, self.source_ranges.len(), self.sizes.source_ranges)?;
                    self.source_ranges.insert(key, ());
                }
            }
            TableOp::DeleteSourceRange { service, addr, bits } => {
                self.source_ranges.remove(&(*service, *addr, *bits));
            }
            TableOp::Publish { service, word } => {
                in_range(layout::SERVICES, service.get(), self.sizes.services)?;
                self.services.insert(*service, *word);
            }
            TableOp::InsertFrontend { key, value } => {
                if self.frontends.get(key).is_some_and(|old| old != value) {
                    return Err(frontend_problem(key, "exists already: its value changes in place"));
                }
                if !self.frontends.contains_key(key) {
                    has_room(layout::FRONTENDS, self.frontends.len(), self.sizes.frontends)?;
                }
                self.frontends.insert(*key, *value);
            }
            TableOp::StoreFrontend { key, value } => match self.frontends.get_mut(key) {
                Some(old) => *old = *value,
                None => return Err(frontend_problem(key, "does not exist")),
            },
            TableOp::DeleteFrontend { key } => {
                self.frontends.remove(key);
            }
        }
        Ok(())
    }
}

impl Tables for MemoryTables {
    fn config(&self) -> NodeConfig {
        self.config
    }

    fn netns(&self, cookie: u64) -> Option<NetnsOptions> {
        self.netns.get(&cookie).copied()
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.frontends.get(key).copied()
    }

    fn local_address(&self, addr: &Addr) -> Option<LocalAddress> {
        self.local_addresses.get(addr).copied()
    }

    fn service(&self, index: ServiceIndex) -> Option<ServiceWord> {
        self.services.get(&index).copied()
    }

    /// As in the kernel's array, records that nobody has written are zero.
    fn record(&self, at: RunOffset) -> Option<Record> {
        (at.get() < self.sizes.runs).then(|| self.records.get(&at).copied().unwrap_or_default())
    }

    fn backend(&self, index: BackendIndex) -> Option<BackendSlot> {
        self.backends.get(&index).copied()
    }

    fn affinity(&self, key: &AffinityKey) -> Option<AffinityValue> {
        self.affinity.borrow().get(key).copied()
    }

    fn set_affinity(&self, key: &AffinityKey, value: AffinityValue) {
        self.affinity.borrow_mut().insert(*key, value);
    }

    fn exchange(&self, key: &ExchangeKey) -> Option<ExchangeValue> {
        self.exchanges.borrow().get(key).copied()
    }

    fn set_exchange(&self, key: &ExchangeKey, value: ExchangeValue) {
        self.exchanges.borrow_mut().insert(*key, value);
    }

    fn reply(&self, key: &ReplyKey) -> Option<ReplyValue> {
        self.replies.borrow().get(key).copied()
    }

    fn set_reply(&self, key: &ReplyKey, value: ReplyValue) {
        self.replies.borrow_mut().insert(*key, value);
    }

    fn random(&self) -> u32 {
        let next =
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random.set(next);
        (next >> 32) as u32
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn count(&self, counter: Counter) {
        *self.counters.borrow_mut().entry(counter).or_default() += 1;
    }
}
