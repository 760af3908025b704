use std::path::Path;

use super::PodTables;
use super::layout::PodMapId;
use crate::maps::error::MapError;
use crate::maps::intact::{PinFault, pin_faults};
use crate::maps::set::pin_again;

impl PodTables {
    /// As [`crate::maps::KernelTables::pin_faults`].
    ///
    /// # Errors
    /// The kernel would not say.
    pub fn pin_faults(&self, bpf_root: &Path) -> Result<Vec<PinFault<PodMapId>>, MapError> {
        pin_faults(bpf_root, PodMapId::ALL.map(|map| (map, map.name(), self.raw(map))))
    }

    /// Pins the map of a fault again, in place of whatever is there.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn pin_again(&self, bpf_root: &Path, fault: PinFault<PodMapId>) -> Result<(), MapError> {
        pin_again(self.raw(fault.map()), bpf_root, fault.map().name())
    }
}
