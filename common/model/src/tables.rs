//! The maps as user space writes them: operations, a writer trait, tables in memory, a dump and its rows.

mod dump;
mod faulty;
mod memory;
mod rows;

pub use dump::{ServiceDump, TableDump};
pub use faulty::{FaultyError, FaultyTables};
pub use memory::{FullTable, MemoryTables};
pub use rows::{BackendSets, Row, rows};

use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendValue, Record, RunOffset, ServiceIndex,
    ServiceName, ServiceWord,
};

/// One change of one map. Each is atomic for a program that reads the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableOp {
    /// Writes records of a run that is not published. One copy into mapped memory.
    WriteRun {
        at: RunOffset,
        records: Vec<Record>,
    },
    /// Writes slots of Maglev tables of a run that is not published.
    WriteMaglev {
        at: u32,
        slots: Vec<u16>,
    },
    /// Takes a free slot of `pw_backends`: address first, then the state word.
    WriteBackend {
        index: BackendIndex,
        slot: BackendSlot,
    },
    /// Stores the state word of a slot in use ([`BackendSlot::state`]).
    StoreBackendState {
        index: BackendIndex,
        state: u64,
    },
    /// Names a service index. No program reads it.
    NameService {
        service: ServiceIndex,
        name: Box<ServiceName>,
    },
    /// Removes the name of a service index.
    ForgetService {
        service: ServiceIndex,
    },
    /// `bits` counts those of the address as [`Addr`]: 96 more than an IPv4 prefix has.
    InsertSourceRange {
        service: ServiceIndex,
        addr: Addr,
        bits: u8,
    },
    DeleteSourceRange {
        service: ServiceIndex,
        addr: Addr,
        bits: u8,
    },
    /// The publishing store into `pw_services`.
    Publish {
        service: ServiceIndex,
        word: ServiceWord,
    },
    /// A key that the map does not have.
    InsertFrontend {
        key: FrontendKey,
        value: FrontendValue,
    },
    /// A key that the map has: its word changes in place.
    StoreFrontend {
        key: FrontendKey,
        value: FrontendValue,
    },
    /// A key that the map has.
    DeleteFrontend {
        key: FrontendKey,
    },
}

/// The maps read beside the one who writes them, to find what somebody else changed.
pub trait TableReader {
    type Error;

    /// Every word of `pw_services` that is not 0, in order.
    fn each_service(&self, each: &mut dyn FnMut(ServiceIndex, ServiceWord)) -> Result<(), Self::Error>;
    /// Whether the records from `at` on are these.
    fn run_is(&self, at: RunOffset, records: &[Record]) -> Result<bool, Self::Error>;
    /// Slots of `pw_maglev` from `at` on.
    fn maglev_slots(&self, at: u32, slots: u32) -> Result<Vec<u16>, Self::Error>;
    /// A slot of `pw_backends`; [`BackendSlot::EMPTY`] past the end.
    fn backend_slot(&self, index: BackendIndex) -> Result<BackendSlot, Self::Error>;
    /// Every slot of `pw_backends` with bits, in order.
    fn each_backend_in_use(&self, each: &mut dyn FnMut(BackendIndex, BackendSlot))
    -> Result<(), Self::Error>;
    fn each_name(&self, each: &mut dyn FnMut(ServiceIndex, &ServiceName)) -> Result<(), Self::Error>;
    fn has_name(&self, service: ServiceIndex) -> Result<bool, Self::Error>;
    fn each_source_range(&self, each: &mut dyn FnMut(ServiceIndex, Addr, u8)) -> Result<(), Self::Error>;
    /// Every frontend, once, in no order.
    fn each_frontend(&self, each: &mut dyn FnMut(FrontendKey, FrontendValue)) -> Result<(), Self::Error>;
    fn frontend_value(&self, key: &FrontendKey) -> Result<Option<FrontendValue>, Self::Error>;
}

/// Where operations go: kernel maps, memory, or memory that fails now and then.
///
/// An operation that fails has changed nothing. Repeating one that succeeded is not an error.
pub trait TableWriter {
    type Error: std::error::Error + Send + Sync + 'static;

    fn write(&mut self, op: &TableOp) -> Result<(), Self::Error>;
}
