//! Writing the maps, one operation at a time.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use portway_datapath::layout::MAGLEV_SLOTS;
use portway_datapath::{Addr, BackendSlot, FrontendKey, FrontendValue, Record, RunOffset, ServiceIndex};
use portway_model::tables::{TableOp, TableWriter};

use super::KernelTables;
use super::array::{Array, words};
use super::check::frontend;
use super::error::MapError;
use super::layout::{AnyMap, MapId};
use super::reader::source_range_key;
use super::sys::{Expect, RawMap, bytes_of, run_program};

/// The maps whose elements `pw_store_word` changes in place, by its number for them.
#[derive(Clone, Copy)]
pub(super) enum WordMap {
    Frontends = 0,
    LocalAddresses = 1,
}

impl TableWriter for KernelTables {
    type Error = MapError;

    fn write(&mut self, op: &TableOp) -> Result<(), MapError> {
        match op {
            TableOp::WriteRun { at, records } => self.write_run(*at, records),
            TableOp::WriteMaglev { at, slots } => self.write_maglev(*at, slots),
            TableOp::WriteBackend { index, slot } => self.write_backend(index.get(), slot),
            TableOp::StoreBackendState { index, state } => {
                store(&self.maps().backends, MapId::Backends, index.get(), *state)
            }
            TableOp::NameService { service, name } => {
                let (map, key) = (&self.maps().service_names, service.get().to_ne_bytes());
                insert(map, &key, bytes_of(&**name), Expect::Any)
                    .map_err(|e| MapError::insert(MapId::ServiceNames, map, service_text(*service), e))
            }
            TableOp::ForgetService { service } => {
                delete(&self.maps().service_names, MapId::ServiceNames, &service.get().to_ne_bytes(), || {
                    service_text(*service)
                })
            }
            TableOp::InsertSourceRange { service, addr, bits } => {
                self.insert_source_range(*service, *addr, *bits)
            }
            TableOp::DeleteSourceRange { service, addr, bits } => {
                let key = source_range_key(*service, *addr, *bits);
                delete(&self.maps().source_ranges, MapId::SourceRanges, &key, || {
                    range_text(*service, *addr, *bits)
                })
            }
            TableOp::Publish { service, word } => {
                store(&self.maps().services, MapId::Services, service.get(), word.word())
            }
            TableOp::InsertFrontend { key, value } => self.insert_frontend(key, *value),
            TableOp::StoreFrontend { key, value } => {
                self.store_word(WordMap::Frontends, bytes_of(key), value.word(), || frontend(key))
            }
            TableOp::DeleteFrontend { key } => {
                delete(&self.maps().frontends, MapId::Frontends, bytes_of(key), || frontend(key))
            }
        }
    }
}

impl KernelTables {
    /// The program that changes an element of a hash map in place (`pw_store_word`), once it is loaded.
    pub fn set_store_program(&mut self, program: BorrowedFd<'_>) -> io::Result<()> {
        self.store_program = Some(program.try_clone_to_owned()?);
        Ok(())
    }

    fn write_run(&self, at: RunOffset, records: &[Record]) -> Result<(), MapError> {
        let runs = &self.maps().runs;
        in_range(MapId::Runs, at.get(), records.len(), runs.entries())?;
        // A record is six words of four bytes, or three of eight.
        let words: Vec<u64> = records
            .iter()
            .flat_map(|[a, b, c, d, e, f]| [pair(*a, *b), pair(*c, *d), pair(*e, *f)])
            .collect();
        runs.write(at.get(), 0, &words).map_err(MapError::map(MapId::Runs, "write"))
    }

    /// Slots lie four to a word; those beside the written ones stay.
    fn write_maglev(&self, at: u32, slots: &[u16]) -> Result<(), MapError> {
        let maglev = &self.maps().maglev;
        in_range(MapId::Maglev, at, slots.len(), maglev.entries().saturating_mul(MAGLEV_SLOTS))?;
        let mut rest = slots;
        let mut at = at;
        while !rest.is_empty() {
            let (element, first) = (at / MAGLEV_SLOTS, (at % MAGLEV_SLOTS) as usize);
            let (now, later) = rest.split_at(rest.len().min(MAGLEV_SLOTS as usize - first));
            let mut bytes = maglev.word(element).map_err(MapError::map(MapId::Maglev, "read"))?.to_ne_bytes();
            for (to, from) in bytes.chunks_exact_mut(size_of::<u16>()).skip(first).zip(now) {
                to.copy_from_slice(&from.to_ne_bytes());
            }
            maglev
                .write(element, 0, &[u64::from_ne_bytes(bytes)])
                .map_err(MapError::map(MapId::Maglev, "write"))?;
            at += now.len() as u32;
            rest = later;
        }
        Ok(())
    }

    /// Address, port and service first, then the state that makes them count.
    fn write_backend(&self, index: u32, slot: &BackendSlot) -> Result<(), MapError> {
        let backends = &self.maps().backends;
        in_range(MapId::Backends, index, 1, backends.entries())?;
        let words = words(bytes_of(slot));
        let body = words.get(1..).unwrap_or_default();
        backends.write(index, 1, body).map_err(MapError::map(MapId::Backends, "write"))?;
        store(backends, MapId::Backends, index, slot.state)
    }

    fn insert_frontend(&self, key: &FrontendKey, value: FrontendValue) -> Result<(), MapError> {
        let map = &self.maps().frontends;
        match insert(map, bytes_of(key), &value.word().to_ne_bytes(), Expect::Absent) {
            Ok(()) => Ok(()),
            // Repeating an insert that succeeded is not an error.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                if self.reader.frontend(key)? == Some(value) {
                    Ok(())
                } else {
                    Err(MapError::Exists { map: MapId::Frontends.into(), key: frontend(key) })
                }
            }
            Err(e) => Err(MapError::insert(MapId::Frontends, map, frontend(key), e)),
        }
    }

    fn insert_source_range(&self, service: ServiceIndex, addr: Addr, bits: u8) -> Result<(), MapError> {
        let (map, key) = (&self.maps().source_ranges, source_range_key(service, addr, bits));
        let Err(source) = insert(map, &key, &[0; size_of::<u32>()], Expect::Any) else {
            return Ok(());
        };
        // Before Linux 6.13 a full trie refuses a key that it has, too.
        if source.raw_os_error() == Some(libc::ENOSPC)
            && self.reader.source_ranges()?.contains(&(service, addr, bits))
        {
            return Ok(());
        }
        Err(MapError::insert(MapId::SourceRanges, map, range_text(service, addr, bits), source))
    }

    /// Changes the word of a key that exists, in place: an update would replace the element, and a reader between
    /// the two would miss the key.
    pub(super) fn store_word(
        &self,
        map: WordMap,
        key: &[u8],
        word: u64,
        text: impl Fn() -> String,
    ) -> Result<(), MapError> {
        /// What the program returns.
        const STORED: u32 = 0;
        const NO_SUCH_KEY: u32 = 1;
        let (id, raw, fresh) = match map {
            WordMap::Frontends => (MapId::Frontends, &self.maps().frontends, self.fresh_frontends),
            WordMap::LocalAddresses => {
                (MapId::LocalAddresses, &self.maps().local_addresses, self.fresh_local_addresses)
            }
        };
        let id = AnyMap::from(id);
        let failed = |source| MapError::Element { map: id, action: "store", key: text(), source };
        let Some(program) = &self.store_program else {
            if !fresh {
                return Err(MapError::NoStoreProgram { map: id, key: text() });
            }
            // The map was made a moment ago: no program reads it.
            return match raw.update(key, &word.to_ne_bytes(), Expect::Present) {
                Ok(()) => Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    Err(MapError::NoSuchKey { map: id, key: text() })
                }
                Err(e) => Err(failed(e)),
            };
        };
        match run_program(program.as_fd(), &store_packet(map, key, word)).map_err(failed)? {
            STORED => Ok(()),
            NO_SUCH_KEY => Err(MapError::NoSuchKey { map: id, key: text() }),
            code => Err(MapError::StoreProgram { map: id, key: text(), code }),
        }
    }
}

/// What `pw_store_word` takes: the map's number, three bytes of nothing, 20 bytes of key (an address has 16), the
/// word.
fn store_packet(map: WordMap, key: &[u8], word: u64) -> [u8; 32] {
    let mut packet = [0; 32];
    packet[0] = map as u8;
    for (to, from) in packet[4..24].iter_mut().zip(key) {
        *to = *from;
    }
    packet[24..].copy_from_slice(&word.to_ne_bytes());
    packet
}

/// An update that gives the kernel a chance to refill its stock of elements: a map without preallocation takes them
/// from a small stock for each CPU, and a quick succession of inserts can empty it (kernel/bpf/memalloc.c).
pub(super) fn insert(map: &RawMap, key: &[u8], value: &[u8], expect: Expect) -> io::Result<()> {
    /// A refill takes microseconds; memory that is short for longer is the caller's to know.
    const TRIES: u32 = 16;
    let mut result = map.update(key, value, expect);
    for _ in 1..TRIES {
        match &result {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN)) => {
                std::thread::yield_now();
                result = map.update(key, value, expect);
            }
            Ok(()) | Err(_) => break,
        }
    }
    result
}

pub(super) fn delete(
    map: &RawMap,
    id: impl Into<AnyMap>,
    key: &[u8],
    text: impl Fn() -> String,
) -> Result<(), MapError> {
    match map.delete(key) {
        // Not there: deleted already.
        Ok(_) => Ok(()),
        Err(source) => Err(MapError::Element { map: id.into(), action: "delete", key: text(), source }),
    }
}

fn store(array: &Array, map: MapId, element: u32, word: u64) -> Result<(), MapError> {
    in_range(map, element, 1, array.entries())?;
    array.store(element, 0, word).map_err(MapError::map(map, "write"))
}

fn in_range(map: MapId, first: u32, count: usize, entries: u32) -> Result<(), MapError> {
    let end = u64::from(first) + count as u64;
    if end <= u64::from(entries) {
        Ok(())
    } else {
        Err(MapError::OutOfRange { map: map.into(), element: end - 1, entries })
    }
}

/// Two halves in the order that they have in memory.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn service_text(service: ServiceIndex) -> String {
    format!("service {}", service.get())
}

fn range_text(service: ServiceIndex, addr: Addr, bits: u8) -> String {
    format!("range {addr}/{bits} of service {}", service.get())
}

#[cfg(test)]
mod tests {
    use portway_datapath::{Port, Protocol};

    use super::*;

    #[test]
    fn the_packet_for_the_store_program_holds_map_key_and_word() {
        let key = FrontendKey::new(Addr::v4([10, 96, 0, 1]), Port::new(80), Protocol::TCP);
        let packet = store_packet(WordMap::LocalAddresses, bytes_of(&key), 0x0102_0304_0506_0708);
        assert_eq!(packet[..4], [1, 0, 0, 0]);
        assert_eq!(packet[4..24], *bytes_of(&key));
        assert_eq!(packet[24..], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        let addr = store_packet(WordMap::Frontends, bytes_of(&key.addr), 0);
        assert_eq!(addr[20..24], [0; 4], "an address leaves the rest of the key empty");
    }
}
