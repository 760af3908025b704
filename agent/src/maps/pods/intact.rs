use std::fmt;
use std::io;
use std::path::Path;

use super::PodTables;
use super::layout::PodMapId;
use crate::maps::error::MapError;
use crate::maps::set::{is_missing, pin_dir};
use crate::maps::sys::{Access, RawMap};

/// A pin that does not lead to the map that this agent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPinFault {
    Missing(PodMapId),
    /// Another map, or something that is no map.
    Other(PodMapId),
}

impl PodTables {
    /// The pins under `bpf_root` that are not as this agent made or found them. Costs three system calls a map.
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn pin_faults(&self, bpf_root: &Path) -> Result<Vec<PodPinFault>, MapError> {
        let dir = pin_dir(bpf_root);
        let mut faults = Vec::new();
        for map in PodMapId::ALL {
            let path = dir.join(map.name());
            let number = |raw: &RawMap| raw.number().map_err(MapError::map(map, "describe"));
            match RawMap::open(&path, Access::ReadOnly) {
                Ok(pinned) if number(&pinned)? == number(self.raw(map))? => {}
                Ok(_) => faults.push(PodPinFault::Other(map)),
                Err(e) if is_missing(&e) => faults.push(PodPinFault::Missing(map)),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => faults.push(PodPinFault::Other(map)),
                Err(source) => return Err(MapError::Pin { action: "open", path, source }),
            }
        }
        Ok(faults)
    }

    /// Pins the map of a fault again, in place of whatever is there.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn pin_again(&self, bpf_root: &Path, fault: PodPinFault) -> Result<(), MapError> {
        let (PodPinFault::Missing(map) | PodPinFault::Other(map)) = fault;
        let dir = pin_dir(bpf_root);
        std::fs::create_dir_all(&dir).map_err(MapError::pin("make", &dir))?;
        super::open::pin_over(self.raw(map), &dir, &dir.join(map.name()))
    }
}

impl fmt::Display for PodPinFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(map) => write!(f, "{map} is not pinned"),
            Self::Other(map) => write!(f, "something else is pinned in place of {map}"),
        }
    }
}
