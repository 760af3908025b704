use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portway_datapath::layout::PodSizes;
use portway_datapath::{
    Addr, CpuTraffic, DeviceValue, Direction, EndpointPolicy, EndpointValue, NetnsOptions, NodeNetwork,
    Reason, Traffic,
};

use super::PodMaps;
use super::layout::PodMapId;
use crate::maps::error::MapError;
use crate::maps::layout::MapKind;
use crate::maps::set::{open_to_read, pin_dir};
use crate::maps::sys::{Access, from_bytes};

/// Reads the maps of the pod network: beside the agent, or in another process, also with the agent down. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PodReader {
    pub(super) maps: Arc<PodMaps>,
}

/// A map as `status` and the metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMapFacts {
    pub id: PodMapId,
    pub kind: MapKind,
    pub max: u32,
    /// Kernel memory in bytes, as the kernel counts it (before Linux 6.4 an estimate for a full map).
    pub kernel_bytes: Option<u64>,
}

impl PodReader {
    /// Opens the pinned maps for reading alone.
    ///
    /// # Errors
    /// There are none, or they are another version's.
    pub fn open(bpf_root: &Path) -> Result<Self, MapError> {
        let dir = pin_dir(bpf_root);
        let maps = PodMaps::new(Access::ReadOnly, |map| {
            open_to_read(&dir, map.name(), map.layout(&PodSizes::DEFAULT))?
                .ok_or_else(|| MapError::NoPodMaps { dir: dir.clone() })
        })?;
        Ok(Self { maps: Arc::new(maps) })
    }

    /// The sizes that the maps have.
    pub fn sizes(&self) -> PodSizes {
        self.maps.sizes()
    }

    /// Entries that a map has room for.
    pub fn max(&self, map: PodMapId) -> u32 {
        self.maps.raw(map).info().entries
    }

    /// `pw_endpoints`.
    pub fn endpoints(&self) -> Result<BTreeMap<Addr, EndpointValue>, MapError> {
        self.collect(PodMapId::Endpoints)
    }

    /// The endpoint that an address leads to.
    pub fn endpoint(&self, addr: &Addr) -> Result<Option<EndpointValue>, MapError> {
        self.get(PodMapId::Endpoints, addr)
    }

    /// Who an endpoint is and what its packets are judged by, by its number.
    pub fn endpoint_policy(&self, id: u16) -> Result<EndpointPolicy, MapError> {
        let word = self.maps.endpoint_policy.word(id.into());
        word.map(EndpointPolicy::from_word).map_err(MapError::map(PodMapId::EndpointPolicy, "read"))
    }

    /// What the socket programs do for a namespace, by its cookie.
    pub fn netns_options(&self, cookie: u64) -> Result<Option<NetnsOptions>, MapError> {
        Ok(self.get::<_, u64>(PodMapId::Netns, &cookie)?.map(NetnsOptions::from_word))
    }

    /// `pw_netns`, by the cookies of the namespaces.
    pub fn netns(&self) -> Result<BTreeMap<u64, NetnsOptions>, MapError> {
        let words: BTreeMap<u64, u64> = self.collect(PodMapId::Netns)?;
        Ok(words.into_iter().map(|(cookie, word)| (cookie, NetnsOptions::from_word(word))).collect())
    }

    /// `pw_devices`, by the interfaces' numbers.
    pub fn devices(&self) -> Result<BTreeMap<u32, DeviceValue>, MapError> {
        self.collect(PodMapId::Devices)
    }

    /// `pw_network`.
    pub fn network(&self) -> Result<NodeNetwork, MapError> {
        let mut value = [0; size_of::<NodeNetwork>()];
        let failed = MapError::map(PodMapId::Network, "read");
        self.maps.network.map().read_array(0, &mut value).map_err(failed)?;
        let invalid = || std::io::ErrorKind::InvalidData.into();
        from_bytes(&value).ok_or_else(|| MapError::map(PodMapId::Network, "read")(invalid()))
    }

    /// `pw_traffic`, summed over the CPUs.
    pub fn traffic(&self) -> Result<BTreeMap<(Reason, Direction), Traffic>, MapError> {
        let map = &self.maps.traffic;
        let mut values = vec![0; map.value_bytes()];
        let mut traffic = BTreeMap::new();
        for reason in Reason::ALL {
            map.lookup(&(reason as u32).to_ne_bytes(), &mut values)
                .map_err(MapError::map(PodMapId::Traffic, "read"))?;
            for cpu in values.chunks_exact(size_of::<CpuTraffic>()).filter_map(from_bytes::<CpuTraffic>) {
                for direction in [Direction::Egress, Direction::Ingress] {
                    let sum: &mut Traffic = traffic.entry((reason, direction)).or_default();
                    let Traffic { packets, bytes } = cpu.of(direction);
                    sum.packets = sum.packets.wrapping_add(packets);
                    sum.bytes = sum.bytes.wrapping_add(bytes);
                }
            }
        }
        Ok(traffic)
    }

    /// Size and memory of every map.
    pub fn facts(&self) -> Vec<PodMapFacts> {
        let facts = |id: PodMapId| {
            let raw = self.maps.raw(id);
            PodMapFacts {
                id,
                kind: id.layout(&PodSizes::DEFAULT).kind,
                max: raw.info().entries,
                kernel_bytes: crate::maps::reader::kernel_bytes(raw),
            }
        };
        PodMapId::ALL.into_iter().map(facts).collect()
    }

    fn collect<K: aya::Pod + Ord, V: aya::Pod>(&self, map: PodMapId) -> Result<BTreeMap<K, V>, MapError> {
        let mut entries = BTreeMap::new();
        let each = |key: &[u8], value: &[u8]| {
            if let (Some(key), Some(value)) = (from_bytes(key), from_bytes(value)) {
                entries.insert(key, value);
            }
        };
        self.maps.raw(map).for_each(each).map_err(MapError::map(map, "read"))?;
        Ok(entries)
    }
}
