//! What becomes of each element of each slice.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::{Mode, is_ready, says};
use crate::observed::{CiliumEndpoint, CiliumEndpointSlice, Observed};

/// What becomes of an element of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its endpoint is gone, or another slice has it.
    Out,
    /// Nothing is known of its endpoint but that it is there.
    AsItIs,
    /// It is, or becomes, what this endpoint says.
    Of(usize),
}

/// Who sits where.
pub(super) struct Seats {
    /// Of each slice, of each of its elements.
    pub(super) fates: Vec<Vec<Fate>>,
    /// Which identity a slice is of: that of half of its endpoints or more. One that is mixed more than that is left as it
    /// is, and so is every slice where identities do not count.
    pub(super) identities: Vec<Option<i64>>,
    /// Endpoints that no slice has.
    pub(super) missing: Vec<usize>,
    /// Endpoints that are in slices of other identities alone.
    pub(super) misplaced: Vec<usize>,
}

/// An element that is of an endpoint.
#[derive(Clone, Copy)]
struct Seat {
    endpoint: usize,
    slice: usize,
    element: usize,
}

/// How good a slice is for an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Of another identity.
    Wrong,
    /// Of none.
    Mixed,
    Right,
}

impl Seats {
    pub(super) fn assign(
        observed: &Observed,
        endpoints: &[&CiliumEndpoint],
        slices: &[&CiliumEndpointSlice],
        mode: Mode,
    ) -> Self {
        let mut all = Self::find(observed, endpoints, slices);
        if mode == Mode::Identity {
            all.identities = all.fates.iter().map(|fates| identity(endpoints, fates)).collect();
        }
        let seats = all.by_endpoint();
        let mut is_seated = vec![false; endpoints.len()];
        for seats in seats.chunk_by(|a, b| a.endpoint == b.endpoint) {
            let n = seats[0].endpoint;
            is_seated[n] = true;
            all.choose(n, endpoints[n], slices, seats, mode);
        }
        let is_missing = |n: &usize| !is_seated[*n] && is_ready(endpoints[*n]);
        all.missing = (0..endpoints.len()).filter(is_missing).collect();
        all
    }

    /// What would go stays as it is.
    pub(super) fn keep_all(&mut self) {
        for fate in self.fates.iter_mut().flatten().filter(|fate| **fate == Fate::Out) {
            *fate = Fate::AsItIs;
        }
    }

    /// Whose each element is.
    fn find(observed: &Observed, endpoints: &[&CiliumEndpoint], slices: &[&CiliumEndpointSlice]) -> Self {
        let names = endpoints.iter().enumerate();
        let by_name: HashMap<(&str, &str), usize> =
            names.map(|(n, endpoint)| ((&*endpoint.meta.namespace, &*endpoint.meta.name), n)).collect();
        let has_misfits = observed.endpoints.misfits().next().is_some();
        let fate = |namespace: &str, name: &str, created: Option<i64>| {
            let Some(n) = by_name.get(&(namespace, name)) else {
                let is_misfit = has_misfits && observed.endpoints.is_there(&format!("{namespace}/{name}"));
                return if is_misfit { Fate::AsItIs } else { Fate::Out };
            };
            let endpoint = endpoints[*n];
            if is_ready(endpoint) {
                Fate::Of(*n)
            } else if created.is_some() && created != endpoint.core.created {
                // Of an endpoint that had the name before.
                Fate::Out
            } else {
                Fate::AsItIs
            }
        };
        let of_slice = |slice: &&CiliumEndpointSlice| {
            let elements = slice.endpoints.iter();
            elements.map(|element| fate(&slice.of, &element.name, element.created)).collect()
        };
        Self {
            fates: slices.iter().map(of_slice).collect(),
            identities: vec![None; slices.len()],
            missing: Vec::new(),
            misplaced: Vec::new(),
        }
    }

    /// Sorted by the endpoint, then by the slice.
    fn by_endpoint(&self) -> Vec<Seat> {
        let mut seats = Vec::new();
        for (slice, fates) in self.fates.iter().enumerate() {
            for (element, fate) in fates.iter().enumerate() {
                if let Fate::Of(endpoint) = *fate {
                    seats.push(Seat { endpoint, slice, element });
                }
            }
        }
        seats.sort_by_key(|seat| seat.endpoint);
        seats
    }

    /// Which of its seats an endpoint keeps. The others are given up once that one says what it should.
    fn choose(
        &mut self,
        n: usize,
        endpoint: &CiliumEndpoint,
        slices: &[&CiliumEndpointSlice],
        seats: &[Seat],
        mode: Mode,
    ) {
        let place = |seat: &Seat| match (mode, self.identities[seat.slice]) {
            (Mode::Fcfs, _) => Place::Right,
            (Mode::Identity, None) => Place::Mixed,
            (Mode::Identity, Some(identity)) if identity == endpoint.core.id => Place::Right,
            (Mode::Identity, Some(_)) => Place::Wrong,
        };
        let is_told = |seat: &Seat| says(&slices[seat.slice].endpoints[seat.element], &endpoint.core);
        // Nothing that other endpoints' changes turn over: a leader's late write and its successor's keep the same one.
        let worth = |seat: &&Seat| (place(seat), is_told(seat), Reverse((seat.slice, seat.element)));
        let Some(kept) = seats.iter().max_by_key(worth) else { return };
        if place(kept) == Place::Wrong {
            self.misplaced.push(n);
            return;
        }
        if !is_told(kept) {
            return;
        }
        for seat in seats.iter().filter(|seat| (seat.slice, seat.element) != (kept.slice, kept.element)) {
            self.fates[seat.slice][seat.element] = Fate::Out;
        }
    }
}

/// The identity of half of a slice's endpoints or more; of two such the smaller number.
fn identity(endpoints: &[&CiliumEndpoint], fates: &[Fate]) -> Option<i64> {
    let number = |fate: &Fate| match fate {
        Fate::Of(n) => Some(endpoints[*n].core.id),
        Fate::Out | Fate::AsItIs => None,
    };
    let mut numbers: Vec<i64> = fates.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a == b).map(|run| (run.len(), Reverse(run[0])));
    let (most, Reverse(number)) = runs.max()?;
    (2 * most >= numbers.len()).then_some(number)
}
