//! What the programs know of the node: its addresses and its settings.

use std::collections::BTreeMap;

use portway_datapath::{Addr, LocalAddress, NodeConfig};

use super::KernelTables;
use super::error::MapError;
use super::layout::MapId;
use super::sys::{Expect, bytes_of};
use super::writer::{WordMap, delete, insert};

/// How many addresses were changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressChanges {
    pub inserted: usize,
    pub stored: usize,
    pub deleted: usize,
}

impl KernelTables {
    /// Makes `pw_local_addresses` hold `wanted`: new addresses first, then changed ones in place, then those that
    /// are gone. What failed is done by the next call.
    pub fn set_local_addresses(
        &mut self,
        wanted: &BTreeMap<Addr, LocalAddress>,
    ) -> Result<AddressChanges, MapError> {
        let found = self.reader.local_addresses()?;
        let map = &self.maps().local_addresses;
        let mut changes = AddressChanges::default();
        for (addr, value) in wanted.iter().filter(|(addr, _)| !found.contains_key(addr)) {
            insert(map, bytes_of(addr), &value.word().to_ne_bytes(), Expect::Absent)
                .map_err(|e| MapError::insert(MapId::LocalAddresses, map, addr.to_string(), e))?;
            changes.inserted += 1;
        }
        for (addr, value) in wanted {
            if found.get(addr).is_some_and(|old| old != value) {
                self.store_word(WordMap::LocalAddresses, bytes_of(addr), value.word(), || addr.to_string())?;
                changes.stored += 1;
            }
        }
        for addr in found.keys().filter(|addr| !wanted.contains_key(addr)) {
            delete(map, MapId::LocalAddresses, bytes_of(addr), || addr.to_string())?;
            changes.deleted += 1;
        }
        Ok(changes)
    }

    /// Stores the node's settings, each word by itself: the namespace first, because the settings refer to it.
    pub fn set_config(&mut self, config: NodeConfig) -> Result<(), MapError> {
        let NodeConfig { host_netns, settings } = config;
        let array = &self.maps().config;
        for (at, word) in [host_netns, settings].into_iter().enumerate() {
            array.store(0, at, word).map_err(MapError::map(MapId::Config, "write"))?;
        }
        Ok(())
    }
}
