//! ICMP errors: the packet that they quote has to be the one that its sender knows.

use aya_ebpf::programs::TcContext;
use portway_datapath::packet::Piece;
use portway_datapath::{Port, Reason, quoted_frontend};

use crate::maps::PodTables;
use crate::parse::Packet;
use crate::quoted::set_quoted;
use crate::rewrite::{End, set_destination, set_source};

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

/// The error of a pod about a packet that it sent to itself by a service, on its way to the hairpin address: it quotes what
/// the pod sent as a client, and comes from the frontend. `UnknownEndpoint`: it sent no such packet.
#[inline(never)]
pub(crate) fn translate_own_error(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    let own = packet.tuple.source;
    // Of a later piece, what would be quoted is in the first.
    if matches!(packet.piece, Piece::Later) {
        return Err(Reason::UnknownEndpoint);
    }
    let quoted = packet.parse_quoted(ctx)?;
    let mut sent = quoted.tuple;
    sent.source = own;
    let (addr, port) = quoted_frontend(&PodTables, &sent).ok_or(Reason::UnknownEndpoint)?;
    set_quoted(ctx, packet, quoted, End::Source, own, sent.source_port)?;
    set_quoted(ctx, packet, quoted, End::Destination, addr, port)?;
    set_source(ctx, packet, addr, Port::new(0))?;
    set_destination(ctx, packet, own, Port::new(0))
}
