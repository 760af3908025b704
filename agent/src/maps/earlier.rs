//! What the programs of an earlier agent have learned, where this agent's maps are other ones: because a size was changed,
//! the published maps had to be made anew, or a layout version of another number ran before.
//!
//! ```text
//! open          the earlier maps are kept, and pinned as pw_…_old for an agent that comes after a crash
//! copy          of those that the programs cannot read: their numbers mean something else here
//! programs      replaced by those that write the new maps, and read the earlier ones where the new have nothing
//! grace period  nothing writes the earlier maps any more
//! copy          everything that is left
//! programs      replaced by the ordinary ones
//! forget        the pins go, and the memory with them
//! ```
//!
//! A copy costs about a microsecond an entry, two for `pw_sock`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::MapError;
use super::grace::RcuWaiter;
use super::layout::MapId;
use super::numbering::{Numbering, fits};
use super::set::{is_missing, unpin};
use super::sys::{Access, Expect, RawMap};
use super::{KernelTables, MapReader};
use crate::versions;

/// The maps that programs fill.
const LEARNED: [MapId; 4] = [MapId::Sock, MapId::SockUdp, MapId::SockReplies, MapId::Affinity];

/// Maps of earlier agents.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    sources: Vec<Source>,
    /// Pins of those that the programs read.
    pins: Vec<PathBuf>,
}

#[derive(Debug)]
struct Source {
    map: MapId,
    raw: RawMap,
    /// The kernel's number.
    number: u32,
    /// What its numbers mean; `None` where they are ours.
    numbering: Option<Arc<Numbering>>,
    /// The programs read it until it is copied.
    is_bridged: bool,
}

/// What became of the entries of earlier maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    pub copied: u64,
    /// The new map has them already.
    pub known: u64,
    /// Of backends that no service has any more.
    pub meaningless: u64,
    /// The new map is full.
    pub lost: u64,
}

impl KernelTables {
    /// Whether programs of an earlier agent have learned something that is in other maps than ours.
    pub fn has_earlier(&self) -> bool {
        !self.earlier.sources.is_empty()
    }

    /// Copies what programs cannot read where it is, before they are replaced.
    pub fn adopt_unread(&self) -> Result<Adopted, MapError> {
        self.earlier.copy(&self.reader, |source| !source.is_bridged)
    }

    /// Copies everything, when programs write our maps alone: waits for those that still run.
    pub fn adopt(&self) -> Result<Adopted, MapError> {
        if let Some(source) = self.earlier.sources.first() {
            let waited = RcuWaiter::new().and_then(|waiter| waiter.wait());
            waited.map_err(MapError::map(source.map, "wait for the programs of"))?;
        }
        self.earlier.copy(&self.reader, |_| true)
    }

    /// Lets the earlier maps go, when no program reads them.
    pub fn forget_earlier(&mut self) -> Result<(), MapError> {
        for path in std::mem::take(&mut self.earlier.pins) {
            unpin(&path)?;
        }
        self.earlier.sources.clear();
        Ok(())
    }
}

impl Earlier {
    /// A map that was pinned under our own name, unless its entries have another form.
    pub(super) fn add(
        &mut self,
        map: MapId,
        raw: RawMap,
        numbering: Option<&Arc<Numbering>>,
    ) -> io::Result<()> {
        if !LEARNED.contains(&map) || !fits(map, &raw) {
            return Ok(());
        }
        let number = raw.number()?;
        if self.sources.iter().all(|source| source.number != number) {
            let numbering = numbering.filter(|_| map.refers_by_number()).cloned();
            self.sources.push(Source { map, raw, number, numbering, is_bridged: false });
        }
        Ok(())
    }

    /// What an agent that did not end its own takeover left in `dir`, and the maps of other layout versions whose programs
    /// run. `ours`: the kernel's numbers of our maps.
    pub(super) fn find(
        &mut self,
        dir: &Path,
        numbering: Option<&Arc<Numbering>>,
        ours: &[u32],
    ) -> Result<(), MapError> {
        self.add_pinned(dir, |map| map.earlier_name().into_iter().collect(), numbering, ours)?;
        let Some(version) = dir.parent() else { return Ok(()) };
        for other in versions::others(version).map_err(MapError::pin("read", version))? {
            if !versions::speaks_ours(&other) || !versions::has_links(&other) {
                continue;
            }
            let dir = versions::maps(&other);
            let numbering = Arc::new(Numbering::open(&dir).unwrap_or_default());
            let names = |map: MapId| [Some(map.name()), map.earlier_name()].into_iter().flatten().collect();
            self.add_pinned(&dir, names, Some(&numbering), ours)?;
        }
        Ok(())
    }

    fn add_pinned(
        &mut self,
        dir: &Path,
        names: impl Fn(MapId) -> Vec<&'static str>,
        numbering: Option<&Arc<Numbering>>,
        ours: &[u32],
    ) -> Result<(), MapError> {
        for map in LEARNED {
            for name in names(map) {
                let path = dir.join(name);
                let raw = match RawMap::open(&path, Access::ReadWrite) {
                    Ok(raw) => raw,
                    Err(e) if is_missing(&e) || e.kind() == io::ErrorKind::InvalidData => continue,
                    Err(source) => return Err(MapError::Pin { action: "open", path, source }),
                };
                let number = raw.number().map_err(MapError::pin("look at", &path))?;
                if !ours.contains(&number) {
                    self.add(map, raw, numbering).map_err(MapError::pin("look at", &path))?;
                }
            }
        }
        Ok(())
    }

    /// Pins in `dir`, for each map, the first source that programs can read.
    pub(super) fn pin(&mut self, dir: &Path) -> Result<(), MapError> {
        for map in LEARNED {
            let Some(name) = map.earlier_name() else { continue };
            let path = dir.join(name);
            let mut of_map = self.sources.iter_mut().filter(|source| source.map == map);
            // What `pw_sock` says of a service is for people, and `pw_sock_replies` names none.
            let bridged = of_map
                .find(|source| source.numbering.is_none() || map == MapId::Sock || map == MapId::SockReplies);
            let pinned = match RawMap::open(&path, Access::ReadOnly) {
                Ok(raw) => Some(raw.number().map_err(MapError::pin("look at", &path))?),
                Err(e) if is_missing(&e) => None,
                Err(source) => return Err(MapError::Pin { action: "open", path, source }),
            };
            if pinned.is_some() && pinned != bridged.as_ref().map(|source| source.number) {
                std::fs::remove_file(&path).map_err(MapError::pin("remove", &path))?;
            }
            if let Some(source) = bridged {
                source.is_bridged = true;
                if pinned != Some(source.number) {
                    source.raw.pin(&path).map_err(MapError::pin("pin", &path))?;
                }
                self.pins.push(path);
            }
        }
        Ok(())
    }

    fn copy(&self, reader: &MapReader, which: impl Fn(&Source) -> bool) -> Result<Adopted, MapError> {
        let mut adopted = Adopted::default();
        let sources: Vec<_> = self.sources.iter().filter(|source| which(source)).collect();
        let maps = &reader.maps;
        let numbering = if sources.iter().any(|source| source.numbering.is_some()) {
            Numbering::read(&maps.service_names, maps.backends.map())
                .map_err(MapError::map(MapId::Backends, "read"))?
        } else {
            Numbering::default()
        };
        for source in sources {
            let copied = source.copy(maps.raw(source.map), &numbering);
            adopted.add(copied.map_err(MapError::map(source.map, "copy an earlier agent's entries into"))?);
        }
        Ok(adopted)
    }
}

impl Source {
    fn copy(&self, to: &RawMap, ours: &Numbering) -> io::Result<Adopted> {
        let mut adopted = Adopted::default();
        let mut failed = None;
        self.raw.for_each(|key, value| {
            if failed.is_some() {
                return;
            }
            let entry = match &self.numbering {
                Some(numbering) => numbering.translate(self.map, key, value, ours),
                None => Some((key.to_vec(), value.to_vec())),
            };
            let Some((key, value)) = entry else {
                adopted.meaningless += 1;
                return;
            };
            match to.update(&key, &value, Expect::Absent) {
                Ok(()) => {
                    adopted.copied += 1;
                    // A socket that ended meanwhile is forgotten there first, then here: one of us two takes the copy
                    // back.
                    let taken = if self.map == MapId::Sock { self.still_has(&key) } else { Ok(true) };
                    failed = taken
                        .and_then(|has| if has { Ok(true) } else { to.delete(&key) })
                        .err()
                        .or(failed.take());
                }
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => adopted.known += 1,
                Err(e) if matches!(e.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => adopted.lost += 1,
                Err(e) => failed = Some(e),
            }
        })?;
        failed.map_or(Ok(adopted), Err)
    }

    fn still_has(&self, key: &[u8]) -> io::Result<bool> {
        self.raw.lookup(key, &mut vec![0; self.raw.value_bytes()])
    }
}

impl Adopted {
    fn add(&mut self, other: Self) {
        let Self { copied, known, meaningless, lost } = other;
        self.copied += copied;
        self.known += known;
        self.meaningless += meaningless;
        self.lost += lost;
    }
}

impl fmt::Display for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { copied, known, meaningless, lost } = self;
        write!(
            f,
            "{copied} copied, {known} known, {meaningless} of backends that are gone, {lost} without room"
        )
    }
}
