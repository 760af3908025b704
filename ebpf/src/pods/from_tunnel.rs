//! What comes out of the tunnel: for a pod or for the node itself, from a node that may send it.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::{Direction, Family, PacketTables as _, Reason, Tables as _, is_of_node};

use crate::deliver::deliver;
use crate::fragment::complete;
use crate::maps::KernelTables;
use crate::parse::{Link, Packet, link};
use crate::tunnel_key::remote;

#[classifier]
pub(crate) fn pw_from_tunnel(ctx: TcContext) -> i32 {
    match try_from_tunnel(&ctx) {
        Ok(verdict) => verdict,
        Err(reason) => {
            KernelTables.count_packet(reason, Direction::Ingress, ctx.len());
            TC_ACT_SHOT
        }
    }
}

#[inline(always)]
fn try_from_tunnel(ctx: &TcContext) -> Result<i32, Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp | Link::Other => return Err(Reason::TunnelFromStranger),
    };
    let packet = Packet::parse(ctx, family)?;
    let sender = remote(ctx).ok_or(Reason::TunnelFromStranger)?;
    let (node, source) = (KernelTables.ipcache(&sender), KernelTables.ipcache(&packet.tuple.source));
    if !is_of_node(sender, node.as_ref(), source.as_ref()) {
        return Err(Reason::TunnelFromStranger);
    }
    if let Some(pod) = KernelTables.endpoint(&packet.tuple.destination) {
        complete(packet)?;
        return deliver(ctx, packet, pod);
    }
    // The node itself; everything else would leave again by a device.
    match KernelTables.local_address(&packet.tuple.destination) {
        Some(_) => Ok(TC_ACT_UNSPEC),
        None => Err(Reason::UnknownEndpoint),
    }
}
