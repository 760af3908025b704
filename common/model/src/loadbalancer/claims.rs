//! Which frontends a service and a pod ask for.

use std::sync::Arc;

use portway_datapath::{Addr, Family, FrontendKey, FrontendKind};

use super::{Config, Owner, ServicePortKey};
use crate::k8s::{HostPort, Pod, Service, ServicePort};

impl Config {
    pub(super) const fn serves(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.enable_ipv4,
            Family::V6 => self.enable_ipv6,
        }
    }

    /// Whether an object with these labels is for this proxy.
    pub(super) fn is_ours(&self, proxy_name: Option<&str>, labelled_headless: bool) -> bool {
        let for_us = match proxy_name {
            None => self.service_proxy_name.is_empty(),
            // The label with an empty value is still a label.
            Some(name) => !self.service_proxy_name.is_empty() && name == self.service_proxy_name,
        };
        for_us && !labelled_headless
    }

    /// The families that `service` is served in.
    pub(super) fn families(&self, service: &Service) -> Vec<Family> {
        if !self.is_ours(service.proxy_name.as_deref(), service.labelled_headless) {
            return Vec::new();
        }
        service.cluster_ips.iter().map(|ip| ip.family()).filter(|family| self.serves(*family)).collect()
    }

    /// Every service port of `service`.
    pub(super) fn service_ports(&self, service: &Service) -> Vec<ServicePortKey> {
        let families = self.families(service);
        families
            .iter()
            .flat_map(|family| service.ports.iter().map(|port| service_port_key(service, port, *family)))
            .collect()
    }

    /// Every frontend of `service`, with its kind and service port.
    pub(super) fn service_frontends(
        &self,
        service: &Service,
    ) -> Vec<(FrontendKey, FrontendKind, ServicePortKey)> {
        let families = self.families(service);
        let mut frontends = Vec::new();
        for port in &service.ports {
            let mut add = |addr: Addr, number, kind| {
                if families.contains(&addr.family()) {
                    let service = service_port_key(service, port, addr.family());
                    frontends.push((FrontendKey::new(addr, number, port.protocol), kind, service));
                }
            };
            for ip in &service.cluster_ips {
                add(*ip, port.port, FrontendKind::ClusterIp);
            }
            for ip in &service.ingress_ips {
                add(*ip, port.port, FrontendKind::LoadBalancer);
            }
            for ip in service.external_ips.iter().filter(|_| self.external_ips) {
                add(*ip, port.port, FrontendKind::ExternalIps);
            }
            for any in [Addr::ANY_V4, Addr::ANY_V6] {
                if let Some(node_port) = port.node_port {
                    add(any, node_port, FrontendKind::NodePort);
                }
            }
        }
        frontends
    }

    /// Whether the host ports of `pod` are this node's to serve.
    pub(super) fn serves_pod(&self, pod: &Pod) -> bool {
        self.host_port && pod.live && pod.node.as_ref() == Some(&self.node_name)
    }

    /// Every frontend of `pod`, with its service port.
    pub(super) fn pod_frontends(&self, pod: &Pod) -> Vec<(FrontendKey, ServicePortKey)> {
        if !self.serves_pod(pod) {
            return Vec::new();
        }
        let mut frontends = Vec::new();
        for port in &pod.host_ports {
            let addrs = match port.host_ip {
                Some(addr) => vec![addr],
                None => vec![Addr::ANY_V4, Addr::ANY_V6],
            };
            for addr in addrs {
                let family = addr.family();
                if self.serves(family) && pod.ips.iter().any(|ip| ip.family() == family) {
                    let key = FrontendKey::new(addr, port.host_port, port.protocol);
                    frontends.push((key, pod_port_key(pod, port, family)));
                }
            }
        }
        frontends
    }
}

pub(super) fn service_port_key(service: &Service, port: &ServicePort, family: Family) -> ServicePortKey {
    ServicePortKey {
        owner: Owner::Service(Arc::clone(&service.name)),
        port_name: Arc::clone(&port.name),
        protocol: port.protocol,
        family,
    }
}

fn pod_port_key(pod: &Pod, port: &HostPort, family: Family) -> ServicePortKey {
    ServicePortKey {
        owner: pod_owner(pod, port),
        port_name: Arc::clone(&port.name),
        protocol: port.protocol,
        family,
    }
}

fn pod_owner(pod: &Pod, port: &HostPort) -> Owner {
    Owner::Pod {
        name: Arc::clone(&pod.name),
        uid: Arc::clone(&pod.uid),
        container_port: port.container_port.get(),
    }
}
