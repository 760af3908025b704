//! The port that a client's flow leaves from, and the entry under its backend that says whose it is.
//!
//! A flow leaves from the client's own port unless another connection with the backend has that, or has just had it (late
//! segments would be taken for the other's, and the backend may remember its sequence numbers): then from one of a sequence
//! that only the flow decides, so that a flow of which half was forgotten is found again.

use super::{ServiceDesk, may_dial, set};
use crate::conntrack::{self, Sighting};
use crate::packet::Tuple;
use crate::{FlowKey, FlowMap, PacketTables, Port};

/// How many ports are tried beside the client's own. With half of them taken towards one backend, one connection in 2¹⁶ of
/// those that need one takes that of a connection that is over, or is refused where there is none.
const TRIES: u32 = 16;

/// The ports that are tried: those below what a kernel gives to connections by default (32768 to 60999), so that no
/// connection of the pod's own comes to need one.
const FIRST: u16 = 1024;
const PORTS: u32 = 32_768 - FIRST as u32;

/// The step from one port to the next one that is tried, without a common divisor with [`PORTS`]: none is tried twice.
const STEP: u32 = 10_007;

/// The search for a port. What the kernel's verifier does not know it need not walk through for each value: so all that
/// changes from turn to turn is here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Where in the ports the next one is.
    at: u32,
    /// A port whose connection is over; 0 while none was found.
    over: Port,
    /// What is over makes room.
    takes_over: bool,
}

impl Search {
    pub(super) const EMPTY: Self = Self { at: 0, over: Port::new(0), takes_over: false };
}

/// What became of the entry under a backend.
#[derive(Clone, Copy)]
pub(super) enum Entered {
    /// It is there now, and of the packet's flow.
    In(FlowMap),
    /// It could not be made.
    NoRoom,
    /// It is of another connection.
    Taken,
}

/// Decides on the port that a connection leaves from, and sees to its entry.
#[inline(never)]
pub(super) fn take_port<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    desk: &mut ServiceDesk,
) -> Entered {
    desk.search = Search { at: draw(tuple), ..Search::EMPTY };
    for _ in 0..=TRIES {
        match enter_plain(tables, tuple, sighting, desk) {
            Entered::Taken => next_port(desk),
            entered @ (Entered::In(_) | Entered::NoRoom) => return entered,
        }
    }
    if desk.search.over.get() == 0 || !sighting.opens() {
        return Entered::Taken;
    }
    desk.source_port = desk.search.over;
    desk.search.takes_over = true;
    enter_plain(tables, tuple, sighting, desk)
}

#[inline(always)]
fn next_port(desk: &mut ServiceDesk) {
    let at = desk.search.at % PORTS;
    desk.source_port = Port::new(FIRST + at as u16);
    desk.search.at = at + STEP;
}

/// Takes notice of a packet in the entry under its backend, which is made where there is none.
#[inline(never)]
pub(super) fn enter_plain<T: PacketTables>(
    tables: &T,
    tuple: &Tuple,
    sighting: &Sighting,
    desk: &mut ServiceDesk,
) -> Entered {
    let key = desk.under_backend(tuple);
    let translated = desk.plain_half(tuple);
    let Some(flow) = tables.flow(&key) else {
        let Some(flow) = conntrack::begin(tables, &key, sighting, &translated) else {
            return Entered::NoRoom;
        };
        // Another CPU may have made it for another flow meanwhile.
        if sighting.is_tcp() && !translated.is_said_by(&tables.read_flow(flow)) {
            return Entered::Taken;
        }
        return Entered::In(tables.flow_map(flow));
    };
    let value = tables.read_flow(flow);
    if sighting.is_tcp() && !translated.is_said_by(&value) {
        if !value.is_closed() {
            return Entered::Taken;
        }
        if desk.is_kept || !desk.search.takes_over {
            desk.search.over = desk.source_port;
            return Entered::Taken;
        }
    }
    if may_dial(sighting) && !desk.is_kept {
        set(tables, flow, sighting, &translated);
        return Entered::In(tables.flow_map(flow));
    }
    let (value, flow) = conntrack::touch(tables, &key, flow, sighting);
    if may_dial(sighting) {
        conntrack::retranslate(tables, flow, &value, &translated);
    }
    Entered::In(tables.flow_map(flow))
}

/// What decides of a flow's backend and of its ports: the flow alone, so that one that was forgotten finds them again while
/// the set is the same.
#[inline(always)]
pub(super) const fn draw(tuple: &Tuple) -> u32 {
    // The finish of MurmurHash3: neighbouring ports are to be strangers, and a tag's high bits are those of the ports.
    let hash = tuple.flow_of_source(FlowKey::SERVICE).tag();
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}
