//! Ten thousand services: room, memory, time.

use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, Family, FrontendKey, FrontendKind, Port, Protocol};

use super::super::held::{Held, HeldBackend};
use super::super::{Options, Planner};
use super::world::{Dice, service};
use crate::loadbalancer::{
    Desired, DesiredBackend, DesiredFrontend, DesiredService, Dirty, Owner, ServicePortKey,
};
use crate::tables::{FullTable, TableOp, TableWriter};

const SERVICES: u32 = 10_000;

/// Services by number, each with so many backends.
struct Fleet {
    keys: Vec<ServicePortKey>,
    backends: Vec<u32>,
    /// Goes up with each change, so that backends differ.
    versions: Vec<u32>,
}

impl Fleet {
    fn new(backends: u32) -> Self {
        let key = |n| ServicePortKey {
            owner: Owner::Service(format!("namespace-{}/service-{n}", n % 100).into()),
            port_name: "http".into(),
            protocol: Protocol::TCP,
            family: Family::V4,
        };
        Self {
            keys: (0..SERVICES).map(key).collect(),
            backends: vec![backends; SERVICES as usize],
            versions: vec![0; SERVICES as usize],
        }
    }

    fn number(key: &ServicePortKey) -> usize {
        key.service().rsplit('-').next().unwrap().parse().unwrap()
    }

    fn frontend(n: u32) -> FrontendKey {
        let [_, b, c, d] = n.to_be_bytes();
        FrontendKey::new(Addr::v4([10, 96 + b, c, d]), Port::new(80), Protocol::TCP)
    }

    fn change(&mut self, n: usize, backends: u32) -> Dirty {
        self.backends[n] = backends;
        self.versions[n] += 1;
        Dirty { services: [self.keys[n].clone()].into(), frontends: [].into() }
    }
}

impl Desired for Fleet {
    fn service(&self, key: &ServicePortKey) -> Option<DesiredService> {
        let n = Self::number(key);
        let [_, b, c, d] = (n as u32).to_be_bytes();
        // Half of the backends change with each version.
        let backend = |i: u32| DesiredBackend {
            addr: Addr::v4([10 + b, c, d, i as u8]),
            port: Port::new(if i.is_multiple_of(2) { 8080 } else { 9000 + (self.versions[n] % 1000) as u16 }),
            cluster: true,
            local: i == 0,
        };
        Some(DesiredService { backends: (0..self.backends[n]).map(backend).collect(), ..service(&[]) })
    }

    fn frontend(&self, key: &FrontendKey) -> Option<DesiredFrontend> {
        let [.., b, c, d] = key.addr.octets();
        let n = u32::from_be_bytes([0, b - 96, c, d]) as usize;
        Some(DesiredFrontend { service: self.keys[n].clone(), kind: FrontendKind::ClusterIp })
    }

    fn frontends_of(&self, key: &ServicePortKey) -> Vec<FrontendKey> {
        vec![Self::frontend(Self::number(key) as u32)]
    }

    fn everything(&self) -> Dirty {
        Dirty {
            services: self.keys.iter().cloned().collect(),
            frontends: (0..SERVICES).map(Self::frontend).collect(),
        }
    }
}

/// Takes everything and keeps nothing.
struct Nowhere;

impl TableWriter for Nowhere {
    type Error = FullTable;

    fn write(&mut self, _: &TableOp) -> Result<(), FullTable> {
        Ok(())
    }
}

fn options() -> Options {
    Options { sizes: Sizes::DEFAULT, maglev: None }
}

#[test]
fn fragmentation_leaves_room_for_150_000_endpoints() {
    let mut fleet = Fleet::new(15);
    let mut planner = Planner::new(options());
    let mut dirty = fleet.everything();
    assert!(planner.reconcile(&fleet, &mut dirty, &mut Nowhere).is_settled());
    assert_eq!(planner.usage().runs, SERVICES * 17);

    let mut dice = Dice(5);
    let give_back = |planner: &mut Planner| {
        if let Some(retired) = planner.take_retired() {
            planner.reclaim(retired);
        }
    };
    // Sizes between 1 and 29, the same number of endpoints on average; grace periods come late.
    for round in 0..40 {
        for _ in 0..1_000 {
            let n = dice.below(SERVICES as usize);
            dirty.merge(fleet.change(n, 1 + dice.below(29) as u32));
        }
        let outcome = planner.reconcile(&fleet, &mut dirty, &mut Nowhere);
        assert!(outcome.is_settled(), "round {round}: {:?}", outcome.failures.first());
        give_back(&mut planner);
    }
    // Every service changes at once: the second versions of all of them fit beside the first.
    for n in 0..SERVICES as usize {
        dirty.merge(fleet.change(n, 15));
    }
    let outcome = planner.reconcile(&fleet, &mut dirty, &mut Nowhere);
    assert!(outcome.is_settled(), "{:?}", outcome.failures.first());
    give_back(&mut planner);
    assert_eq!(planner.usage().runs, SERVICES * 17);
    assert_eq!(planner.usage().backends, SERVICES * 15);
}

#[test]
fn ten_thousand_services_of_ten_backends_take_few_mib() {
    let fleet = Fleet::new(10);
    let mut planner = Planner::new(options());
    let mut dirty = fleet.everything();
    assert!(planner.reconcile(&fleet, &mut dirty, &mut Nowhere).is_settled());
    let backends: usize = planner.held.values().map(|held| held.backends.capacity()).sum();
    let frontends: usize = planner.held.values().map(|held| held.frontends.capacity()).sum();
    // A tree's nodes are half to all full.
    let tree = |entries: usize, entry: usize| entries * entry * 3 / 2;
    let bytes = backends * size_of::<HeldBackend>()
        + frontends * size_of::<FrontendKey>()
        + tree(planner.held.len(), 4 + size_of::<Held>())
        + tree(planner.by_key.len(), 4 + size_of::<ServicePortKey>())
        + tree(planner.frontends.len(), size_of::<FrontendKey>() + 8);
    assert!(bytes < 10 << 20, "{} KiB", bytes >> 10);
}
