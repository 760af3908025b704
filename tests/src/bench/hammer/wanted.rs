use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use portway_datapath::{Addr, Family, FrontendKey, FrontendKind, Port, Protocol, ServiceFlags};
use portway_model::loadbalancer::{
    Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, Owner, ServicePortKey,
};

/// How many services are hammered: few, so that a run is soon published over, and its memory soon wanted by another.
pub const SERVICES: u32 = 4;
/// The address whose NodePorts are asked for.
pub const NODE_ADDRESS: Addr = Addr::v4([10, 77, 0, 1]);
/// NodePort of service 0.
pub const NODE_PORT: u16 = 30_000;
/// A frontend that changes its owner between the first two services.
pub const MOVING: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);

/// The address that service `n` is asked for.
pub fn frontend(service: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, service as u8 + 1), 80)
}

/// A version has between 1 and 100 backends; most have few, so that publications follow each other closely.
pub fn backends_of(version: u64) -> u32 {
    let random = (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
    if random.is_multiple_of(8) { random / 8 % 100 + 1 } else { random / 8 % 4 + 1 }
}

/// The port of all backends of a version. It tells the version, but for multiples of 65,535.
pub fn port_of(version: u64) -> u16 {
    (version % 65_535) as u16 + 1
}

/// Backend `position` of service `service`: 10.128+service.position.1.
pub fn address_of(service: u32, position: u32) -> [u8; 4] {
    [10, 128 + service as u8, position as u8, 1]
}

/// The wanted state of the hammer: each service at one version.
#[derive(Debug)]
pub struct Wanted {
    versions: Vec<u64>,
    affinity: u32,
    frontends: BTreeMap<FrontendKey, DesiredFrontend>,
}

impl Wanted {
    pub fn new(affinity: u32) -> Self {
        let mut frontends = BTreeMap::new();
        for service in 0..SERVICES {
            let at = frontend(service);
            frontends.insert(key(*at.ip(), at.port()), owner(service, FrontendKind::ClusterIp));
        }
        frontends.insert(key(MOVING, 80), owner(0, FrontendKind::ClusterIp));
        frontends.insert(key(Ipv4Addr::UNSPECIFIED, NODE_PORT), owner(0, FrontendKind::NodePort));
        Self { versions: vec![0; SERVICES as usize], affinity, frontends }
    }

    pub fn next_version(&mut self, service: u32) -> u64 {
        let version = &mut self.versions[service as usize];
        *version += 1;
        *version
    }

    pub fn dirty(&self, service: u32) -> Dirty {
        let service = port(service);
        let frontends = self.frontends_of(&service).into_iter().collect();
        Dirty { services: BTreeSet::from([service]), frontends }
    }

    /// One neighbour comes, one goes, and every so often one frontend changes its owner.
    pub fn move_frontends(&mut self, round: u32) -> Dirty {
        let mut dirty = Dirty::default();
        let neighbour = |n: u32| key(Ipv4Addr::from(0x0a63_0000 + n % 4096), 80);
        let (comes, goes) = (neighbour(round), neighbour(round + 2048));
        self.frontends.insert(comes, owner(2, FrontendKind::ClusterIp));
        self.frontends.remove(&goes);
        let moving = key(MOVING, 80);
        self.frontends.insert(moving, owner(round % 2, FrontendKind::ClusterIp));
        dirty.frontends.extend([comes, goes, moving]);
        dirty
    }
}

impl Desired for Wanted {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        let service = number(key)?;
        let version = *self.versions.get(service as usize)?;
        let backends = (0..backends_of(version)).map(|position| DesiredBackend {
            addr: Addr::v4(address_of(service, position)),
            port: Port::new(port_of(version)),
            cluster: true,
            local: position % 3 == 0,
        });
        Some(DesiredService {
            flags: ServiceFlags::default(),
            affinity_seconds: self.affinity,
            source_ranges: Vec::new(),
            backends: backends.collect(),
            reached_from_outside: false,
        })
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.frontends.get(key).cloned()
    }

    fn frontends_of(&self, service: &ServicePortKey) -> Vec<FrontendKey> {
        self.frontends
            .iter()
            .filter(|(_, frontend)| frontend.service == *service)
            .map(|(key, _)| *key)
            .collect()
    }

    fn everything(&self) -> Dirty {
        Dirty {
            services: (0..SERVICES).map(port).collect(),
            frontends: self.frontends.keys().copied().collect(),
        }
    }
}

fn key(addr: Ipv4Addr, port: u16) -> FrontendKey {
    FrontendKey::new(Addr::v4(addr.octets()), Port::new(port), Protocol::UDP)
}

fn owner(service: u32, kind: FrontendKind) -> DesiredFrontend {
    DesiredFrontend { service: port(service), kind }
}

fn port(service: u32) -> ServicePortKey {
    ServicePortKey {
        owner: Owner::Service(format!("hammer/{service}").into()),
        port_name: Arc::from(""),
        protocol: Protocol::UDP,
        family: Family::V4,
    }
}

fn number(key: &ServicePortKey) -> Option<u32> {
    key.service().strip_prefix("hammer/")?.parse().ok()
}
