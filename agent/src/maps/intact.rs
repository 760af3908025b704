//! Whether the maps are still pinned where the next agent looks for them.

use std::fmt;
use std::io;
use std::path::Path;

use super::KernelTables;
use super::error::MapError;
use super::layout::{AnyMap, MapId};
use super::set::{is_missing, pin_again, pin_dir};
use super::sys::{Access, RawMap};

/// A pin that does not lead to the map that this agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinFault<M> {
    Missing(M),
    /// Another map, or something that is no map.
    Other(M),
}

impl KernelTables {
    /// The pins under `bpf_root` that are not as this agent made or found them. Costs three system calls a map.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn pin_faults(&self, bpf_root: &Path) -> Result<Vec<PinFault<MapId>>, MapError> {
        pin_faults(bpf_root, MapId::ALL.map(|map| (map, map.name(), self.maps().raw(map))))
    }

    /// Pins the map of a fault again, in place of whatever is there.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn pin_again(&self, bpf_root: &Path, fault: PinFault<MapId>) -> Result<(), MapError> {
        pin_again(self.maps().raw(fault.map()), bpf_root, fault.map().name())
    }
}

impl<M: Copy> PinFault<M> {
    pub(super) const fn map(self) -> M {
        match self {
            Self::Missing(map) | Self::Other(map) => map,
        }
    }
}

impl<M: fmt::Display> fmt::Display for PinFault<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(map) => write!(f, "{map} is not pinned"),
            Self::Other(map) => write!(f, "something else is pinned in place of {map}"),
        }
    }
}

/// Of maps with the names of their pins.
pub(super) fn pin_faults<'m, M: Copy + Into<AnyMap>>(
    bpf_root: &Path,
    maps: impl IntoIterator<Item = (M, &'static str, &'m RawMap)>,
) -> Result<Vec<PinFault<M>>, MapError> {
    let dir = pin_dir(bpf_root);
    let mut faults = Vec::new();
    for (map, name, held) in maps {
        let path = dir.join(name);
        let number = |raw: &RawMap| raw.number().map_err(MapError::map(map, "describe"));
        match RawMap::open(&path, Access::ReadOnly) {
            Ok(pinned) if number(&pinned)? == number(held)? => {}
            Ok(_) => faults.push(PinFault::Other(map)),
            Err(e) if is_missing(&e) => faults.push(PinFault::Missing(map)),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => faults.push(PinFault::Other(map)),
            // The kernel says of a directory what it says of a pin that nobody may open.
            Err(_) if path.is_dir() => faults.push(PinFault::Other(map)),
            Err(source) => return Err(MapError::Pin { action: "open", path, source }),
        }
    }
    Ok(faults)
}
