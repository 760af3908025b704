//! User space's side of the kernel maps.
//!
//! ```text
//! layout   what every map looks like: to create by and to compare with
//! open     pinned maps → taken over, or a new set beside the old one
//! writer   TableOp → a copy into mapped memory, a system call, or one 8-byte store
//! node     the node's addresses and settings
//! reader   dumps, counters, facts; also without write access, also with the agent down
//! compare  what they hold, word by word, for the planner to compare with what it wrote
//! check    does what the maps hold make sense
//! earlier  what the programs of an earlier agent have learned → the maps of this one
//! numbering   services and backends by their numbers, and in those of another set
//! pods     the maps of the pod network, of an object of their own
//! intact   are the pins where the next agent looks
//! sockets  what programs remember of sockets, and where it leads now
//! grace    when may memory be reused that programs could still look at
//! array    arrays, mapped or read by system calls
//! sys, mapped   bpf(2) and mmap(2): the only unsafe code
//! ```
//!
//! Deliberately not here: what to write (portway-model plans it), programs and links (`programs`), which sockets are
//! stale (`sockets`).

mod array;
mod check;
mod compare;
mod earlier;
mod error;
mod grace;
mod intact;
mod layout;
mod mapped;
mod node;
mod numbering;
mod open;
mod pods;
mod reader;
mod set;
mod sockets;
mod sys;
mod writer;

use std::os::fd::OwnedFd;
use std::path::Path;

pub use check::Inconsistency;
pub use earlier::Adopted;
pub use error::MapError;
pub use grace::{Grace, GracePeriods, RETRY, RcuWaiter};
pub use intact::PinFault;
pub use layout::{AnyMap, LayoutDifference, LayoutField, MapId, MapKind, MapLayout};
pub use node::AddressChanges;
pub use open::{Opening, Origin, Published, Reason};
pub use pods::{
    EarlierFlows, EntryChanges, MendedPin, PodAdopted, PodMapFacts, PodMapId, PodOpening, PodReader,
    PodTables, pod_pin_path,
};
pub use reader::{MapFacts, MapReader};
pub use set::{pin_dir, pin_path};
pub use sockets::SocketTable;

use portway_datapath::layout::Sizes;
use portway_model::tables::TableDump;

/// The kernel maps of the one agent that writes them.
#[derive(Debug)]
pub struct KernelTables {
    reader: MapReader,
    /// `pw_store_word`.
    store_program: Option<OwnedFd>,
    /// Made by this process: no program reads them before the programs are loaded.
    fresh_frontends: bool,
    fresh_local_addresses: bool,
    earlier: earlier::Earlier,
}

impl KernelTables {
    fn new(reader: MapReader, opening: &Opening, earlier: earlier::Earlier) -> Self {
        Self {
            earlier,
            reader,
            store_program: None,
            fresh_frontends: opening.published != Published::Reused,
            fresh_local_addresses: opening.others.get(&MapId::LocalAddresses) != Some(&Origin::Reused),
        }
    }

    /// The maps of an agent, running or not, for reading alone.
    pub fn open_read_only(bpf_root: &Path) -> Result<MapReader, MapError> {
        MapReader::open(bpf_root)
    }

    /// Reads beside the writer, on any thread.
    pub fn reader(&self) -> MapReader {
        self.reader.clone()
    }

    /// Beside the writer, on any thread: only programs write these maps but for what it forgets.
    pub fn sockets(&self) -> SocketTable {
        SocketTable::new(self.reader.clone())
    }

    /// The sizes that the maps have.
    pub fn sizes(&self) -> Sizes {
        self.reader.sizes()
    }

    /// As [`MapReader::dump`].
    pub fn dump(&self) -> Result<TableDump, MapError> {
        self.reader.dump()
    }

    fn maps(&self) -> &set::MapSet {
        &self.reader.maps
    }
}
