//! Changes the packet that an ICMP error quotes, so that who gets the error finds the packet that it sent.

use aya_ebpf::helpers::bpf_csum_diff;
use aya_ebpf::programs::TcContext;
use portway_datapath::packet::{Piece, protocol};
use portway_datapath::{Addr, Family, Port, Reason};

use crate::parse::{Packet, load};
use crate::rewrite::{End, l4_replace, store};

/// Changes one end of the packet `quoted` inside the ICMP error `outer`. Of a quoted echo the port is the identifier.
///
/// Every field that changes is made up for in the error's checksum, so the quoted packet may be cut off anywhere: its
/// transport checksum follows where it is there.
#[inline(always)]
pub(crate) fn set_quoted(
    ctx: &TcContext,
    outer: &Packet,
    quoted: &Packet,
    end: End,
    addr: Addr,
    port: Port,
) -> Result<(), Reason> {
    set_quoted_end(ctx, outer.l4 + 2, quoted, end, &(addr, port))
}

/// A function of its own, which can have five arguments.
#[inline(never)]
fn set_quoted_end(
    ctx: &TcContext,
    error_checksum: u32,
    quoted: &Packet,
    end: End,
    &(addr, port): &(Addr, Port),
) -> Result<(), Reason> {
    let (old, old_port) = match end {
        End::Source => (quoted.tuple.source, quoted.tuple.source_port),
        End::Destination => (quoted.tuple.destination, quoted.tuple.destination_port),
    };
    let addresses = set_quoted_addr(ctx, error_checksum, quoted, end, &old, &addr)?;
    if matches!(quoted.piece, Piece::Later) {
        return Ok(());
    }
    let (port_at, checksum_at, covers_addresses) = match quoted.tuple.protocol {
        protocol::TCP => (port_offset(end), 16, true),
        protocol::UDP | protocol::UDP_LITE => (port_offset(end), 6, true),
        protocol::ICMP => (4, 2, false),
        protocol::ICMPV6 => (4, 2, true),
        _ => return Ok(()),
    };
    let (old_port, new_port) = (old_port.network() as u16, port.network() as u16);
    if old_port != new_port {
        replace(ctx, error_checksum, quoted.l4 + port_at, old_port, new_port)?;
    }
    let Ok(checksum) = load::<u16>(ctx, quoted.l4 + checksum_at) else { return Ok(()) };
    let is_udp = quoted.tuple.protocol == protocol::UDP;
    if is_udp && checksum == 0 {
        return Ok(());
    }
    let mut difference = u32::from(!old_port) + u32::from(new_port);
    if covers_addresses {
        difference += u32::from(addresses);
    }
    let changed = match updated(checksum, difference) {
        0 if is_udp => 0xffff,
        changed => changed,
    };
    replace(ctx, error_checksum, quoted.l4 + checksum_at, checksum, changed)
}

/// Changes the address, and in IPv4 the header's checksum. The difference that this makes to a sum over addresses.
#[inline(always)]
fn set_quoted_addr(
    ctx: &TcContext,
    error_checksum: u32,
    quoted: &Packet,
    end: End,
    old: &Addr,
    new: &Addr,
) -> Result<u16, Reason> {
    let (mut from, mut to) = (old.words(), new.words());
    // Of IPv4 the words before the last are the same in both.
    // SAFETY: both point to 16 bytes on the stack.
    let difference = unsafe { bpf_csum_diff(from.as_mut_ptr(), 16, to.as_mut_ptr(), 16, 0) };
    let difference = fold(u32::try_from(difference).map_err(|_| Reason::KernelError)?);
    match quoted.family {
        Family::V4 => {
            let at = quoted.l3 + if matches!(end, End::Source) { 12 } else { 16 };
            store(ctx, at, &to[3], 0)?;
            l4_replace(ctx, error_checksum, u64::from(from[3]), u64::from(to[3]), 4)?;
            let checksum: u16 = load(ctx, quoted.l3 + 10)?;
            let changed = updated(checksum, u32::from(difference));
            replace(ctx, error_checksum, quoted.l3 + 10, checksum, changed)?;
        }
        Family::V6 => {
            let at = quoted.l3 + if matches!(end, End::Source) { 8 } else { 24 };
            store(ctx, at, &to, 0)?;
            l4_replace(ctx, error_checksum, 0, u64::from(difference), 0)?;
        }
    }
    Ok(difference)
}

#[inline(always)]
const fn port_offset(end: End) -> u32 {
    match end {
        End::Source => 0,
        End::Destination => 2,
    }
}

/// Stores a field and makes up for it in the error's checksum.
#[inline(always)]
fn replace(ctx: &TcContext, error_checksum: u32, at: u32, old: u16, new: u16) -> Result<(), Reason> {
    store(ctx, at, &new, 0)?;
    l4_replace(ctx, error_checksum, u64::from(old), u64::from(new), 2)
}

/// A checksum after what it covers changed by `difference` (RFC 1624, equation 3).
#[inline(always)]
const fn updated(checksum: u16, difference: u32) -> u16 {
    !fold(!checksum as u32 + difference)
}

/// A sum of 16-bit words with end-around carry.
#[inline(always)]
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
