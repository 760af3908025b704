use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portway_datapath::{Addr, Port, Protocol};
use portway_model::k8s::{Endpoint, EndpointSlice, Event, Object, ObjectKey, ObjectKind, Pod};

/// Which endpoints there are, as far as sockets depend on it: what the slices say before any choice of this node's is
/// made (hints, traffic policies, terminating ones). A change costs its slice. Memory: about 40 bytes an endpoint.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    slices: HashMap<Arc<str>, Arc<EndpointSlice>>,
    /// Slices of each service.
    by_service: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    pods: HashMap<Arc<str>, Arc<Pod>>,
    /// How many endpoints and pods have an address, whatever their state.
    by_address: HashMap<Addr, u32>,
    /// Services whose stale sockets are kept.
    keeping: HashSet<Arc<str>>,
    /// Addresses that were asked for and are nobody's, and since when.
    absent: HashMap<Addr, Instant>,
}

impl Endpoints {
    /// Takes a change. Returns whether a socket may have become stale by it.
    pub(super) fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::Apply(Object::EndpointSlice(slice)) => {
                self.set_slice(Arc::clone(&slice.name), Some(slice))
            }
            Event::Apply(Object::Service(service)) => {
                if service.keep_stale_sockets {
                    self.keeping.insert(Arc::clone(&service.name));
                } else {
                    self.keeping.remove(&service.name);
                }
                // A frontend may have changed hands.
                true
            }
            Event::Apply(Object::Pod(pod)) => self.set_pod(Arc::clone(&pod.name), Some(pod)),
            Event::Apply(
                Object::Namespace(_)
                | Object::Node(_)
                | Object::CiliumNode(_)
                | Object::CiliumIdentity(_)
                | Object::CiliumEndpoint(_)
                | Object::CiliumEndpointSlice(_),
            ) => false,
            Event::Delete(ObjectKey { kind, name, uid }) => match kind {
                ObjectKind::EndpointSlice => self.set_slice(name, None),
                ObjectKind::Service => {
                    self.keeping.remove(&name);
                    true
                }
                ObjectKind::Pod => {
                    let late = |pod: &Arc<Pod>| !uid.is_empty() && pod.uid != uid;
                    !self.pods.get(&name).is_some_and(late) && self.set_pod(name, None)
                }
                ObjectKind::Namespace
                | ObjectKind::Node
                | ObjectKind::CiliumNode
                | ObjectKind::CiliumIdentity
                | ObjectKind::CiliumEndpoint
                | ObjectKind::CiliumEndpointSlice => false,
            },
        }
    }

    /// Whether a slice of `service` has this endpoint and it answers: ready, or still serving while it terminates.
    /// Hints and policies do not matter: they choose for new connections.
    pub(super) fn serves(&self, service: &str, addr: Addr, port: Port, protocol: Protocol) -> bool {
        let names = self.by_service.get(service);
        let mut slices = names.into_iter().flatten().filter_map(|name| self.slices.get(name));
        slices.any(|slice| {
            slice.ports.iter().any(|p| p.port == port && p.protocol == protocol)
                && slice.endpoints.iter().any(|endpoint| endpoint.addr == addr && answers(endpoint))
        })
    }

    /// Whether the annotation of `service` keeps its stale sockets.
    pub(super) fn keeps(&self, service: &str) -> bool {
        self.keeping.contains(service)
    }

    /// Whether a slice of any service, or a pod, has this address, in any state.
    pub(super) fn has(&self, addr: Addr) -> bool {
        self.by_address.contains_key(&addr)
    }

    /// How long it has been known that nobody has this address; `None` where somebody has it. An address counts from
    /// the first question on, and anew when it was there meanwhile.
    pub(super) fn absent_for(&mut self, addr: Addr, now: Instant) -> Option<Duration> {
        if self.has(addr) {
            return None;
        }
        Some(now.saturating_duration_since(*self.absent.entry(addr).or_insert(now)))
    }

    /// Forgets the absence of addresses that no socket leads to.
    pub(super) fn retain_absent(&mut self, asked: &HashSet<Addr>) {
        self.absent.retain(|addr, _| asked.contains(addr));
    }

    fn set_slice(&mut self, name: Arc<str>, new: Option<Arc<EndpointSlice>>) -> bool {
        let old = self.slices.remove(&name);
        if let Some(new) = &new {
            self.add(new.endpoints.iter().map(|endpoint| endpoint.addr));
            self.by_service.entry(Arc::clone(&new.service)).or_default().insert(Arc::clone(&name));
        }
        let Some(old) = old else {
            self.slices.extend(new.map(|new| (name, new)));
            return false;
        };
        self.remove(old.endpoints.iter().map(|endpoint| endpoint.addr));
        if new.as_ref().is_none_or(|new| new.service != old.service)
            && let Some(slices) = self.by_service.get_mut(&old.service)
        {
            slices.remove(&name);
            if slices.is_empty() {
                self.by_service.remove(&old.service);
            }
        }
        let lost = new.as_ref().is_none_or(|new| has_lost(&old, new));
        self.slices.extend(new.map(|new| (name, new)));
        lost
    }

    fn set_pod(&mut self, name: Arc<str>, new: Option<Arc<Pod>>) -> bool {
        let new = new.filter(|pod| pod.live && !pod.ips.is_empty());
        if let Some(new) = &new {
            self.add(new.ips.iter().copied());
        }
        let old = match new {
            Some(new) => self.pods.insert(name, new),
            None => self.pods.remove(&name),
        };
        if let Some(old) = &old {
            self.remove(old.ips.iter().copied());
        }
        old.is_some()
    }

    fn add(&mut self, addrs: impl Iterator<Item = Addr>) {
        for addr in addrs {
            *self.by_address.entry(addr).or_default() += 1;
            self.absent.remove(&addr);
        }
    }

    fn remove(&mut self, addrs: impl Iterator<Item = Addr>) {
        for addr in addrs {
            if let Some(count) = self.by_address.get_mut(&addr) {
                *count -= 1;
                if *count == 0 {
                    self.by_address.remove(&addr);
                }
            }
        }
    }
}

const fn answers(endpoint: &Endpoint) -> bool {
    endpoint.ready || endpoint.serving
}

/// Whether `old` has an endpoint or a port that `new` has not, or one that answered and does no more.
fn has_lost(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    let mut left: HashMap<Addr, bool> = HashMap::with_capacity(new.endpoints.len());
    for endpoint in &new.endpoints {
        *left.entry(endpoint.addr).or_default() |= answers(endpoint);
    }
    old.service != new.service
        || old.ports.iter().any(|port| !new.ports.contains(port))
        || old.endpoints.iter().any(|old| match left.get(&old.addr) {
            None => true,
            Some(answers_still) => answers(old) && !answers_still,
        })
}

#[cfg(test)]
mod tests;
