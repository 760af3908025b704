//! Services by packets: what becomes of a packet that a pod sends, and of one that arrives for it.
//!
//! For clients whose sockets are not translated (virtual machines, raw sockets, pods that opted out). The decision is that
//! of [`crate::translate`], with the client's address where a socket has its namespace.
//!
//! A flow to a service is two entries: [`FlowKey::SERVICE`] under the frontend says which backend it got,
//! [`FlowKey::PLAIN`] under the backend says which frontend replies come from. Everything else is one PLAIN entry.
//!
//! A client's kernel gives one port to connections to different addresses. Where two of them are for one backend, by way of a
//! service or without, the backend would take them for one. So the later one leaves from another port ([`port`]): its
//! SERVICE entry says from which, its PLAIN entry is under that one and says which the client's own is. A connection to
//! the backend itself that has to leave from another port is such a flow to a service too, whose frontend is the backend.
//! (Datagrams belong to no connection and keep their port: what comes back answers whom the client asked last.)
//!
//! Cost: an established flow between pods is one lookup at each end. An established flow to a service is four at the
//! client's (two that find nothing, one for each entry); UDP asks the service again, which is a connect's lookups.

mod choice;
mod desk;
mod port;
mod quoted;
#[cfg(test)]
mod tests;

pub use desk::ServiceDesk;
pub use quoted::{Quoted, quoted_backend, quoted_frontend};

use crate::conntrack::{self, Sighting, Translated};
use crate::packet::{Tuple, protocol};
use crate::{Addr, FlowKey, FlowMap, FlowValue, NetworkWord, NodeNetwork, PacketTables, Port, Reason};
use choice::{Found, find_backend};
use port::{Entered, enter_plain, take_port};

/// What becomes of a packet that a pod sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It goes where it says.
    Direct,
    /// It goes to a backend instead, or from another port to where it says.
    ToBackend { addr: Addr, port: Port, source_port: Port },
    /// The pod is its own backend: it goes back, from [`PacketTables::hairpin`].
    ToItself { port: Port, source_port: Port },
    /// The service has no backends, or no port was found that is free in the backend's eyes; the client is to be told.
    Refuse,
    /// Dropped.
    Drop(Reason),
}

/// What becomes of a packet that arrives for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    Direct,
    /// The answer of a backend: it comes from the frontend instead, and goes to the port that the pod itself has.
    From {
        addr: Addr,
        port: Port,
        own_port: Port,
    },
}

/// A packet that the pod `tuple.source` sends. `to_pod`: its destination is a pod of this node, which no service has
/// as its address. `desk`: where what is decided lies meanwhile; most packets need none.
///
/// In steps that are functions of their own, none inside another: the programs have 512 bytes of stack for all that are under
/// way at once.
#[inline(always)]
pub fn outgoing<'a, T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    to_pod: bool,
    sighting: &Sighting,
    desk: impl FnOnce() -> Result<&'a mut ServiceDesk, Reason>,
) -> Outgoing {
    let may_be_service =
        !to_pod && tables.network(NetworkWord::Switches) & NodeNetwork::SERVICES != 0 && has_services(tuple);
    if matches!(touch_direct(tables, tuple, sighting, may_be_service), Touched::Direct) {
        return Outgoing::Direct;
    }
    if !may_be_service && !sighting.is_tcp() {
        begin_direct(tables, tuple, sighting);
        return Outgoing::Direct;
    }
    let desk = match desk() {
        Ok(desk) => desk,
        Err(reason) => return Outgoing::Drop(reason),
    };
    match find_backend(tables, tuple, sighting, may_be_service, desk) {
        Found::Backend => {}
        Found::NoBackends => return Outgoing::Refuse,
        Found::NoService if sighting.is_tcp() => {}
        Found::NoService => {
            begin_direct(tables, tuple, sighting);
            return Outgoing::Direct;
        }
    }
    let entered = if desk.is_kept || !sighting.is_tcp() {
        enter_plain(tables, tuple, sighting, desk)
    } else {
        take_port(tables, tuple, sighting, desk)
    };
    // Without a translation to remember, a flow may go on without an entry.
    let is_direct = desk.is_direct(tuple);
    let remembered = match entered {
        Entered::In(_) if is_direct && !desk.is_known || desk.is_settled => true,
        Entered::In(plain) if desk.is_kept => keep_service(tables, tuple, sighting, desk, plain),
        Entered::In(_) => bind_service(tables, tuple, sighting, desk),
        Entered::NoRoom => is_direct,
        Entered::Taken => return Outgoing::Refuse,
    };
    if !remembered {
        return Outgoing::Drop(Reason::MapFull);
    }
    let ((addr, port), source_port) = (desk.to, desk.source_port);
    if is_direct {
        Outgoing::Direct
    } else if addr == tuple.source {
        Outgoing::ToItself { port, source_port }
    } else {
        Outgoing::ToBackend { addr, port, source_port }
    }
}

/// What is known of a packet's flow, which has taken notice of it.
#[derive(Clone, Copy)]
enum Touched {
    /// Nothing.
    Unknown,
    /// It goes without a service.
    Direct,
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
    let value = tables.read_flow(flow);
    if may_be_service && !value.is(FlowValue::FROM_PEER) && !value.is_answered() {
        return Touched::Unknown;
    }
    // Of TCP the entry is of another connection of the endpoint's.
    if sighting.is_tcp() && value.other().is_some() {
        return Touched::Unknown;
    }
    touch_plain(tables, &key, flow, sighting);
    Touched::Direct
}

/// Takes notice of a packet to an address that is no service's; of TCP [`take_port`] does.
#[inline(never)]
fn begin_direct<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) {
    let key = tuple.flow_of_source(FlowKey::PLAIN);
    match tables.flow(&key) {
        Some(flow) => touch_plain(tables, &key, flow, sighting),
        // Without a translation to remember, a flow may go on without an entry.
        None => {
            let _ = conntrack::begin(tables, &key, sighting, &Translated::NOT);
        }
    }
}

#[inline(always)]
fn touch_plain<T: PacketTables>(tables: &T, key: &FlowKey, flow: T::Flow, sighting: &Sighting) {
    let (value, flow) = conntrack::touch(tables, key, flow, sighting);
    // The endpoint asks its peer itself now, from a port that it once asked a service from.
    if !sighting.is_tcp() && value.other().is_some() {
        conntrack::retranslate(tables, flow, &value, &Translated::NOT);
    }
}

/// Whether the connection that a pod has with who sent this packet, from the port that the packet is for, leaves from another
/// one. Then the packet is late news of whom that port was; an entry of it would have the pod's own packets leave from there.
#[inline(never)]
fn leaves_from_another_port<T: PacketTables>(tables: &T, tuple: &Tuple) -> bool {
    match tables.flow(&tuple.flow_of_destination(FlowKey::SERVICE)) {
        Some(flow) => tables.read_flow(flow).other_local_port.get() != 0,
        None => false,
    }
}

/// A packet that arrives for the pod `tuple.destination`.
#[inline(never)]
pub fn incoming<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting) -> Incoming {
    let key = tuple.flow_of_destination(FlowKey::PLAIN);
    let Some(flow) = tables.flow(&key) else {
        if !(sighting.is_tcp() && leaves_from_another_port(tables, tuple)) {
            let _ = conntrack::begin(tables, &key, sighting, &Translated::NOT);
        }
        return Incoming::Direct;
    };
    let (value, flow) = conntrack::touch(tables, &key, flow, sighting);
    let Some((addr, port)) = value.other() else { return Incoming::Direct };
    if conntrack::is_over(&value, sighting) {
        conntrack::retranslate(tables, flow, &value, &Translated::NOT);
        return Incoming::Direct;
    }
    Incoming::From { addr, port, own_port: value.other_local_port(tuple.destination_port) }
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
    Some((value.other()?, value.other_local_port(tuple.destination_port)))
}

/// Takes notice of a packet of a flow that keeps its backend, in the entry under the frontend, of which `plain` is the other
/// half; whether it could be remembered.
#[inline(never)]
fn keep_service<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    desk: &ServiceDesk,
    plain: FlowMap,
) -> bool {
    let key = tuple.flow_of_source(FlowKey::SERVICE);
    match tables.flow(&key) {
        Some(flow) => {
            conntrack::touch_service(tables, &key, flow, plain, sighting);
            true
        }
        None => conntrack::begin(tables, &key, sighting, &desk.service_half(tuple)).is_some(),
    }
}

/// The flow got a backend: the entry under the frontend is made, or changed where it is of an earlier flow between the same
/// ports. Whether it could be remembered.
#[inline(never)]
fn bind_service<T: PacketTables>(tables: &T, tuple: &Tuple, sighting: &Sighting, desk: &ServiceDesk) -> bool {
    let key = tuple.flow_of_source(FlowKey::SERVICE);
    let translated = desk.service_half(tuple);
    match tables.flow(&key) {
        Some(flow) => {
            set(tables, flow, sighting, &translated);
            true
        }
        None => conntrack::begin(tables, &key, sighting, &translated).is_some(),
    }
}

/// An entry is of a flow that begins with this packet, and says `translated` of it.
#[inline(always)]
fn set<T: PacketTables>(tables: &T, flow: T::Flow, sighting: &Sighting, translated: &Translated) {
    let value = tables.read_flow(flow);
    conntrack::retranslate(tables, flow, &value, translated);
    conntrack::restart(tables, flow, &value, sighting);
}

/// Whether a packet may say anew what its sender dialled: of TCP the first one alone. Datagrams from one port may go to several
/// frontends of one backend and to that itself in turn; what comes back answers the last one.
#[inline(always)]
const fn may_dial(sighting: &Sighting) -> bool {
    !sighting.is_tcp() || sighting.opens()
}

/// Whether a service can have this protocol.
#[inline(always)]
const fn has_services(tuple: &Tuple) -> bool {
    matches!(tuple.protocol, protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP)
}
