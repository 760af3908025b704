use aya_ebpf::bindings::{TC_ACT_OK, TC_ACT_SHOT};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::{Direction, Family, PacketTables as _};

use crate::maps::PodTables;
use crate::parse::{Link, Packet, link};

#[classifier]
pub(crate) fn pw_from_pod(ctx: TcContext) -> i32 {
    let family = match link(&ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp | Link::Other => return TC_ACT_OK,
    };
    match Packet::parse(&ctx, family) {
        Ok(_) => TC_ACT_OK,
        Err(reason) => {
            PodTables.count_packet(reason, Direction::Egress, ctx.len());
            TC_ACT_SHOT
        }
    }
}
