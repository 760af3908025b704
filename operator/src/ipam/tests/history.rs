//! Random histories: nodes come, go and come back, the pool object is deleted and edited. Two operators plan whenever
//! they like, without any lease; each of their watches lags on its own; their writes arrive when they do.

use std::collections::BTreeMap;
use std::time::Duration;

use portway_model::node::Prefix;
use serde_json::json;

use super::{POOL, at, config, ipam};
use crate::controller::Controller as _;
use crate::fake_api::{Dice, FakeApi, Replica};
use crate::ipam::{Config, Ipam};
use crate::observed::Kind;
use crate::write::Write;

/// An operator; `late` is what it has sent and has not arrived.
struct Operator {
    replica: Replica,
    ipam: Ipam,
    late: Vec<Write>,
}

struct World {
    api: FakeApi,
    config: Config,
    dice: Dice,
    operators: Vec<Operator>,
    /// How many names nodes have.
    names: usize,
    /// After one turn in so many an operator has seen everything.
    laziness: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let (api, mut config) = (FakeApi::default(), config("10.0.0.0/21,10.9.0.0/24", 24));
        config.patience = Duration::MAX;
        let operator = || Operator { replica: Replica::new(&api), ipam: ipam(&config), late: Vec::new() };
        let operators = vec![operator(), operator()];
        let mut dice = Dice(seed);
        let (names, laziness) = (2 + dice.roll(6), 1 + dice.roll(12));
        Self { api, config, dice, operators, names, laziness }
    }

    fn step(&mut self) {
        let name = format!("n{}", self.dice.roll(self.names));
        // Within a day.
        self.api.clock += if self.dice.roll(10) == 0 && self.api.clock < 80_000 { 2000 } else { 1 };
        match self.dice.roll(24) {
            0 | 1 => self.api.put(Kind::Node, &name, json!({})),
            2..=4 => {
                self.api.put(Kind::CiliumNode, &name, json!({"spec": {"bootid": self.api.clock.to_string()}}))
            }
            5 => self.api.remove(Kind::Node, &name),
            6 => self.api.remove(Kind::CiliumNode, &name),
            // Another one of the same name.
            7 => {
                self.api.remove(Kind::CiliumNode, &name);
                self.api.put(Kind::CiliumNode, &name, json!({"spec": {}}));
            }
            8 if self.dice.roll(3) == 0 => self.api.remove(Kind::ClusterPool, POOL),
            9 if self.dice.roll(3) == 0 && self.api.get(Kind::ClusterPool, POOL).is_some() => {
                self.api.put(Kind::ClusterPool, POOL, json!({"data": {(name): null}}));
            }
            // All is listed anew, and sometimes it begins anew itself.
            10 => {
                let which = self.dice.roll(2);
                self.operators[which].replica = Replica::new(&self.api);
                if self.dice.roll(2) == 0 {
                    self.operators[which].ipam = ipam(&self.config);
                }
            }
            11..=13 => self.late_write(),
            // Watches of kinds lag as they like.
            14..=18 => {
                let which = self.dice.roll(2);
                let kind = [Kind::ClusterPool, Kind::CiliumNode, Kind::Node][self.dice.roll(3)];
                let count = 1 + self.dice.roll(20);
                self.operators[which].replica.follow(&self.api, kind, count);
            }
            _ => self.turn(),
        }
        self.check();
    }

    /// One plans; each of its writes arrives now or some day.
    fn turn(&mut self) {
        let which = self.dice.roll(2);
        let operator = &mut self.operators[which];
        let plan = operator.ipam.plan(&operator.replica.observed, at(&self.api));
        for write in plan.writes {
            match self.dice.roll(3) {
                0 => operator.late.push(write),
                _ => drop(self.api.write(&write)),
            }
        }
        if self.dice.roll(self.laziness) == 0 {
            operator.replica.catch_up(&self.api);
        }
    }

    fn late_write(&mut self) {
        let which = self.dice.roll(2);
        let late = &mut self.operators[which].late;
        if !late.is_empty() {
            let write = late.swap_remove(self.dice.roll(late.len()));
            self.api.write(&write);
        }
    }

    /// Nothing is anybody else's, too.
    fn check(&self) {
        let mut of: BTreeMap<Prefix, &str> = BTreeMap::new();
        for node in self.api.all(Kind::CiliumNode) {
            for cidr in node["spec"]["ipam"]["podCIDRs"].as_array().into_iter().flatten() {
                let cidr = Prefix::parse(cidr.as_str().unwrap()).unwrap();
                let name = node["metadata"]["name"].as_str().unwrap();
                assert_eq!(of.insert(cidr, name), None, "{cidr} is given to {name}, too");
                assert!(self.config.pools[0].offers(cidr), "{cidr}");
            }
        }
    }

    /// Everybody stops but one, who begins anew.
    fn end(&mut self) {
        let mut operator =
            Operator { replica: Replica::new(&self.api), ipam: ipam(&self.config), late: Vec::new() };
        for _ in 0..40 {
            let plan = operator.ipam.plan(&operator.replica.observed, at(&self.api));
            if plan.writes.is_empty() && plan.again.is_some_and(|again| again < Duration::MAX) {
                self.api.clock += 60;
                continue;
            }
            if plan.writes.is_empty() {
                assert_eq!(plan.troubles, []);
                let lacking =
                    |node: &&serde_json::Value| node["spec"]["ipam"]["podCIDRs"].as_array().is_none();
                assert_eq!(self.api.all(Kind::CiliumNode).filter(lacking).count(), 0);
                return;
            }
            for write in plan.writes {
                self.api.write(&write);
                self.check();
            }
            operator.replica.catch_up(&self.api);
        }
        panic!("it does not end");
    }
}

#[test]
fn no_history_gives_a_cidr_twice_and_each_ends_with_one_for_every_node() {
    for seed in 0..500 {
        let mut world = World::new(seed);
        for _ in 0..400 {
            world.step();
        }
        world.end();
    }
}
