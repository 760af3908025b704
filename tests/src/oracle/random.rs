//! Random worlds from small pools of names, addresses and ports, so that clashes, duplicates, endpoints without a
//! service and both families meet often. Everything follows from a seed.

mod objects;
mod tweaks;

use super::OracleConfig;
use super::world::{Key, Kind, Mutation, Object, World};

/// The node whose rows are compared; slices, hints and pods name others too.
pub const THIS_NODE: &str = "node-a";
pub(super) const NODES: [&str; 3] = [THIS_NODE, "node-b", "node-c"];
const NAMESPACES: [&str; 4] = ["default", "default", "default", "shop"];
const SERVICES: [&str; 4] = ["api", "dns", "web", "db"];
const PODS: [&str; 4] = ["ingress-0", "ingress-1", "agent", "proxy"];

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In `0..n`. `n` is not 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// `percent` times in a hundred.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    pub fn word(&mut self, from: &[&str]) -> String {
        (*self.pick(from)).to_owned()
    }

    pub fn maybe<T>(&mut self, percent: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.chance(percent) { Some(make(self)) } else { None }
    }

    /// Each element `percent` times in a hundred.
    pub fn some_of<T: Clone>(&mut self, percent: u64, from: &[T]) -> Vec<T> {
        from.iter().filter(|_| self.chance(percent)).cloned().collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// A world of up to two dozen objects.
pub fn world(random: &mut Random) -> World {
    let mut world = World::default();
    let (services, slices, pods) = (1 + random.below(6), random.below(14), random.below(9));
    for (kind, count) in
        [(Kind::Service, services), (Kind::EndpointSlice, slices), (Kind::Pod, pods), (Kind::Node, 2)]
    {
        for _ in 0..count {
            let key = likely_key(random, &world, kind);
            world.apply(&Mutation::Put(objects::object(random, &key)));
        }
    }
    world
}

/// Mostly the defaults; every flag differs now and then.
pub fn config(random: &mut Random) -> OracleConfig {
    let mut flag = |default: bool| default ^ random.chance(7);
    let mut config = OracleConfig {
        enable_ipv4: flag(true),
        enable_ipv6: flag(true),
        enable_svc_source_range_check: flag(true),
        bpf_lb_source_range_all_types: flag(false),
        enable_external_ips: flag(true),
        enable_host_port: flag(true),
        enable_session_affinity: flag(true),
        enable_service_topology: flag(true),
        enable_k8s_terminating_endpoint: flag(true),
        ..OracleConfig::new(THIS_NODE)
    };
    if random.chance(7) {
        "portway".clone_into(&mut config.k8s_service_proxy_name);
    }
    config
}

/// One change: an object more, another version of one, or one less. `world` is what it applies to.
pub fn mutation(random: &mut Random, world: &World) -> Mutation {
    let existing: Vec<&Object> = world.objects.values().collect();
    let choice = random.below(100);
    if existing.is_empty() || choice < 25 {
        let kind = *random.pick(&[
            Kind::Service,
            Kind::Service,
            Kind::EndpointSlice,
            Kind::EndpointSlice,
            Kind::EndpointSlice,
            Kind::Pod,
            Kind::Node,
        ]);
        let key = likely_key(random, world, kind);
        return Mutation::Put(objects::object(random, &key));
    }
    let victim = *random.pick(&existing);
    if choice < 42 { Mutation::Delete(victim.key()) } else { Mutation::Put(tweaks::tweak(random, victim)) }
}

/// A slice mostly is one of a service that exists.
fn likely_key(random: &mut Random, world: &World, kind: Kind) -> Key {
    let mut key = random_key(random, kind);
    let services: Vec<&Key> = world.objects.keys().filter(|key| key.kind == Kind::Service).collect();
    if kind == Kind::EndpointSlice && !services.is_empty() && random.chance(85) {
        let service = *random.pick(&services);
        key.namespace.clone_from(&service.namespace);
        key.name = format!("{}-{}", service.name, random.pick(&["x1", "x2", "x3"]));
    }
    key
}

fn random_key(random: &mut Random, kind: Kind) -> Key {
    let namespace = match kind {
        Kind::Node => String::new(),
        Kind::Service | Kind::EndpointSlice | Kind::Pod => random.word(&NAMESPACES),
    };
    let name = match kind {
        Kind::Service => random.word(&SERVICES),
        Kind::EndpointSlice => format!("{}-{}", random.pick(&SERVICES), random.pick(&["x1", "x2", "x3"])),
        Kind::Pod => random.word(&PODS),
        Kind::Node => random.word(&NODES),
    };
    Key { kind, namespace, name }
}
