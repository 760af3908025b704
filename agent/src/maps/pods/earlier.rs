//! Flows and NAT entries that are in maps of other sizes than ours.
//!
//! ```text
//! open      the earlier map keeps a pin, pw_…_old, for an agent that comes after a crash
//! adopt     everything that it holds, before the programs are replaced
//! programs  replaced: they fill our maps alone
//! adopt     what came meanwhile
//! forget    the pin goes, and the memory with it
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use super::PodTables;
use super::layout::{Content, PodMapId};
use crate::maps::error::MapError;
use crate::maps::set::{is_missing, unpin};
use crate::maps::sys::{Access, Expect, RawMap};
use crate::maps::writer::insert;

/// Maps of earlier agents that hold flows.
#[derive(Debug, Default)]
pub struct EarlierFlows {
    sources: Vec<(PodMapId, RawMap)>,
    pins: Vec<PathBuf>,
}

/// What became of the entries of earlier maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAdopted {
    pub copied: u64,
    /// Our map has them already.
    pub known: u64,
    /// Our map is full.
    pub lost: u64,
}

impl EarlierFlows {
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Copies everything that our maps do not have. Call it before the programs are replaced and once more after; about a
    /// microsecond an entry.
    ///
    /// # Errors
    /// The kernel refuses more than that a map is full.
    pub fn adopt(&self, to: &PodTables) -> Result<PodAdopted, MapError> {
        let mut adopted = PodAdopted::default();
        for (map, from) in &self.sources {
            let raw = to.raw(*map);
            let mut failed = None;
            let read = from.for_each(|key, value| match insert(raw, key, value, Expect::Absent) {
                Ok(()) => adopted.copied += 1,
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => adopted.known += 1,
                Err(e) if matches!(e.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => adopted.lost += 1,
                Err(e) => failed = Some(e),
            });
            read.map_err(MapError::map(*map, "read the earlier"))?;
            if let Some(e) = failed {
                return Err(MapError::map(*map, "copy an earlier agent's entries into")(e));
            }
        }
        Ok(adopted)
    }

    /// Lets the earlier maps go, when no program uses them.
    ///
    /// # Errors
    /// A pin cannot be removed; the others are.
    pub fn forget(self) -> Result<(), MapError> {
        let mut done = Ok(());
        for path in self.pins {
            done = unpin(&path).map(drop).and(done);
        }
        done
    }

    /// What an agent that did not end its own takeover left in `dir`.
    pub(super) fn find(&mut self, dir: &Path, map: PodMapId) -> Result<(), MapError> {
        if map.content() != Content::Learned {
            return Ok(());
        }
        let path = pin(dir, map);
        match RawMap::open(&path, Access::ReadWrite) {
            Ok(raw) => {
                self.pins.push(path);
                self.keep(map, raw);
                Ok(())
            }
            Err(e) if is_missing(&e) => Ok(()),
            Err(source) => Err(MapError::Pin { action: "open", path, source }),
        }
    }

    /// A map that was pinned under our own name.
    pub(super) fn add(&mut self, dir: &Path, map: PodMapId, raw: RawMap) -> Result<(), MapError> {
        let path = pin(dir, map);
        // One that is there already is an older one, from which all but the last was copied.
        if !self.pins.contains(&path) {
            raw.pin(&path).map_err(MapError::pin("pin", &path))?;
            self.pins.push(path);
        }
        self.keep(map, raw);
        Ok(())
    }

    /// The last one is asked first: what two have, it has last.
    fn keep(&mut self, map: PodMapId, raw: RawMap) {
        let wanted = map.layout(&portway_datapath::layout::PodSizes::DEFAULT).info();
        if (raw.info().key_size, raw.info().value_size) == (wanted.key_size, wanted.value_size) {
            self.sources.insert(0, (map, raw));
        }
    }
}

/// Names in a bpf file system have no dots.
pub(super) fn pin(dir: &Path, map: PodMapId) -> PathBuf {
    dir.join(format!("{}_old", map.name()))
}

impl fmt::Display for PodAdopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copied, known, lost } = self;
        write!(f, "{copied} copied, {known} known, {lost} without room")
    }
}
