use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portway_datapath::{Addr, Family, FrontendKey, FrontendKind, Membership, Port, Protocol, RunHeader};

use super::{
    Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, LoadBalancer, Owner, ServicePortKey,
};
use crate::k8s::{Manifests, ObjectKind};
use crate::tables::{ServiceDump, TableDump};

/// What an earlier agent left in the maps, as far as nobody has spoken of it since.
///
/// Until every source has synced, what nobody has seen may still be there: a service whose object comes with the next
/// page, backends of a slice that was not listed yet. What was seen, also as not ready or deleted, is the model's
/// business from then on.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    services: BTreeMap<ServicePortKey, Left>,
    frontends: BTreeMap<FrontendKey, DesiredFrontend>,
    /// Those of `frontends` that somebody else wants: their owner may still come and win.
    contested: BTreeMap<FrontendKey, Owner>,
}

/// A service port, as far as nobody has spoken of it.
#[derive(Clone, Debug)]
struct Left {
    service: DesiredService,
    /// Empty once its Service was seen: what that does not have is not wanted.
    frontends: BTreeSet<FrontendKey>,
    /// Those of its backends that slices have, or had since the start.
    seen: BTreeSet<(Addr, Port)>,
}

impl Restored {
    /// What `dump` has of services with names and frontends.
    ///
    /// A dump does not tell UIDs and container ports: host ports belong to pods without any. Frontends of one service
    /// index that are of several families or protocols are a service port for each.
    pub fn new(dump: &TableDump) -> Self {
        let published: BTreeMap<_, _> =
            dump.services.iter().map(|service| (service.index, service)).collect();
        let mut ranges: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (index, addr, bits) in &dump.source_ranges {
            ranges.entry(*index).or_default().push((*addr, *bits));
        }
        let mut restored = Self::default();
        for (frontend, value) in &dump.frontends {
            let service = published.get(&value.service()).filter(|s| !s.service.is_empty());
            let protocol = Protocol::from_number(frontend.protocol);
            let (Some(service), Some(kind), Some(protocol)) = (service, value.kind(), protocol) else {
                continue;
            };
            if !value.is_of(frontend) {
                continue;
            }
            let family = frontend.addr.family();
            let key = ServicePortKey {
                owner: match kind {
                    FrontendKind::HostPort => left_pod(service.service.as_str().into()),
                    FrontendKind::ClusterIp
                    | FrontendKind::LoadBalancer
                    | FrontendKind::ExternalIps
                    | FrontendKind::NodePort => Owner::Service(service.service.as_str().into()),
                },
                port_name: service.port_name.as_str().into(),
                protocol,
                family,
            };
            let of_it = || ranges.get(&service.index).cloned().unwrap_or_default();
            let left = restored.services.entry(key.clone()).or_insert_with(|| Left {
                service: left_service(service, family, of_it()),
                frontends: BTreeSet::new(),
                seen: BTreeSet::new(),
            });
            left.frontends.insert(*frontend);
            left.service.reached_from_outside |= kind != FrontendKind::ClusterIp;
            restored.frontends.insert(*frontend, DesiredFrontend { service: key, kind });
        }
        restored
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Every source has synced: what was seen is all there is.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives up what the model knows by now of everything in `dirty`: of a Service or pod that is there, its frontends
    /// and ports, also those that it does not have, and backends that are not ready or have gone since they were seen;
    /// all of a Service that was there and is gone. What becomes dirty by that is added.
    ///
    /// A backend that is ready stays, also where the model leaves it out: which ones hints leave is known only once all
    /// are.
    ///
    /// A frontend that somebody else wants stays with an owner that was not seen: it may come, and win the clash.
    ///
    /// To be called with each [`LoadBalancer::take_dirty`], before it is reconciled. O(slices of the dirty services).
    pub fn learn(&mut self, balancer: &LoadBalancer, dirty: &mut Dirty) {
        if self.is_empty() {
            return;
        }
        for frontend in dirty.frontends.iter().filter(|frontend| self.frontends.contains_key(frontend)) {
            match balancer.frontend(frontend) {
                Some(seen) => self.contested.insert(*frontend, seen.service.owner),
                None => self.contested.remove(frontend),
            };
        }
        let owners: BTreeSet<_> = dirty.services.iter().map(|key| left_owner(&key.owner)).collect();
        for owner in owners {
            let is_there = match &owner {
                Owner::Service(name) => balancer.has_service(name),
                Owner::Pod { name, .. } => balancer.pods.contains_key(name),
            };
            for key in self.keys_of(&owner) {
                let Some(left) = self.services.get_mut(&key) else { continue };
                if is_there && balancer.service(&key).is_some() {
                    left.see(&balancer.endpoints(&key));
                    for frontend in std::mem::take(&mut left.frontends) {
                        self.frontends.remove(&frontend);
                        self.contested.remove(&frontend);
                        dirty.frontends.insert(frontend);
                    }
                } else if is_there || left.frontends.is_empty() {
                    self.forget(&key, dirty);
                }
            }
        }
    }

    /// Gives up what is left of services and pods that a file has, and frontends that they want: to be called once the
    /// directory has synced, and with each change of it. It tells all of them, whatever other sources still owe.
    /// Returns what is dirty by that.
    ///
    /// What files no longer have may be in another source, so it stays until that has synced. O(what is left).
    pub fn settle_files(&mut self, manifests: &Manifests) -> Dirty {
        let is_of_file = |owner: &Owner| match owner {
            Owner::Service(name) => manifests.is_from_file(ObjectKind::Service, name),
            Owner::Pod { name, .. } => manifests.is_from_file(ObjectKind::Pod, name),
        };
        let mut dirty = Dirty::default();
        for key in self.services.keys().filter(|key| is_of_file(&key.owner)).cloned().collect::<Vec<_>>() {
            self.forget(&key, &mut dirty);
        }
        let taken = self.contested.iter().filter(|(_, owner)| is_of_file(owner)).map(|(key, _)| *key);
        for frontend in taken.collect::<Vec<_>>() {
            self.contested.remove(&frontend);
            if let Some(DesiredFrontend { service, .. }) = self.frontends.remove(&frontend)
                && let Some(left) = self.services.get_mut(&service)
            {
                left.frontends.remove(&frontend);
            }
            dirty.frontends.insert(frontend);
        }
        dirty
    }

    fn keys_of(&self, owner: &Owner) -> Vec<ServicePortKey> {
        // No key of this owner is smaller.
        let first = ServicePortKey {
            owner: owner.clone(),
            port_name: "".into(),
            protocol: Protocol::TCP,
            family: Family::V4,
        };
        let keys = self.services.range(first..).map(|(key, _)| key);
        keys.take_while(|key| key.owner == *owner).cloned().collect()
    }

    fn forget(&mut self, key: &ServicePortKey, dirty: &mut Dirty) {
        if let Some(left) = self.services.remove(key) {
            for frontend in &left.frontends {
                self.frontends.remove(frontend);
                self.contested.remove(frontend);
            }
            dirty.frontends.extend(left.frontends);
            dirty.services.insert(key.clone());
        }
    }
}

impl Left {
    /// Takes what slices say of endpoints: whether each is ready.
    fn see(&mut self, endpoints: &BTreeMap<(Addr, Port), bool>) {
        let seen = &mut self.seen;
        self.service.backends.retain(|backend| {
            let place = (backend.addr, backend.port);
            match endpoints.get(&place) {
                Some(true) => {
                    seen.insert(place);
                    true
                }
                Some(false) => false,
                None => !seen.contains(&place),
            }
        });
    }
}

/// What is wanted until every source has synced: what was seen, and what of [`Restored`] nobody has spoken of.
///
/// Of a service that was seen, settings and frontends are as seen, and backends that are left come on top. What nobody
/// has seen at all stays as it is in the maps, so [`Desired::everything`] does not have it.
#[derive(Clone, Copy, Debug)]
pub struct Union<'a> {
    pub balancer: &'a LoadBalancer,
    pub restored: &'a Restored,
}

impl Desired for Union<'_> {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        let left = self.restored.services.get(key);
        match (self.balancer.service(key), left) {
            (None, left) => left.filter(|left| !left.frontends.is_empty()).map(|left| left.service.clone()),
            (Some(seen), None) => Some(seen),
            (Some(mut seen), Some(left)) => {
                let both = seen.backends.iter().chain(&left.service.backends);
                let mut sets: BTreeMap<(Addr, Port), (bool, bool)> = BTreeMap::new();
                for backend in both {
                    let (cluster, local) = sets.entry((backend.addr, backend.port)).or_default();
                    *cluster |= backend.cluster;
                    *local |= backend.local;
                }
                let backend =
                    |((addr, port), (cluster, local))| DesiredBackend { addr, port, cluster, local };
                seen.backends = sets.into_iter().map(backend).collect();
                Some(seen)
            }
        }
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.restored.frontends.get(key).cloned().or_else(|| self.balancer.frontend(key))
    }

    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey> {
        let mut frontends = self.balancer.frontends_of(key);
        if self.restored.is_empty() {
            return frontends;
        }
        frontends.retain(|frontend| !self.restored.frontends.contains_key(frontend));
        if let Some(left) = self.restored.services.get(key) {
            frontends.extend(&left.frontends);
            frontends.sort_unstable();
        }
        frontends
    }

    fn everything(&self) -> Dirty {
        self.balancer.everything()
    }
}

/// Of what is left of an owner.
fn left_owner(owner: &Owner) -> Owner {
    match owner {
        Owner::Service(_) => owner.clone(),
        Owner::Pod { name, .. } => left_pod(Arc::clone(name)),
    }
}

fn left_pod(name: Arc<str>) -> Owner {
    Owner::Pod { name, uid: "".into(), container_port: 0 }
}

fn left_service(service: &ServiceDump, family: Family, source_ranges: Vec<(Addr, u8)>) -> DesiredService {
    let ServiceDump { header, backends, .. } = service;
    let mut backends: Vec<_> = backends
        .iter()
        .enumerate()
        .map(|(position, backend)| DesiredBackend {
            addr: backend.addr,
            port: backend.port,
            cluster: has(header, Membership::Cluster, position),
            local: has(header, Membership::Local, position),
        })
        .filter(|backend| (backend.cluster || backend.local) && backend.addr.family() == family)
        .collect();
    backends.sort_unstable();
    backends.dedup_by_key(|backend: &mut DesiredBackend| (backend.addr, backend.port));
    DesiredService {
        flags: header.flags,
        affinity_seconds: header.affinity_seconds,
        source_ranges,
        backends,
        reached_from_outside: false,
    }
}

/// Whether the set has the backend at a position of the run.
fn has(header: &RunHeader, set: Membership, position: usize) -> bool {
    let (start, len) = header.range(set);
    usize::try_from(start).is_ok_and(|start| position >= start && position - start < len as usize)
}
