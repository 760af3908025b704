use crate::{Addr, Port, ServiceIndex};

/// A slot of `pw_backends`. 0 is none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendIndex(u32);

impl BackendIndex {
    #[inline(always)]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The two sets of a service that a connection may be given a backend from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    Cluster,
    Local,
}

impl Membership {
    /// The bit of [`BackendSlot`]'s word.
    #[inline(always)]
    pub const fn bit(self) -> u32 {
        match self {
            Self::Cluster => 1,
            Self::Local => 2,
        }
    }
}

/// What an affinity entry or a UDP exchange remembers of a backend: a slot and the incarnation it had.
///
/// Low half [`BackendIndex`], high half incarnation. Incarnations are never given twice, so a reference to a
/// backend that is gone never becomes a reference to another one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendRef(u64);

impl BackendRef {
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub const fn new(index: BackendIndex, incarnation: u32) -> Self {
        Self((incarnation as u64) << 32 | index.get() as u64)
    }

    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub const fn index(self) -> BackendIndex {
        BackendIndex(self.0 as u32)
    }

    #[inline(always)]
    pub const fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Element of `pw_backends`: a backend of one service, and in which of its sets it is now.
///
/// Only `state` changes while a slot is in use, by one store: bits are added before the publication that adds the
/// backend and removed after the one that removes it. A slot is reused only after a grace period, with a new
/// incarnation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendSlot {
    /// High half incarnation, low half [`Membership::bit`]s.
    pub state: u64,
    pub service: ServiceIndex,
    pub addr: Addr,
    pub port: Port,
    _pad: [u8; 2],
}

const _: () = assert!(size_of::<BackendSlot>() == 32 && align_of::<BackendSlot>() == 8);

impl BackendSlot {
    /// A slot that was never used.
    pub const EMPTY: Self = Self::new(0, 0, ServiceIndex::new(0), Addr::ANY_V6, Port::new(0));

    pub const fn new(incarnation: u32, members: u32, service: ServiceIndex, addr: Addr, port: Port) -> Self {
        Self { state: Self::state_word(incarnation, members), service, addr, port, _pad: [0; 2] }
    }

    /// `members`: [`Membership::bit`]s.
    pub const fn state_word(incarnation: u32, members: u32) -> u64 {
        (incarnation as u64) << 32 | members as u64
    }

    #[inline(always)]
    pub const fn incarnation(&self) -> u32 {
        (self.state >> 32) as u32
    }

    /// [`Membership::bit`]s.
    #[inline(always)]
    pub const fn members(&self) -> u32 {
        self.state as u32
    }

    /// Whether `reference` means this very backend, of `service`, and the set that applies still has it.
    #[inline(always)]
    pub const fn serves(&self, reference: BackendRef, service: ServiceIndex, set: Membership) -> bool {
        self.incarnation() == reference.incarnation()
            && self.incarnation() != 0
            && self.members() & set.bit() != 0
            && self.service.get() == service.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_serves_only_its_own_incarnation_service_and_set() {
        let (service, other) = (ServiceIndex::new(3), ServiceIndex::new(4));
        let slot =
            BackendSlot::new(7, Membership::Cluster.bit(), service, Addr::v4([10, 0, 0, 1]), Port::new(80));
        let this = BackendRef::new(BackendIndex::new(5), 7);
        assert!(slot.serves(this, service, Membership::Cluster));
        assert!(!slot.serves(this, service, Membership::Local));
        assert!(!slot.serves(this, other, Membership::Cluster));
        assert!(!slot.serves(BackendRef::new(BackendIndex::new(5), 6), service, Membership::Cluster));
        assert!(!BackendSlot::EMPTY.serves(BackendRef::NONE, ServiceIndex::new(0), Membership::Cluster));
    }
}
