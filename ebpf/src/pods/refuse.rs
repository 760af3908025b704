//! The answer to a pod whose packet no backend may have: what a host without such a port answers, so that the client
//! fails at once with `ECONNREFUSED` and waits for nobody.

use aya_ebpf::bindings::bpf_adj_room_mode::BPF_ADJ_ROOM_MAC;
use aya_ebpf::helpers::{bpf_csum_diff, bpf_skb_change_tail};
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{Piece, TcpFlags, protocol};
use portway_datapath::{Family, PacketTables as _, Reason};

use crate::deliver::to_pod;
use crate::maps::KernelTables;
use crate::parse::{ETHERNET, Packet, load};
use crate::rewrite::{l4_replace, store};

/// Sends a packet back to its pod as its own refusal. What refuses itself is dropped.
#[inline(never)]
pub(crate) fn refuse(ctx: &TcContext, packet: &Packet) -> Result<i32, Reason> {
    if matches!(packet.piece, Piece::Later) {
        return Err(Reason::NoBackends);
    }
    if packet.tuple.protocol == protocol::TCP {
        if packet.tcp_flags.has(TcpFlags::RST) {
            return Err(Reason::NoBackends);
        }
        reset(ctx, packet)?;
    } else {
        match packet.family {
            Family::V4 => unreachable_v4(ctx, packet)?,
            Family::V6 => unreachable_v6(ctx, packet)?,
        }
    }
    let pod = KernelTables.endpoint(&packet.tuple.source).ok_or(Reason::NoBackends)?;
    store(ctx, 0, &pod.mac, 0)?;
    store(ctx, 6, &pod.node_mac, 0)?;
    Ok(to_pod(pod))
}

/// The segment becomes a reset of the connection that it is for (RFC 9293, 3.5.2). It keeps its options and its data, which
/// nobody reads in a reset: so its checksum changes by known words alone.
#[inline(always)]
fn reset(ctx: &TcContext, packet: &Packet) -> Result<(), Reason> {
    swap_addresses(ctx, packet)?;
    let at = packet.l4;
    let [ports, mut old @ ..]: [u32; 4] = load(ctx, at)?;
    store(ctx, at, &ports.rotate_left(16), 0)?;
    let [sequence, acknowledged, rest] = old;
    let [offset, flags, ..] = rest.to_ne_bytes();
    let mut new = if flags & TcpFlags::ACK != 0 {
        [acknowledged, 0, u32::from_ne_bytes([offset, TcpFlags::RST, 0, 0])]
    } else {
        let data = ctx.len() - at - u32::from(offset >> 4) * 4;
        let ends = u32::from(flags & TcpFlags::SYN != 0) + u32::from(flags & TcpFlags::FIN != 0);
        let next = u32::from_be(sequence).wrapping_add(data).wrapping_add(ends);
        [0, next.to_be(), u32::from_ne_bytes([offset, TcpFlags::RST | TcpFlags::ACK, 0, 0])]
    };
    // SAFETY: both point to 12 bytes on the stack.
    let difference = unsafe { bpf_csum_diff(old.as_mut_ptr(), 12, new.as_mut_ptr(), 12, 0) };
    let difference = u64::try_from(difference).map_err(|_| Reason::KernelError)?;
    l4_replace(ctx, at + 16, 0, difference, 0)?;
    store(ctx, at + 4, &new, 0)
}

/// Neither the header's checksum nor the pseudo header's changes.
#[inline(always)]
fn swap_addresses(ctx: &TcContext, packet: &Packet) -> Result<(), Reason> {
    let (source, destination) = (packet.tuple.source.words(), packet.tuple.destination.words());
    match packet.family {
        Family::V4 => store(ctx, packet.l3 + 12, &[destination[3], source[3]], 0),
        Family::V6 => store(ctx, packet.l3 + 8, &[destination, source], 0),
    }
}

/// IP header and transport header are quoted, as RFC 792 asks for.
const QUOTED_TRANSPORT: u32 = 8;
/// Of SCTP, whose checksum is where a device may have to write it: the kernel keeps up to there.
const QUOTED_SCTP: u32 = 12;

/// Cuts the packet down to what is quoted, and makes `room` for new headers in front of it. Returns the length of the quote.
#[inline(always)]
fn quote(ctx: &TcContext, packet: &Packet, room: u32) -> Result<u32, Reason> {
    let transport = if packet.tuple.protocol == protocol::SCTP { QUOTED_SCTP } else { QUOTED_TRANSPORT };
    let end = packet.l4 + transport;
    // SAFETY: the helper takes the context of this program.
    if ctx.len() > end && unsafe { bpf_skb_change_tail(ctx.skb.skb, end, 0) } != 0 {
        return Err(Reason::KernelError);
    }
    ctx.adjust_room(room as i32, BPF_ADJ_ROOM_MAC, 0).map_err(|_| Reason::KernelError)?;
    Ok(end - ETHERNET)
}

/// The most 4-byte words of a quote: 60 bytes of IPv4 header or 40 of IPv6 with a few extension headers, and 12.
const QUOTED_WORDS: u32 = 26;

/// The checksum of `sum` and of the quote, `length` bytes at `at`.
#[inline(always)]
fn checksum(ctx: &TcContext, mut sum: u64, at: u32, length: u32) -> Result<u16, Reason> {
    for word in 0..QUOTED_WORDS {
        if word * 4 < length {
            sum += u64::from(load::<u32>(ctx, at + word * 4)?);
        }
    }
    if length > QUOTED_WORDS * 4 {
        return Err(Reason::NoBackends);
    }
    Ok(folded(sum))
}

/// One's complement of the one's complement sum of 32-bit words, in the byte order that they were read in.
#[inline(always)]
const fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Destination unreachable, port unreachable (RFC 792).
#[inline(always)]
fn unreachable_v4(ctx: &TcContext, packet: &Packet) -> Result<(), Reason> {
    const HEADERS: u32 = 28;
    let length = quote(ctx, packet, HEADERS)?;
    let (source, destination) = (packet.tuple.source.words()[3], packet.tuple.destination.words()[3]);
    let total = ((HEADERS + length) as u16).to_be_bytes();
    // Type of service, then length; don't fragment; TTL and protocol.
    let mut header = [
        u32::from_ne_bytes([0x45, 0, total[0], total[1]]),
        u32::from_ne_bytes([0, 0, 0x40, 0]),
        u32::from_ne_bytes([64, protocol::ICMP, 0, 0]),
        destination,
        source,
    ];
    let mut sum = 0;
    for word in header {
        sum += u64::from(word);
    }
    let [a, b] = folded(sum).to_ne_bytes();
    header[2] = u32::from_ne_bytes([64, protocol::ICMP, a, b]);
    let what = u32::from_ne_bytes([3, 3, 0, 0]);
    let [a, b] = checksum(ctx, u64::from(what), ETHERNET + HEADERS, length)?.to_ne_bytes();
    store(ctx, ETHERNET, &header, 0)?;
    store(ctx, ETHERNET + 20, &[u32::from_ne_bytes([3, 3, a, b]), 0], 0)
}

/// Destination unreachable, port unreachable (RFC 4443).
#[inline(always)]
fn unreachable_v6(ctx: &TcContext, packet: &Packet) -> Result<(), Reason> {
    const HEADERS: u32 = 48;
    let length = quote(ctx, packet, HEADERS)?;
    let (source, destination) = (packet.tuple.source.words(), packet.tuple.destination.words());
    let payload = length + 8;
    let [a, b] = (payload as u16).to_be_bytes();
    let first = [u32::from_ne_bytes([0x60, 0, 0, 0]), u32::from_ne_bytes([a, b, protocol::ICMPV6, 64])];
    let what = u32::from_ne_bytes([1, 4, 0, 0]);
    // The pseudo header: addresses, length, next header.
    let mut sum =
        u64::from(what) + u64::from(payload.to_be()) + u64::from(u32::from(protocol::ICMPV6).to_be());
    for word in 0..4 {
        sum += u64::from(source[word]) + u64::from(destination[word]);
    }
    let [a, b] = checksum(ctx, sum, ETHERNET + HEADERS, length)?.to_ne_bytes();
    store(ctx, ETHERNET, &first, 0)?;
    store(ctx, ETHERNET + 8, &[destination, source], 0)?;
    store(ctx, ETHERNET + 40, &[u32::from_ne_bytes([1, 4, a, b]), 0], 0)
}
