use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use portway_datapath::{FrontendKey, FrontendKind};

use super::clash::{Age, Claim, Frontends};
use super::{Config, Dirty, Owner, ServicePortKey};
use crate::k8s::{EndpointSlice, Event, Object, ObjectKey, ObjectKind, Pod, Reject, Service};

/// The services of a cluster as this node wants them: takes objects in any order, and knows what each made dirty.
///
/// Memory: the objects themselves (shared with [`crate::k8s::Manifests`]), and about 150 bytes a frontend.
#[derive(Debug)]
pub struct LoadBalancer {
    pub(super) config: Config,
    /// Of the node.
    pub(super) zone: Option<Arc<str>>,
    pub(super) services: HashMap<Arc<str>, ServiceState>,
    pub(super) pods: HashMap<Arc<str>, PodState>,
    pub(super) frontends: Frontends,
    /// The service of each slice that is held.
    by_slice: HashMap<Arc<str>, Arc<str>>,
    /// Services of which a slice has hints for zones.
    by_zone_hints: BTreeSet<Arc<str>>,
    /// Slices whose service is not there, as (service, slice).
    by_missing_service: BTreeSet<(Arc<str>, Arc<str>)>,
    sequence: u64,
    dirty: Dirty,
}

/// A service, its slices, or both: either may come first.
#[derive(Debug, Default)]
pub(super) struct ServiceState {
    pub(super) object: Option<Arc<Service>>,
    /// When the object was first seen.
    sequence: u64,
    /// In order of their names.
    pub(super) slices: Vec<Arc<EndpointSlice>>,
}

#[derive(Debug)]
pub(super) struct PodState {
    pub(super) object: Arc<Pod>,
    /// When a pod of this UID was first seen.
    sequence: u64,
}

impl LoadBalancer {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            zone: None,
            services: HashMap::new(),
            pods: HashMap::new(),
            frontends: Frontends::default(),
            by_slice: HashMap::new(),
            by_zone_hints: BTreeSet::new(),
            by_missing_service: BTreeSet::new(),
            sequence: 0,
            dirty: Dirty::default(),
        }
    }

    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Whether a Service of that `namespace/name` is there.
    pub fn has_service(&self, name: &str) -> bool {
        self.services.get(name).is_some_and(|state| state.object.is_some())
    }

    /// A change of one object. O(frontends and slices of its service or pod), however many others there are; a
    /// change of this node's zone costs O(services with zone hints). An object that is as it was costs nothing.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Apply(Object::Service(service)) => {
                let name = Arc::clone(&service.name);
                self.set_service(name, Some(service));
            }
            Event::Apply(Object::EndpointSlice(slice)) => {
                let name = Arc::clone(&slice.name);
                self.set_slice(&name, Some(slice));
            }
            Event::Apply(Object::Pod(pod)) => {
                let name = Arc::clone(&pod.name);
                self.set_pod(name, Some(pod));
            }
            Event::Apply(Object::Node(node)) => {
                if node.name == self.config.node_name {
                    self.set_zone(node.zone.clone());
                }
            }
            Event::Apply(
                Object::Namespace(_)
                | Object::CiliumNode(_)
                | Object::CiliumIdentity(_)
                | Object::CiliumEndpoint(_)
                | Object::CiliumEndpointSlice(_),
            ) => {}
            Event::Delete(ObjectKey { kind, name, uid }) => match kind {
                ObjectKind::Service => self.set_service(name, None),
                ObjectKind::EndpointSlice => self.set_slice(&name, None),
                ObjectKind::Pod => {
                    let late = |state: &PodState| !uid.is_empty() && state.object.uid != uid;
                    if !self.pods.get(&name).is_some_and(late) {
                        self.set_pod(name, None);
                    }
                }
                ObjectKind::Namespace
                | ObjectKind::CiliumNode
                | ObjectKind::CiliumIdentity
                | ObjectKind::CiliumEndpoint
                | ObjectKind::CiliumEndpointSlice => {}
                ObjectKind::Node => {
                    if name == self.config.node_name {
                        self.set_zone(None);
                    }
                }
            },
        }
    }

    /// What has become dirty since this was asked last. Services and frontends that are clean again may be among it.
    pub fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn set_service(&mut self, name: Arc<str>, new: Option<Arc<Service>>) {
        let old = self.services.get(&name).and_then(|state| state.object.clone());
        if old == new {
            return;
        }
        let first_sight = old.is_none().then(|| self.next_sequence());
        let state = self.services.entry(Arc::clone(&name)).or_default();
        state.object.clone_from(&new);
        if let Some(sequence) = first_sight {
            state.sequence = sequence;
        }
        let age = Age::new(new.as_ref().and_then(|s| s.created), state.sequence);
        if old.is_some() != new.is_some() {
            for slice in &state.slices {
                let missing = (Arc::clone(&name), Arc::clone(&slice.name));
                if new.is_some() {
                    self.by_missing_service.remove(&missing);
                } else {
                    self.by_missing_service.insert(missing);
                }
            }
        }
        if state.object.is_none() && state.slices.is_empty() {
            self.services.remove(&name);
        }
        let objects = [&old, &new];
        let ports = objects.into_iter().flatten().flat_map(|service| self.config.service_ports(service));
        self.dirty.services.extend(ports);
        let frontends = |service: &Option<Arc<Service>>| {
            service.as_ref().map(|service| self.config.service_frontends(service)).unwrap_or_default()
        };
        let before: Vec<FrontendKey> = frontends(&old).into_iter().map(|(key, ..)| key).collect();
        let claims = frontends(&new)
            .into_iter()
            .map(|(key, kind, service)| (key, Claim { kind, age, service }))
            .collect();
        let owner = Owner::Service(name);
        let changed = self.frontends.replace(|other| *other == owner, &before, claims);
        self.dirty.frontends.extend(changed);
    }

    fn set_slice(&mut self, name: &Arc<str>, new: Option<Arc<EndpointSlice>>) {
        let new =
            new.filter(|slice| self.config.is_ours(slice.proxy_name.as_deref(), slice.labelled_headless));
        let old_service = self.by_slice.get(name).cloned();
        if let Some(service) = &old_service {
            let held = self.services.get(service).and_then(|state| state.slice(name));
            if held == new.as_ref() {
                return;
            }
            self.put_slice(service, name, None);
        }
        match new {
            Some(slice) => {
                let service = Arc::clone(&slice.service);
                self.put_slice(&service, name, Some(slice));
                self.by_slice.insert(Arc::clone(name), service);
            }
            None => {
                self.by_slice.remove(name);
            }
        }
        if let Some(service) = old_service
            && self.services.get(&service).is_some_and(|s| s.object.is_none() && s.slices.is_empty())
        {
            self.services.remove(&service);
        }
    }

    /// Takes the slice `name` from `service`, or gives it one that it has not.
    fn put_slice(&mut self, service: &Arc<str>, name: &Arc<str>, new: Option<Arc<EndpointSlice>>) {
        let state = self.services.entry(Arc::clone(service)).or_default();
        let at = state.slices.partition_point(|slice| slice.name < *name);
        let family = match new {
            Some(slice) => {
                let family = slice.family;
                state.slices.reserve_exact(1);
                state.slices.insert(at, slice);
                family
            }
            None if at < state.slices.len() => state.slices.remove(at).family,
            None => return,
        };
        let hinted = state.slices.iter().any(|slice| slice.has_zone_hints());
        let has_it = state.slice(name).is_some();
        let missing = has_it && state.object.is_none();
        if let Some(object) = &state.object {
            let ports = self.config.service_ports(object);
            self.dirty.services.extend(ports.into_iter().filter(|port| port.family == family));
        }
        set_member(&mut self.by_zone_hints, Arc::clone(service), hinted);
        set_member(&mut self.by_missing_service, (Arc::clone(service), Arc::clone(name)), missing);
    }

    fn set_pod(&mut self, name: Arc<str>, new: Option<Arc<Pod>>) {
        // Pods of other nodes and pods without host ports matter to nobody here.
        let ours =
            |pod: &Arc<Pod>| pod.node.as_ref() == Some(&self.config.node_name) && !pod.host_ports.is_empty();
        let new = new.filter(ours);
        let old = self.pods.get(&name).map(|state| Arc::clone(&state.object));
        if old == new {
            return;
        }
        let age = match &new {
            None => {
                self.pods.remove(&name);
                Age::new(None, 0)
            }
            Some(pod) => {
                let known = self.pods.get(&name).filter(|state| state.object.uid == pod.uid);
                let sequence = match known.map(|state| state.sequence) {
                    Some(sequence) => sequence,
                    None => self.next_sequence(),
                };
                self.pods.insert(Arc::clone(&name), PodState { object: Arc::clone(pod), sequence });
                Age::new(pod.created, sequence)
            }
        };
        let frontends = |pod: &Option<Arc<Pod>>| {
            pod.as_ref().map(|pod| self.config.pod_frontends(pod)).unwrap_or_default()
        };
        let (before, after) = (frontends(&old), frontends(&new));
        self.dirty.services.extend(before.iter().chain(&after).map(|(_, service)| service.clone()));
        let before: Vec<FrontendKey> = before.into_iter().map(|(key, _)| key).collect();
        let claims = after
            .into_iter()
            .map(|(key, service)| (key, Claim { kind: FrontendKind::HostPort, age, service }))
            .collect();
        // A pod of this name and another UID is the predecessor, whose claims go too.
        let is_its = |owner: &Owner| match owner {
            Owner::Pod { name: other, .. } => *other == name,
            Owner::Service(_) => false,
        };
        let changed = self.frontends.replace(is_its, &before, claims);
        self.dirty.frontends.extend(changed);
    }

    fn set_zone(&mut self, zone: Option<Arc<str>>) {
        if self.zone == zone {
            return;
        }
        self.zone = zone;
        for service in &self.by_zone_hints {
            if let Some(object) = self.services.get(service).and_then(|state| state.object.as_ref()) {
                self.dirty.services.extend(self.config.service_ports(object));
            }
        }
    }

    /// Objects that are refused at present because of others: slices whose service is not there. O(of them). What is
    /// wrong with an object itself is told where it is decoded.
    pub fn rejects(&self) -> impl Iterator<Item = Reject> {
        self.by_missing_service.iter().map(|(service, slice)| Reject {
            kind: ObjectKind::EndpointSlice.name().to_owned(),
            name: slice.to_string(),
            field: "metadata.labels[kubernetes.io/service-name]".to_owned(),
            value: service.split_once('/').map_or(&**service, |(_, name)| name).to_owned(),
            reason: format!("there is no service {service}; its endpoints are used once there is"),
        })
    }

    /// Who at present has not got a frontend because another owns it. O(of them).
    pub fn conflicts(&self) -> impl Iterator<Item = Reject> {
        self.frontends.clashes().map(|(key, owner, loser)| {
            let kind = match loser.service.owner {
                Owner::Service(_) => ObjectKind::Service,
                Owner::Pod { .. } => ObjectKind::Pod,
            };
            let protocol = loser.service.protocol;
            let endpoint = std::net::SocketAddr::new(key.addr.into(), key.port.get());
            Reject {
                kind: kind.name().to_owned(),
                name: loser.service.service().to_owned(),
                field: claiming_field(loser.kind).to_owned(),
                value: format!("{endpoint}/{protocol}"),
                reason: format!(
                    "belongs to {} as its {}; it goes to this {} when that goes",
                    described(&owner.service),
                    owner.kind.name(),
                    loser.kind.name()
                ),
            }
        })
    }
}

fn set_member<T: Ord>(set: &mut BTreeSet<T>, element: T, member: bool) {
    if member {
        set.insert(element);
    } else {
        set.remove(&element);
    }
}

/// The field that asks for a frontend of a kind.
const fn claiming_field(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "spec.clusterIPs",
        FrontendKind::LoadBalancer => "status.loadBalancer.ingress",
        FrontendKind::ExternalIps => "spec.externalIPs",
        FrontendKind::NodePort => "spec.ports[].nodePort",
        FrontendKind::HostPort => "spec.containers[].ports[].hostPort",
    }
}

fn described(service: &ServicePortKey) -> String {
    let kind = match service.owner {
        Owner::Service(_) => "service",
        Owner::Pod { .. } => "pod",
    };
    let name = service.service();
    match &*service.port_name {
        "" => format!("{kind} {name}"),
        port => format!("port {port} of {kind} {name}"),
    }
}

impl ServiceState {
    fn slice(&self, name: &Arc<str>) -> Option<&Arc<EndpointSlice>> {
        let at = self.slices.binary_search_by(|slice| slice.name.cmp(name)).ok()?;
        self.slices.get(at)
    }
}

impl EndpointSlice {
    fn has_zone_hints(&self) -> bool {
        self.endpoints.iter().any(|e| e.hints.as_ref().is_some_and(|hints| !hints.zones.is_empty()))
    }
}

#[cfg(test)]
mod tests;
