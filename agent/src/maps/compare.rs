//! The maps word by word, for [`portway_model::plan::Planner::damage`]. Arrays are read in mapped memory, without a
//! system call; hash maps in batches.

use portway_datapath::layout::MAGLEV_SLOTS;
use portway_datapath::{
    Addr, BackendIndex, BackendSlot, FrontendKey, FrontendValue, RECORD_WORDS, Record, RunOffset,
    ServiceIndex, ServiceName, ServiceWord,
};
use portway_model::tables::TableReader;

use super::error::MapError;
use super::layout::MapId;
use super::reader::{MapReader, halves};
use super::sys::from_bytes;

/// Words of a slot of `pw_backends`.
const SLOT_WORDS: usize = size_of::<BackendSlot>() / size_of::<u64>();

impl TableReader for MapReader {
    type Error = MapError;

    fn each_service(&self, each: &mut dyn FnMut(ServiceIndex, ServiceWord)) -> Result<(), MapError> {
        self.maps
            .services
            .scan(|index, words| {
                if let Some(word) = words.first().filter(|word| **word != 0) {
                    each(ServiceIndex::new(index), ServiceWord::from_word(*word));
                }
            })
            .map_err(MapError::map(MapId::Services, "read"))
    }

    fn run_is(&self, at: RunOffset, records: &[Record]) -> Result<bool, MapError> {
        let runs = &self.maps.runs;
        if u64::from(at.get()) + records.len() as u64 > u64::from(runs.entries()) {
            return Ok(false);
        }
        let words = runs.read(at.get(), records.len() as u32).map_err(MapError::map(MapId::Runs, "read"))?;
        let mut held = words.chunks_exact(RECORD_WORDS / 2);
        Ok(records.iter().all(|record| {
            held.next().is_some_and(|words| words.iter().copied().flat_map(halves).eq(record.iter().copied()))
        }))
    }

    fn maglev_slots(&self, at: u32, slots: u32) -> Result<Vec<u16>, MapError> {
        let first = at / MAGLEV_SLOTS;
        let elements = (at + slots).div_ceil(MAGLEV_SLOTS).saturating_sub(first);
        let words = self.maps.maglev.read(first, elements).map_err(MapError::map(MapId::Maglev, "read"))?;
        let all = words.iter().flat_map(|word| {
            let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
            [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes)
        });
        Ok(all.skip((at % MAGLEV_SLOTS) as usize).take(slots as usize).collect())
    }

    fn backend_slot(&self, index: BackendIndex) -> Result<BackendSlot, MapError> {
        let backends = &self.maps.backends;
        if index.get() >= backends.entries() {
            return Ok(BackendSlot::EMPTY);
        }
        let mut words = [0; SLOT_WORDS];
        backends.copy(index.get(), &mut words).map_err(MapError::map(MapId::Backends, "read"))?;
        Ok(slot(&words))
    }

    fn each_backend_in_use(&self, each: &mut dyn FnMut(BackendIndex, BackendSlot)) -> Result<(), MapError> {
        self.maps
            .backends
            .scan(|index, words| {
                // The low half of the first word has the bits.
                if words.first().is_some_and(|state| *state as u32 != 0) {
                    each(BackendIndex::new(index), slot(words));
                }
            })
            .map_err(MapError::map(MapId::Backends, "read"))
    }

    fn each_name(&self, each: &mut dyn FnMut(ServiceIndex, &ServiceName)) -> Result<(), MapError> {
        self.maps
            .service_names
            .for_each(|key, value| {
                if let (Some(index), Some(name)) = (from_bytes::<u32>(key), from_bytes(value)) {
                    each(ServiceIndex::new(index), &name);
                }
            })
            .map_err(MapError::map(MapId::ServiceNames, "read"))
    }

    fn has_name(&self, service: ServiceIndex) -> Result<bool, MapError> {
        Ok(self.name(service)?.is_some())
    }

    fn each_source_range(&self, each: &mut dyn FnMut(ServiceIndex, Addr, u8)) -> Result<(), MapError> {
        self.source_ranges()?.into_iter().for_each(|(service, addr, bits)| each(service, addr, bits));
        Ok(())
    }

    fn each_frontend(&self, each: &mut dyn FnMut(FrontendKey, FrontendValue)) -> Result<(), MapError> {
        self.maps
            .frontends
            .for_each(|key, value| {
                if let (Some(key), Some(word)) = (from_bytes(key), from_bytes(value)) {
                    each(key, FrontendValue::from_word(word));
                }
            })
            .map_err(MapError::map(MapId::Frontends, "read"))
    }

    fn frontend_value(&self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.frontend(key)
    }
}

fn slot(words: &[u64]) -> BackendSlot {
    let mut bytes = [0; size_of::<BackendSlot>()];
    for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    from_bytes(&bytes).unwrap_or(BackendSlot::EMPTY)
}
