//! What a pod sends: checked, translated where it goes to a service, and taken to where it goes.

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::{classifier, map};
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{IcmpClass, protocol};
use portway_datapath::{
    Direction, Family, NetworkWord, NodeNetwork, Outgoing, PacketTables as _, Port, Reason, ServiceDesk,
    answer_to_itself, outgoing,
};

use crate::deliver::{deliver_seen, hand_over, sighting, to_tunnel};
use crate::fragment::complete;
use crate::icmp::{translate_error_to_frontend, translate_own_error};
use crate::maps::KernelTables;
use crate::parse::{Link, Packet, link};
use crate::refuse::refuse;
use crate::rewrite::{set_destination, set_source};
use crate::source::{Audience, Matter, arp, audience, check};

/// The desk of the packet that is looked at: a program runs to its end before another one of these hooks begins on its CPU.
#[map(name = "pw_svc_desk")]
static DESK: PerCpuArray<ServiceDesk> = PerCpuArray::with_max_entries(1, 0);

/// See [`DESK`].
#[inline(always)]
fn desk() -> Result<&'static mut ServiceDesk, Reason> {
    let desk = DESK.get_ptr_mut(0).ok_or(Reason::KernelError)?;
    // SAFETY: the array has the element, and nobody else has it now. All bytes zero are a desk.
    Ok(unsafe { &mut *desk })
}

#[classifier]
pub(crate) fn pw_from_pod(ctx: TcContext) -> i32 {
    let bytes = ctx.len();
    let (verdict, reason) = match try_from_pod(&ctx) {
        Ok(Passed::On(verdict)) => (verdict, Reason::Forwarded),
        Ok(Passed::Refused(verdict)) => (verdict, Reason::NoBackends),
        Err(reason) => (TC_ACT_SHOT, reason),
    };
    KernelTables.count_packet(reason, Direction::Egress, bytes);
    // Our filter may still be behind our link, and would see a second time what goes on.
    if verdict == TC_ACT_UNSPEC && KernelTables.network(NetworkWord::Switches) & NodeNetwork::OWN_LINKS != 0 {
        return TC_ACT_OK;
    }
    verdict
}

/// What became of a packet that was not dropped, with the verdict.
enum Passed {
    /// It goes where it goes.
    On(i32),
    /// It went back as a refusal.
    Refused(i32),
}

#[inline(always)]
fn try_from_pod(ctx: &TcContext) -> Result<Passed, Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp => return arp(ctx).map(Passed::On),
        // Nothing else has a source that could be checked.
        Link::Other => return Err(Reason::InvalidSource),
    };
    let packet = Packet::parse(ctx, family)?;
    match check(ctx, packet)? {
        Matter::Flow => {}
        Matter::Neighbours => return Ok(Passed::On(TC_ACT_UNSPEC)),
    }
    match audience(packet) {
        Audience::One => {}
        Audience::Many => return Ok(Passed::On(TC_ACT_UNSPEC)),
        Audience::Loopback => return Err(Reason::Malformed),
    }
    complete(packet)?;
    let mut to = KernelTables.endpoint(&packet.tuple.destination);
    // No pod has it: what goes to one needs no look.
    if to.is_none() && packet.tuple.destination == KernelTables.hairpin(packet.family) {
        if matches!(packet.icmp, IcmpClass::Error) {
            translate_own_error(ctx, packet)?;
        } else {
            translate_own_answer(ctx, packet)?;
        }
        let own = KernelTables.endpoint(&packet.tuple.destination).ok_or(Reason::UnknownEndpoint)?;
        return hand_over(ctx, packet, own).map(Passed::On);
    }
    let sighting = sighting(ctx, packet, Direction::Egress);
    if matches!(packet.icmp, IcmpClass::Error) {
        translate_error_to_frontend(ctx, packet)?;
        to = KernelTables.endpoint(&packet.tuple.destination);
    } else {
        match outgoing(&KernelTables, &packet.tuple, to.is_some(), &sighting, desk) {
            Outgoing::Direct => {}
            Outgoing::ToBackend { addr, port, source_port } => {
                set_destination(ctx, packet, addr, port)?;
                if source_port != packet.tuple.source_port {
                    let own = packet.tuple.source;
                    set_source(ctx, packet, own, source_port)?;
                }
                to = KernelTables.endpoint(&addr);
            }
            Outgoing::ToItself { port, source_port } => {
                let own = packet.tuple.source;
                set_destination(ctx, packet, own, port)?;
                set_source(ctx, packet, KernelTables.hairpin(packet.family), source_port)?;
                to = KernelTables.endpoint(&own);
            }
            Outgoing::Refuse => return refuse(ctx, packet).map(Passed::Refused),
            Outgoing::Drop(reason) => return Err(reason),
        }
    }
    if is_tunnels(packet) {
        return Err(Reason::TunnelFromPod);
    }
    let verdict = match to {
        Some(to) => deliver_seen(ctx, packet, to, &sighting.arriving())?,
        None => leave(ctx, packet)?,
    };
    Ok(Passed::On(verdict))
}

/// Where to for a packet that is for no pod of this node: into the tunnel, or to the node's stack.
#[inline(always)]
fn leave(ctx: &TcContext, packet: &Packet) -> Result<i32, Reason> {
    if KernelTables.network(NetworkWord::Switches) & NodeNetwork::TUNNEL != 0
        && KernelTables.ipcache(&packet.tuple.destination).is_some_and(|there| there.tunnel().is_some())
    {
        return to_tunnel(ctx, packet, KernelTables.network(NetworkWord::Tunnel) as u32);
    }
    Ok(TC_ACT_UNSPEC)
}

/// The answer of a pod to itself, which knows its peer by the hairpin address: it comes from the frontend.
#[inline(never)]
fn translate_own_answer(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    let sighting = sighting(ctx, packet, Direction::Egress);
    let ((addr, port), own_port): ((_, Port), Port) =
        answer_to_itself(&KernelTables, &packet.tuple, &sighting).ok_or(Reason::UnknownEndpoint)?;
    let own = packet.tuple.source;
    set_source(ctx, packet, addr, port)?;
    set_destination(ctx, packet, own, own_port)
}

/// A packet as the tunnel itself sends them: other nodes would take it for this node's.
#[inline(always)]
fn is_tunnels(packet: &Packet) -> bool {
    packet.tuple.protocol == protocol::UDP
        && KernelTables.network(NetworkWord::Switches) & NodeNetwork::TUNNEL != 0
        && packet.tuple.destination_port.get() == (KernelTables.network(NetworkWord::Tunnel) >> 32) as u16
}
