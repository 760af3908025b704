//! What goes into the tunnel: the node behind which its destination is.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::{Direction, Family, NumericIdentity, PacketTables as _, Reason};

use crate::maps::KernelTables;
use crate::parse::{Link, Packet, link};
use crate::policy::identity;
use crate::rewrite::store;
use crate::tunnel_key::set_remote;

/// Who sends in the tunnel. The kernel's VXLAN device drops as its own echo what comes from the MAC that it has itself, which
/// is the same on all nodes.
const SENDER: [u8; 6] = [0x02, 0x70, 0x77, 0x00, 0x00, 0x02];

/// Offset of the source MAC.
const SOURCE_MAC: u32 = 6;

#[classifier]
pub(crate) fn pw_to_tunnel(ctx: TcContext) -> i32 {
    match try_to_tunnel(&ctx) {
        Ok(()) => TC_ACT_UNSPEC,
        Err(reason) => {
            KernelTables.count_packet(reason, Direction::Egress, ctx.len());
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
    let place = KernelTables.ipcache(&packet.tuple.destination);
    let node = place.and_then(|value| value.tunnel()).ok_or(Reason::UnknownEndpoint)?;
    store(ctx, SOURCE_MAC, &SENDER, 0)?;
    // What is no pod's is this node's own: nobody else's packets come here.
    let sender = match KernelTables.endpoint(&packet.tuple.source) {
        Some(pod) => identity(pod),
        None => NumericIdentity::HOST,
    };
    set_remote(ctx, node, sender)
}
