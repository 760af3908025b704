use crate::{Addr, BackendRef, ServiceIndex};

/// Key of `pw_affinity`: who is bound to which service port.
///
/// Inside the cluster the client is a network namespace (its cookie), so that all sockets of a pod go to one
/// backend; from outside it is the client's address.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffinityKey {
    client: [u32; 4],
    service: ServiceIndex,
    /// 0 an address, 1 a network namespace cookie.
    by: u32,
}

const _: () = assert!(size_of::<AffinityKey>() == 24);

impl AffinityKey {
    #[inline(always)]
    pub const fn netns(cookie: u64, service: ServiceIndex) -> Self {
        Self { client: [cookie as u32, (cookie >> 32) as u32, 0, 0], service, by: 1 }
    }

    #[inline(always)]
    pub const fn address(addr: Addr, service: ServiceIndex) -> Self {
        Self { client: addr.words(), service, by: 0 }
    }

    pub const fn service(&self) -> ServiceIndex {
        self.service
    }

    /// The same client's key for another service.
    pub const fn of_service(self, service: ServiceIndex) -> Self {
        Self { service, ..self }
    }
}

/// Value of `pw_affinity`. Both words change in place.
///
/// An entry that was reused for another client while a program looked at it gives a backend of that client's
/// service; [`crate::BackendSlot::serves`] refuses it unless the service is the same, where any backend is right.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityValue {
    /// [`BackendRef`].
    pub backend: u64,
    /// Nanoseconds on the coarse monotonic clock.
    pub last_used: u64,
}

const _: () = assert!(size_of::<AffinityValue>() == 16);

impl AffinityValue {
    #[inline(always)]
    pub const fn new(backend: BackendRef, now: u64) -> Self {
        Self { backend: backend.word(), last_used: now }
    }

    /// Whether less than `seconds` have passed since the last use.
    #[inline(always)]
    pub const fn is_fresh(&self, now: u64, seconds: u32) -> bool {
        now.saturating_sub(self.last_used) < seconds as u64 * 1_000_000_000
    }
}
