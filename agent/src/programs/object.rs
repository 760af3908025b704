use super::error::ProgramError;

/// The kernel object that this agent was built with; empty where it was built without the eBPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/portway"));

/// The kernel object, an ELF file.
pub fn object() -> Result<&'static [u8], ProgramError> {
    if has_object() { Ok(OBJECT) } else { Err(ProgramError::NoObject) }
}

/// Whether this agent can start.
pub fn has_object() -> bool {
    !OBJECT.is_empty()
}
