use std::sync::OnceLock;

use super::btf::with_flat_unions;
use super::error::ProgramError;

/// The kernel object that this agent was built with; empty where it was built without the eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portway"));

/// The packet programs of the pod network, as above.
static PODS_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portway-pods"));

/// The kernel object, an ELF file.
pub fn object() -> Result<&'static [u8], ProgramError> {
    if has_object() { Ok(OBJECT) } else { Err(ProgramError::NoObject) }
}

/// The kernel object of the pod network, an ELF file, with type information that the kernel takes.
pub fn pods_object() -> Result<&'static [u8], ProgramError> {
    static FLAT: OnceLock<Vec<u8>> = OnceLock::new();
    if PODS_OBJECT.is_empty() {
        return Err(ProgramError::NoObject);
    }
    Ok(FLAT.get_or_init(|| with_flat_unions(PODS_OBJECT)))
}

/// Whether this agent can start.
pub fn has_object() -> bool {
    !OBJECT.is_empty()
}
