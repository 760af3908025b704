//! Whether the pod network's maps are pinned, and pinning them again.

use std::path::Path;

use super::PodTables;
use super::layout::PodMapId;
use crate::maps::error::MapError;
use crate::maps::intact::{PinFault, pin_faults};
use crate::maps::set::pin_again;

/// A fault that [`PodTables::mend_pins`] found.
#[derive(Debug)]
pub struct MendedPin {
    pub fault: PinFault<PodMapId>,
    /// `None`: it is mended.
    pub refused: Option<MapError>,
}

impl PodTables {
    /// As [`crate::maps::KernelTables::pin_faults`].
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn pin_faults(&self, bpf_root: &Path) -> Result<Vec<PinFault<PodMapId>>, MapError> {
        pin_faults(bpf_root, PodMapId::ALL.map(|map| (map, map.name(), self.raw(map))))
    }

    /// Pins every map again that is not pinned as it should be, in place of whatever is there. What was wrong, with what the
    /// file system refused: that keeps no other map from its pin.
    ///
    /// # Errors
    /// The kernel would not say what is wrong; nothing was changed.
    pub fn mend_pins(&self, bpf_root: &Path) -> Result<Vec<MendedPin>, MapError> {
        let mend = |fault: PinFault<PodMapId>| {
            let map = fault.map();
            MendedPin { fault, refused: pin_again(self.raw(map), bpf_root, map.name()).err() }
        };
        Ok(self.pin_faults(bpf_root)?.into_iter().map(mend).collect())
    }
}
