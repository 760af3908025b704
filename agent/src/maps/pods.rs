//! The maps of the pod network: of an object of their own, made only where there is one.
//!
//! ```text
//! layout   what every map looks like
//! open     pinned maps → taken over, or made anew with what the old ones hold
//! earlier  what the programs of an earlier agent go on to remember in maps of other sizes
//! tables   endpoints, namespaces, addresses, devices, settings: level-based, and one by one
//! flows    conntrack and NAT: read, removed
//! ipcache  who is where, prefix by prefix
//! reader   everything without writing; also with the agent down
//! intact   are the pins where the next agent looks
//! ```

mod earlier;
mod flows;
mod intact;
mod ipcache;
mod layout;
mod open;
mod reader;
mod tables;

pub use earlier::{EarlierFlows, PodAdopted};
pub use intact::MendedPin;
pub use layout::PodMapId;
pub use open::PodOpening;
pub use reader::{PodMapFacts, PodReader};
pub use tables::EntryChanges;

use std::path::{Path, PathBuf};

use portway_datapath::layout::PodSizes;

use super::array::Array;
use super::error::MapError;
use super::set::pin_dir;
use super::sys::{Access, RawMap};

/// The maps of the one agent that writes them. Cheap to clone; all calls may be made on any thread, those that change a
/// map on one thread for each map.
#[derive(Clone, Debug)]
pub struct PodTables {
    reader: PodReader,
}

impl PodTables {
    /// Reads beside the writer, on any thread.
    pub fn reader(&self) -> PodReader {
        self.reader.clone()
    }

    /// The sizes that the maps have.
    pub fn sizes(&self) -> PodSizes {
        self.reader.sizes()
    }

    fn raw(&self, map: PodMapId) -> &RawMap {
        self.reader.maps.raw(map)
    }
}

/// Where a map is pinned.
pub fn pod_pin_path(bpf_root: &Path, map: PodMapId) -> PathBuf {
    pin_dir(bpf_root).join(map.name())
}

/// Every map, open.
#[derive(Debug)]
struct PodMaps {
    endpoints: RawMap,
    endpoint_policy: Array,
    netns: RawMap,
    ipcache: RawMap,
    conntrack: RawMap,
    conntrack_new: RawMap,
    nat: RawMap,
    nat_new: RawMap,
    fragments: RawMap,
    network: Array,
    devices: RawMap,
    traffic: RawMap,
}

impl PodMaps {
    /// From maps whose layouts were checked; `open` gives each.
    fn new(
        access: Access,
        mut open: impl FnMut(PodMapId) -> Result<RawMap, MapError>,
    ) -> Result<Self, MapError> {
        let mut array =
            |map: PodMapId| Array::new(open(map)?, access).map_err(MapError::map(map, "map the memory of"));
        Ok(Self {
            network: array(PodMapId::Network)?,
            endpoint_policy: array(PodMapId::EndpointPolicy)?,
            endpoints: open(PodMapId::Endpoints)?,
            netns: open(PodMapId::Netns)?,
            ipcache: open(PodMapId::Ipcache)?,
            conntrack: open(PodMapId::Conntrack)?,
            conntrack_new: open(PodMapId::ConntrackNew)?,
            nat: open(PodMapId::Nat)?,
            nat_new: open(PodMapId::NatNew)?,
            fragments: open(PodMapId::Fragments)?,
            devices: open(PodMapId::Devices)?,
            traffic: open(PodMapId::Traffic)?,
        })
    }

    fn raw(&self, map: PodMapId) -> &RawMap {
        match map {
            PodMapId::Endpoints => &self.endpoints,
            PodMapId::EndpointPolicy => self.endpoint_policy.map(),
            PodMapId::Netns => &self.netns,
            PodMapId::Ipcache => &self.ipcache,
            PodMapId::Conntrack => &self.conntrack,
            PodMapId::ConntrackNew => &self.conntrack_new,
            PodMapId::Nat => &self.nat,
            PodMapId::NatNew => &self.nat_new,
            PodMapId::Fragments => &self.fragments,
            PodMapId::Network => self.network.map(),
            PodMapId::Devices => &self.devices,
            PodMapId::Traffic => &self.traffic,
        }
    }

    fn sizes(&self) -> PodSizes {
        let entries = |map: &RawMap| map.info().entries;
        PodSizes {
            endpoints: entries(&self.endpoints),
            ipcache: entries(&self.ipcache),
            conntrack: entries(&self.conntrack),
            conntrack_new: entries(&self.conntrack_new),
            nat: entries(&self.nat),
            nat_new: entries(&self.nat_new),
            fragments: entries(&self.fragments),
            devices: entries(&self.devices),
        }
    }
}
