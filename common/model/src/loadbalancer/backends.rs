//! Which endpoints a service port has on this node, under each traffic policy.
//!
//! The rules are kube-proxy's (`CategorizeEndpoints`). The *cluster* set is the ready endpoints, of which hints may
//! leave only some; if there are none, those that are still serving while they terminate. The *local* set is the
//! same of this node's endpoints, without hints. Hints count only if every ready endpoint has them and one is for this
//! node (`forNodes`), else for its zone (`forZones`): without that, all are used.

use std::collections::BTreeMap;
use std::sync::Arc;

use portway_datapath::{Addr, Family, Port, Protocol};

use super::{Config, DesiredBackend};
use crate::k8s::{Endpoint, EndpointSlice};

/// An endpoint of one service port.
#[derive(Clone, Copy)]
struct Candidate<'s> {
    addr: Addr,
    port: Port,
    endpoint: &'s Endpoint,
}

/// What an endpoint is good for. The smallest counts where slices disagree about one address and port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ready,
    /// Not ready, but still serving.
    Terminating,
    Unusable,
}

const fn state(endpoint: &Endpoint) -> State {
    if endpoint.ready {
        State::Ready
    } else if endpoint.serving && endpoint.terminating {
        State::Terminating
    } else {
        State::Unusable
    }
}

/// The backends of the port `name`/`protocol` in `family`, by address and port. O(n log n).
///
/// `slices` are in order of their names. Of an address and port that is there several times, a ready endpoint counts
/// before a terminating one and that before an unusable one; then the first in order of slice name and position.
pub(super) fn backends(
    config: &Config,
    zone: Option<&str>,
    slices: &[Arc<EndpointSlice>],
    name: &str,
    protocol: Protocol,
    family: Family,
) -> Vec<DesiredBackend> {
    let candidates = candidates(slices, name, protocol, family);
    let usable = usable_by_hints(config, zone, &candidates);
    let is_local = |c: &Candidate<'_>| c.endpoint.node.as_ref() == Some(&config.node_name);
    let cluster = first_state(config, &candidates, |_| true);
    let local = first_state(config, &candidates, is_local);
    let backends = candidates.iter().filter_map(|candidate| {
        let state = state(candidate.endpoint);
        let backend = DesiredBackend {
            addr: candidate.addr,
            port: candidate.port,
            cluster: Some(state) == cluster && (state != State::Ready || usable.allows(candidate.endpoint)),
            local: Some(state) == local && is_local(candidate),
        };
        (backend.cluster || backend.local).then_some(backend)
    });
    backends.collect()
}

/// Address and port of every endpoint of the port, and whether it is ready.
pub(super) fn endpoints(
    slices: &[Arc<EndpointSlice>],
    name: &str,
    protocol: Protocol,
    family: Family,
) -> BTreeMap<(Addr, Port), bool> {
    let candidates = candidates(slices, name, protocol, family).into_iter();
    candidates.map(|c| ((c.addr, c.port), state(c.endpoint) == State::Ready)).collect()
}

fn candidates<'s>(
    slices: &'s [Arc<EndpointSlice>],
    name: &str,
    protocol: Protocol,
    family: Family,
) -> Vec<Candidate<'s>> {
    let mut candidates = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        for port in slice.ports.iter().filter(|port| *port.name == *name && port.protocol == protocol) {
            candidates.extend(slice.endpoints.iter().map(|endpoint| Candidate {
                addr: endpoint.addr,
                port: port.port,
                endpoint,
            }));
        }
    }
    // The sort is stable: equal ones stay in the order of slices and positions.
    candidates.sort_by_key(|c| (c.addr, c.port, state(c.endpoint)));
    candidates.dedup_by_key(|c| (c.addr, c.port));
    candidates
}

/// The state of the endpoints that are used of those that `of` picks; `None` if there are none.
fn first_state(
    config: &Config,
    candidates: &[Candidate<'_>],
    of: impl Fn(&Candidate<'_>) -> bool,
) -> Option<State> {
    let best = candidates.iter().filter(|c| of(c)).map(|c| state(c.endpoint)).min()?;
    match best {
        State::Ready => Some(best),
        State::Terminating if config.terminating_endpoint => Some(best),
        State::Terminating | State::Unusable => None,
    }
}

/// Which ready endpoints hints leave.
enum Usable<'c> {
    All,
    ForNode(&'c str),
    ForZone(&'c str),
}

impl Usable<'_> {
    fn allows(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::All => true,
            Self::ForNode(node) => for_node(endpoint, node),
            Self::ForZone(zone) => for_zone(endpoint, zone),
        }
    }
}

fn for_node(endpoint: &Endpoint, node: &str) -> bool {
    endpoint.hints.as_ref().is_some_and(|hints| hints.nodes.iter().any(|n| **n == *node))
}

fn for_zone(endpoint: &Endpoint, zone: &str) -> bool {
    endpoint.hints.as_ref().is_some_and(|hints| hints.zones.iter().any(|z| **z == *zone))
}

fn usable_by_hints<'c>(
    config: &'c Config,
    zone: Option<&'c str>,
    candidates: &[Candidate<'_>],
) -> Usable<'c> {
    if !config.topology {
        return Usable::All;
    }
    let ready = || candidates.iter().map(|c| c.endpoint).filter(|endpoint| endpoint.ready);
    let all_have_nodes = ready().all(|e| e.hints.as_ref().is_some_and(|h| !h.nodes.is_empty()));
    if all_have_nodes && ready().any(|e| for_node(e, &config.node_name)) {
        return Usable::ForNode(&config.node_name);
    }
    let all_have_zones = ready().all(|e| e.hints.as_ref().is_some_and(|h| !h.zones.is_empty()));
    match zone {
        Some(zone) if all_have_zones && ready().any(|e| for_zone(e, zone)) => Usable::ForZone(zone),
        Some(_) | None => Usable::All,
    }
}
