//! Pieces of datagrams: only the first one has ports.

use portway_datapath::packet::{Piece, fragment_key, fragment_value, icmp_class, protocol};
use portway_datapath::{PacketTables as _, Reason};

use crate::maps::KernelTables;
use crate::parse::Packet;

/// Remembers the ports of a first piece, and gives them to the later ones. A later piece whose first has not passed here is
/// nobody's.
#[inline(always)]
pub(crate) fn complete(packet: &mut Packet) -> Result<(), Reason> {
    match packet.piece {
        Piece::Whole => Ok(()),
        Piece::First => {
            remember(packet);
            Ok(())
        }
        Piece::Later => recall(packet),
    }
}

#[inline(never)]
fn remember(packet: &Packet) {
    KernelTables.set_fragment(
        &fragment_key(&packet.tuple, packet.fragment_id),
        fragment_value(&packet.tuple, packet.icmp_type, packet.icmp_code),
    );
}

#[inline(never)]
fn recall(packet: &mut Packet) -> Result<(), Reason> {
    let key = fragment_key(&packet.tuple, packet.fragment_id);
    let first = KernelTables.fragment(&key).ok_or(Reason::UnknownFragment)?;
    packet.tuple.source_port = first.source_port;
    packet.tuple.destination_port = first.destination_port;
    if matches!(packet.tuple.protocol, protocol::ICMP | protocol::ICMPV6) {
        packet.icmp_type = first.icmp_type;
        packet.icmp_code = first.icmp_code;
        packet.icmp = icmp_class(packet.tuple.protocol, first.icmp_type);
    }
    Ok(())
}
