//! `pw_ipcache`: a trie, in which another value takes the place of the one before in one step.

use std::collections::BTreeMap;

use portway_datapath::{Addr, Family, IpcacheValue};
use portway_model::ipcache::Key;

use super::layout::PodMapId;
use super::{PodReader, PodTables};
use crate::maps::error::MapError;
use crate::maps::sys::{Expect, bytes_of, from_bytes};
use crate::maps::writer::{delete, insert};

/// Bits of an address.
const ADDR_BITS: u8 = 128;

impl PodReader {
    /// Every entry, sorted by prefix; an IPv4 prefix has 96 bits more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ipcache_entries(&self) -> Result<Vec<(Key, IpcacheValue)>, MapError> {
        let mut entries = Vec::new();
        let each = |key: &[u8], value: &[u8]| {
            let Some((bits, addr)) = key.split_at_checked(size_of::<u32>()) else { return };
            if let (Some(bits), Some(addr), Some(value)) =
                (from_bytes::<u32>(bits), from_bytes(addr), from_bytes(value))
            {
                // At most 128.
                entries.push(((addr, bits as u8), value));
            }
        };
        self.maps.ipcache.for_each(each).map_err(MapError::map(PodMapId::Ipcache, "read"))?;
        entries.sort_unstable_by_key(|(prefix, _)| *prefix);
        // A key that goes while it is read lets the reading begin anew.
        entries.dedup_by_key(|(prefix, _)| *prefix);
        Ok(entries)
    }

    /// As [`Self::ipcache_entries`], for looking up.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ipcache(&self) -> Result<BTreeMap<Key, IpcacheValue>, MapError> {
        Ok(self.ipcache_entries()?.into_iter().collect())
    }

    /// What programs find for an address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ipcache_of(&self, addr: Addr) -> Result<Option<IpcacheValue>, MapError> {
        let raw = &self.maps.ipcache;
        let mut value = vec![0; raw.value_bytes()];
        let key = key((addr, ADDR_BITS));
        let known = raw.lookup(&key, &mut value).map_err(MapError::map(PodMapId::Ipcache, "read"))?;
        Ok(if known { from_bytes(&value) } else { None })
    }
}

impl PodTables {
    /// Makes a prefix (an IPv4 prefix has 96 bits more) have a value, or takes it out.
    ///
    /// # Errors
    /// The map is full, or the kernel refuses; the prefix has what it had.
    pub fn change_ipcache(&self, prefix: Key, value: Option<&IpcacheValue>) -> Result<(), MapError> {
        let raw = self.raw(PodMapId::Ipcache);
        let text = || prefix_text(prefix);
        match value {
            Some(value) => insert(raw, &key(prefix), bytes_of(value), Expect::Any)
                .map_err(|e| MapError::insert(PodMapId::Ipcache, raw, text(), e)),
            None => delete(raw, PodMapId::Ipcache, &key(prefix), text),
        }
    }
}

/// A prefix length in host order, then the bits.
fn key((addr, bits): Key) -> [u8; 20] {
    let mut key = [0; 20];
    let (prefix, data) = key.split_at_mut(size_of::<u32>());
    prefix.copy_from_slice(&u32::from(bits).to_ne_bytes());
    data.copy_from_slice(bytes_of(&addr));
    key
}

fn prefix_text((addr, bits): Key) -> String {
    let bits = match addr.family() {
        Family::V4 => bits.saturating_sub(96),
        Family::V6 => bits,
    };
    format!("{addr}/{bits}")
}
