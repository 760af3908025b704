//! The backend of a flow to a service.

use super::{is_anothers, may_dial, under_backend};
use crate::conntrack::{self, Sighting};
use crate::packet::{Tuple, protocol};
use crate::translate::{choose, drawn_from, find_version, inconsistent, reference, serving};
use crate::{
    Addr, AffinityKey, BackendRef, Destination, FlowKey, FlowMap, PacketTables, Port, Protocol, RunOffset,
    ServiceIndex, Settings, Verdict,
};

/// What the tables say of a destination.
pub(super) enum Found {
    NoService,
    NoBackends,
    Backend(Chosen),
}

/// Backends that are tried beside the one that the first draw fell on.
const MORE_DRAWS: u32 = 3;

/// The backend of a flow to a service.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) to: (Addr, Port),
    pub(super) service: ServiceIndex,
    pub(super) backend: BackendRef,
    /// Those that it could be instead: the position of the first one, and their number.
    others: (RunOffset, u32),
    /// The flow had it before.
    pub(super) is_kept: bool,
    /// The entry that says so is established and has taken notice of the packet.
    pub(super) is_settled: bool,
}

impl Chosen {
    const NONE: Self = Self {
        to: (Addr::ANY_V6, Port::new(0)),
        service: ServiceIndex::new(0),
        backend: BackendRef::NONE,
        others: (RunOffset::new(0), 0),
        is_kept: false,
        is_settled: false,
    };
}

/// The backend of a packet to a service: the one that its flow has, or one that is chosen.
#[inline(never)]
pub(super) fn find_backend<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) -> Found {
    let Some(to) = destination(tuple) else { return Found::NoService };
    let known = kept(tables, tuple, sighting);
    // A connection stays with its backend while it lives.
    if known.is_kept && sighting.is_tcp() && !sighting.opens() {
        return Found::Backend(known);
    }
    let settings = Settings::from_word(tables.config().settings);
    let version = match find_version(tables, settings, false, to) {
        Ok(version) => version,
        Err(Verdict::Refuse(_)) => return Found::NoBackends,
        Err(Verdict::Pass(_) | Verdict::Translate(_)) => return Found::NoService,
    };
    if known.is_kept
        && serving(tables, known.backend, &version).is_some()
        && !(sighting.opens() && is_over_or_taken(tables, tuple, known.to))
    {
        return Found::Backend(known);
    }
    let Some((backend, chosen)) =
        choose(tables, AffinityKey::address(tuple.source, version.service), &version, || draw(tuple))
    else {
        inconsistent(tables);
        return Found::NoService;
    };
    if tuple.protocol == protocol::SCTP && backend.port != to.port {
        // A checksum over all of the packet protects the ports, and no helper computes it: no backend can be reached.
        return Found::NoBackends;
    }
    let chosen = match chosen {
        Some(chosen) => chosen,
        None => reference(tables, backend.index),
    };
    Found::Backend(Chosen {
        to: (backend.addr, backend.port),
        service: version.service,
        backend: chosen,
        // A client that is bound by affinity goes nowhere else.
        others: if version.header.affinity_seconds == 0 { version.backends() } else { Chosen::NONE.others },
        is_kept: false,
        is_settled: false,
    })
}

/// The backend that a flow to a service has; [`Chosen::NONE`] where it has none. (Of an `Option` the compiler would carry
/// around what nobody has written, which the verifier takes for a defect.)
#[inline(always)]
fn kept<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) -> Chosen {
    let Some(flow) = tables.flow(&tuple.flow_of_source(FlowKey::SERVICE)) else { return Chosen::NONE };
    let value = tables.read_flow(flow);
    let is_settled = matches!(tables.flow_map(flow), FlowMap::Established);
    if is_settled {
        conntrack::touch_settled(tables, flow, &value, sighting);
    }
    Chosen {
        to: (value.other, value.other_port),
        service: value.service,
        backend: BackendRef::from_word(value.backend),
        others: Chosen::NONE.others,
        is_kept: true,
        is_settled,
    }
}

/// Whether a flow that got a backend now has it already: its entry under the frontend was the least recently used one, and the
/// choice fell as it fell for the first packet.
#[inline(never)]
pub(super) fn is_under_way<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    chosen: &Chosen,
) -> bool {
    if may_dial(sighting) {
        return false;
    }
    match tables.flow(&under_backend(tuple, chosen.to)) {
        Some(flow) => tables.read_flow(flow).other() == Some((tuple.destination, tuple.destination_port)),
        None => false,
    }
}

/// What decides of a flow's backend: the flow alone, so that one that was forgotten finds its backend again while the set is
/// the same.
#[inline(always)]
const fn draw(tuple: &Tuple) -> u32 {
    // The finish of MurmurHash3: neighbouring ports are to be strangers, and a tag's high bits are those of the ports.
    let hash = tuple.flow_of_source(FlowKey::SERVICE).tag();
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// Sees to it that a backend that was chosen now has no other connection from the client's port, by choosing another one
/// where it has; whether there is one.
///
/// The draws after [`draw`] of a flow fall on the slots after its own, so that this one too is found again.
#[inline(never)]
pub(super) fn avoid_taken<T: PacketTables>(tables: &T, tuple: &Tuple, chosen: &mut Chosen) -> bool {
    if !is_taken(tables, tuple, &chosen.to) {
        return true;
    }
    let (first, backends) = chosen.others;
    let Some(slot) = u32::MAX.checked_div(backends) else { return false };
    let mut draw = draw(tuple);
    for _ in 0..MORE_DRAWS {
        draw = draw.wrapping_add(slot);
        let Some(backend) = drawn_from(tables, first, backends, draw) else { return false };
        chosen.to = (backend.addr, backend.port);
        if !is_taken(tables, tuple, &chosen.to) {
            chosen.backend = reference(tables, backend.index);
            return true;
        }
    }
    false
}

/// Whether the client's port is that of another connection with `backend`, which lives.
#[inline(never)]
fn is_taken<T: PacketTables>(tables: &T, tuple: &Tuple, backend: &(Addr, Port)) -> bool {
    match tables.flow(&under_backend(tuple, *backend)) {
        Some(flow) => is_anothers(tables, flow, &(tuple.destination, tuple.destination_port)),
        None => false,
    }
}

#[inline(always)]
fn is_over_or_taken<T: PacketTables>(tables: &T, tuple: &Tuple, backend: (Addr, Port)) -> bool {
    let Some(flow) = tables.flow(&under_backend(tuple, backend)) else { return false };
    let value = tables.read_flow(flow);
    value.is_closed() || (value.other, value.other_port) != (tuple.destination, tuple.destination_port)
}

/// What a service may be asked for by; `None` where the protocol has none.
#[inline(always)]
const fn destination(tuple: &Tuple) -> Option<Destination> {
    let protocol = match tuple.protocol {
        protocol::TCP => Protocol::TCP,
        protocol::UDP | protocol::UDP_LITE => Protocol::UDP,
        protocol::SCTP => Protocol::SCTP,
        _ => return None,
    };
    Some(Destination { addr: tuple.destination, port: tuple.destination_port, protocol })
}
