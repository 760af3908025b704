//! The backend of a flow to a service.

use super::ServiceDesk;
use super::port::draw;
use crate::conntrack::{self, Sighting};
use crate::packet::{Tuple, protocol};
use crate::translate::{choose, find_version, inconsistent, reference, serving};
use crate::{
    AffinityKey, BackendRef, Destination, FlowKey, FlowMap, PacketTables, Protocol, ServiceIndex, Settings,
    Verdict,
};

/// What the tables say of a destination.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// It is its own backend.
    NoService,
    NoBackends,
    Backend,
}

/// Puts the backend of a packet on the desk: the one that its flow has, or one that is chosen; of a packet to no service
/// the destination itself.
#[inline(never)]
pub(super) fn find_backend<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    may_be_service: bool,
    desk: &mut ServiceDesk,
) -> Found {
    recall(tables, tuple, sighting, desk);
    // A connection stays with its backend while it lives.
    if desk.is_kept && sighting.is_tcp() && !sighting.opens() {
        return Found::Backend;
    }
    if !may_be_service {
        return no_service(tuple, desk);
    }
    let Some(to) = destination(tuple) else { return no_service(tuple, desk) };
    let settings = Settings::from_word(tables.config().settings);
    let version = match find_version(tables, settings, false, to) {
        Ok(version) => version,
        Err(Verdict::Refuse(_)) => return Found::NoBackends,
        Err(Verdict::Pass(_) | Verdict::Translate(_)) => return no_service(tuple, desk),
    };
    if desk.is_kept
        && serving(tables, desk.backend, &version).is_some()
        && !(sighting.opens() && is_over_or_taken(tables, tuple, desk))
    {
        return Found::Backend;
    }
    let Some((backend, chosen)) =
        choose(tables, AffinityKey::address(tuple.source, version.service), &version, || draw(tuple))
    else {
        inconsistent(tables);
        return no_service(tuple, desk);
    };
    if tuple.protocol == protocol::SCTP && backend.port != to.port {
        // A checksum over all of the packet protects the ports, and no helper computes it: no backend can be reached.
        return Found::NoBackends;
    }
    desk.to = (backend.addr, backend.port);
    desk.source_port = tuple.source_port;
    desk.service = version.service;
    desk.backend = match chosen {
        Some(chosen) => chosen,
        None => reference(tables, backend.index),
    };
    desk.is_kept = false;
    desk.is_settled = false;
    Found::Backend
}

/// Puts on the desk what the entry under what was dialled says.
#[inline(always)]
fn recall<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting, desk: &mut ServiceDesk) {
    let Some(flow) = tables.flow(&tuple.flow_of_source(FlowKey::SERVICE)) else {
        desk.is_known = false;
        desk.is_kept = false;
        desk.is_settled = false;
        return;
    };
    let value = tables.read_flow(flow);
    desk.to = (value.other, value.other_port);
    desk.source_port = value.other_local_port(tuple.source_port);
    desk.service = value.service;
    desk.backend = BackendRef::from_word(value.backend);
    desk.is_known = true;
    desk.is_kept = true;
    desk.is_settled = matches!(tables.flow_map(flow), FlowMap::Established);
    if desk.is_settled {
        conntrack::touch_settled(tables, flow, &value, sighting);
    }
}

/// The packet goes where it says. Where a connection had to leave from another port than its own before, this one does.
#[inline(always)]
fn no_service(tuple: &Tuple, desk: &mut ServiceDesk) -> Found {
    let to = (tuple.destination, tuple.destination_port);
    if !desk.is_known || desk.to != to {
        desk.to = to;
        desk.source_port = tuple.source_port;
    }
    desk.service = ServiceIndex::new(0);
    desk.backend = BackendRef::NONE;
    desk.is_kept = false;
    desk.is_settled = false;
    Found::NoService
}

/// Whether the connection that a flow had is over, or its entry under the backend is of another one.
#[inline(always)]
fn is_over_or_taken<T: PacketTables>(tables: &T, tuple: &Tuple, desk: &ServiceDesk) -> bool {
    let Some(flow) = tables.flow(&desk.under_backend(tuple)) else { return false };
    let value = tables.read_flow(flow);
    value.is_closed() || !desk.plain_half(tuple).is_said_by(&value)
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
