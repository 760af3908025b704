//! Where endpoints go that have no slice, or none of their identity.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::name::name;
use super::seats::{Fate, Seats};
use super::{Filling, Mode};
use crate::observed::{CiliumEndpoint, CiliumEndpointSlice, Observed};

/// Who is added where.
pub(super) struct Layout {
    /// Endpoints that a slice gets.
    pub(super) added: BTreeMap<usize, Vec<usize>>,
    pub(super) new: Vec<NewSlice>,
}

/// A slice that is to be made.
pub(super) struct NewSlice {
    pub(super) name: String,
    pub(super) endpoints: Vec<usize>,
}

/// Endpoints that may be together: of a namespace, and of an identity where that counts.
type Group<'a> = (&'a str, Option<i64>);

impl Layout {
    pub(super) fn find(
        observed: &Observed,
        endpoints: &[&CiliumEndpoint],
        slices: &[&CiliumEndpointSlice],
        seats: &Seats,
        filling: Filling,
        avoided: &dyn Fn(&str) -> bool,
    ) -> Self {
        let mut layout = Self { added: BTreeMap::new(), new: Vec::new() };
        let mut homeless: BTreeMap<Group<'_>, Vec<usize>> = BTreeMap::new();
        for n in seats.missing.iter().chain(&seats.misplaced) {
            let endpoint = endpoints[*n];
            let identity = (filling.mode == Mode::Identity).then_some(endpoint.core.id);
            homeless.entry((&endpoint.meta.namespace, identity)).or_default().push(*n);
        }
        if homeless.is_empty() {
            return layout;
        }
        let mut room = room(slices, seats, filling, avoided);
        let mut taken = BTreeSet::new();
        for (group, mut waiting) in homeless {
            // The oldest first: whoever plans this again, with more of them, makes the same slices.
            waiting.sort_by_key(|n| (endpoints[*n].meta.created, &endpoints[*n].meta.uid));
            let mut waiting = waiting.as_slice();
            for (Reverse(count), slice) in room.remove(&group).unwrap_or_default() {
                let (gets, wait) = waiting.split_at(waiting.len().min(filling.most - count));
                if !gets.is_empty() {
                    layout.added.insert(slice, gets.to_vec());
                }
                waiting = wait;
            }
            for chunk in waiting.chunks(filling.most) {
                let is_free = |name: &String| !observed.slices.is_there(name) && !taken.contains(name);
                let anchor = &endpoints[chunk[0]].meta.uid;
                let Some(name) = (0..).map(|salt| name(anchor, salt)).find(is_free) else { continue };
                taken.insert(name.clone());
                layout.new.push(NewSlice { name, endpoints: chunk.to_vec() });
            }
        }
        layout
    }
}

/// Slices that have room, the fullest first, with how many endpoints they keep.
fn room<'a>(
    slices: &[&'a CiliumEndpointSlice],
    seats: &Seats,
    filling: Filling,
    avoided: &dyn Fn(&str) -> bool,
) -> BTreeMap<Group<'a>, Vec<(Reverse<usize>, usize)>> {
    let mut room: BTreeMap<Group<'_>, Vec<_>> = BTreeMap::new();
    for (n, slice) in slices.iter().enumerate() {
        let count = seats.fates[n].iter().filter(|fate| **fate != Fate::Out).count();
        let identity = seats.identities[n];
        // One that is to be empty is deleted, one of many identities gets no more.
        let is_open = filling.mode == Mode::Fcfs || identity.is_some();
        let has_room = (1..filling.most).contains(&count);
        if is_open && has_room && !slice.meta.is_deleting && !avoided(&slice.meta.name) {
            room.entry((&slice.of, identity)).or_default().push((Reverse(count), n));
        }
    }
    room.values_mut().for_each(|slices| slices.sort_unstable());
    room
}
