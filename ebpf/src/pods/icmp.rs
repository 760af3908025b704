//! ICMP errors: the packet that they quote has to be the one that its sender knows.

use aya_ebpf::programs::TcContext;
use portway_datapath::packet::Piece;
use portway_datapath::{PacketTables as _, Port, Quoted, Reason, quoted_backend, quoted_frontend};

use crate::maps::KernelTables;
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
    // What cannot be read is of no flow that could be found.
    let Ok(quoted) = packet.parse_quoted(ctx) else { return Ok(()) };
    // A quoted piece without ports belongs to no flow that could be found.
    if matches!(quoted.piece, Piece::Later) {
        return Ok(());
    }
    let Some(Quoted { addr, port, own_port }) = quoted_frontend(&KernelTables, &quoted.tuple) else {
        return Ok(());
    };
    set_quoted(ctx, packet, quoted, End::Destination, addr, port)?;
    if own_port != quoted.tuple.source_port {
        set_quoted(ctx, packet, quoted, End::Source, quoted.tuple.source, own_port)?;
    }
    if packet.tuple.source == quoted.tuple.destination {
        set_source(ctx, packet, addr, Port::new(0))?;
    }
    Ok(())
}

/// An error that a pod sends about an answer of a service: it goes to the backend and quotes what that sent. Where the pod is its
/// own backend, that was to the hairpin address, which the error comes from.
#[inline(never)]
pub(crate) fn translate_error_to_frontend(ctx: &TcContext, packet: &mut Packet) -> Result<(), Reason> {
    if matches!(packet.piece, Piece::Later) {
        return Ok(());
    }
    let Ok(quoted) = packet.parse_quoted(ctx) else { return Ok(()) };
    let own = packet.tuple.source;
    if matches!(quoted.piece, Piece::Later)
        || quoted.tuple.source != packet.tuple.destination
        || quoted.tuple.destination != own
    {
        return Ok(());
    }
    let Some(Quoted { addr, port, own_port }) = quoted_backend(&KernelTables, &quoted.tuple) else {
        return Ok(());
    };
    set_quoted(ctx, packet, quoted, End::Source, addr, port)?;
    if addr == own {
        let hairpin = KernelTables.hairpin(packet.family);
        set_quoted(ctx, packet, quoted, End::Destination, hairpin, own_port)?;
        set_source(ctx, packet, hairpin, Port::new(0))?;
    } else if own_port != quoted.tuple.destination_port {
        set_quoted(ctx, packet, quoted, End::Destination, own, own_port)?;
    }
    set_destination(ctx, packet, addr, Port::new(0))
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
    let Quoted { addr, port, own_port } =
        quoted_frontend(&KernelTables, &sent).ok_or(Reason::UnknownEndpoint)?;
    set_quoted(ctx, packet, quoted, End::Source, own, own_port)?;
    set_quoted(ctx, packet, quoted, End::Destination, addr, port)?;
    set_source(ctx, packet, addr, Port::new(0))?;
    set_destination(ctx, packet, own, Port::new(0))
}
