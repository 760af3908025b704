//! Services by packets: what becomes of a packet that a pod sends, and of one that arrives for it.
//!
//! For clients whose sockets are not translated (virtual machines, raw sockets, pods that opted out). The decision is that
//! of [`crate::translate`], with the client's address where a socket has its namespace.
//!
//! A flow to a service is two entries: [`FlowKey::SERVICE`] under the frontend says which backend it got,
//! [`FlowKey::PLAIN`] under the backend says which frontend replies come from. Everything else is one PLAIN entry.
//!
//! A client's kernel gives one port to connections to different addresses. Where two of them are for one backend, by way of a
//! service or without, the backend would take them for one. The connection that was first has the port until it is over:
//! the later one gets another backend of the service, and is refused where there is none, where the client is bound to that
//! one by affinity, and where it dials the backend itself. (Datagrams belong to no connection: what comes back
//! answers whom the client asked last.)
//!
//! Cost: an established flow between pods is one lookup at each end. An established flow to a service is four at the
//! client's (two that find nothing, one for each entry); UDP asks the service again, which is a connect's lookups.

mod choice;
mod quoted;
#[cfg(test)]
mod tests;

pub use quoted::{quoted_backend, quoted_frontend};

use crate::conntrack::{self, Sighting, Translated};
use crate::packet::{Tuple, protocol};
use crate::{
    Addr, BackendRef, FlowKey, FlowMap, FlowValue, NetworkWord, NodeNetwork, PacketTables, Port, Reason,
};
use choice::{Chosen, Found, avoid_taken, find_backend, is_under_way};

/// What becomes of a packet that a pod sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It goes where it says.
    Direct,
    /// It goes to a backend instead.
    ToBackend { addr: Addr, port: Port },
    /// The pod is its own backend: it goes back, from [`PacketTables::hairpin`].
    ToItself { port: Port },
    /// The service has no backends, or the client's port is taken in all their eyes; the client is to be told.
    Refuse,
    /// Dropped.
    Drop(Reason),
}

/// What becomes of a packet that arrives for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    Direct,
    /// The answer of a backend: it comes from the frontend instead.
    From {
        addr: Addr,
        port: Port,
    },
}

/// A packet that the pod `tuple.source` sends. `to_pod`: its destination is a pod of this node, which no service has
/// as its address.
///
/// In steps that are functions of their own, none inside another: the programs have 512 bytes of stack for all that are under
/// way at once.
#[inline(always)]
pub fn outgoing<T: PacketTables>(tables: &T, tuple: &Tuple, to_pod: bool, sighting: &Sighting) -> Outgoing {
    let may_be_service =
        !to_pod && tables.network(NetworkWord::Switches) & NodeNetwork::SERVICES != 0 && has_services(tuple);
    match touch_direct(tables, tuple, sighting, may_be_service) {
        Touched::Unknown => {}
        Touched::Direct => return Outgoing::Direct,
        Touched::Taken => return Outgoing::Refuse,
    }
    if may_be_service {
        match find_backend(tables, tuple, sighting) {
            Found::NoService => {}
            Found::NoBackends => return Outgoing::Refuse,
            Found::Backend(mut chosen) => {
                if !chosen.is_kept && sighting.is_tcp() && !avoid_taken(tables, tuple, &mut chosen) {
                    return Outgoing::Refuse;
                }
                let remembered = if chosen.is_kept || is_under_way(tables, tuple, sighting, &chosen) {
                    match keep_plain(tables, tuple, sighting, &chosen) {
                        Kept::In(_) if chosen.is_settled => true,
                        Kept::In(plain) => keep_service(tables, tuple, sighting, &chosen, plain),
                        Kept::NoRoom => false,
                        Kept::Taken => return Outgoing::Refuse,
                    }
                } else {
                    bind_plain(tables, tuple, sighting, &chosen)
                        && bind_service(tables, tuple, sighting, &chosen)
                };
                if !remembered {
                    return Outgoing::Drop(Reason::MapFull);
                }
                let (addr, port) = chosen.to;
                return if addr == tuple.source {
                    Outgoing::ToItself { port }
                } else {
                    Outgoing::ToBackend { addr, port }
                };
            }
        }
    }
    match begin_direct(tables, tuple, sighting) {
        Touched::Unknown | Touched::Direct => Outgoing::Direct,
        Touched::Taken => Outgoing::Refuse,
    }
}

/// What is known of a packet's flow, which has taken notice of it.
#[derive(Clone, Copy)]
enum Touched {
    /// Nothing.
    Unknown,
    /// It goes without a service.
    Direct,
    /// It would be a connection to a backend of a service, from the port of one to that service.
    Taken,
}

/// Takes notice of a packet whose flow is known to go without a service. While nobody has answered, a service
/// may come to be at the address (`may_be_service`).
#[inline(never)]
fn touch_direct<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    may_be_service: bool,
) -> Touched {
    let key = tuple.flow_of_source(FlowKey::PLAIN);
    let Some(flow) = tables.flow_or_moving(&key) else { return Touched::Unknown };
    if may_be_service {
        let value = tables.read_flow(flow);
        if !value.is(FlowValue::FROM_PEER) && !value.is_answered() {
            return Touched::Unknown;
        }
    }
    touch_plain(tables, &key, flow, sighting)
}

/// Takes notice of a packet to an address that is no service's.
#[inline(never)]
fn begin_direct<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) -> Touched {
    let key = tuple.flow_of_source(FlowKey::PLAIN);
    match tables.flow(&key) {
        Some(flow) => touch_plain(tables, &key, flow, sighting),
        // Without a translation to remember, a flow may go on without an entry.
        None => {
            let _ = conntrack::begin(tables, &key, sighting, &Translated::NOT);
            Touched::Direct
        }
    }
}

#[inline(always)]
fn touch_plain<T: PacketTables>(tables: &T, key: &FlowKey, flow: T::Flow, sighting: &Sighting) -> Touched {
    if sighting.opens() && is_anothers(tables, flow, &Translated::NOT.other) {
        return Touched::Taken;
    }
    let (value, flow) = conntrack::touch(tables, key, flow, sighting);
    // The endpoint dials its peer itself now, from a port that it once dialled a service from.
    if may_dial(sighting) && value.other().is_some() {
        conntrack::retranslate(tables, flow, &value, &Translated::NOT);
    }
    Touched::Direct
}

/// Whether an entry under a backend is of a connection that lives and was dialled elsewhere than at `frontend`
/// ([`FlowValue::other`]).
#[inline(never)]
fn is_anothers<T: PacketTables>(tables: &T, flow: T::Flow, frontend: &(Addr, Port)) -> bool {
    let value = tables.read_flow(flow);
    !value.is_closed() && (value.other, value.other_port) != *frontend
}

/// A packet that arrives for the pod `tuple.destination`.
#[inline(never)]
pub fn incoming<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) -> Incoming {
    let key = tuple.flow_of_destination(FlowKey::PLAIN);
    let Some(flow) = tables.flow(&key) else {
        let _ = conntrack::begin(tables, &key, sighting, &Translated::NOT);
        return Incoming::Direct;
    };
    let (value, flow) = conntrack::touch(tables, &key, flow, sighting);
    let Some((addr, port)) = value.other() else { return Incoming::Direct };
    if conntrack::is_over(&value, sighting) {
        conntrack::retranslate(tables, flow, &value, &Translated::NOT);
        return Incoming::Direct;
    }
    Incoming::From { addr, port }
}

/// The answer of a pod to itself, which it sends to the hairpin address: the frontend that it comes from, and the port that
/// it goes to. `None`: nothing was asked.
#[inline(never)]
pub fn answer_to_itself<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
) -> Option<((Addr, Port), Port)> {
    let as_server = tuple.flow_of_source(FlowKey::PLAIN);
    if let Some(flow) = tables.flow(&as_server) {
        conntrack::touch(tables, &as_server, flow, sighting);
    }
    let own = |port| (tuple.source, port);
    let as_client =
        FlowKey::new(own(tuple.destination_port), own(tuple.source_port), tuple.protocol, FlowKey::PLAIN);
    let flow = tables.flow(&as_client)?;
    let (value, _) = conntrack::touch(tables, &as_client, flow, &sighting.arriving());
    Some((value.other()?, tuple.destination_port))
}

/// What became of the entry under a backend that a flow keeps.
#[derive(Clone, Copy)]
enum Kept {
    /// It is there now.
    In(FlowMap),
    /// It could not be made.
    NoRoom,
    /// It is of another connection by now.
    Taken,
}

/// Takes notice of a packet of a flow that keeps its backend, in the entry under the backend.
#[inline(never)]
fn keep_plain<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting, chosen: &Chosen) -> Kept {
    let key = under_backend(tuple, chosen.to);
    let Some(flow) = tables.flow(&key) else {
        // This half was the least recently used one; the other half has all it said.
        return match conntrack::begin(tables, &key, sighting, &to_frontend(tuple, chosen)) {
            Some(flow) => Kept::In(tables.flow_map(flow)),
            None => Kept::NoRoom,
        };
    };
    if sighting.is_tcp() && is_anothers(tables, flow, &(tuple.destination, tuple.destination_port)) {
        return Kept::Taken;
    }
    let (value, flow) = conntrack::touch(tables, &key, flow, sighting);
    if may_dial(sighting) {
        conntrack::retranslate(tables, flow, &value, &to_frontend(tuple, chosen));
    }
    Kept::In(tables.flow_map(flow))
}

/// The same in the entry under the frontend, of which `plain` is the other half; whether it could be remembered.
#[inline(never)]
fn keep_service<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    chosen: &Chosen,
    plain: FlowMap,
) -> bool {
    let key = tuple.flow_of_source(FlowKey::SERVICE);
    match tables.flow(&key) {
        Some(flow) => {
            conntrack::touch_service(tables, &key, flow, plain, sighting);
            true
        }
        None => conntrack::begin(tables, &key, sighting, &to_backend(chosen)).is_some(),
    }
}

/// The flow gets a backend: the entry under it is made, or changed where it is of an earlier flow between the same ports.
/// Whether it could be remembered.
#[inline(never)]
fn bind_plain<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting, chosen: &Chosen) -> bool {
    set(tables, &under_backend(tuple, chosen.to), sighting, &to_frontend(tuple, chosen))
}

/// The same of the entry under the frontend.
#[inline(never)]
fn bind_service<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting, chosen: &Chosen) -> bool {
    set(tables, &tuple.flow_of_source(FlowKey::SERVICE), sighting, &to_backend(chosen))
}

/// Makes an entry say `translated`; whether it does.
#[inline(always)]
fn set<T: PacketTables>(tables: &T, key: &FlowKey, sighting: &Sighting, translated: &Translated) -> bool {
    match tables.flow(key) {
        Some(flow) => {
            let value = tables.read_flow(flow);
            conntrack::retranslate(tables, flow, &value, translated);
            conntrack::restart(tables, flow, &value, sighting);
            true
        }
        None => conntrack::begin(tables, key, sighting, translated).is_some(),
    }
}

/// Whether a packet may say anew what its sender dialled: of TCP the first one alone. Datagrams from one port may go to several
/// frontends of one backend and to that itself in turn; what comes back answers the last one.
#[inline(always)]
const fn may_dial(sighting: &Sighting) -> bool {
    !sighting.is_tcp() || sighting.opens()
}

/// The client's flow with its backend.
#[inline(always)]
const fn under_backend(tuple: &Tuple, backend: (Addr, Port)) -> FlowKey {
    FlowKey::new((tuple.source, tuple.source_port), backend, tuple.protocol, FlowKey::PLAIN)
}

/// What the PLAIN entry of a flow to a service says.
#[inline(always)]
fn to_frontend(tuple: &Tuple, chosen: &Chosen) -> Translated {
    Translated {
        other: (tuple.destination, tuple.destination_port),
        service: chosen.service,
        backend: BackendRef::NONE,
        flags: if chosen.to.0 == tuple.source { FlowValue::HAIRPIN } else { 0 },
    }
}

/// What the SERVICE entry says.
#[inline(always)]
const fn to_backend(chosen: &Chosen) -> Translated {
    Translated { other: chosen.to, service: chosen.service, backend: chosen.backend, flags: 0 }
}

/// Whether a service can have this protocol.
#[inline(always)]
const fn has_services(tuple: &Tuple) -> bool {
    matches!(tuple.protocol, protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP)
}
