//! Conntrack and NAT for user space: programs fill them, the agent removes what is over.

use portway_datapath::{FlowKey, FlowValue, NatKey, NatValue};

use super::layout::PodMapId;
use super::{PodReader, PodTables};
use crate::maps::error::MapError;
use crate::maps::sys::{bytes_of, from_bytes};

/// Which of the two conntrack maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowTable {
    /// `pw_conntrack`: both directions were seen.
    Established,
    /// `pw_ct_new`, which makes room by itself.
    New,
}

/// Which of the two NAT maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NatTable {
    /// `pw_nat`: both directions were seen.
    Established,
    /// `pw_nat_new`, which makes room by itself.
    New,
}

impl FlowTable {
    pub const ALL: [Self; 2] = [Self::Established, Self::New];

    pub const fn map(self) -> PodMapId {
        match self {
            Self::Established => PodMapId::Conntrack,
            Self::New => PodMapId::ConntrackNew,
        }
    }
}

impl NatTable {
    pub const ALL: [Self; 2] = [Self::Established, Self::New];

    pub const fn map(self) -> PodMapId {
        match self {
            Self::Established => PodMapId::Nat,
            Self::New => PodMapId::NatNew,
        }
    }
}

impl PodReader {
    /// Every flow of a table, each at least once, in no order. One that comes or goes meanwhile may be missing. A value that
    /// is not of its key, because its element was reused under the reader, is left out.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn for_each_flow(
        &self,
        table: FlowTable,
        mut flow: impl FnMut(&FlowKey, &FlowValue),
    ) -> Result<(), MapError> {
        self.each(table.map(), |key: FlowKey, value: FlowValue| {
            if value.tag == key.tag() {
                flow(&key, &value);
            }
        })
    }

    /// As [`Self::for_each_flow`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn for_each_nat(
        &self,
        table: NatTable,
        mut half: impl FnMut(&NatKey, &NatValue),
    ) -> Result<(), MapError> {
        self.each(table.map(), |key: NatKey, value: NatValue| {
            if value.tag == key.tag() {
                half(&key, &value);
            }
        })
    }

    /// # Errors
    /// The kernel refuses.
    pub fn flow(&self, table: FlowTable, key: &FlowKey) -> Result<Option<FlowValue>, MapError> {
        Ok(self.get(table.map(), key)?.filter(|value: &FlowValue| value.tag == key.tag()))
    }

    /// # Errors
    /// The kernel refuses.
    pub fn nat(&self, table: NatTable, key: &NatKey) -> Result<Option<NatValue>, MapError> {
        Ok(self.get(table.map(), key)?.filter(|value: &NatValue| value.tag == key.tag()))
    }

    fn each<K: aya::Pod, V: aya::Pod>(
        &self,
        map: PodMapId,
        mut entry: impl FnMut(K, V),
    ) -> Result<(), MapError> {
        let each = |key: &[u8], value: &[u8]| {
            if let (Some(key), Some(value)) = (from_bytes(key), from_bytes(value)) {
                entry(key, value);
            }
        };
        self.maps.raw(map).for_each(each).map_err(MapError::map(map, "read"))
    }

    fn get<K: aya::Pod, V: aya::Pod>(&self, map: PodMapId, key: &K) -> Result<Option<V>, MapError> {
        let raw = self.maps.raw(map);
        let mut value = vec![0; raw.value_bytes()];
        let known = raw.lookup(bytes_of(key), &mut value).map_err(MapError::map(map, "read"))?;
        Ok(if known { from_bytes(&value) } else { None })
    }
}

impl PodTables {
    /// Whether there was such a flow.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_flow(&self, table: FlowTable, key: &FlowKey) -> Result<bool, MapError> {
        let map = table.map();
        self.raw(map).delete(bytes_of(key)).map_err(MapError::map(map, "delete from"))
    }

    /// Whether there was such a half.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_nat(&self, table: NatTable, key: &NatKey) -> Result<bool, MapError> {
        let map = table.map();
        self.raw(map).delete(bytes_of(key)).map_err(MapError::map(map, "delete from"))
    }
}
