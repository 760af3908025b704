//! Masquerading: the address and port of the node that a flow of a pod leaves with, and whose it is what comes back.
//!
//! A masqueraded flow is two entries, its halves ([`NatKey::OUT`], [`NatKey::IN`]), and each says enough to make the other
//! again. A flow begins in `pw_nat_new`, where the least recently used entry makes room, and moves to `pw_nat` once the peer
//! has answered and, for TCP, the pod has answered back: what never completes pushes out nothing but its like. Where
//! `pw_nat` is full the flow stays where it is.
//!
//! The port is the flow's own where that is free, else one of a sequence that only the flow decides: a flow that lost both
//! halves finds its port again. The node's own flows take part, so that nobody is given a port that the node itself uses
//! towards the same peer ([`masquerade`] with the node's address changes nothing unless there is a collision).
//!
//! Cost of a packet of an established flow: one hash lookup; once a second, one more for the other half.
//!
//! Functions that are not inlined are subprograms in the kernel, where all frames of a chain of calls share 512 bytes.

mod choice;
mod device;
#[cfg(test)]
mod tests;

pub use choice::NatPorts;
pub use device::{
    Arriving, Leaving, LeavingError, NatFacts, NatNode, NatPacket, arriving, error_arriving, error_leaving,
    leaving,
};

use crate::packet::{TcpFlags, protocol};
use crate::{Addr, FlowValue, NatKey, NatValue, Port, Reason};

/// How old [`NatValue::last_seen`] may get before a packet stores it anew.
const REFRESH_NS: u64 = 1_000_000_000;

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatMap {
    /// `pw_nat`.
    Established,
    /// `pw_nat_new`.
    New,
}

/// What became of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    Done,
    /// The key has an entry, which was left alone.
    Exists,
    /// No room.
    Full,
}

/// The maps of masquerading.
pub trait NatTables {
    /// One map's entry; `None` too where the element was reused for another key ([`NatValue::is_of`]).
    fn nat(&self, map: NatMap, key: &NatKey) -> Option<NatValue>;
    /// Makes an entry, never replaces one. [`Inserted::Full`] is counted ([`Reason::MapFull`]).
    fn insert_nat(&self, map: NatMap, key: &NatKey, value: NatValue) -> Inserted;
    /// Stores the two words of an entry that change in place.
    fn touch_nat(&self, map: NatMap, key: &NatKey, last_seen: u64, seen: u8);
    fn delete_nat(&self, map: NatMap, key: &NatKey);
    /// Whether the node has this address.
    fn is_own_address(&self, addr: &Addr) -> bool;
    /// Nanoseconds on the boot-time clock.
    fn nat_now(&self) -> u64;
}

/// A packet's flow, from the side of the one that is masqueraded: in IN its address is what the peer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatFlow {
    pub local: (Addr, Port),
    pub peer: (Addr, Port),
    /// IP protocol number.
    pub protocol: u8,
    /// What this packet adds to [`NatValue::seen`].
    pub seen: u8,
    /// The protocol has no port that can be changed (SCTP's checksum, no ports at all): the flow leaves with its own.
    pub fixed: bool,
}

impl NatFlow {
    #[inline(always)]
    const fn key(&self, half: u8) -> NatKey {
        NatKey::new(self.local, self.peer, self.protocol, half)
    }

    /// A TCP segment that begins a connection.
    #[inline(always)]
    const fn is_syn(&self) -> bool {
        self.seen & FlowValue::SYN != 0
    }
}

/// [`NatValue::seen`] of a packet with these TCP flags; none of other protocols. A reset answers what was never accepted, so its
/// acknowledgement completes nothing.
#[inline(always)]
pub const fn nat_seen(flags: TcpFlags) -> u8 {
    let kept = FlowValue::FIN | FlowValue::SYN | FlowValue::RST;
    let ack = if flags.has(TcpFlags::SYN | TcpFlags::RST) { 0 } else { flags.get() & NatValue::ACK };
    FlowValue::SEEN | flags.get() & kept | ack
}

/// What a flow leaves with: the choice made for its first packet, or one made now. `to` is the address to masquerade with.
///
/// # Errors
/// [`Reason::NoNatPort`]: every port that was tried belongs to another flow to this peer.
#[inline(always)]
pub fn masquerade<T: NatTables>(
    tables: &T,
    flow: &NatFlow,
    to: Addr,
    ports: NatPorts,
) -> Result<(Addr, Port), Reason> {
    match known(tables, flow, to) {
        Some(source) => Ok(source),
        None => choice::choose(tables, flow, to, ports),
    }
}

/// What a flow that was masqueraded before leaves with; `None` where it was not, or lost its port.
#[inline(never)]
pub fn known<T: NatTables>(tables: &T, flow: &NatFlow, to: Addr) -> Option<(Addr, Port)> {
    let key = flow.key(NatKey::OUT);
    let (map, value) = find(tables, &key)?;
    // The flow keeps an address that the node still has: it may leave by another device than it began with.
    let has_address = value.other == to || tables.is_own_address(&value.other);
    if has_address && keep(tables, flow, map, &key, &value) {
        return Some((value.other, value.other_port));
    }
    tables.delete_nat(map, &key);
    if !has_address {
        let other = partner(&key, &value);
        if let Some((map, half)) = find(tables, &other)
            && (half.other, half.other_port) == flow.local
        {
            tables.delete_nat(map, &other);
        }
    }
    None
}

/// Whose a packet is that came to `flow.local`; `None` where that is no masqueraded flow's.
#[inline(always)]
pub fn unmasquerade<T: NatTables>(tables: &T, flow: &NatFlow) -> Option<(Addr, Port)> {
    let key = flow.key(NatKey::IN);
    let (map, value) = find(tables, &key)?;
    // Where the flow was given another port meanwhile, this is still its packet; the entry is left to age.
    keep(tables, flow, map, &key, &value);
    Some((value.other, value.other_port))
}

/// The other half's `local` without a trace in the entry: for a packet that is about the flow, not of it.
#[inline(always)]
pub fn related<T: NatTables>(tables: &T, key: &NatKey) -> Option<(Addr, Port)> {
    let (_, value) = find(tables, key)?;
    Some((value.other, value.other_port))
}

/// A third look, because the entry may have moved between the first two.
#[inline(never)]
fn find<T: NatTables>(tables: &T, key: &NatKey) -> Option<(NatMap, NatValue)> {
    for map in [NatMap::Established, NatMap::New, NatMap::Established] {
        if let Some(value) = tables.nat(map, key) {
            return Some((map, value));
        }
    }
    None
}

/// The key of the other half.
#[inline(always)]
fn partner(key: &NatKey, value: &NatValue) -> NatKey {
    let half = if key.half == NatKey::OUT { NatKey::IN } else { NatKey::OUT };
    NatKey::new((value.other, value.other_port), (key.peer, key.peer_port), key.protocol, half)
}

/// Notes a packet in its half, makes the other half where it is gone, and moves both to `pw_nat` where the flow is
/// complete. False where the other half belongs to another flow: then so does the port.
#[inline(never)]
fn keep<T: NatTables>(tables: &T, flow: &NatFlow, map: NatMap, key: &NatKey, value: &NatValue) -> bool {
    let now = tables.nat_now();
    // A port that is used again after its connection ended is not to be thought closed.
    let again =
        key.half == NatKey::OUT && flow.is_syn() && value.seen & (FlowValue::FIN | FlowValue::RST) != 0;
    let seen = if again { flow.seen } else { value.seen | flow.seen };
    let due = seen != value.seen || now.saturating_sub(value.last_seen) >= REFRESH_NS;
    if matches!(map, NatMap::Established) && !due {
        return true;
    }
    let local = (key.local, key.local_port);
    let other = partner(key, value);
    let mut map = map;
    match find(tables, &other) {
        None => {
            let half = NatValue::new(&other, local, 0, now);
            if tables.insert_nat(map, &other, half) == Inserted::Full && matches!(map, NatMap::Established) {
                tables.insert_nat(NatMap::New, &other, half);
            }
        }
        Some((_, half)) if (half.other, half.other_port) != local => return false,
        Some((other_map, half)) => {
            if again {
                tables.touch_nat(other_map, &other, half.last_seen, 0);
            } else if due && is_complete(key, seen, half.seen) {
                let own = NatValue::new(key, (value.other, value.other_port), seen, now);
                if matches!(map, NatMap::New) && move_to_established(tables, key, own) {
                    map = NatMap::Established;
                }
                if matches!(other_map, NatMap::New) {
                    move_to_established(tables, &other, half);
                }
            }
        }
    }
    if due {
        tables.touch_nat(map, key, now, seen);
    }
    true
}

/// Whether both sides have spoken and, of TCP, the pod after its peer.
#[inline(always)]
fn is_complete(key: &NatKey, own: u8, other: u8) -> bool {
    let (out, back) = if key.half == NatKey::OUT { (own, other) } else { (other, own) };
    back & FlowValue::SEEN != 0 && (key.protocol != protocol::TCP || out & NatValue::ACK != 0)
}

/// There before it is gone here, so that a packet meanwhile finds it. False where `pw_nat` is full.
#[inline(always)]
fn move_to_established<T: NatTables>(tables: &T, key: &NatKey, value: NatValue) -> bool {
    if tables.insert_nat(NatMap::Established, key, value) == Inserted::Full {
        return false;
    }
    tables.delete_nat(NatMap::New, key);
    true
}
