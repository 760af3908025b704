//! What the maps hold, without writing to them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, Counter, FrontendKey, FrontendValue, LocalAddress, NodeConfig,
    RECORD_WORDS, Record, RunBackend, RunHeader, RunOffset, ServiceIndex, ServiceName, ServiceWord,
    SourceRange,
};
use portway_model::tables::{ServiceDump, TableDump};

use super::check::{Inconsistency, check_header};
use super::error::MapError;
use super::layout::{MapId, MapKind};
use super::set::{MapSet, open_to_read, pin_dir};
use super::sys::{Access, RawMap, bytes_of, from_bytes};

/// Reads the maps: beside the agent's owner task, or in another process, also with the agent down. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MapReader {
    pub(super) maps: Arc<MapSet>,
}

/// A map as `status` and the metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFacts {
    pub id: MapId,
    pub kind: MapKind,
    /// Elements in use where counting them is cheap.
    pub used: Option<u32>,
    pub max: u32,
    /// Kernel memory in bytes, as the kernel counts it (before Linux 6.4 an estimate for a full map).
    pub kernel_bytes: Option<u64>,
}

impl MapReader {
    /// Opens the pinned maps for reading alone: neither the file system nor the maps need be writable.
    pub fn open(bpf_root: &Path) -> Result<Self, MapError> {
        let dir = pin_dir(bpf_root);
        let maps = MapSet::new(Access::ReadOnly, |map| {
            open_to_read(&dir, map.name(), map.layout(&Sizes::DEFAULT))?
                .ok_or_else(|| MapError::NoMaps { dir: dir.clone() })
        })?;
        Ok(Self { maps: Arc::new(maps) })
    }

    /// The sizes that the maps have.
    pub fn sizes(&self) -> Sizes {
        self.maps.sizes
    }

    /// Everything that is published. Taken while an agent publishes, each service is a version that was published
    /// at some moment during the call, and each frontend belonged to the version that it is listed with. A service
    /// that is published again and again may be listed without frontends, or its name as one
    /// without a service.
    pub fn dump(&self) -> Result<TableDump, MapError> {
        /// Reads of a service that moves under the reader.
        const TRIES: u32 = 16;
        let before = self.words()?;
        let mut frontends = self.frontends()?;
        let mut services = BTreeMap::new();
        let mut moved = BTreeSet::new();
        for (index, word) in &before {
            let service = self.service(*index)?;
            if service.as_ref().map(|service| service.word) != Some(*word) {
                moved.insert(*index);
            }
            services.extend(service.map(|service| (*index, service)));
        }
        // Services that were published after the first look.
        moved.extend(
            frontends.values().map(|value| value.service()).filter(|index| !before.contains_key(index)),
        );
        // An index that was given to another service meanwhile must not take the first one's frontends along.
        for _ in 0..TRIES {
            if moved.is_empty() {
                break;
            }
            for index in &moved {
                match self.service(*index)? {
                    Some(service) => services.insert(*index, service),
                    None => services.remove(index),
                };
            }
            self.look_again(&mut frontends, &mut moved)?;
            let mut moving = BTreeSet::new();
            for index in moved {
                let listed = services.get(&index).map_or(ServiceWord::NONE, |service| service.word);
                if self.word(index)? != listed {
                    moving.insert(index);
                }
            }
            moved = moving;
        }
        frontends.retain(|_, value| !moved.contains(&value.service()));
        let stray_names = self.names()?.into_iter().filter(|index| !services.contains_key(index)).collect();
        Ok(TableDump {
            frontends: frontends.into_iter().collect(),
            services: services.into_values().collect(),
            stray_names,
            source_ranges: self.source_ranges()?,
            backends: self.backends()?,
        })
    }

    /// Reads the frontends of `moved` services again, and adds the services that they have now.
    fn look_again(
        &self,
        frontends: &mut BTreeMap<FrontendKey, FrontendValue>,
        moved: &mut BTreeSet<ServiceIndex>,
    ) -> Result<(), MapError> {
        let old = std::mem::take(frontends);
        for (key, value) in old {
            if !moved.contains(&value.service()) {
                frontends.insert(key, value);
            } else if let Some(value) = self.frontend(&key)? {
                moved.insert(value.service());
                frontends.insert(key, value);
            }
        }
        Ok(())
    }

    /// `pw_metrics`, summed over the CPUs.
    pub fn counters(&self) -> Result<BTreeMap<Counter, u64>, MapError> {
        let map = &self.maps.metrics;
        let mut values = vec![0; map.value_bytes()];
        Counter::ALL
            .into_iter()
            .map(|counter| {
                map.lookup(&(counter as u32).to_ne_bytes(), &mut values)
                    .map_err(MapError::map(MapId::Metrics, "read"))?;
                let sum = values.chunks_exact(8).filter_map(from_bytes::<u64>).fold(0, u64::wrapping_add);
                Ok((counter, sum))
            })
            .collect()
    }

    /// `pw_config`.
    pub fn config(&self) -> Result<NodeConfig, MapError> {
        let words = self.maps.config.read(0, 1).map_err(MapError::map(MapId::Config, "read"))?;
        let word = |at: usize| words.get(at).copied().unwrap_or_default();
        Ok(NodeConfig { host_netns: word(0), settings: word(1) })
    }

    /// `pw_local_addresses`.
    pub fn local_addresses(&self) -> Result<BTreeMap<Addr, LocalAddress>, MapError> {
        let mut addresses = BTreeMap::new();
        self.maps
            .local_addresses
            .for_each(|key, value| {
                if let (Some(addr), Some(word)) = (from_bytes(key), from_bytes(value)) {
                    addresses.insert(addr, LocalAddress::from_word(word));
                }
            })
            .map_err(MapError::map(MapId::LocalAddresses, "read"))?;
        Ok(addresses)
    }

    /// Use, size and memory of every map.
    pub fn facts(&self) -> Result<Vec<MapFacts>, MapError> {
        MapId::ALL
            .into_iter()
            .map(|id| (id, self.maps.raw(id)))
            .map(|(id, raw)| {
                Ok(MapFacts {
                    id,
                    kind: id.layout(&self.maps.sizes).kind,
                    used: self.used(id)?,
                    max: raw.info().entries,
                    kernel_bytes: kernel_bytes(raw),
                })
            })
            .collect()
    }

    fn used(&self, map: MapId) -> Result<Option<u32>, MapError> {
        let count = |raw: &RawMap| {
            let mut used = 0;
            raw.for_each(|_, _| used += 1).map_err(MapError::map(map, "count"))?;
            Ok(Some(used))
        };
        Ok(match map {
            MapId::Frontends => count(&self.maps.frontends)?,
            MapId::LocalAddresses => count(&self.maps.local_addresses)?,
            MapId::Services => Some(self.words()?.len() as u32),
            MapId::Runs => {
                let mut used = 0_u32;
                for (service, word) in self.words()? {
                    let Some(run) = word.run() else { continue };
                    let records = RunHeader::RECORDS.wrapping_add(self.header(service, run)?.backends());
                    used = used.saturating_add(records);
                }
                Some(used)
            }
            MapId::Backends => {
                let mut used = 0;
                self.maps
                    .backends
                    .scan(|_, words| used += u32::from(words.first().is_some_and(|state| *state as u32 != 0)))
                    .map_err(MapError::map(map, "count"))?;
                Some(used)
            }
            MapId::SourceRanges => Some(self.source_ranges()?.len() as u32),
            MapId::Config | MapId::Metrics => Some(self.maps.raw(map).info().entries),
            // Programs fill and age them, or a name goes with each service.
            MapId::Maglev
            | MapId::ServiceNames
            | MapId::Affinity
            | MapId::SockUdp
            | MapId::SockReplies
            | MapId::Sock => None,
        })
    }

    /// The words of published services.
    fn words(&self) -> Result<BTreeMap<ServiceIndex, ServiceWord>, MapError> {
        let mut published = BTreeMap::new();
        self.maps
            .services
            .scan(|index, words| {
                let word = words.first().copied().map_or(ServiceWord::NONE, ServiceWord::from_word);
                if word.run().is_some() {
                    published.insert(ServiceIndex::new(index), word);
                }
            })
            .map_err(MapError::map(MapId::Services, "read"))?;
        Ok(published)
    }

    fn word(&self, index: ServiceIndex) -> Result<ServiceWord, MapError> {
        if index.get() >= self.maps.services.entries() {
            return Ok(ServiceWord::NONE);
        }
        let word = self.maps.services.word(index.get()).map_err(MapError::map(MapId::Services, "read"))?;
        Ok(ServiceWord::from_word(word))
    }

    /// The version of a service that is published, whole.
    pub(super) fn service(&self, index: ServiceIndex) -> Result<Option<ServiceDump>, MapError> {
        let mut word = self.word(index)?;
        loop {
            let Some(run) = word.run() else { return Ok(None) };
            let read = self.run(index, word, run);
            // A run is not reused while its word stands, and no word comes twice.
            fence(Ordering::Acquire);
            let again = self.word(index)?;
            if again == word {
                return read.map(Some);
            }
            word = again;
        }
    }

    fn run(&self, index: ServiceIndex, word: ServiceWord, run: RunOffset) -> Result<ServiceDump, MapError> {
        let header = self.header(index, run)?;
        check_header(index, run.get(), &header, &self.maps.sizes).map_err(MapError::Inconsistent)?;
        let records = self.records(run.plus(RunHeader::RECORDS), header.backends())?;
        let name = self.name(index)?;
        let (service, port_name) = name.as_ref().map_or(("", ""), ServiceName::names);
        Ok(ServiceDump {
            index,
            word,
            header,
            backends: records.iter().map(RunBackend::from_record).collect(),
            service: service.to_owned(),
            port_name: port_name.to_owned(),
        })
    }

    fn header(&self, service: ServiceIndex, run: RunOffset) -> Result<RunHeader, MapError> {
        let past_end = Inconsistency::RunPastEnd { service, run: run.get(), backends: 0 };
        if u64::from(run.get()) + u64::from(RunHeader::RECORDS) > u64::from(self.maps.runs.entries()) {
            return Err(MapError::Inconsistent(past_end));
        }
        match self.records(run, RunHeader::RECORDS)?.as_slice() {
            [first, second] => Ok(RunHeader::from_records(first, second)),
            _ => Err(MapError::Inconsistent(past_end)),
        }
    }

    fn records(&self, at: RunOffset, count: u32) -> Result<Vec<Record>, MapError> {
        let words = self.maps.runs.read(at.get(), count).map_err(MapError::map(MapId::Runs, "read"))?;
        // A record is six words of four bytes, or three of eight.
        Ok(words
            .chunks_exact(RECORD_WORDS / 2)
            .filter_map(|words| {
                let [a, b, c] = words.try_into().ok().map(|words: [u64; 3]| words.map(halves))?;
                Some([a[0], a[1], b[0], b[1], c[0], c[1]])
            })
            .collect())
    }

    /// The services that have a name.
    fn names(&self) -> Result<BTreeSet<ServiceIndex>, MapError> {
        let mut named = BTreeSet::new();
        self.maps
            .service_names
            .for_each(|key, _| named.extend(from_bytes::<u32>(key).map(ServiceIndex::new)))
            .map_err(MapError::map(MapId::ServiceNames, "read"))?;
        Ok(named)
    }

    pub(super) fn name(&self, index: ServiceIndex) -> Result<Option<ServiceName>, MapError> {
        let mut value = [0; size_of::<ServiceName>()];
        let known = self
            .maps
            .service_names
            .lookup(&index.get().to_ne_bytes(), &mut value)
            .map_err(MapError::map(MapId::ServiceNames, "read"))?;
        Ok(if known { from_bytes(&value) } else { None })
    }

    fn frontends(&self) -> Result<BTreeMap<FrontendKey, FrontendValue>, MapError> {
        let mut frontends = BTreeMap::new();
        self.maps
            .frontends
            .for_each(|key, value| {
                if let (Some(key), Some(word)) = (from_bytes(key), from_bytes(value)) {
                    frontends.insert(key, FrontendValue::from_word(word));
                }
            })
            .map_err(MapError::map(MapId::Frontends, "read"))?;
        Ok(frontends)
    }

    pub(super) fn frontend(&self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        let mut value = [0; size_of::<u64>()];
        let known = self
            .maps
            .frontends
            .lookup(bytes_of(key), &mut value)
            .map_err(MapError::map(MapId::Frontends, "read"))?;
        Ok(known.then(|| FrontendValue::from_word(u64::from_ne_bytes(value))))
    }

    pub(super) fn source_ranges(&self) -> Result<Vec<(ServiceIndex, Addr, u8)>, MapError> {
        let map = &self.maps.source_ranges;
        let mut ranges = BTreeSet::new();
        let mut key = [0; size_of::<u32>() + size_of::<SourceRange>()];
        let mut next = key;
        let mut more = map.next_key(None, &mut next);
        // Where keys go meanwhile the walk may begin again; it ends after as many keys as there can be.
        for _ in 0..map.info().entries {
            if !more.map_err(MapError::map(MapId::SourceRanges, "read"))? {
                break;
            }
            ranges.extend(source_range(&next));
            key = next;
            more = map.next_key(Some(&key), &mut next);
        }
        Ok(ranges.into_iter().collect())
    }

    fn backends(&self) -> Result<Vec<(BackendIndex, BackendSlot)>, MapError> {
        let mut used = Vec::new();
        self.maps
            .backends
            .scan(|index, words| {
                // Most slots were never used.
                if words.first().is_none_or(|state| *state == 0) {
                    return;
                }
                let mut bytes = [0; size_of::<BackendSlot>()];
                for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
                let slot = from_bytes(&bytes).filter(|slot: &BackendSlot| slot.incarnation() != 0);
                used.extend(slot.map(|slot| (BackendIndex::new(index), slot)));
            })
            .map_err(MapError::map(MapId::Backends, "read"))?;
        Ok(used)
    }
}

/// Key of `pw_source_ranges`: a prefix length in host order, then [`SourceRange`].
pub(super) fn source_range_key(service: ServiceIndex, addr: Addr, bits: u8) -> [u8; 24] {
    let mut key = [0; 24];
    let (prefix, data) = key.split_at_mut(size_of::<u32>());
    prefix.copy_from_slice(&(SourceRange::SERVICE_BITS + u32::from(bits)).to_ne_bytes());
    data.copy_from_slice(bytes_of(&SourceRange::new(service, addr)));
    key
}

fn source_range(key: &[u8]) -> Option<(ServiceIndex, Addr, u8)> {
    let (prefix, data) = key.split_at_checked(size_of::<u32>())?;
    let bits = from_bytes::<u32>(prefix)?.checked_sub(SourceRange::SERVICE_BITS)?;
    let range: SourceRange = from_bytes(data)?;
    Some((range.service(), range.addr(), bits.try_into().ok()?))
}

/// A word of eight bytes as two of four, as they lie in memory.
pub(super) fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

pub(super) fn kernel_bytes(map: &RawMap) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd().as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}
