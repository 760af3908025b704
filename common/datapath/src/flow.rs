use crate::{Addr, Port, ServiceIndex};

/// Key of `pw_conntrack` and `pw_ct_new`: a flow as the endpoint of this node that takes part in it sees it.
///
/// Without a direction: both directions of a packet stream find the same entry, and the value says who began
/// ([`FlowValue::FROM_PEER`]). A flow between two pods of one node has two entries, one for each. The peer of a flow to a
/// service by packets is looked up twice: as [`FlowKey::SERVICE`] under the frontend that the endpoint dialled, and as
/// [`FlowKey::PLAIN`] under the backend that it got, and the port that it got towards that.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub local: Addr,
    pub peer: Addr,
    /// Of ICMP: the echo identifier, in both ports.
    pub local_port: Port,
    pub peer_port: Port,
    /// IP protocol number.
    pub protocol: u8,
    pub kind: u8,
    _pad: [u8; 2],
}

const _: () = assert!(size_of::<FlowKey>() == 40 && align_of::<FlowKey>() == 4);

impl FlowKey {
    pub const PLAIN: u8 = 0;
    pub const SERVICE: u8 = 1;

    #[inline(always)]
    pub const fn new(local: (Addr, Port), peer: (Addr, Port), protocol: u8, kind: u8) -> Self {
        Self {
            local: local.0,
            peer: peer.0,
            local_port: local.1,
            peer_port: peer.1,
            protocol,
            kind,
            _pad: [0; 2],
        }
    }

    /// Travels in the value: an element that was reused for another key while a program looked at it is noticed.
    #[inline(always)]
    pub const fn tag(&self) -> u32 {
        let (l, p) = (self.local.words(), self.peer.words());
        let ports = self.local_port.network() << 16 | self.peer_port.network();
        // Two words a round: the programs compute it for every packet at each end.
        let hash = round(round(0x27d4_eb2f, l[0], l[1]), l[2], l[3]);
        let hash = round(round(hash, p[0], p[1]), p[2], p[3]);
        let hash = round(hash, ports, (self.protocol as u32) << 8 | self.kind as u32);
        (hash >> 32) as u32
    }
}

/// One round of a multiplicative hash; every input bit reaches the high bits, which the next round folds back.
#[inline(always)]
const fn round(hash: u64, a: u32, b: u32) -> u64 {
    let hash = (hash ^ ((a as u64) << 32 | b as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}

/// Value of `pw_conntrack` and `pw_ct_new`. Made whole, changed in place, never replaced.
///
/// `seen_*` have one writer each most of the time (packets of one direction of one flow are handled by one CPU); what a
/// race between two loses is a bit that the next packet sets again, or a count.
///
/// What every packet writes is at the end. The first 32 bytes share the key's cache line (in an entry of `pw_conntrack` the
/// key begins 56 bytes into one), which therefore stays with all CPUs that look the flow up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowValue {
    /// SERVICE: the backend. PLAIN: the frontend that replies come from in the endpoint's eyes, [`Addr::ANY_V6`] where the
    /// endpoint dialled the peer itself, from its own port.
    pub other: Addr,
    pub other_port: Port,
    /// [`Self::SEEN`] and TCP flags (FIN 1, SYN 2, RST 4) of all packets from the endpoint.
    pub seen_out: u8,
    /// The same of packets to the endpoint.
    pub seen_in: u8,
    pub service: ServiceIndex,
    /// [`FlowKey::tag`].
    pub tag: u32,
    pub flags: u16,
    /// [`FlowKey::local_port`] of the flow's other entry, where it is another one than this one's; else 0. SERVICE: the port
    /// that packets leave from. PLAIN: the port that the endpoint itself has.
    pub other_local_port: Port,
    /// [`crate::BackendRef`] of a [`FlowKey::SERVICE`] entry, else 0.
    pub backend: u64,
    /// Of the policy that the flow was judged by; 0 while there is none.
    pub policy_version: u32,
    /// Of the peer when it was judged; 0 while unknown.
    pub peer_identity: u32,
    /// Nanoseconds on the coarse monotonic clock; stored at most once a second.
    pub last_seen: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    pub packets_in: u64,
    pub bytes_in: u64,
}

const _: () = assert!(size_of::<FlowValue>() == 88 && align_of::<FlowValue>() == 8);

impl FlowValue {
    /// In `seen_*`: a packet has gone this way.
    pub const SEEN: u8 = 0x80;
    /// TCP flags as in the header.
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;

    /// In `flags`: the peer sent the first packet.
    pub const FROM_PEER: u16 = 1;
    /// In `flags`: a pod that reaches itself by a service; its source is the hairpin address on the way there.
    pub const HAIRPIN: u16 = 2;
    /// In `flags`: `pw_conntrack` had no room for the flow.
    pub const REFUSED: u16 = 4;

    /// A flow of which nothing has been seen.
    #[inline(always)]
    pub const fn new(key: &FlowKey, flags: u16, now: u64) -> Self {
        Self {
            last_seen: now,
            backend: 0,
            packets_out: 0,
            bytes_out: 0,
            packets_in: 0,
            bytes_in: 0,
            other: Addr::ANY_V6,
            other_port: Port::new(0),
            seen_out: 0,
            seen_in: 0,
            service: ServiceIndex::new(0),
            tag: key.tag(),
            flags,
            other_local_port: Port::new(0),
            policy_version: 0,
            peer_identity: 0,
        }
    }

    /// [`Self::other`], where there is one.
    #[inline(always)]
    pub fn other(&self) -> Option<(Addr, Port)> {
        (self.other != Addr::ANY_V6).then_some((self.other, self.other_port))
    }

    /// [`FlowKey::local_port`] of the flow's other entry, of an entry under `local_port`.
    #[inline(always)]
    pub const fn other_local_port(&self, local_port: Port) -> Port {
        if self.other_local_port.get() == 0 { local_port } else { self.other_local_port }
    }

    #[inline(always)]
    pub const fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether packets have gone both ways.
    #[inline(always)]
    pub const fn is_answered(&self) -> bool {
        self.seen_out & self.seen_in & Self::SEEN != 0
    }

    /// Whether TCP is over: a reset, or a FIN each way.
    #[inline(always)]
    pub const fn is_closed(&self) -> bool {
        (self.seen_out | self.seen_in) & Self::RST != 0 || self.seen_out & self.seen_in & Self::FIN != 0
    }
}

/// Key of `pw_nat` and `pw_nat_new`: one half of a masqueraded flow.
///
/// [`Self::OUT`]: `local` is what the pod (or the node itself) sends from. [`Self::IN`]: `local` is the node's address
/// and the port that were chosen. `peer` is the world's side in both.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NatKey {
    pub local: Addr,
    pub peer: Addr,
    /// Of ICMP: the echo identifier; `peer_port` is 0.
    pub local_port: Port,
    pub peer_port: Port,
    pub protocol: u8,
    pub half: u8,
    _pad: [u8; 2],
}

const _: () = assert!(size_of::<NatKey>() == 40 && align_of::<NatKey>() == 4);

impl NatKey {
    pub const OUT: u8 = 0;
    pub const IN: u8 = 1;

    #[inline(always)]
    pub const fn new(local: (Addr, Port), peer: (Addr, Port), protocol: u8, half: u8) -> Self {
        Self {
            local: local.0,
            peer: peer.0,
            local_port: local.1,
            peer_port: peer.1,
            protocol,
            half,
            _pad: [0; 2],
        }
    }

    /// As [`FlowKey::tag`].
    #[inline(always)]
    pub const fn tag(&self) -> u32 {
        FlowKey::new((self.local, self.local_port), (self.peer, self.peer_port), self.protocol, self.half)
            .tag()
    }
}

/// Value of `pw_nat` and `pw_nat_new`: the other half's `local`, from which that half can be made again. An OUT half that
/// maps to itself is a flow of the node's own, which keeps its port from being given away.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatValue {
    /// Nanoseconds on the coarse monotonic clock; stored at most once a second.
    pub last_seen: u64,
    pub other: Addr,
    pub other_port: Port,
    /// As [`FlowValue::seen_out`], of both halves: out in OUT, in in IN; and [`Self::ACK`].
    pub seen: u8,
    _pad: u8,
    /// [`NatKey::tag`].
    pub tag: u32,
}

const _: () = assert!(size_of::<NatValue>() == 32);

impl NatValue {
    /// In `seen`: a TCP segment after the handshake's first of its side.
    pub const ACK: u8 = 0x10;

    /// Whether this value was written for `key`.
    #[inline(always)]
    pub const fn is_of(&self, key: &NatKey) -> bool {
        self.tag == key.tag()
    }

    #[inline(always)]
    pub const fn new(key: &NatKey, other: (Addr, Port), seen: u8, now: u64) -> Self {
        Self { last_seen: now, other: other.0, other_port: other.1, seen, _pad: 0, tag: key.tag() }
    }
}

/// Key of `pw_fragments`: a datagram that was cut in pieces.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    pub source: Addr,
    pub destination: Addr,
    pub id: u32,
    /// IP protocol number of what was cut.
    pub protocol: u8,
    _pad: [u8; 3],
}

const _: () = assert!(size_of::<FragmentKey>() == 40);

impl FragmentKey {
    #[inline(always)]
    pub const fn new(source: Addr, destination: Addr, id: u32, protocol: u8) -> Self {
        Self { source, destination, id, protocol, _pad: [0; 3] }
    }
}

/// Value of `pw_fragments`: what only the first piece says. One word.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentValue {
    pub source_port: Port,
    pub destination_port: Port,
    /// ICMP type and code, where it is ICMP.
    pub icmp_type: u8,
    pub icmp_code: u8,
    _pad: [u8; 2],
}

const _: () = assert!(size_of::<FragmentValue>() == 8 && align_of::<FragmentValue>() == 8);

impl FragmentValue {
    #[inline(always)]
    pub const fn new(source_port: Port, destination_port: Port, icmp_type: u8, icmp_code: u8) -> Self {
        Self { source_port, destination_port, icmp_type, icmp_code, _pad: [0; 2] }
    }
}
