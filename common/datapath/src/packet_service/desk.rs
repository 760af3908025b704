use crate::conntrack::Translated;
use crate::packet::Tuple;
use crate::{Addr, BackendRef, FlowKey, FlowValue, Port, ServiceIndex};

/// Where what is decided of a packet's flow lies meanwhile: a program and all that it calls share 512 bytes of stack.
///
/// All bytes zero are a desk; what is read of it is written first.
#[derive(Clone, Copy, Debug)]
pub struct ServiceDesk {
    pub(super) to: (Addr, Port),
    /// The client's towards the backend.
    pub(super) source_port: Port,
    pub(super) service: ServiceIndex,
    pub(super) backend: BackendRef,
    /// An entry under what was dialled was there.
    pub(super) is_known: bool,
    /// The flow had the backend and the port before.
    pub(super) is_kept: bool,
    /// The entry that says so is established and has taken notice of the packet.
    pub(super) is_settled: bool,
    pub(super) search: super::port::Search,
}

impl ServiceDesk {
    pub const EMPTY: Self = Self {
        to: (Addr::ANY_V6, Port::new(0)),
        source_port: Port::new(0),
        service: ServiceIndex::new(0),
        backend: BackendRef::NONE,
        is_known: false,
        is_kept: false,
        is_settled: false,
        search: super::port::Search::EMPTY,
    };

    /// Whether the packet goes on as it is.
    #[inline(always)]
    pub(super) fn is_direct(&self, tuple: &Tuple) -> bool {
        self.to == (tuple.destination, tuple.destination_port) && self.source_port == tuple.source_port
    }

    /// The client's flow with its backend.
    #[inline(always)]
    pub(super) const fn under_backend(&self, tuple: &Tuple) -> FlowKey {
        FlowKey::new((tuple.source, self.source_port), self.to, tuple.protocol, FlowKey::PLAIN)
    }

    /// What the PLAIN entry of the flow says.
    #[inline(always)]
    pub(super) fn plain_half(&self, tuple: &Tuple) -> Translated {
        if self.is_direct(tuple) {
            return Translated::NOT;
        }
        Translated {
            other: (tuple.destination, tuple.destination_port),
            other_local_port: unless_same(self.source_port, tuple.source_port),
            service: self.service,
            backend: BackendRef::NONE,
            flags: if self.to.0 == tuple.source { FlowValue::HAIRPIN } else { 0 },
        }
    }

    /// What its SERVICE entry says.
    #[inline(always)]
    pub(super) fn service_half(&self, tuple: &Tuple) -> Translated {
        Translated {
            other: self.to,
            other_local_port: unless_same(tuple.source_port, self.source_port),
            service: self.service,
            backend: self.backend,
            flags: 0,
        }
    }
}

/// [`FlowValue::other_local_port`] of an entry under `own`.
#[inline(always)]
fn unless_same(own: Port, other: Port) -> Port {
    if own == other { Port::new(0) } else { other }
}
