//! What packets make of the flows that they belong to.
//!
//! A flow begins in `pw_ct_new`, where the least recently used entry makes room, and moves to `pw_conntrack` when packets have
//! gone both ways and, for TCP, who began has answered the answer. So what never completes (a SYN flood) pushes out
//! nothing but its like. Where `pw_conntrack` is full, the flow stays where it is and asks again once a second.
//!
//! Every state is told by the bits of what was seen ([`FlowValue::seen_out`], [`FlowValue::seen_in`]); user space reads from
//! them how long an idle entry may stay.

use crate::packet::{TcpFlags, protocol};
use crate::{Addr, BackendRef, Direction, FlowKey, FlowMap, FlowValue, PacketTables, Port, ServiceIndex};

/// How old [`FlowValue::last_seen`] may get before a packet stores it anew.
const REFRESH_NS: u64 = 1_000_000_000;

/// A packet, as the flow that it belongs to sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    /// From the endpoint (egress) or to it.
    pub direction: Direction,
    /// IP protocol number.
    pub protocol: u8,
    /// 0 where it is not TCP. (Of an `Option` the compiler would carry around what nobody has written, which the verifier
    /// takes for a defect.)
    pub flags: TcpFlags,
    pub bytes: u32,
    /// Nanoseconds on the coarse monotonic clock.
    pub now: u64,
}

impl Sighting {
    /// The same packet at the other end of its way.
    #[inline(always)]
    #[must_use]
    pub const fn arriving(self) -> Self {
        Self { direction: Direction::Ingress, ..self }
    }

    /// Whether it begins a TCP connection.
    #[inline(always)]
    pub const fn opens(&self) -> bool {
        self.is_tcp() && self.flags.opens()
    }

    #[inline(always)]
    pub const fn is_tcp(&self) -> bool {
        self.protocol == protocol::TCP
    }

    /// Whether it is the second packet of a TCP connection.
    #[inline(always)]
    const fn answers_syn(&self) -> bool {
        self.is_tcp() && self.flags.answers_syn()
    }

    /// The bits of `seen_*`.
    #[inline(always)]
    const fn bits(&self) -> u8 {
        FlowValue::SEEN | self.flags.get() & (FlowValue::FIN | FlowValue::SYN | FlowValue::RST)
    }

    /// Whether it may be what completes a handshake: anything but the first word or a refusal.
    #[inline(always)]
    const fn completes(&self) -> bool {
        !self.is_tcp() || self.flags.has(TcpFlags::ACK) && !self.flags.has(TcpFlags::SYN | TcpFlags::RST)
    }
}

/// What an entry says beside what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    /// [`FlowValue::other`]; [`Addr::ANY_V6`] where there is none.
    pub(crate) other: (Addr, Port),
    /// [`FlowValue::other_local_port`]: 0 where it is the same.
    pub(crate) other_local_port: Port,
    pub(crate) service: ServiceIndex,
    pub(crate) backend: BackendRef,
    /// [`FlowValue::HAIRPIN`] or 0.
    pub(crate) flags: u16,
}

impl Translated {
    /// The endpoint and its peer talk to each other without a service.
    pub(crate) const NOT: Self = Self {
        other: (Addr::ANY_V6, Port::new(0)),
        other_local_port: Port::new(0),
        service: ServiceIndex::new(0),
        backend: BackendRef::NONE,
        flags: 0,
    };

    /// Whether `value` is of an entry that translates to and from the same.
    #[inline(always)]
    pub(crate) fn is_said_by(&self, value: &FlowValue) -> bool {
        (value.other, value.other_port) == self.other && value.other_local_port == self.other_local_port
    }
}

/// Makes the entry of a flow whose first packet this is. `None`: the kernel had no room, which is counted.
///
/// Not inlined: entry and key take a quarter of a program's stack.
#[inline(never)]
pub(crate) fn begin<T: PacketTables>(
    tables: &T,
    key: &FlowKey,
    sighting: &Sighting,
    translated: &Translated,
) -> Option<T::Flow> {
    tables.insert_flow(key, |value| {
        *value = FlowValue::new(key, translated.flags | initiator(sighting), sighting.now);
        (value.other, value.other_port) = translated.other;
        value.other_local_port = translated.other_local_port;
        value.service = translated.service;
        value.backend = translated.backend.word();
        match sighting.direction {
            Direction::Egress => {
                value.seen_out = sighting.bits();
                value.packets_out = 1;
                value.bytes_out = sighting.bytes as u64;
            }
            Direction::Ingress => {
                value.seen_in = sighting.bits();
                value.packets_in = 1;
                value.bytes_in = sighting.bytes as u64;
            }
        }
    })
}

/// Takes notice of a packet of a known flow, and returns the entry as it was before and where it is now.
///
/// A SYN on a connection that is over begins the flow anew: then what was translated is the caller's to say again
/// ([`retranslate`]), which [`is_over`] tells.
#[inline(always)]
pub(crate) fn touch<T: PacketTables>(
    tables: &T,
    key: &FlowKey,
    flow: T::Flow,
    sighting: &Sighting,
) -> (FlowValue, T::Flow) {
    let value = tables.read_flow(flow);
    if is_over(&value, sighting) {
        restart(tables, flow, &value, sighting);
        return (value, flow);
    }
    let stale = refresh(tables, flow, &value, sighting);
    let before = match sighting.direction {
        Direction::Egress => value.seen_out,
        Direction::Ingress => value.seen_in,
    };
    let seen = before | sighting.bits();
    if seen != before {
        tables.set_seen(flow, sighting.direction, seen);
    }
    if matches!(tables.flow_map(flow), FlowMap::New)
        && completes(&value, seen, sighting)
        && (stale || !value.is(FlowValue::REFUSED))
    {
        return (value, establish(tables, key, flow, &value));
    }
    (value, flow)
}

/// Takes notice of a packet of a [`FlowKey::SERVICE`] entry that is established.
#[inline(always)]
pub(crate) fn touch_settled<T: PacketTables>(
    tables: &T,
    flow: T::Flow,
    value: &FlowValue,
    sighting: &Sighting,
) -> bool {
    let stale = refresh(tables, flow, value, sighting);
    let seen = value.seen_out | sighting.bits();
    if seen != value.seen_out {
        tables.set_seen(flow, Direction::Egress, seen);
    }
    stale
}

/// Takes notice of a packet of a [`FlowKey::SERVICE`] entry, of which `plain` is the flow under the backend: they move
/// together.
#[inline(always)]
pub(crate) fn touch_service<T: PacketTables>(
    tables: &T,
    key: &FlowKey,
    flow: T::Flow,
    plain: FlowMap,
    sighting: &Sighting,
) {
    let value = tables.read_flow(flow);
    let stale = touch_settled(tables, flow, &value, sighting);
    if matches!((tables.flow_map(flow), plain), (FlowMap::New, FlowMap::Established))
        && (stale || !value.is(FlowValue::REFUSED))
    {
        establish(tables, key, flow, &value);
    }
}

/// Whether a packet begins a connection on the entry of one that is over.
#[inline(always)]
pub(crate) fn is_over(value: &FlowValue, sighting: &Sighting) -> bool {
    sighting.opens() && value.is_closed()
}

/// Changes what a flow that begins anew is translated to, if anything changes.
#[inline(always)]
pub(crate) fn retranslate<T: PacketTables>(
    tables: &T,
    flow: T::Flow,
    value: &FlowValue,
    translated: &Translated,
) {
    if !translated.is_said_by(value)
        || value.service != translated.service
        || value.backend != translated.backend.word()
    {
        tables.set_other(
            flow,
            translated.other,
            translated.other_local_port,
            translated.service,
            translated.backend,
        );
    }
}

/// As if only this packet had been seen.
#[inline(always)]
pub(crate) fn restart<T: PacketTables>(tables: &T, flow: T::Flow, value: &FlowValue, sighting: &Sighting) {
    refresh(tables, flow, value, sighting);
    let (here, there) = match sighting.direction {
        Direction::Egress => (Direction::Egress, Direction::Ingress),
        Direction::Ingress => (Direction::Ingress, Direction::Egress),
    };
    tables.set_seen(flow, there, 0);
    tables.set_seen(flow, here, sighting.bits());
    tables.set_flags(flow, value.flags & !FlowValue::FROM_PEER | initiator(sighting));
}

/// Counts the packet; whether [`FlowValue::last_seen`] was old.
#[inline(always)]
fn refresh<T: PacketTables>(tables: &T, flow: T::Flow, value: &FlowValue, sighting: &Sighting) -> bool {
    tables.count_flow(flow, sighting.direction, sighting.bytes);
    let stale = sighting.now.saturating_sub(value.last_seen) >= REFRESH_NS;
    if stale {
        tables.set_last_seen(flow, sighting.now);
    }
    stale
}

/// Whether the flow is established with this packet; `seen` is what has been seen in its direction.
#[inline(always)]
fn completes(value: &FlowValue, seen: u8, sighting: &Sighting) -> bool {
    let (other_way, from_initiator) = match sighting.direction {
        Direction::Egress => (value.seen_in, !value.is(FlowValue::FROM_PEER)),
        Direction::Ingress => (value.seen_out, value.is(FlowValue::FROM_PEER)),
    };
    seen & other_way & FlowValue::SEEN != 0 && sighting.completes() && (!sighting.is_tcp() || from_initiator)
}

#[inline(always)]
fn establish<T: PacketTables>(tables: &T, key: &FlowKey, flow: T::Flow, value: &FlowValue) -> T::Flow {
    let moved = tables.establish_flow(key, flow);
    let refused = matches!(tables.flow_map(moved), FlowMap::New);
    if refused != value.is(FlowValue::REFUSED) {
        tables.set_flags(
            moved,
            value.flags & !FlowValue::REFUSED | if refused { FlowValue::REFUSED } else { 0 },
        );
    }
    moved
}

/// Who began a flow that nobody knows: the sender of this packet, but of a SYN that acknowledges one its receiver. (The flow
/// is known no more then, because a flood pushed it out; taken for the endpoint's own it would be masqueraded.)
#[inline(always)]
const fn initiator(sighting: &Sighting) -> u16 {
    match (sighting.direction, sighting.answers_syn()) {
        (Direction::Egress, false) | (Direction::Ingress, true) => 0,
        (Direction::Ingress, false) | (Direction::Egress, true) => FlowValue::FROM_PEER,
    }
}

#[cfg(test)]
mod tests;
