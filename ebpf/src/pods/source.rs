//! A pod sends only from what is its own: addresses and MAC, also in what it tells of itself by ARP and neighbour discovery.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{Piece, protocol};
use portway_datapath::{Addr, EndpointValue, Family, NetworkWord, NodeNetwork, PacketTables as _, Reason};

use crate::maps::KernelTables;
use crate::parse::{ETHERNET, Packet, load};

/// IPv4 over Ethernet, as the first six bytes of an ARP packet say it.
const ARP_IPV4: [u16; 3] = [1u16.to_be(), 0x0800u16.to_be(), 0x0604u16.to_be()];

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD2_REPORT: u8 = 143;

/// Whose a packet of a pod is.
pub(crate) enum Matter {
    /// It is part of a flow of the pod's.
    Flow,
    /// It is between neighbours: the node's stack takes it.
    Neighbours,
}

/// The ifindex of the device that a packet came by.
#[inline(always)]
pub(crate) fn ifindex(ctx: &TcContext) -> u32 {
    // SAFETY: the kernel gives programs of these hooks a valid `__sk_buff`; `ifindex` may be read.
    unsafe { core::ptr::read_volatile(&raw const (*ctx.skb.skb).ifindex) }
}

#[inline(always)]
fn verifies() -> bool {
    KernelTables.network(NetworkWord::Switches) & NodeNetwork::VERIFY_SOURCE != 0
}

/// Checks who sent `packet`; `InvalidSource` where it is not who it says. (Whose the packet is may be looked up again: a
/// pointer that is kept makes the verifier walk through everything behind once more.)
#[inline(always)]
pub(crate) fn check(ctx: &TcContext, packet: &Packet) -> Result<Matter, Reason> {
    if packet.tuple.protocol == protocol::ICMPV6 && is_between_neighbours(packet) {
        neighbours(ctx, packet)?;
        return Ok(Matter::Neighbours);
    }
    if is_own_address(ctx, &packet.tuple.source, &packet.source_mac) || !verifies() {
        Ok(Matter::Flow)
    } else {
        Err(Reason::InvalidSource)
    }
}

/// Whether `pod` is behind the interface that the packet came by, and has this MAC.
#[inline(always)]
fn is_own(ctx: &TcContext, pod: &EndpointValue, mac: &[u8; 6]) -> bool {
    pod.ifindex == ifindex(ctx) && pod.mac == *mac
}

#[inline(always)]
fn is_own_address(ctx: &TcContext, addr: &Addr, mac: &[u8; 6]) -> bool {
    KernelTables.endpoint(addr).is_some_and(|pod| is_own(ctx, pod, mac))
}

#[inline(always)]
fn is_between_neighbours(packet: &Packet) -> bool {
    matches!(packet.piece, Piece::Whole) && matches!(packet.icmp_type, MLD_QUERY..=REDIRECT | MLD2_REPORT)
}

/// Neighbour discovery and multicast listeners, of a link between two.
///
/// Link-local addresses are not known to the node: a pod may have any but the node's own. All neighbours of the node's end
/// are permanent, so nothing that a pod says here changes where packets go.
#[inline(never)]
fn neighbours(ctx: &TcContext, packet: &Packet) -> Result<(), Reason> {
    if !verifies() {
        return Ok(());
    }
    let source = &packet.tuple.source;
    let mac = &packet.source_mac;
    let unspecified = source.is_unspecified();
    if !unspecified && !is_pods_link_local(source) && !is_own_address(ctx, source, mac) {
        return Err(Reason::InvalidSource);
    }
    let honest = match packet.icmp_type {
        // Only routers say these; a pod would make itself one.
        ROUTER_ADVERTISEMENT | REDIRECT | MLD_QUERY => false,
        // From the unspecified address it asks whether anybody has the target already: its own, that is.
        NEIGHBOUR_SOLICITATION => {
            says_own_mac(ctx, packet, 1)?
                && (!unspecified || is_pods_target(ctx, &load_target(ctx, packet)?, mac))
        }
        NEIGHBOUR_ADVERTISEMENT => {
            !unspecified
                && says_own_mac(ctx, packet, 2)?
                && is_pods_target(ctx, &load_target(ctx, packet)?, mac)
        }
        ROUTER_SOLICITATION | MLD_REPORT | MLD_DONE | MLD2_REPORT => true,
        _ => false,
    };
    if honest { Ok(()) } else { Err(Reason::InvalidSource) }
}

#[inline(always)]
fn load_target(ctx: &TcContext, packet: &Packet) -> Result<Addr, Reason> {
    Ok(Addr::from_words(load(ctx, packet.l4 + 8)?))
}

#[inline(always)]
fn is_pods_target(ctx: &TcContext, target: &Addr, mac: &[u8; 6]) -> bool {
    is_pods_link_local(target) || is_own_address(ctx, target, mac)
}

/// Whether the first option, if it tells a MAC (`kind` 1 the source's, 2 the target's), tells the frame's.
#[inline(always)]
fn says_own_mac(ctx: &TcContext, packet: &Packet, kind: u8) -> Result<bool, Reason> {
    let at = packet.l4 + 24;
    if ctx.len() <= at {
        return Ok(true);
    }
    let [option, length, a, b, c, d, e, f]: [u8; 8] = load(ctx, at)?;
    Ok(option != kind || (length == 1 && [a, b, c, d, e, f] == packet.source_mac))
}

/// fe80::/10, but for fe80::1, which is the node.
#[inline(always)]
fn is_pods_link_local(addr: &Addr) -> bool {
    let [a, b, c, d] = addr.words();
    let first = u32::from_be(a);
    first >> 22 == 0xfe80 >> 6 && !(first == 0xfe80_0000 && b == 0 && c == 0 && d == 1u32.to_be())
}

/// An ARP packet: the sender has to be the pod, or nobody yet (a probe, RFC 5227).
#[inline(never)]
pub(crate) fn arp(ctx: &TcContext) -> Result<i32, Reason> {
    if !verifies() {
        return Ok(TC_ACT_UNSPEC);
    }
    let frame: [u8; 6] = load(ctx, 6)?;
    let kind: [u16; 3] = load(ctx, ETHERNET)?;
    if kind != ARP_IPV4 {
        return Err(Reason::Malformed);
    }
    // Sender's MAC and address, target's MAC, target's address: the sender's address is not aligned to anything.
    let sender: [u8; 6] = load(ctx, ETHERNET + 8)?;
    let [a, b]: [u16; 2] = load(ctx, ETHERNET + 14)?;
    let target: u32 = load(ctx, ETHERNET + 24)?;
    let ([a0, a1], [b0, b1]) = (a.to_ne_bytes(), b.to_ne_bytes());
    let address = Addr::v4([a0, a1, b0, b1]);
    let own = if address.is_unspecified() {
        is_own_address(ctx, &Addr::from_v4_word(target), &frame)
    } else {
        is_own_address(ctx, &address, &frame)
    };
    if own && sender == frame { Ok(TC_ACT_UNSPEC) } else { Err(Reason::InvalidSource) }
}

/// Whether a packet goes to everybody, or nowhere that packets may go.
pub(crate) enum Audience {
    One,
    Many,
    /// The node's loopback: a host must not put it on a wire (RFC 1122, 3.2.1.3; RFC 4291, 2.5.3).
    Loopback,
}

#[inline(always)]
pub(crate) fn audience(packet: &Packet) -> Audience {
    let destination = &packet.tuple.destination;
    if destination.is_loopback() {
        return Audience::Loopback;
    }
    let many = match packet.family {
        // 224.0.0.0/4, 240.0.0.0/4 and the broadcast address.
        Family::V4 => destination.words()[3].to_ne_bytes()[0] >= 224,
        Family::V6 => destination.words()[0].to_ne_bytes()[0] == 0xff,
    };
    if many { Audience::Many } else { Audience::One }
}
