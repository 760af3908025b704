//! What was read of tables elsewhere, for the datapath's decisions to be run on.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendSlot, Counter, ExchangeKey, ExchangeValue,
    FrontendKey, FrontendValue, LocalAddress, NetnsOptions, NodeConfig, Record, ReplyKey, ReplyValue,
    RunBackend, RunOffset, ServiceIndex, ServiceWord, Tables,
};
use portway_model::tables::TableDump;

/// Nothing is remembered of a client.
pub struct Snapshot {
    config: NodeConfig,
    local_addresses: BTreeSet<Addr>,
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    services: BTreeMap<ServiceIndex, ServiceWord>,
    records: BTreeMap<RunOffset, Record>,
    backends: BTreeMap<BackendIndex, BackendSlot>,
    random: Cell<u32>,
}

impl Snapshot {
    pub fn new(dump: &TableDump, config: NodeConfig, local_addresses: impl Iterator<Item = Addr>) -> Self {
        let mut records = BTreeMap::new();
        for service in &dump.services {
            let Some(run) = service.word.run() else { continue };
            let backends = service.backends.iter().map(RunBackend::record);
            let all = service.header.records().into_iter().chain(backends);
            records.extend(all.enumerate().map(|(n, record)| (run.plus(n as u32), record)));
        }
        Self {
            config,
            local_addresses: local_addresses.collect(),
            frontends: dump.frontends.iter().copied().collect(),
            services: dump.services.iter().map(|service| (service.index, service.word)).collect(),
            records,
            backends: dump.backends.iter().copied().collect(),
            random: Cell::new(1),
        }
    }
}

impl Tables for Snapshot {
    fn config(&self) -> NodeConfig {
        self.config
    }

    fn netns(&self, _: u64) -> Option<NetnsOptions> {
        None
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.frontends.get(key).copied()
    }

    fn local_address(&self, addr: &Addr) -> Option<LocalAddress> {
        self.local_addresses.contains(addr).then_some(LocalAddress::new(true))
    }

    fn service(&self, index: ServiceIndex) -> Option<ServiceWord> {
        self.services.get(&index).copied()
    }

    fn record(&self, at: RunOffset) -> Option<Record> {
        self.records.get(&at).copied()
    }

    fn backend(&self, index: BackendIndex) -> Option<BackendSlot> {
        self.backends.get(&index).copied()
    }

    fn affinity(&self, _: &AffinityKey) -> Option<AffinityValue> {
        None
    }

    fn set_affinity(&self, _: &AffinityKey, _: AffinityValue) {}

    fn exchange(&self, _: &ExchangeKey) -> Option<ExchangeValue> {
        None
    }

    fn set_exchange(&self, _: &ExchangeKey, _: ExchangeValue) {}

    fn reply(&self, _: &ReplyKey) -> Option<ReplyValue> {
        None
    }

    fn set_reply(&self, _: &ReplyKey, _: ReplyValue) {}

    fn random(&self) -> u32 {
        self.random.set(self.random.get().wrapping_mul(2_654_435_761).wrapping_add(1));
        self.random.get()
    }

    fn now(&self) -> u64 {
        0
    }

    fn count(&self, _: Counter) {}
}
