use crate::{Addr, ServiceIndex};

/// Data of a key of `pw_source_ranges`, a longest-prefix-match map: the service index in network order, then the
/// source address. A range of `n` bits has the prefix length `32 + n` (IPv4: `32 + 96 + n`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    service: [u8; 4],
    addr: Addr,
}

const _: () = assert!(size_of::<SourceRange>() == 20);

impl SourceRange {
    /// Bits before the address.
    pub const SERVICE_BITS: u32 = 32;

    #[inline(always)]
    pub const fn new(service: ServiceIndex, addr: Addr) -> Self {
        Self { service: service.get().to_be_bytes(), addr }
    }

    pub const fn service(&self) -> ServiceIndex {
        ServiceIndex::new(u32::from_be_bytes(self.service))
    }

    pub const fn addr(&self) -> Addr {
        self.addr
    }
}
