//! Small random wanted states, and what they say of an address.

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::layout::Sizes;
use portway_datapath::maglev::Seed;
use portway_datapath::{
    Addr, Destination, Family, FrontendKey, FrontendKind, Membership, Port, Protocol, RunHeader, ServiceFlags,
};

use crate::loadbalancer::{
    Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, Owner, ServicePortKey,
};
use crate::plan::{MaglevOptions, Options};

pub(super) const NODE: &str = "10.0.0.1";
pub(super) const NODE6: &str = "fd00::1";

pub(super) const SIZES: Sizes = Sizes {
    frontends: 64,
    services: 64,
    runs: 1024,
    backends: 256,
    maglev: 1024,
    affinity: 64,
    source_ranges: 64,
    local_addresses: 16,
    sockets: 64,
    exchanges: 64,
};

pub(super) const OPTIONS: Options =
    Options { sizes: SIZES, maglev: Some(MaglevOptions { table_size: 7, seed: Seed(*b"JLfvgnHc2kaS") }) };

/// A wanted state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct World {
    pub(super) services: BTreeMap<ServicePortKey, DesiredService>,
    pub(super) frontends: BTreeMap<FrontendKey, DesiredFrontend>,
}

/// What who connects to an address gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Pass,
    /// One of these; a refusal where there is none.
    OneOf(BTreeSet<(Addr, u16)>),
}

impl Desired for World {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        self.services.get(key).cloned()
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        self.frontends.get(key).cloned()
    }

    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey> {
        self.frontends.iter().filter(|(_, f)| f.service == *key).map(|(key, _)| *key).collect()
    }

    fn everything(&self) -> Dirty {
        Dirty {
            services: self.services.keys().cloned().collect(),
            frontends: self.frontends.keys().copied().collect(),
        }
    }
}

impl World {
    pub(super) fn with(mut self, key: ServicePortKey, service: DesiredService) -> Self {
        self.services.insert(key, service);
        self
    }

    pub(super) fn at(mut self, frontend: FrontendKey, kind: FrontendKind, service: &ServicePortKey) -> Self {
        self.frontends.insert(frontend, DesiredFrontend { service: service.clone(), kind });
        self
    }

    /// What differs between this state and `next`.
    pub(super) fn diff(&self, next: &Self) -> Dirty {
        let services = self.services.keys().chain(next.services.keys());
        let frontends = self.frontends.keys().chain(next.frontends.keys());
        Dirty {
            services: services.filter(|k| self.services.get(k) != next.services.get(k)).cloned().collect(),
            frontends: frontends
                .filter(|k| self.frontends.get(k) != next.frontends.get(k))
                .copied()
                .collect(),
        }
    }

    /// By the rules of the Kubernetes API, not by the planner's.
    pub(super) fn answer(&self, to: &Destination) -> Answer {
        let on_node = to.addr == addr(NODE) || to.addr == addr(NODE6);
        let any = FrontendKey::new(
            if to.addr.family() == Family::V4 { addr("0.0.0.0") } else { addr("::") },
            to.port,
            to.protocol,
        );
        let exact = self.frontends.get(&FrontendKey::new(to.addr, to.port, to.protocol));
        let Some(frontend) = exact.or_else(|| self.frontends.get(&any).filter(|_| on_node)) else {
            return Answer::Pass;
        };
        let service = &self.services[&frontend.service];
        let is_local =
            frontend.kind == FrontendKind::ClusterIp && service.flags.has(ServiceFlags::INTERNAL_LOCAL);
        let member = |b: &&DesiredBackend| if is_local { b.local } else { b.cluster };
        Answer::OneOf(service.backends.iter().filter(member).map(|b| (b.addr, b.port.get())).collect())
    }
}

pub(super) fn addr(s: &str) -> Addr {
    s.parse::<std::net::IpAddr>().unwrap().into()
}

/// `10.96.0.1:80/TCP`, `[fd00::1]:80/TCP`.
pub(super) fn frontend(s: &str) -> FrontendKey {
    let (socket, protocol) = s.split_once('/').unwrap();
    let socket: std::net::SocketAddr = socket.parse().unwrap();
    let protocol = if protocol == "TCP" { Protocol::TCP } else { Protocol::UDP };
    FrontendKey::new(socket.ip().into(), Port::new(socket.port()), protocol)
}

pub(super) fn service_key(name: &str, port: &str, protocol: Protocol, family: Family) -> ServicePortKey {
    ServicePortKey { owner: Owner::Service(name.into()), port_name: port.into(), protocol, family }
}

/// A TCP port of IPv4.
pub(super) fn key(name: &str, port: &str) -> ServicePortKey {
    service_key(name, port, Protocol::TCP, Family::V4)
}

/// Backends `address:port`, with `+l` in both sets, `+L` in the local one only.
pub(super) fn service(backends: &[&str]) -> DesiredService {
    let mut backends: Vec<_> = backends
        .iter()
        .map(|s| {
            let (socket, sets) = s.split_once('+').unwrap_or((s, ""));
            let socket: std::net::SocketAddr = socket.parse().unwrap();
            DesiredBackend {
                addr: socket.ip().into(),
                port: Port::new(socket.port()),
                cluster: sets != "L",
                local: !sets.is_empty(),
            }
        })
        .collect();
    backends.sort();
    DesiredService {
        flags: ServiceFlags::default(),
        affinity_seconds: 0,
        source_ranges: Vec::new(),
        backends,
        reached_from_outside: false,
    }
}

/// Numbers that look random and are the same in each run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 16) * n as u128) >> 48) as usize
    }

    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

pub(super) fn keys() -> Vec<ServicePortKey> {
    let pod = |uid: &str| ServicePortKey {
        owner: Owner::Pod { name: "ns/p".into(), uid: uid.into(), container_port: 80 },
        port_name: "".into(),
        protocol: Protocol::TCP,
        family: Family::V4,
    };
    vec![
        key("ns/a", "http"),
        key("ns/a", "https"),
        key("ns/b", ""),
        service_key("ns/b", "", Protocol::UDP, Family::V4),
        service_key("ns/b", "", Protocol::TCP, Family::V6),
        pod("1"),
        pod("2"),
    ]
}

pub(super) fn frontend_keys() -> Vec<FrontendKey> {
    [
        "10.96.0.1:80/TCP",
        "10.96.0.2:80/TCP",
        "10.96.0.3:443/TCP",
        "10.0.0.1:30080/TCP",
        "10.96.0.9:30080/TCP",
        "0.0.0.0:30080/TCP",
        "0.0.0.0:443/TCP",
        "10.0.0.1:443/TCP",
        "10.96.0.1:53/UDP",
        "[fd00:96::1]:80/TCP",
        "[fd00::1]:30080/TCP",
        "[::]:30080/TCP",
    ]
    .map(frontend)
    .to_vec()
}

/// Where clients connect to: every exact frontend, and the node's address for the others.
pub(super) fn destinations() -> Vec<Destination> {
    let mut all: Vec<_> = frontend_keys()
        .into_iter()
        .map(|key| {
            let addr = match (key.addr.is_unspecified(), key.addr.family()) {
                (false, _) => key.addr,
                (true, Family::V4) => addr(NODE),
                (true, Family::V6) => addr(NODE6),
            };
            (addr, key.port, key.protocol)
        })
        .collect();
    all.sort();
    all.dedup();
    let protocol = |number| Protocol::from_number(number).unwrap();
    all.into_iter().map(|(addr, port, p)| Destination { addr, port, protocol: protocol(p) }).collect()
}

fn random_service(dice: &mut Dice, family: Family) -> DesiredService {
    let mut backends: Vec<_> = (1..=6)
        .filter_map(|n| {
            let (cluster, local) =
                [(true, false), (true, true), (false, true), (false, false)][dice.below(4)];
            let host = match family {
                Family::V4 => format!("10.1.0.{n}"),
                Family::V6 => format!("fd00:1::{n}"),
            };
            let port = Port::new(8080 + (n % 2));
            (cluster || local).then(|| DesiredBackend { addr: addr(&host), port, cluster, local })
        })
        .collect();
    if dice.one_in(5) {
        backends.clear();
    }
    backends.sort();
    let mut source_ranges: Vec<_> = (0..dice.below(3))
        .map(|_| match family {
            Family::V4 => (Addr::v4([192, dice.below(3) as u8, 0, 0]), 112),
            Family::V6 => (addr(&format!("fd0{}::", dice.below(3))), 64),
        })
        .collect();
    source_ranges.sort();
    source_ranges.dedup();
    let mut flags = ServiceFlags::from_bits(dice.below(4) as u32);
    if !source_ranges.is_empty() {
        flags = flags.with(ServiceFlags::SOURCE_RANGES);
    }
    DesiredService {
        flags,
        affinity_seconds: if dice.one_in(2) { 10_800 } else { 0 },
        source_ranges,
        backends,
        reached_from_outside: dice.one_in(2),
    }
}

impl World {
    /// One to three changes of any kind.
    pub(super) fn mutate(&mut self, dice: &mut Dice) {
        for _ in 0..=dice.below(3) {
            match dice.below(8) {
                0..=2 => {
                    let key = dice.pick(&keys()).clone();
                    let service = random_service(dice, key.family);
                    self.services.insert(key, service);
                }
                3 | 4 => self.give_a_frontend(dice),
                5 => {
                    let key = *dice.pick(&frontend_keys());
                    self.frontends.remove(&key);
                }
                6 => {
                    let key = dice.pick(&keys()).clone();
                    self.services.remove(&key);
                    self.frontends.retain(|_, f| f.service != key);
                }
                _ => self.swap(dice),
            }
        }
    }

    fn give_a_frontend(&mut self, dice: &mut Dice) {
        let key = *dice.pick(&frontend_keys());
        let kind = if key.addr.is_unspecified() {
            *dice.pick(&[FrontendKind::NodePort, FrontendKind::HostPort])
        } else {
            *dice.pick(&[FrontendKind::ClusterIp, FrontendKind::LoadBalancer, FrontendKind::ExternalIps])
        };
        let owners: Vec<_> = self
            .services
            .keys()
            .filter(|k| k.family == key.addr.family() && k.protocol.number() == key.protocol)
            .cloned()
            .collect();
        if !owners.is_empty() {
            self.frontends.insert(key, DesiredFrontend { service: dice.pick(&owners).clone(), kind });
        }
    }

    /// Two service ports of one family and protocol swap names: everything else stays.
    fn swap(&mut self, dice: &mut Dice) {
        let keys = [key("ns/a", "http"), key("ns/a", "https"), key("ns/b", "")];
        let at = dice.below(3);
        let (a, b) = (&keys[at], &keys[(at + 1) % 3]);
        let (of_a, of_b) = (self.services.get(a).cloned(), self.services.get(b).cloned());
        if let (Some(of_a), Some(of_b)) = (of_a, of_b) {
            self.services.insert(a.clone(), of_b);
            self.services.insert(b.clone(), of_a);
            for f in self.frontends.values_mut() {
                if f.service == *a {
                    f.service = b.clone();
                } else if f.service == *b {
                    f.service = a.clone();
                }
            }
        }
    }
}

/// The set that a header gives inside the cluster.
pub(super) fn inside(header: &RunHeader, kind: FrontendKind) -> Membership {
    header.inside(kind)
}
