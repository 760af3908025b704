//! What the numbers mean that programs remember: a service's index, and a backend's slot with its incarnation.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use portway_datapath::layout::Sizes;
use portway_datapath::{
    Addr, AffinityKey, AffinityValue, BackendIndex, BackendRef, BackendSlot, ExchangeValue, Port,
    ServiceIndex, ServiceName, SocketTranslation,
};

use super::layout::MapId;
use super::sys::{Access, RawMap, bytes_of, from_bytes};

/// Elements that one step of a scan copies.
const CHUNK: u32 = 4096;

/// A backend by what it is: `namespace/name` and port name of its service, address and port.
type Backend = (String, String, Addr, Port);

/// The services and backends of one set of published maps.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    names: HashMap<ServiceIndex, (String, String)>,
    slots: HashMap<u32, BackendSlot>,
    by_backend: HashMap<Backend, u32>,
}

impl Numbering {
    /// Reads `pw_service_names` and `pw_backends`. O(elements).
    pub(super) fn read(names: &RawMap, backends: &RawMap) -> io::Result<Self> {
        let mut numbering = Self::default();
        names.for_each(|key, value| {
            if let (Some(index), Some(name)) = (from_bytes::<u32>(key), from_bytes::<ServiceName>(value)) {
                let (service, port) = name.names();
                let names = (service.to_owned(), port.to_owned());
                numbering.names.insert(ServiceIndex::new(index), names);
            }
        })?;
        let (entries, size) = (backends.info().entries, backends.value_bytes());
        let mut first = 0;
        while first < entries {
            let mut bytes = vec![0; CHUNK.min(entries - first) as usize * size];
            backends.read_array(first, &mut bytes)?;
            for (index, value) in (first..).zip(bytes.chunks_exact(size)) {
                numbering.add(index, value);
            }
            first = first.saturating_add(CHUNK);
        }
        Ok(numbering)
    }

    /// Of the maps pinned in `dir`; `None` where they are not what this version takes them for.
    pub(super) fn open(dir: &Path) -> Option<Self> {
        let open = |map: MapId| {
            let raw = RawMap::open(&dir.join(map.name()), Access::ReadOnly).ok()?;
            fits(map, &raw).then_some(raw)
        };
        Self::read(&open(MapId::ServiceNames)?, &open(MapId::Backends)?).ok()
    }

    fn add(&mut self, index: u32, value: &[u8]) {
        let Some(slot) = from_bytes::<BackendSlot>(value).filter(|slot| slot.incarnation() != 0) else {
            return;
        };
        self.slots.insert(index, slot);
        let Some((service, port)) = self.names.get(&slot.service) else { return };
        let backend = (service.clone(), port.clone(), slot.addr, slot.port);
        // A slot that is in a set is meant rather than one that was given up.
        if slot.members() != 0 || !self.by_backend.contains_key(&backend) {
            self.by_backend.insert(backend, index);
        }
    }

    /// An entry of a map that programs fill, in the numbers of `ours`; `None` where it means nothing there.
    pub(super) fn translate(
        &self,
        map: MapId,
        key: &[u8],
        value: &[u8],
        ours: &Self,
    ) -> Option<(Vec<u8>, Vec<u8>)> {
        match map {
            MapId::Affinity => {
                let (key, value) = (from_bytes::<AffinityKey>(key)?, from_bytes::<AffinityValue>(value)?);
                let (slot, backend) = self.backend(BackendRef::from_word(value.backend), ours)?;
                let key = (self.slot_service(value.backend)? == key.service())
                    .then(|| key.of_service(slot.service))?;
                let value = AffinityValue { backend: backend.word(), ..value };
                Some((bytes_of(&key).to_vec(), bytes_of(&value).to_vec()))
            }
            MapId::SockUdp => {
                let value = from_bytes::<ExchangeValue>(value)?;
                let (_, backend) = self.backend(BackendRef::from_word(value.backend), ours)?;
                let value = ExchangeValue { backend: backend.word(), ..value };
                Some((key.to_vec(), bytes_of(&value).to_vec()))
            }
            MapId::Sock => {
                let mut value = from_bytes::<SocketTranslation>(value)?;
                value.service = self.socket_service(&value, ours);
                Some((key.to_vec(), bytes_of(&value).to_vec()))
            }
            MapId::SockReplies
            | MapId::Frontends
            | MapId::Services
            | MapId::Runs
            | MapId::Maglev
            | MapId::Backends
            | MapId::SourceRanges
            | MapId::ServiceNames
            | MapId::LocalAddresses
            | MapId::Config
            | MapId::Metrics => Some((key.to_vec(), value.to_vec())),
        }
    }

    fn slot_service(&self, reference: u64) -> Option<ServiceIndex> {
        self.slots.get(&BackendRef::from_word(reference).index().get()).map(|slot| slot.service)
    }

    fn backend<'a>(&self, reference: BackendRef, ours: &'a Self) -> Option<(&'a BackendSlot, BackendRef)> {
        let slot = self.slots.get(&reference.index().get())?;
        if slot.incarnation() != reference.incarnation() {
            return None;
        }
        let (service, port) = self.names.get(&slot.service)?.clone();
        let index = *ours.by_backend.get(&(service, port, slot.addr, slot.port))?;
        let slot = ours.slots.get(&index)?;
        Some((slot, BackendRef::new(BackendIndex::new(index), slot.incarnation())))
    }

    /// 0, which is none, where the backend is gone: only people read it.
    fn socket_service(&self, socket: &SocketTranslation, ours: &Self) -> ServiceIndex {
        let names = self.names.get(&socket.service).cloned();
        let index = names.and_then(|(service, port)| {
            ours.by_backend.get(&(service, port, socket.backend, socket.backend_port))
        });
        index.and_then(|index| ours.slots.get(index)).map_or(ServiceIndex::new(0), |slot| slot.service)
    }
}

/// Whether a map has the layout of its sort, whatever its size.
pub(super) fn fits(map: MapId, raw: &RawMap) -> bool {
    let mut wanted = map.layout(&Sizes::DEFAULT);
    wanted.entries = raw.info().entries;
    wanted.difference(raw.info()).is_none()
}
