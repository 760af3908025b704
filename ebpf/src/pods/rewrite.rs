//! Changes addresses and ports of a packet, with its checksums.
//!
//! Right for every state a checksum can be in: complete, left to the device (then the field holds the sum of the pseudo
//! header, which the kernel's helpers know) or verified by the device (then the kernel keeps a sum of the packet, which
//! has to follow: an IPv6 address is stored with `BPF_F_RECOMPUTE_CSUM` because no header checksum makes up for it).

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::bpf_csum_diff;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{IcmpClass, Piece, protocol};
use portway_datapath::{Addr, Family, Port, Reason};

use crate::parse::Packet;

/// Which end of a packet is changed.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Changes the source, in the packet and in `packet`. Of an ICMP echo the port is the identifier; a later piece of a datagram
/// has no ports to change.
#[inline(always)]
pub(crate) fn set_source(ctx: &TcContext, packet: &mut Packet, addr: Addr, port: Port) -> Result<(), Reason> {
    set_end(ctx, packet, End::Source, addr, port)
}

/// As [`set_source`].
#[inline(always)]
pub(crate) fn set_destination(
    ctx: &TcContext,
    packet: &mut Packet,
    addr: Addr,
    port: Port,
) -> Result<(), Reason> {
    set_end(ctx, packet, End::Destination, addr, port)
}

#[inline(never)]
fn set_end(ctx: &TcContext, packet: &mut Packet, end: End, addr: Addr, port: Port) -> Result<(), Reason> {
    let (old, old_port) = match end {
        End::Source => (packet.tuple.source, packet.tuple.source_port),
        End::Destination => (packet.tuple.destination, packet.tuple.destination_port),
    };
    if addr != old {
        set_addr(ctx, packet, end, &old, &addr)?;
    }
    if port != old_port {
        set_port(ctx, packet, end, old_port, port)?;
    }
    let tuple = &mut packet.tuple;
    match end {
        End::Source => (tuple.source, tuple.source_port) = (addr, port),
        End::Destination => (tuple.destination, tuple.destination_port) = (addr, port),
    }
    if matches!(packet.icmp, IcmpClass::Echo) {
        (tuple.source_port, tuple.destination_port) = (port, port);
    }
    Ok(())
}

#[inline(always)]
fn set_addr(ctx: &TcContext, packet: &Packet, end: End, old: &Addr, new: &Addr) -> Result<(), Reason> {
    let checksum = checksum(packet);
    match packet.family {
        Family::V4 => {
            let (old, new) = (old.words()[3], new.words()[3]);
            if let Some(checksum) = checksum.of_pseudo_header {
                l4_replace(
                    ctx,
                    checksum,
                    u64::from(old),
                    u64::from(new),
                    BPF_F_PSEUDO_HDR | mangled(packet) | 4,
                )?;
            }
            ctx.l3_csum_replace((packet.l3 + 10) as usize, u64::from(old), u64::from(new), 4)
                .map_err(|_| Reason::KernelError)?;
            let at = packet.l3 + if matches!(end, End::Source) { 12 } else { 16 };
            store(ctx, at, &new, 0)
        }
        Family::V6 => {
            let (mut old, mut new) = (old.words(), new.words());
            if let Some(checksum) = checksum.of_pseudo_header {
                // SAFETY: both point to 16 bytes on the stack.
                let difference = unsafe { bpf_csum_diff(old.as_mut_ptr(), 16, new.as_mut_ptr(), 16, 0) };
                let difference = u64::try_from(difference).map_err(|_| Reason::KernelError)?;
                l4_replace(ctx, checksum, 0, difference, BPF_F_PSEUDO_HDR | mangled(packet))?;
            }
            let at = packet.l3 + if matches!(end, End::Source) { 8 } else { 24 };
            store(ctx, at, &new, BPF_F_RECOMPUTE_CSUM)
        }
    }
}

#[inline(always)]
fn set_port(ctx: &TcContext, packet: &Packet, end: End, old: Port, new: Port) -> Result<(), Reason> {
    if matches!(packet.piece, Piece::Later) {
        return Ok(());
    }
    let at = match packet.tuple.protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE => {
            packet.l4 + if matches!(end, End::Source) { 0 } else { 2 }
        }
        protocol::ICMP | protocol::ICMPV6 => packet.l4 + 4,
        // No port, or one that a checksum over the whole packet protects (SCTP).
        _ => return Err(Reason::KernelError),
    };
    let (old, new) = (old.network(), new.network() as u16);
    if let Some(checksum) = checksum(packet).of_ports {
        l4_replace(ctx, checksum, u64::from(old), u64::from(new), mangled(packet) | 2)?;
    }
    store(ctx, at, &new, 0)
}

/// Offsets of the transport checksum, for what it covers.
struct Checksum {
    of_pseudo_header: Option<u32>,
    of_ports: Option<u32>,
}

#[inline(always)]
fn checksum(packet: &Packet) -> Checksum {
    if matches!(packet.piece, Piece::Later) {
        return Checksum { of_pseudo_header: None, of_ports: None };
    }
    let (at, covers_addresses) = match packet.tuple.protocol {
        protocol::TCP => (packet.l4 + 16, true),
        protocol::UDP | protocol::UDP_LITE => (packet.l4 + 6, true),
        protocol::ICMPV6 => (packet.l4 + 2, true),
        protocol::ICMP => (packet.l4 + 2, false),
        _ => return Checksum { of_pseudo_header: None, of_ports: None },
    };
    Checksum { of_pseudo_header: covers_addresses.then_some(at), of_ports: Some(at) }
}

/// A UDP checksum of 0 is none, and stays so.
#[inline(always)]
fn mangled(packet: &Packet) -> u32 {
    if packet.tuple.protocol == protocol::UDP { BPF_F_MARK_MANGLED_0 } else { 0 }
}

#[inline(always)]
pub(crate) fn l4_replace(ctx: &TcContext, at: u32, old: u64, new: u64, flags: u32) -> Result<(), Reason> {
    ctx.l4_csum_replace(at as usize, old, new, u64::from(flags)).map_err(|_| Reason::KernelError)
}

#[inline(always)]
pub(crate) fn store<T>(ctx: &TcContext, at: u32, value: &T, flags: u32) -> Result<(), Reason> {
    ctx.store(at as usize, value, u64::from(flags)).map_err(|_| Reason::KernelError)
}
