//! ICMP errors: the packet that they quote has to be the one that its sender knows.

use aya_ebpf::programs::TcContext;
use portway_datapath::packet::Piece;
use portway_datapath::{Port, Reason, quoted_frontend};

use crate::maps::PodTables;
use crate::parse::Packet;
use crate::quoted::set_quoted;
use crate::rewrite::{End, set_source};

/// An error that goes to a pod about a packet that the pod sent to a service: it quotes the frontend, and if it is the
/// backend's own, it comes from the frontend.
#[inline(never)]
pub(crate) fn translate_error(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    // Of a later piece, what would be quoted is in the first.
    if matches!(packet.piece, Piece::Later) {
        return Ok(());
    }
    let quoted = packet.parse_quoted(ctx)?;
    // A quoted piece without ports belongs to no flow that could be found.
    if matches!(quoted.piece, Piece::Later) {
        return Ok(());
    }
    let Some((addr, port)) = quoted_frontend(&PodTables, &quoted.tuple) else { return Ok(()) };
    set_quoted(ctx, packet, quoted, End::Destination, addr, port)?;
    if packet.tuple.source == quoted.tuple.destination {
        set_source(ctx, packet, addr, Port::new(0))?;
    }
    Ok(())
}
