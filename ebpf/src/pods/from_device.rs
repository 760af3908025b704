//! What comes to the node by a device: answers to what was masqueraded, and packets for its pods.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::nat::{Arriving, arriving, error_arriving};
use portway_datapath::packet::IcmpClass;
use portway_datapath::{Direction, Family, PacketTables as _, Port, Reason};

use crate::deliver::{PACKET_HOST, deliver};
use crate::fragment::complete;
use crate::maps::KernelTables;
use crate::nat::{desk, nat_packet, node, quoted};
use crate::parse::{Link, Packet, link};
use crate::quoted::set_quoted;
use crate::rewrite::{End, set_destination};

#[classifier]
pub(crate) fn pw_from_device(ctx: TcContext) -> i32 {
    match try_from_device(&ctx) {
        Ok(verdict) => verdict,
        Err(reason) => {
            KernelTables.count_packet(reason, Direction::Ingress, ctx.len());
            TC_ACT_SHOT
        }
    }
}

#[inline(always)]
fn try_from_device(ctx: &TcContext) -> Result<i32, Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp | Link::Other => return Ok(TC_ACT_UNSPEC),
    };
    // SAFETY: the kernel gives programs of this hook a valid `__sk_buff`.
    let kind = unsafe { core::ptr::read_volatile(&raw const (*ctx.skb.skb).pkt_type) };
    if kind != PACKET_HOST {
        return Ok(TC_ACT_UNSPEC);
    }
    // What cannot be read, or put together, is no pod's; whether it is the node's own, its stack knows.
    let Ok(packet) = Packet::parse(ctx, family) else { return Ok(TC_ACT_UNSPEC) };
    let completed = complete(packet);
    if let Some(pod) = KernelTables.endpoint(&packet.tuple.destination) {
        completed?;
        return deliver(ctx, packet, pod);
    }
    if completed.is_err() {
        return Ok(TC_ACT_UNSPEC);
    }
    if matches!(packet.icmp, IcmpClass::Error) {
        error_from_device(ctx, packet)?;
    } else {
        answer_from_device(ctx, packet)?;
    }
    match KernelTables.endpoint(&packet.tuple.destination) {
        Some(pod) => deliver(ctx, packet, pod),
        // Nothing of a pod's, or of one that is gone: the stack knows, or answers.
        None => Ok(TC_ACT_UNSPEC),
    }
}

/// Gives an answer to what was masqueraded the destination that sent for it.
#[inline(always)]
fn answer_from_device(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    let desk = desk()?;
    match arriving(&KernelTables, desk, node(), &nat_packet(packet)) {
        Arriving::Unchanged => Ok(()),
        Arriving::Destination => {
            let (addr, port) = desk.result();
            set_destination(ctx, packet, addr, port)
        }
    }
}

/// The same of an ICMP error, with the packet that it quotes.
#[inline(never)]
fn error_from_device(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    let Some(quoted) = quoted(ctx, packet) else { return Ok(()) };
    let desk = desk()?;
    if !error_arriving(&KernelTables, desk, node(), packet.tuple.destination, &nat_packet(quoted)) {
        return Ok(());
    }
    let (addr, port) = desk.result();
    set_quoted(ctx, packet, quoted, End::Source, addr, port)?;
    set_destination(ctx, packet, addr, Port::new(0))
}
