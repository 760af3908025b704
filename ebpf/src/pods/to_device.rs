//! What leaves the node by a device: pods are masqueraded towards the world, and the node's own flows keep their ports.

use aya_ebpf::bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use portway_datapath::nat::{Leaving, LeavingError, error_leaving, leaving};
use portway_datapath::packet::IcmpClass;
use portway_datapath::{Addr, DeviceValue, Direction, Family, PacketTables as _, Port, Reason};

use crate::fragment::complete;

use crate::maps::KernelTables;
use crate::nat::{desk, nat_packet, node, quoted};
use crate::parse::{Link, Packet, link};
use crate::quoted::set_quoted;
use crate::rewrite::{End, set_source};

/// Of no device.
const NOWHERE: DeviceValue = DeviceValue { v4: Addr::ANY_V6, v6: Addr::ANY_V6 };

#[classifier]
pub(crate) fn pw_to_device(ctx: TcContext) -> i32 {
    match try_to_device(&ctx) {
        Ok(()) => TC_ACT_UNSPEC,
        Err(reason) => {
            KernelTables.count_packet(reason, Direction::Egress, ctx.len());
            TC_ACT_SHOT
        }
    }
}

#[inline(always)]
fn try_to_device(ctx: &TcContext) -> Result<(), Reason> {
    let family = match link(ctx) {
        Link::Ipv4 => Family::V4,
        Link::Ipv6 => Family::V6,
        Link::Arp | Link::Other => return Ok(()),
    };
    // SAFETY: the kernel gives programs of this hook a valid `__sk_buff`.
    let ifindex = unsafe { core::ptr::read_volatile(&raw const (*ctx.skb.skb).ifindex) };
    // A device whose entry is not there, or just being changed, has no address: what needs one does not leave by it.
    let device = KernelTables.device(ifindex).unwrap_or(NOWHERE);
    // What a pod sends was judged at its interface; what the node's own stack sends is not ours to drop.
    let Ok(packet) = Packet::parse(ctx, family) else { return Ok(()) };
    if let Err(reason) = complete(packet) {
        let is_pods = KernelTables.endpoint(&packet.tuple.source).is_some();
        return if is_pods { Err(reason) } else { Ok(()) };
    }
    if matches!(packet.icmp, IcmpClass::Error) {
        return error_to_device(ctx, packet);
    }
    let desk = desk()?;
    match leaving(&KernelTables, desk, node(), &device, &nat_packet(packet)) {
        Leaving::Unchanged => Ok(()),
        Leaving::Source => {
            let (addr, port) = desk.result();
            set_source(ctx, packet, addr, port)
        }
        Leaving::Drop(reason) => Err(reason),
    }
}

/// An ICMP error of a pod's or of the node's own.
#[inline(never)]
fn error_to_device(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    let Some(quoted) = quoted(ctx, packet) else { return Ok(()) };
    let desk = desk()?;
    match error_leaving(&KernelTables, desk, node(), &packet.tuple, &nat_packet(quoted)) {
        LeavingError::Unchanged => Ok(()),
        LeavingError::About { from_pod } => {
            let (addr, port) = desk.result();
            set_quoted(ctx, packet, quoted, End::Destination, addr, port)?;
            if from_pod { set_source(ctx, packet, addr, Port::new(0)) } else { Ok(()) }
        }
        LeavingError::Drop(reason) => Err(reason),
    }
}
