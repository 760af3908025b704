//! What the agent writes: level-based where it knows the whole, so that a call after an error or a restart puts everything
//! right.

use std::collections::BTreeMap;
use std::fmt::Display;

use portway_datapath::{
    Addr, DeviceValue, EndpointPolicy, EndpointValue, NetnsOptions, NodeNetwork, NumericIdentity,
};

use super::PodTables;
use super::layout::PodMapId;
use crate::maps::array::words;
use crate::maps::error::MapError;
use crate::maps::sys::{Expect, bytes_of};
use crate::maps::writer::{delete, insert};

/// How many entries were changed. One with another value counts as inserted, and as deleted where it had to go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryChanges {
    pub inserted: usize,
    pub deleted: usize,
}

impl PodTables {
    /// Makes `addr` lead to an endpoint. An address that another one has is taken from it first, so that programs see the old
    /// one, then none, then the new one.
    ///
    /// # Errors
    /// The map is full, or the kernel refuses.
    pub fn set_endpoint(&self, addr: Addr, value: EndpointValue) -> Result<EntryChanges, MapError> {
        self.set(PodMapId::Endpoints, addr, value, || addr.to_string())
    }

    /// Whether the address was there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_endpoint(&self, addr: Addr) -> Result<bool, MapError> {
        self.remove(PodMapId::Endpoints, addr, || addr.to_string())
    }

    /// Makes `pw_endpoints` hold `wanted`: addresses that are gone go first.
    ///
    /// # Errors
    /// The map is full, or the kernel refuses; repeating the call goes on from there.
    pub fn set_endpoints(&self, wanted: &BTreeMap<Addr, EndpointValue>) -> Result<EntryChanges, MapError> {
        self.set_all(PodMapId::Endpoints, &self.reader.endpoints()?, wanted, Addr::to_string)
    }

    /// `pw_endpoints`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn endpoints(&self) -> Result<BTreeMap<Addr, EndpointValue>, MapError> {
        self.reader.endpoints()
    }

    /// Publishes who an endpoint is, by its number: one store. Its policy stays.
    ///
    /// # Errors
    /// The memory of the map cannot be written.
    pub fn set_endpoint_identity(&self, id: u16, identity: NumericIdentity) -> Result<(), MapError> {
        let array = &self.reader.maps.endpoint_policy;
        let failed = || MapError::map(PodMapId::EndpointPolicy, "write");
        let held = EndpointPolicy::from_word(array.word(id.into()).map_err(failed())?);
        if held.identity() != identity {
            array.store(id.into(), 0, held.with_identity(identity).word()).map_err(failed())?;
        }
        Ok(())
    }

    /// An endpoint is gone: its number is nobody's.
    ///
    /// # Errors
    /// As [`Self::set_endpoint_identity`].
    pub fn clear_endpoint_policy(&self, id: u16) -> Result<(), MapError> {
        let array = &self.reader.maps.endpoint_policy;
        array
            .store(id.into(), 0, EndpointPolicy::default().word())
            .map_err(MapError::map(PodMapId::EndpointPolicy, "write"))
    }

    /// What the socket programs do for the sockets of a network namespace, by its cookie.
    ///
    /// # Errors
    /// The map is full, or the kernel refuses.
    pub fn set_netns(&self, cookie: u64, options: NetnsOptions) -> Result<EntryChanges, MapError> {
        self.set(PodMapId::Netns, cookie, options.word(), || namespace(&cookie))
    }

    /// Whether the namespace had options.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_netns(&self, cookie: u64) -> Result<bool, MapError> {
        self.remove(PodMapId::Netns, cookie, || namespace(&cookie))
    }

    /// Makes `pw_netns` hold `wanted`.
    ///
    /// # Errors
    /// As [`Self::set_endpoints`].
    pub fn set_all_netns(&self, wanted: &BTreeMap<u64, NetnsOptions>) -> Result<EntryChanges, MapError> {
        let words = |options: BTreeMap<u64, NetnsOptions>| -> BTreeMap<u64, u64> {
            options.into_iter().map(|(cookie, options)| (cookie, options.word())).collect()
        };
        let (found, wanted) = (words(self.reader.netns()?), words(wanted.clone()));
        self.set_all(PodMapId::Netns, &found, &wanted, namespace)
    }

    /// Makes `pw_devices` hold `wanted`, by the interfaces' numbers.
    ///
    /// # Errors
    /// As [`Self::set_endpoints`].
    pub fn set_devices(&self, wanted: &BTreeMap<u32, DeviceValue>) -> Result<EntryChanges, MapError> {
        self.set_all(PodMapId::Devices, &self.reader.devices()?, wanted, |ifindex| {
            format!("interface {ifindex}")
        })
    }

    /// Stores the settings of the packet programs, a word at a time: addresses first, switches last.
    ///
    /// # Errors
    /// The memory of the map cannot be written.
    pub fn set_network(&self, network: &NodeNetwork) -> Result<(), MapError> {
        let array = &self.reader.maps.network;
        let failed = || MapError::map(PodMapId::Network, "write");
        let found = array.read(0, 1).map_err(failed())?;
        let wanted = words(bytes_of(network));
        for (at, (word, _)) in
            wanted.iter().zip(found).enumerate().rev().filter(|(_, (word, found))| *word != found)
        {
            array.store(0, at, *word).map_err(failed())?;
        }
        Ok(())
    }

    fn set<K: aya::Pod, V: aya::Pod + PartialEq>(
        &self,
        map: PodMapId,
        key: K,
        value: V,
        text: impl Fn() -> String,
    ) -> Result<EntryChanges, MapError> {
        let raw = self.raw(map);
        let mut changes = EntryChanges::default();
        let mut held = vec![0; raw.value_bytes()];
        if raw.lookup(bytes_of(&key), &mut held).map_err(MapError::map(map, "read"))? {
            if held == bytes_of(&value) {
                return Ok(changes);
            }
            delete(raw, map, bytes_of(&key), &text)?;
            changes.deleted = 1;
        }
        insert(raw, bytes_of(&key), bytes_of(&value), Expect::Absent)
            .map_err(|e| MapError::insert(map, raw, text(), e))?;
        changes.inserted = 1;
        Ok(changes)
    }

    fn remove<K: aya::Pod>(
        &self,
        map: PodMapId,
        key: K,
        text: impl Fn() -> String,
    ) -> Result<bool, MapError> {
        self.raw(map).delete(bytes_of(&key)).map_err(|source| MapError::Element {
            map: map.into(),
            action: "delete",
            key: text(),
            source,
        })
    }

    fn set_all<K: aya::Pod + Ord, V: aya::Pod + PartialEq>(
        &self,
        map: PodMapId,
        found: &BTreeMap<K, V>,
        wanted: &BTreeMap<K, V>,
        text: impl Fn(&K) -> String,
    ) -> Result<EntryChanges, MapError> {
        let raw = self.raw(map);
        let mut changes = EntryChanges::default();
        // Room for what comes.
        for key in found.keys().filter(|key| !wanted.contains_key(key)) {
            delete(raw, map, bytes_of(key), || text(key))?;
            changes.deleted += 1;
        }
        for (key, value) in wanted.iter().filter(|(key, value)| found.get(key) != Some(value)) {
            let EntryChanges { inserted, deleted } = self.set(map, *key, *value, || text(key))?;
            changes.inserted += inserted;
            changes.deleted += deleted;
        }
        Ok(changes)
    }
}

fn namespace(cookie: &impl Display) -> String {
    format!("namespace {cookie}")
}
