//! What goes once nobody needs it: after the publication, after the frontends.

use portway_datapath::{ServiceIndex, ServiceWord};

use super::held::Held;
use super::outcome::Problem;
use super::publish::{Writer, store_bits};
use super::room::Room;
use crate::tables::{TableOp, TableWriter};

/// Makes the bits those of the published version, gives up the slots that it does not have, and removes source
/// ranges that are not wanted.
pub(super) fn give_up_leftovers<W: TableWriter>(
    index: ServiceIndex,
    held: &mut Held,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Problem<W::Error>> {
    let result =
        held.backends.iter_mut().try_for_each(|backend| store_bits(backend, backend.published, writer));
    held.backends.retain(|backend| {
        let is_used = backend.published != 0 || backend.stored != 0;
        if !is_used {
            room.retire_slot(backend.slot);
        }
        is_used
    });
    result?;
    while let Some(at) = held.ranges.iter().position(|range| !range.wanted) {
        let (addr, bits) = held.ranges[at].prefix;
        writer.write(&TableOp::DeleteSourceRange { service: index, addr, bits })?;
        held.ranges.remove(at);
        room.source_ranges -= 1;
    }
    Ok(())
}

/// Removes everything of a service that no frontend points at.
pub(super) fn remove<W: TableWriter>(
    index: ServiceIndex,
    held: &mut Held,
    room: &mut Room,
    writer: &mut Writer<'_, W>,
) -> Result<(), Problem<W::Error>> {
    if let Some(version) = held.version {
        writer.write(&TableOp::Publish { service: index, word: ServiceWord::NONE })?;
        room.retire_run(version.extent);
        room.retire_maglev(version.maglev);
        held.version = None;
        held.backends.iter_mut().for_each(|backend| backend.published = 0);
    }
    held.ranges.iter_mut().for_each(|range| range.wanted = false);
    give_up_leftovers(index, held, room, writer)?;
    if held.named {
        writer.write(&TableOp::ForgetService { service: index })?;
        held.named = false;
    }
    Ok(())
}
