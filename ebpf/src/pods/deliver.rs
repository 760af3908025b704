//! The last step of a packet to a pod of this node, wherever it comes from.

use aya_ebpf::bindings::{BPF_F_RECOMPUTE_CSUM, TC_ACT_UNSPEC};
use aya_ebpf::helpers::{bpf_redirect, bpf_redirect_peer};
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::IcmpClass;
use portway_datapath::{
    Direction, EndpointValue, Family, Incoming, NodeNetwork, Reason, Sighting, Tables as _, incoming,
};

use crate::icmp::translate_error;
use crate::maps::KernelTables;
use crate::parse::Packet;
use crate::rewrite::{set_destination, set_source, store};

/// `PACKET_HOST` of the kernel's if_packet.h: for us.
pub(crate) const PACKET_HOST: u32 = 0;

/// Bytes up to the checksum of an IPv4 header behind an Ethernet header, in 16-bit words.
const UP_TO_CHECKSUM: usize = 13;

/// Tracks a packet as one that arrives for the pod `to` and gives it to the pod, past the egress hook of the pod's link.
/// Only from ingress hooks: `bpf_redirect_peer` works nowhere else.
///
/// A packet that has no hop left goes to the node's stack, which answers it.
#[inline(always)]
pub(crate) fn deliver(ctx: &TcContext, packet: &mut Packet, to: &EndpointValue) -> Result<i32, Reason> {
    deliver_seen(ctx, packet, to, &sighting(ctx, packet, Direction::Ingress))
}

/// [`deliver`] of a packet that conntrack has seen leave (`sighting`): the clock is read once.
#[inline(always)]
pub(crate) fn deliver_seen(
    ctx: &TcContext,
    packet: &mut Packet,
    to: &EndpointValue,
    sighting: &Sighting,
) -> Result<i32, Reason> {
    if packet.ttl <= 1 {
        return Ok(TC_ACT_UNSPEC);
    }
    arrive_seen(ctx, packet, sighting)?;
    hand_over(ctx, packet, to)
}

/// Tracks a packet as one that arrives for a pod, and translates what answers a flow to a service.
#[inline(always)]
pub(crate) fn arrive(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    arrive_seen(ctx, packet, &sighting(ctx, packet, Direction::Ingress))
}

#[inline(always)]
fn arrive_seen(ctx: &TcContext, packet: &mut Packet, sighting: &Sighting) -> Result<(), Reason> {
    if matches!(packet.icmp, IcmpClass::Error) {
        return translate_error(ctx, packet);
    }
    match incoming(&KernelTables, &packet.tuple, sighting) {
        Incoming::Direct => Ok(()),
        Incoming::From { addr, port, own_port } => {
            set_source(ctx, packet, addr, port)?;
            if own_port != packet.tuple.destination_port {
                let own = packet.tuple.destination;
                set_destination(ctx, packet, own, own_port)?;
            }
            Ok(())
        }
    }
}

/// Gives a packet to the pod `to` as it is.
#[inline(always)]
pub(crate) fn hand_over(ctx: &TcContext, packet: &Packet, to: &EndpointValue) -> Result<i32, Reason> {
    hop(ctx, packet, &to.mac, &to.node_mac)?;
    Ok(to_pod(to))
}

/// Gives a packet to the pod behind `to`; the verdict.
#[inline(always)]
pub(crate) fn to_pod(to: &EndpointValue) -> i32 {
    // SAFETY: a helper that takes numbers.
    unsafe { bpf_redirect_peer(to.ifindex, 0) as i32 }
}

/// Sends a packet through the tunnel device; the programs there say where to.
#[inline(always)]
pub(crate) fn to_tunnel(ctx: &TcContext, packet: &Packet, ifindex: u32) -> Result<i32, Reason> {
    if packet.ttl <= 1 {
        return Ok(TC_ACT_UNSPEC);
    }
    hop(ctx, packet, &NodeNetwork::TUNNEL_MAC, &NodeNetwork::TUNNEL_MAC)?;
    // SAFETY: a helper that takes numbers.
    Ok(unsafe { bpf_redirect(ifindex, 0) as i32 })
}

/// What routing does to a packet: one hop less, other MACs.
#[inline(never)]
fn hop(ctx: &TcContext, packet: &Packet, destination: &[u8; 6], source: &[u8; 6]) -> Result<(), Reason> {
    // SAFETY: the kernel gives programs of these hooks a valid `__sk_buff`; `pkt_type` may be read.
    let kind = unsafe { core::ptr::read_volatile(&raw const (*ctx.skb.skb).pkt_type) };
    if kind != PACKET_HOST {
        // It came to another MAC (the tunnel's), and would be nobody's.
        ctx.change_type(PACKET_HOST).map_err(|_| Reason::KernelError)?;
    }
    match packet.family {
        Family::V4 => {
            let mut head: [u16; UP_TO_CHECKSUM] = crate::parse::load(ctx, 0)?;
            [head[0], head[1], head[2]] = words(destination);
            [head[3], head[4], head[5]] = words(source);
            // TTL and protocol are one word of the checksum: RFC 1141.
            head[11] = (u16::from_be(head[11]) - 0x100).to_be();
            let checksum = u32::from(u16::from_be(head[12])) + 0x100;
            head[12] = ((checksum + (checksum >> 16)) as u16).to_be();
            store(ctx, 0, &head, 0)
        }
        Family::V6 => {
            let [a, b, c] = words(destination);
            let [d, e, f] = words(source);
            store(ctx, 0, &[a, b, c, d, e, f], 0)?;
            store(ctx, packet.l3 + 7, &(packet.ttl - 1), BPF_F_RECOMPUTE_CSUM)
        }
    }
}

#[inline(always)]
const fn words(mac: &[u8; 6]) -> [u16; 3] {
    [
        u16::from_ne_bytes([mac[0], mac[1]]),
        u16::from_ne_bytes([mac[2], mac[3]]),
        u16::from_ne_bytes([mac[4], mac[5]]),
    ]
}

/// What conntrack sees of a packet.
#[inline(always)]
pub(crate) fn sighting(ctx: &TcContext, packet: &Packet, direction: Direction) -> Sighting {
    let (protocol, flags) = (packet.tuple.protocol, packet.tcp_flags);
    Sighting { direction, protocol, flags, bytes: ctx.len(), now: KernelTables.now() }
}
