//! What the node's stack sends to a pod: from the node itself, or what it routed.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{IcmpClass, protocol};
use portway_datapath::{Direction, Family, PacketTables as _, Reason};

use crate::deliver::arrive;
use crate::fragment::complete;
use crate::maps::KernelTables;
use crate::parse::{Link, Packet, link};
use crate::source::{Audience, audience};

#[classifier]
pub(crate) fn pw_to_pod(ctx: TcContext) -> i32 {
    let bytes = ctx.len();
    let (verdict, reason) = match try_to_pod(&ctx) {
        Ok(()) => (TC_ACT_UNSPEC, Reason::Forwarded),
        Err(reason) => (TC_ACT_SHOT, reason),
    };
    KernelTables.count_packet(reason, Direction::Ingress, bytes);
    verdict
}

#[inline(always)]
fn try_to_pod(ctx: &TcContext) -> Result<(), Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp | Link::Other => return Ok(()),
    };
    let packet = Packet::parse(ctx, family)?;
    if !matches!(audience(packet), Audience::One) {
        return Ok(());
    }
    complete(packet)?;
    // Neighbour discovery is of the link, not of a flow.
    if packet.tuple.protocol == protocol::ICMPV6 && matches!(packet.icmp, IcmpClass::Other) {
        return Ok(());
    }
    arrive(ctx, packet)
}
