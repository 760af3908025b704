use std::collections::BTreeMap;
use std::sync::Arc;

use portway_datapath::{Addr, Family, FrontendKey, Port, ServiceFlags};

use super::backends::{backends, endpoints};
use super::claims::service_port_key;
use super::{
    Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, LoadBalancer, Owner, ServicePortKey,
};
use crate::k8s::{Pod, Service, SourceRanges};

impl Desired for LoadBalancer {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        match &key.owner {
            Owner::Service(name) => self.service_port(name, key),
            Owner::Pod { name, uid, container_port } => {
                let pod = &self.pods.get(name)?.object;
                self.host_port(pod, key, uid, *container_port)
            }
        }
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.frontends.owner(key)
    }

    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey> {
        let mut frontends: Vec<_> = self
            .claimed_by(key)
            .into_iter()
            .filter(|(frontend, service)| service == key && self.frontends.is_owned_by(frontend, key))
            .map(|(frontend, _)| frontend)
            .collect();
        // An address may be claimed twice: as an external and as a load-balancer address.
        frontends.sort_unstable();
        frontends.dedup();
        frontends
    }

    fn everything(&self) -> Dirty {
        let services = self.services.values().filter_map(|state| state.object.as_ref());
        let services = services.flat_map(|service| self.config.service_ports(service));
        let pods = self.pods.values().flat_map(|pod| self.config.pod_frontends(&pod.object));
        Dirty {
            services: services.chain(pods.map(|(_, service)| service)).collect(),
            frontends: self.frontends.keys().collect(),
        }
    }
}

impl LoadBalancer {
    /// Address and port of every endpoint that slices have for a service port, and whether it is ready.
    pub(super) fn endpoints(&self, key: &ServicePortKey) -> BTreeMap<(Addr, Port), bool> {
        let Owner::Service(name) = &key.owner else { return BTreeMap::new() };
        let slices = self.services.get(name).map_or(&[][..], |state| &state.slices);
        endpoints(slices, &key.port_name, key.protocol, key.family)
    }

    /// What the object of `key` asks for.
    fn claimed_by(&self, key: &ServicePortKey) -> Vec<(FrontendKey, ServicePortKey)> {
        match &key.owner {
            Owner::Service(name) => {
                let service = self.services.get(name).and_then(|state| state.object.as_ref());
                let frontends = service.map(|service| self.config.service_frontends(service));
                frontends.into_iter().flatten().map(|(frontend, _, service)| (frontend, service)).collect()
            }
            Owner::Pod { name, .. } => {
                let pod = self.pods.get(name);
                pod.map(|pod| self.config.pod_frontends(&pod.object)).unwrap_or_default()
            }
        }
    }

    fn service_port(&self, name: &Arc<str>, key: &ServicePortKey) -> Option<DesiredService> {
        let state = self.services.get(name)?;
        let service = state.object.as_ref()?;
        if !self.config.families(service).contains(&key.family) {
            return None;
        }
        let port =
            service.ports.iter().find(|port| port.name == key.port_name && port.protocol == key.protocol)?;
        debug_assert_eq!(service_port_key(service, port, key.family), *key);
        let source_ranges = self.source_ranges(service, key.family);
        let addresses = service.external_ips.iter().filter(|_| self.config.external_ips);
        let reached_from_outside = self.config.external_cluster_ip
            || port.node_port.is_some()
            || addresses.chain(&service.ingress_ips).any(|addr| addr.family() == key.family);
        Some(DesiredService {
            flags: self.flags(service, !source_ranges.is_empty()),
            affinity_seconds: if self.config.session_affinity { service.affinity_seconds } else { 0 },
            source_ranges,
            backends: backends(
                &self.config,
                self.zone.as_deref(),
                &state.slices,
                &key.port_name,
                key.protocol,
                key.family,
            ),
            reached_from_outside,
        })
    }

    fn flags(&self, service: &Service, ranges: bool) -> ServiceFlags {
        let mut flags = ServiceFlags::default();
        if service.internal_local {
            flags = flags.with(ServiceFlags::INTERNAL_LOCAL);
        }
        if service.external_local {
            flags = flags.with(ServiceFlags::EXTERNAL_LOCAL);
        }
        if ranges {
            flags = flags.with(ServiceFlags::SOURCE_RANGES);
            if self.config.source_range_all_types {
                flags = flags.with(ServiceFlags::SOURCE_RANGES_ALL);
            }
        }
        flags
    }

    /// The ranges of one family. Where ranges were asked for and none is of this family, one that nobody is in:
    /// the unspecified address is no packet's source.
    fn source_ranges(&self, service: &Service, family: Family) -> Vec<(Addr, u8)> {
        let SourceRanges::Only(ranges) = &service.source_ranges else {
            return Vec::new();
        };
        if !self.config.source_range_check {
            return Vec::new();
        }
        let mut ranges: Vec<_> = ranges.iter().copied().filter(|(addr, _)| addr.family() == family).collect();
        if ranges.is_empty() {
            ranges.push(match family {
                Family::V4 => (Addr::ANY_V4, 128),
                Family::V6 => (Addr::ANY_V6, 128),
            });
        }
        ranges
    }

    fn host_port(
        &self,
        pod: &Pod,
        key: &ServicePortKey,
        uid: &Arc<str>,
        container_port: u16,
    ) -> Option<DesiredService> {
        if pod.uid != *uid || !self.config.serves_pod(pod) || !self.config.serves(key.family) {
            return None;
        }
        let port = pod.host_ports.iter().find(|port| {
            port.name == key.port_name
                && port.protocol == key.protocol
                && port.container_port.get() == container_port
                && port.host_ip.is_none_or(|ip| ip.family() == key.family)
        })?;
        let ip = pod.ips.iter().find(|ip| ip.family() == key.family)?;
        Some(DesiredService {
            flags: ServiceFlags::default(),
            affinity_seconds: 0,
            source_ranges: Vec::new(),
            backends: vec![DesiredBackend {
                addr: *ip,
                port: port.container_port,
                cluster: true,
                local: true,
            }],
            reached_from_outside: true,
        })
    }
}
