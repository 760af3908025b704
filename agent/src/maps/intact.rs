//! Whether the maps are still pinned where the next agent looks for them.

use std::fmt;
use std::io;
use std::path::Path;

use super::KernelTables;
use super::error::MapError;
use super::layout::MapId;
use super::set::{is_missing, pin_dir};
use super::sys::{Access, RawMap};

/// A pin that does not lead to the map that this agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinFault {
    Missing(MapId),
    /// Another map, or something that is no map.
    Other(MapId),
}

impl KernelTables {
    /// The pins under `bpf_root` that are not as this agent made or found them. Costs three system calls a map.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn pin_faults(&self, bpf_root: &Path) -> Result<Vec<PinFault>, MapError> {
        let dir = pin_dir(bpf_root);
        let mut faults = Vec::new();
        for map in MapId::ALL {
            let path = dir.join(map.name());
            let number = |raw: &RawMap| raw.number().map_err(MapError::map(map, "describe"));
            match RawMap::open(&path, Access::ReadOnly) {
                Ok(pinned) if number(&pinned)? == number(self.maps().raw(map))? => {}
                Ok(_) => faults.push(PinFault::Other(map)),
                Err(e) if is_missing(&e) => faults.push(PinFault::Missing(map)),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => faults.push(PinFault::Other(map)),
                Err(source) => return Err(MapError::Pin { action: "open", path, source }),
            }
        }
        Ok(faults)
    }

    /// Pins the map of a fault again, in place of whatever is there.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn pin_again(&self, bpf_root: &Path, fault: PinFault) -> Result<(), MapError> {
        let (PinFault::Missing(map) | PinFault::Other(map)) = fault;
        let dir = pin_dir(bpf_root);
        std::fs::create_dir_all(&dir).map_err(MapError::pin("make", &dir))?;
        let path = dir.join(map.name());
        match std::fs::remove_file(&path) {
            Err(e) if !is_missing(&e) => return Err(MapError::pin("remove", &path)(e)),
            Ok(()) | Err(_) => {}
        }
        self.maps().raw(map).pin(&path).map_err(MapError::pin("pin", &path))
    }
}

impl fmt::Display for PinFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(map) => write!(f, "{map} is not pinned"),
            Self::Other(map) => write!(f, "something else is pinned in place of {map}"),
        }
    }
}
