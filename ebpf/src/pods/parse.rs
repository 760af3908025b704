//! The headers of a packet.
//!
//! Read by `bpf_skb_load_bytes`, which serves linear and paged packets alike and leaves the verifier nothing to prove.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{IcmpClass, Piece, TcpFlags, Tuple, icmp_class, protocol};
use portway_datapath::{Addr, CpuTraffic, Family, Port, Reason};

use crate::maps::packet_under_way;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: u32 = 14;

/// Bytes of a TCP header without options.
const TCP_HEADER: u32 = 20;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;

/// Extension headers that are walked through. The kernel takes more, but nobody sends them.
const MAX_EXTENSIONS: u32 = 6;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// An IP packet.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) tuple: Tuple,
    pub(crate) family: Family,
    pub(crate) piece: Piece,
    /// Of ICMP; `Other` for everything else and for later pieces.
    pub(crate) icmp: IcmpClass,
    /// Of TCP; 0 for everything else.
    pub(crate) tcp_flags: TcpFlags,
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    pub(crate) icmp_type: u8,
    pub(crate) icmp_code: u8,
    /// Offset of the IP header from the start of the packet.
    pub(crate) l3: u32,
    /// Offset of the transport header.
    pub(crate) l4: u32,
    /// Offset of the first byte behind the packet, as its IP header says: what follows in a frame is padding. `u32::MAX` where
    /// the header does not say (segments that the device is to cut, longer than the field can hold).
    end: u32,
    /// Of the datagram that this is a piece of; as it stands in the header.
    pub(crate) fragment_id: u32,
    /// Of the Ethernet header; of a quoted packet nothing.
    pub(crate) source_mac: [u8; 6],
}

// Packets are parsed to per-CPU maps: on a program's stack of 512 bytes each of their fields would take a register's eight.
// A program runs to its end before another one of these hooks begins on its CPU, so the packet is its own.
const _: () = assert!(size_of::<Packet>() <= size_of::<u64>() * CpuTraffic::PACKET_WORDS);

/// Where packets that ICMP errors quote are parsed to.
#[map(name = "pw_quoted")]
static QUOTED: PerCpuArray<Packet> = PerCpuArray::with_max_entries(1, 0);

/// What arrives at a hook.
pub(crate) enum Link {
    Ipv4,
    Ipv6,
    Arp,
    Other,
}

/// By the EtherType that the kernel knows the packet by. A VLAN tag that the device keeps beside the packet is another
/// network's: such packets are `Other`.
#[inline(always)]
pub(crate) fn link(ctx: &TcContext) -> Link {
    let skb: *mut __sk_buff = ctx.skb.skb;
    // SAFETY: the kernel gives programs of these hooks a valid `__sk_buff`; both fields may be read.
    let (ethertype, tagged) = unsafe {
        (
            u16::from_be(core::ptr::read_volatile(&raw const (*skb).protocol) as u16),
            core::ptr::read_volatile(&raw const (*skb).vlan_present),
        )
    };
    match ethertype {
        _ if tagged != 0 => Link::Other,
        ETHERTYPE_IPV4 => Link::Ipv4,
        ETHERTYPE_IPV6 => Link::Ipv6,
        ETHERTYPE_ARP => Link::Arp,
        _ => Link::Other,
    }
}

impl Packet {
    /// Reads the headers behind an Ethernet header. `Malformed`: they are cut short or contradict themselves. There is one
    /// packet at a time: the next call overwrites it.
    #[inline(always)]
    pub(crate) fn parse(ctx: &TcContext, family: Family) -> Result<&'static mut Self, Reason> {
        Self::parse_at(ctx, family, ETHERNET, packet_under_way().map(<*mut _>::cast))
    }

    /// Reads the headers of the packet that the ICMP error `self` quotes, of which there is one at a time too.
    #[inline(always)]
    pub(crate) fn parse_quoted(&self, ctx: &TcContext) -> Result<&'static mut Self, Reason> {
        Self::parse_at(ctx, self.family, self.l4 + 8, QUOTED.get_ptr_mut(0))
    }

    #[inline(always)]
    fn parse_at(
        ctx: &TcContext,
        family: Family,
        l3: u32,
        at: Option<*mut Self>,
    ) -> Result<&'static mut Self, Reason> {
        let packet = at.ok_or(Reason::KernelError)?;
        // SAFETY: the arrays have their elements, and nobody else has this one now. Of a `Packet` never written before all bytes
        // are zero, which every field may be; all fields are written before any is read.
        let packet = unsafe { &mut *packet };
        packet.family = family;
        packet.l3 = l3;
        packet.piece = Piece::Whole;
        packet.icmp = IcmpClass::Other;
        packet.tcp_flags = TcpFlags::new(0);
        packet.icmp_type = 0;
        packet.icmp_code = 0;
        packet.fragment_id = 0;
        packet.tuple.source_port = Port::new(0);
        packet.tuple.destination_port = Port::new(0);
        match family {
            Family::V4 => packet.read_v4(ctx)?,
            Family::V6 => packet.read_v6(ctx)?,
        }
        Ok(packet)
    }

    #[inline(never)]
    fn read_v4(&mut self, ctx: &TcContext) -> Result<(), Reason> {
        // From eight bytes before the header: the source MAC and the EtherType come along. To the end of a TCP header without
        // options, where the packet is that long: of most packets that is everything, for one call.
        let (words, is_long): ([u32; 12], bool) = match load(ctx, self.l3 - 8) {
            Ok(words) => (words, true),
            Err(_) => {
                let [a, b, c, d, e, f, g]: [u32; 7] = load(ctx, self.l3 - 8)?;
                ([a, b, c, d, e, f, g, 0, 0, 0, 0, 0], false)
            }
        };
        let [a, b, first, id_offset, ttl_protocol, source, destination, ports, _, _, flags, _] = words;
        let first = first.to_ne_bytes();
        let header = u32::from(first[0] & 0x0f) * 4;
        if first[0] >> 4 != 4 || header < 20 {
            return Err(Reason::Malformed);
        }
        let [ttl, protocol, ..] = ttl_protocol.to_ne_bytes();
        let id_offset = u32::from_be(id_offset);
        self.source_mac = mac(a, b);
        self.tuple.source = Addr::from_v4_word(source);
        self.tuple.destination = Addr::from_v4_word(destination);
        self.tuple.protocol = protocol;
        self.ttl = ttl;
        self.l4 = self.l3 + header;
        self.end = end(self.l3, [first[2], first[3]]);
        self.fragment_id = id_offset >> 16;
        self.piece = piece(id_offset & 0x1fff, id_offset & 0x2000 != 0);
        if protocol == protocol::TCP && is_long && header == 20 && !matches!(self.piece, Piece::Later) {
            return self.read_tcp(ports, flags);
        }
        self.read_transport(ctx)
    }

    #[inline(never)]
    fn read_v6(&mut self, ctx: &TcContext) -> Result<(), Reason> {
        let words: [u32; 12] = load(ctx, self.l3 - 8)?;
        if words[2].to_ne_bytes()[0] >> 4 != 6 {
            return Err(Reason::Malformed);
        }
        let [length_high, length_low, next, hop_limit] = words[3].to_ne_bytes();
        let source = Addr::from_words([words[4], words[5], words[6], words[7]]);
        let destination = Addr::from_words([words[8], words[9], words[10], words[11]]);
        // A mapped address on the wire would be taken for the IPv4 address; RFC 4942, section 2.2, wants it dropped.
        if matches!(source.family(), Family::V4) || matches!(destination.family(), Family::V4) {
            return Err(Reason::Malformed);
        }
        self.source_mac = mac(words[0], words[1]);
        self.tuple.source = source;
        self.tuple.destination = destination;
        self.tuple.protocol = next;
        self.ttl = hop_limit;
        self.l4 = self.l3 + 40;
        self.end = end(self.l4, [length_high, length_low]);
        if is_extension(next) {
            self.walk_extensions(ctx)?;
        }
        self.read_transport(ctx)
    }

    /// From the IPv6 header to the transport header. A header that cannot be looked behind (ESP, a routing header that is
    /// not used up, which hides the destination) is where the walk ends: its number is the packet's protocol.
    #[inline(never)]
    fn walk_extensions(&mut self, ctx: &TcContext) -> Result<(), Reason> {
        for _ in 0..MAX_EXTENSIONS {
            let kind = self.tuple.protocol;
            if !is_extension(kind) {
                return Ok(());
            }
            let [first, second]: [u32; 2] = load(ctx, self.l4)?;
            let [next, length, offset_high, offset_low] = first.to_ne_bytes();
            match kind {
                // A routing header's fourth byte is its segments left.
                ROUTING if offset_low != 0 => return Ok(()),
                FRAGMENT => {
                    let offset = u32::from(u16::from_be_bytes([offset_high, offset_low]));
                    self.piece = piece(offset >> 3, offset & 1 != 0);
                    self.fragment_id = second;
                    self.l4 += 8;
                    self.tuple.protocol = next;
                    if matches!(self.piece, Piece::Later) {
                        return Ok(());
                    }
                }
                AUTHENTICATION => {
                    self.l4 += (u32::from(length) + 2) * 4;
                    self.tuple.protocol = next;
                }
                _ => {
                    self.l4 += (u32::from(length) + 1) * 8;
                    self.tuple.protocol = next;
                }
            }
        }
        if is_extension(self.tuple.protocol) { Err(Reason::Malformed) } else { Ok(()) }
    }

    /// Ports, identifiers and flags; nothing of a later piece.
    #[inline(always)]
    fn read_transport(&mut self, ctx: &TcContext) -> Result<(), Reason> {
        if matches!(self.piece, Piece::Later) {
            return Ok(());
        }
        match self.tuple.protocol {
            protocol::TCP => {
                let [ports, _, _, flags]: [u32; 4] = match load(ctx, self.l4) {
                    Ok(words) => words,
                    // An ICMP error may quote eight bytes alone.
                    Err(_) if self.is_quoted() => {
                        let [ports, sequence]: [u32; 2] = load(ctx, self.l4)?;
                        [ports, sequence, 0, 0]
                    }
                    Err(reason) => return Err(reason),
                };
                self.read_tcp(ports, flags)?;
            }
            protocol::UDP | protocol::UDP_LITE | protocol::SCTP => {
                let [ports, _]: [u32; 2] = load(ctx, self.l4)?;
                self.set_ports(ports);
            }
            protocol::ICMP | protocol::ICMPV6 => {
                let [first, second]: [u32; 2] = load(ctx, self.l4)?;
                let [icmp_type, icmp_code, ..] = first.to_ne_bytes();
                self.icmp_type = icmp_type;
                self.icmp_code = icmp_code;
                self.icmp = icmp_class(self.tuple.protocol, icmp_type);
                if matches!(self.icmp, IcmpClass::Echo) {
                    let identifier = Port::from_network(second);
                    self.tuple.source_port = identifier;
                    self.tuple.destination_port = identifier;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The words of a TCP header that count.
    #[inline(always)]
    fn read_tcp(&mut self, ports: u32, flags: u32) -> Result<(), Reason> {
        // RFC 1858: flags that another piece brings would be seen by the pod alone.
        if !self.is_quoted() && self.l4 + TCP_HEADER > self.end {
            return Err(Reason::Malformed);
        }
        self.set_ports(ports);
        self.tcp_flags = TcpFlags::new(flags.to_ne_bytes()[1]);
        Ok(())
    }

    #[inline(always)]
    const fn is_quoted(&self) -> bool {
        self.l3 != ETHERNET
    }

    #[inline(always)]
    fn set_ports(&mut self, word: u32) {
        let [a, b, c, d] = word.to_ne_bytes();
        self.tuple.source_port = Port::new(u16::from_be_bytes([a, b]));
        self.tuple.destination_port = Port::new(u16::from_be_bytes([c, d]));
    }
}

#[inline(always)]
const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// Where what begins at `start` and has this length ends; see [`Packet::end`].
#[inline(always)]
const fn end(start: u32, length: [u8; 2]) -> u32 {
    match u16::from_be_bytes(length) {
        0 => u32::MAX,
        length => start + length as u32,
    }
}

#[inline(always)]
const fn piece(offset: u32, more: bool) -> Piece {
    match (offset, more) {
        (0, false) => Piece::Whole,
        (0, true) => Piece::First,
        _ => Piece::Later,
    }
}

#[inline(always)]
const fn mac(a: u32, b: u32) -> [u8; 6] {
    let (a, b) = (a.to_ne_bytes(), b.to_ne_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1]]
}

/// Bytes at `offset`; `Malformed` where the packet ends before them.
#[inline(always)]
pub(crate) fn load<T>(ctx: &TcContext, offset: u32) -> Result<T, Reason> {
    ctx.load(offset as usize).map_err(|_| Reason::Malformed)
}
