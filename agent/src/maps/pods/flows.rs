//! Conntrack and NAT for user space: programs fill them, the agent removes what is over.

use portway_datapath::nat::NatMap;
use portway_datapath::{FlowKey, FlowMap, FlowValue, NatKey, NatValue};

use super::layout::PodMapId;
use super::{PodReader, PodTables};
use crate::maps::error::MapError;
use crate::maps::sys::{bytes_of, from_bytes};

impl PodMapId {
    pub const fn of_flows(map: FlowMap) -> Self {
        match map {
            FlowMap::Established => Self::Conntrack,
            FlowMap::New => Self::ConntrackNew,
        }
    }

    pub const fn of_nats(map: NatMap) -> Self {
        match map {
            NatMap::Established => Self::Nat,
            NatMap::New => Self::NatNew,
        }
    }
}

impl PodReader {
    /// Every flow of a map, each at least once, in no order. One that comes or goes meanwhile may be missing. A value that
    /// is not of its key, because its element was reused under the reader, is left out.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn for_each_flow(
        &self,
        map: FlowMap,
        mut flow: impl FnMut(&FlowKey, &FlowValue),
    ) -> Result<(), MapError> {
        self.each(PodMapId::of_flows(map), |key: FlowKey, value: FlowValue| {
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
        map: NatMap,
        mut half: impl FnMut(&NatKey, &NatValue),
    ) -> Result<(), MapError> {
        self.each(PodMapId::of_nats(map), |key: NatKey, value: NatValue| {
            if value.tag == key.tag() {
                half(&key, &value);
            }
        })
    }

    /// # Errors
    /// The kernel refuses.
    pub fn flow(&self, map: FlowMap, key: &FlowKey) -> Result<Option<FlowValue>, MapError> {
        Ok(self.get(PodMapId::of_flows(map), key)?.filter(|value: &FlowValue| value.tag == key.tag()))
    }

    /// # Errors
    /// The kernel refuses.
    pub fn nat(&self, map: NatMap, key: &NatKey) -> Result<Option<NatValue>, MapError> {
        Ok(self.get(PodMapId::of_nats(map), key)?.filter(|value: &NatValue| value.tag == key.tag()))
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

    pub(super) fn get<K: aya::Pod, V: aya::Pod>(
        &self,
        map: PodMapId,
        key: &K,
    ) -> Result<Option<V>, MapError> {
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
    pub fn delete_flow(&self, map: FlowMap, key: &FlowKey) -> Result<bool, MapError> {
        let map = PodMapId::of_flows(map);
        self.raw(map).delete(bytes_of(key)).map_err(MapError::map(map, "delete from"))
    }

    /// Whether there was such a half.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_nat(&self, map: NatMap, key: &NatKey) -> Result<bool, MapError> {
        let map = PodMapId::of_nats(map);
        self.raw(map).delete(bytes_of(key)).map_err(MapError::map(map, "delete from"))
    }
}
