//! What goes into the tunnel: the node behind which its destination is.

use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::{Direction, Family, PacketTables as _, Reason};

use crate::maps::PodTables;
use crate::parse::{Link, Packet, link};
use crate::tunnel_key::set_remote;

#[classifier]
pub(crate) fn pw_to_tunnel(ctx: TcContext) -> i32 {
    match try_to_tunnel(&ctx) {
        Ok(()) => TC_ACT_OK,
        Err(reason) => {
            PodTables.count_packet(reason, Direction::Egress, ctx.len());
            TC_ACT_SHOT
        }
    }
}

#[inline(always)]
fn try_to_tunnel(ctx: &TcContext) -> Result<(), Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        // The tunnel has no neighbours to ask for.
        Link::Arp | Link::Other => return Err(Reason::UnknownEndpoint),
    };
    let packet = Packet::parse(ctx, family)?;
    let place = PodTables.ipcache(&packet.tuple.destination);
    let node = place.and_then(|value| value.tunnel()).ok_or(Reason::UnknownEndpoint)?;
    set_remote(ctx, node)
}
