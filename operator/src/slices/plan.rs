//! Which endpoint is in which slice, and the writes that lead there.
//!
//! What is in a slice stays there. Every write is safe without the others of its plan, whichever of them come through:
//! an endpoint is taken out of a slice only where another one was *seen* to hold it as it should be, and that one keeps
//! it. So one that moves is added first, and taken out by a later plan; until then it says the same in both.

mod layout;
mod name;
mod seats;

use std::collections::BTreeMap;

use portway_model::crd::{CiliumEndpointSlice as Slice, CoreCiliumEndpoint, Resource as _};
use serde_json::json;

use self::layout::Layout;
use self::seats::{Fate, Seats};
use crate::observed::{CiliumEndpoint, CiliumEndpointSlice, Kind, Observed};
use crate::write::Write;

/// Which endpoints go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those of one identity.
    Identity,
    /// First come, first served.
    Fcfs,
}

/// How slices are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Endpoints of a slice, at most. What holds more already keeps them.
    pub most: usize,
    pub mode: Mode,
}

/// A write of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub write: Write,
    /// Its namespace goes before others.
    pub has_priority: bool,
    /// Endpoints that it adds.
    pub inserted: usize,
    /// Endpoints that it takes out.
    pub removed: usize,
    /// Endpoints of the slice after it.
    pub left: usize,
}

/// What is to be written, the most urgent first. Nothing is taken out unless it `may`: what is known of endpoints and of
/// slices has to be fresh for that. Slices that are `avoided` get no other endpoints than they have. O(n log n) in
/// endpoints and elements of slices.
pub fn plan(
    observed: &Observed,
    filling: Filling,
    may_take_out: bool,
    avoided: &dyn Fn(&str) -> bool,
) -> Vec<Planned> {
    let endpoints: Vec<&CiliumEndpoint> = observed.endpoints.iter().map(AsRef::as_ref).collect();
    let slices: Vec<&CiliumEndpointSlice> = observed.slices.iter().map(AsRef::as_ref).collect();
    let mut seats = Seats::assign(observed, &endpoints, &slices, filling.mode);
    if !may_take_out {
        seats.keep_all();
    }
    let layout = Layout::find(observed, &endpoints, &slices, &seats, filling, avoided);
    let mut planned = Vec::new();
    for (n, slice) in slices.iter().enumerate() {
        let added = layout.added.get(&n).map_or(&[][..], Vec::as_slice);
        planned.extend(rewrite(observed, &endpoints, slice, &seats.fates[n], added));
    }
    planned.extend(
        layout.new.iter().map(|new| create(observed, new.name.clone(), &of(&endpoints, &new.endpoints))),
    );
    planned.sort_by_key(|(urgency, _)| *urgency);
    planned.into_iter().map(|(_, planned)| planned).collect()
}

/// The smallest goes first. What is new waits for nothing, least of all for what is only to be tidied up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Urgency {
    is_ordinary: bool,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Told,
    TakenOut,
    Deleted,
}

fn of<'a>(endpoints: &[&'a CiliumEndpoint], which: &[usize]) -> Vec<&'a CiliumEndpoint> {
    which.iter().filter_map(|n| endpoints.get(*n).copied()).collect()
}

/// An endpoint that other nodes can be told of: it has an address and an identity.
fn is_ready(endpoint: &CiliumEndpoint) -> bool {
    endpoint.core.id != 0 && endpoint.core.networking.is_some()
}

fn has_priority(observed: &Observed, namespace: &str) -> bool {
    observed.namespaces.get(namespace).is_some_and(|namespace| namespace.has_priority)
}

/// The write of a slice that is there, where it is not as it should be.
fn rewrite(
    observed: &Observed,
    endpoints: &[&CiliumEndpoint],
    slice: &CiliumEndpointSlice,
    fates: &[Fate],
    added: &[usize],
) -> Option<(Urgency, Planned)> {
    let (mut changed, mut removed) = (0, 0);
    let mut elements = Vec::with_capacity(fates.len() + added.len());
    for (element, fate) in slice.endpoints.iter().zip(fates) {
        match fate {
            Fate::Out => removed += 1,
            Fate::AsItIs => elements.push(element.clone()),
            Fate::Of(n) => {
                let wanted = &endpoints[*n].core;
                changed += usize::from(!says(element, wanted));
                elements.push(merged(element, wanted));
            }
        }
    }
    elements.extend(of(endpoints, added).into_iter().map(|endpoint| endpoint.core.clone()));
    let has_priority = has_priority(observed, &slice.of);
    let urgency = |what| Urgency { is_ordinary: !has_priority, what };
    let planned = |write, left| Planned { write, has_priority, inserted: added.len(), removed, left };
    if elements.is_empty() {
        let reason = "none of its endpoints is there any more";
        let write = Write::delete(Kind::CiliumEndpointSlice, &slice.meta, reason);
        return (!slice.meta.is_deleting).then(|| (urgency(What::Deleted), planned(write, 0)));
    }
    if changed + removed + added.len() == 0 {
        return None;
    }
    let what = if changed + added.len() > 0 { What::Told } else { What::TakenOut };
    let left = elements.len();
    let reason = format!("endpoints: {} added, {changed} changed, {removed} taken out", added.len());
    let body = json!({"endpoints": elements});
    let write = Write::merge(Kind::CiliumEndpointSlice, &slice.meta, body, reason);
    Some((urgency(what), planned(write, left)))
}

fn create(observed: &Observed, name: String, endpoints: &[&CiliumEndpoint]) -> (Urgency, Planned) {
    let namespace = endpoints.first().map_or("", |endpoint| &endpoint.meta.namespace);
    let has_priority = has_priority(observed, namespace);
    let elements: Vec<_> = endpoints.iter().map(|endpoint| &endpoint.core).collect();
    let body = json!({
        "apiVersion": Slice::DEFINITION.api_version(),
        "kind": Slice::DEFINITION.kind,
        "metadata": {"name": name},
        "namespace": namespace,
        "endpoints": elements,
    });
    let count = elements.len();
    let reason = format!("endpoints: {count} that no slice has room for");
    let write = Write::create(Kind::CiliumEndpointSlice, name, body, reason);
    let planned = Planned { write, has_priority, inserted: count, removed: 0, left: count };
    (Urgency { is_ordinary: !has_priority, what: What::Told }, planned)
}

/// Whether an element says what it should. The API server drops fields that its definition does not have, and other
/// writers leave out Portway's: what no program needs to reach the endpoint is no reason to write.
fn says(element: &CoreCiliumEndpoint, wanted: &CoreCiliumEndpoint) -> bool {
    let CoreCiliumEndpoint {
        name: _,
        id,
        networking,
        encryption,
        named_ports,
        service_account,
        created,
        others: _,
    } = element;
    *id == wanted.id
        && *networking == wanted.networking
        && *encryption == wanted.encryption
        && *named_ports == wanted.named_ports
        && (service_account.is_empty() || *service_account == wanted.service_account)
        && (created.is_none() || *created == wanted.created)
}

/// As it should be, with what others have added.
fn merged(element: &CoreCiliumEndpoint, wanted: &CoreCiliumEndpoint) -> CoreCiliumEndpoint {
    let is_of_another = element.created.is_some() && element.created != wanted.created;
    let others = if is_of_another { BTreeMap::new() } else { element.others.clone() };
    CoreCiliumEndpoint { others, ..wanted.clone() }
}
