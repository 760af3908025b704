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
//! In the kernel a program and all that it calls share 512 bytes of stack, so that keys and values lie on a [`NatDesk`], and
//! functions that would make a frame large are not inlined. Those are generic: only then they are compiled with the programs, and
//! have the type information that the kernel wants of every subprogram or of none.

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
    /// Reads one map's entry; false where there is none, or where the element was reused for another key
    /// ([`NatValue::is_of`]).
    fn nat(&self, map: NatMap, key: &NatKey, into: &mut NatValue) -> bool;
    /// Makes an entry, never replaces one. [`Inserted::Full`] is counted ([`Reason::MapFull`]).
    fn insert_nat(&self, map: NatMap, key: &NatKey, value: &NatValue) -> Inserted;
    /// Stores the two words of an entry that change in place.
    fn touch_nat(&self, map: NatMap, key: &NatKey, last_seen: u64, seen: u8);
    fn delete_nat(&self, map: NatMap, key: &NatKey);
    /// Whether the node has this address.
    fn is_own_address(&self, addr: &Addr) -> bool;
    /// Nanoseconds on the coarse monotonic clock.
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

/// Where a packet's flow and what is read of it lie meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct NatDesk {
    flow: NatFlow,
    /// The half that the packet belongs to, and its entry.
    key: NatKey,
    value: NatValue,
    /// The other half.
    other_key: NatKey,
    other_value: NatValue,
    search: choice::Search,
}

impl NatDesk {
    pub const EMPTY: Self = {
        let nobody = (Addr::ANY_V6, Port::new(0));
        let key = NatKey::new(nobody, nobody, 0, NatKey::OUT);
        let value = NatValue::new(&key, nobody, 0, 0);
        Self {
            flow: NatFlow { local: nobody, peer: nobody, protocol: 0, seen: 0, fixed: false },
            key,
            value,
            other_key: key,
            other_value: value,
            search: choice::Search::EMPTY,
        }
    };

    /// What the packet's own end becomes, once that is decided.
    #[inline(always)]
    pub const fn result(&self) -> (Addr, Port) {
        (self.value.other, self.value.other_port)
    }

    /// Whether the result is what the packet has already.
    #[inline(always)]
    fn is_unchanged(&self) -> bool {
        self.result() == self.flow.local
    }

    #[inline(always)]
    fn look_at(&mut self, half: u8) {
        self.key = self.flow.key(half);
    }

    /// The key of the other half of `key` with `value`.
    #[inline(always)]
    fn look_at_other(&mut self) {
        let half = if self.key.half == NatKey::OUT { NatKey::IN } else { NatKey::OUT };
        let peer = (self.key.peer, self.key.peer_port);
        self.other_key = NatKey::new(self.result(), peer, self.key.protocol, half);
    }

    /// Whether the other half is this one's, too.
    #[inline(always)]
    fn is_pair(&self) -> bool {
        self.other_value.other == self.key.local && self.other_value.other_port == self.key.local_port
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

/// Decides what the flow on the desk leaves with: the choice made for its first packet, or one made now. `to` is the address to
/// masquerade with.
///
/// # Errors
/// [`Reason::NoNatPort`]: every port that was tried belongs to another flow to this peer.
#[inline(always)]
pub fn masquerade<T: NatTables>(
    tables: &T,
    desk: &mut NatDesk,
    to: &Addr,
    ports: NatPorts,
) -> Result<(), Reason> {
    if known(tables, desk, to) { Ok(()) } else { choice::choose(tables, desk, to, ports) }
}

/// Decides what a flow that was masqueraded before leaves with; false where it was not, or lost its port.
#[inline(never)]
pub fn known<T: NatTables>(tables: &T, desk: &mut NatDesk, to: &Addr) -> bool {
    desk.look_at(NatKey::OUT);
    let Some(map) = find(tables, &desk.key, &mut desk.value) else { return false };
    // The flow keeps an address that the node still has: it may leave by another device than it began with.
    let has_address = desk.value.other == *to || tables.is_own_address(&desk.value.other);
    if has_address && keep(tables, desk, map) {
        return true;
    }
    tables.delete_nat(map, &desk.key);
    if !has_address {
        desk.look_at_other();
        if let Some(map) = find(tables, &desk.other_key, &mut desk.other_value)
            && desk.is_pair()
        {
            tables.delete_nat(map, &desk.other_key);
        }
    }
    false
}

/// Decides whose a packet is that came to the flow's local end; false where that is no masqueraded flow's.
#[inline(never)]
pub fn unmasquerade<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    desk.look_at(NatKey::IN);
    let Some(map) = find(tables, &desk.key, &mut desk.value) else { return false };
    // Where the flow was given another port meanwhile, this is still its packet; the entry is left to age.
    keep(tables, desk, map);
    true
}

/// Reads the half `key` without a trace in the entry: for a packet that is about the flow, not of it.
#[inline(always)]
fn related<T: NatTables>(tables: &T, desk: &mut NatDesk) -> bool {
    find(tables, &desk.key, &mut desk.value).is_some()
}

/// A third look, because the entry may have moved between the first two.
#[inline(never)]
fn find<T: NatTables>(tables: &T, key: &NatKey, into: &mut NatValue) -> Option<NatMap> {
    [NatMap::Established, NatMap::New, NatMap::Established]
        .into_iter()
        .find(|map| tables.nat(*map, key, into))
}

/// Notes a packet in its half, makes the other half where it is gone, and moves both to `pw_nat` where the flow is
/// complete. False where the other half belongs to another flow: then so does the port.
#[inline(never)]
fn keep<T: NatTables>(tables: &T, desk: &mut NatDesk, map: NatMap) -> bool {
    let now = tables.nat_now();
    // A port that is used again after its connection ended is not to be thought closed.
    let again = desk.key.half == NatKey::OUT
        && desk.flow.is_syn()
        && desk.value.seen & (FlowValue::FIN | FlowValue::RST) != 0;
    let seen = if again { desk.flow.seen } else { desk.value.seen | desk.flow.seen };
    let due = seen != desk.value.seen || now.saturating_sub(desk.value.last_seen) >= REFRESH_NS;
    if matches!(map, NatMap::Established) && !due {
        return true;
    }
    let mut map = map;
    desk.look_at_other();
    match find(tables, &desk.other_key, &mut desk.other_value) {
        None => {
            let local = (desk.key.local, desk.key.local_port);
            desk.other_value = NatValue::new(&desk.other_key, local, 0, now);
            make_half(tables, map, &desk.other_key, &desk.other_value);
        }
        Some(_) if !desk.is_pair() => return false,
        Some(other_map) => {
            if again {
                tables.touch_nat(other_map, &desk.other_key, desk.other_value.last_seen, 0);
            } else if due && is_complete(&desk.key, seen, desk.other_value.seen) {
                if matches!(map, NatMap::New) && move_to_established(tables, &desk.key, &desk.value) {
                    map = NatMap::Established;
                }
                if matches!(other_map, NatMap::New) {
                    move_to_established(tables, &desk.other_key, &desk.other_value);
                }
            }
        }
    }
    if due {
        tables.touch_nat(map, &desk.key, now, seen);
    }
    true
}

/// Whether both sides have spoken and, of TCP, the pod after its peer.
#[inline(always)]
fn is_complete(key: &NatKey, own: u8, other: u8) -> bool {
    let (out, back) = if key.half == NatKey::OUT { (own, other) } else { (other, own) };
    back & FlowValue::SEEN != 0 && (key.protocol != protocol::TCP || out & NatValue::ACK != 0)
}

/// Makes the half that is gone where this one is, or where there is room.
#[inline(never)]
fn make_half<T: NatTables>(tables: &T, map: NatMap, key: &NatKey, half: &NatValue) {
    if tables.insert_nat(map, key, half) == Inserted::Full && matches!(map, NatMap::Established) {
        tables.insert_nat(NatMap::New, key, half);
    }
}

/// There before it is gone here, so that a packet meanwhile finds it. False where `pw_nat` is full.
#[inline(never)]
fn move_to_established<T: NatTables>(tables: &T, key: &NatKey, value: &NatValue) -> bool {
    if tables.insert_nat(NatMap::Established, key, value) == Inserted::Full {
        return false;
    }
    tables.delete_nat(NatMap::New, key);
    true
}
