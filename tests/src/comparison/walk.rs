//! Random changes one after the other on tables that fail now and then, looked at after every operation.

use std::cell::RefCell;

use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, LocalAddress, NodeConfig};
use portway_model::loadbalancer::Desired as _;
use portway_model::tables::{FaultyTables, MemoryTables, Row, TableDump, TableOp, TableWriter, rows};

use super::lookups::{Allowed, HOST_NETNS, NODE_ADDRESSES, Watched, ask, check_bits};
use super::snapshot::Snapshot;
use super::{Pipeline, describe, difference, expected_rows, manifest, model_config, path};
use crate::oracle::random::{Random, THIS_NODE, mutation};
use crate::oracle::world::{Mutation, World};
use crate::oracle::{OracleConfig, oracle};

/// Room for a few times what a world needs, so that everything is used again and again.
pub const SIZES: Sizes = Sizes {
    frontends: 1024,
    services: 256,
    runs: 4096,
    backends: 1024,
    source_ranges: 512,
    ..Sizes::DEFAULT
};

/// One write in so many fails.
const FAILING: u64 = 10;

/// Tables that can be read back while they are written.
pub trait Observed: TableWriter {
    fn read(&self) -> Result<TableDump, String>;

    /// Asks for everything that is or was there, as a client in `netns`. The number of lookups.
    fn look(&self, allowed: &Allowed, netns: u64) -> Result<u64, String>;
}

impl Observed for MemoryTables {
    fn read(&self) -> Result<TableDump, String> {
        Ok(self.dump())
    }

    fn look(&self, allowed: &Allowed, netns: u64) -> Result<u64, String> {
        allowed.check_sets(self)?;
        allowed.check(|to| ask(self, netns, to))
    }
}

/// Tables in memory that know [`NODE_ADDRESSES`].
pub fn memory_tables() -> MemoryTables {
    let mut tables = MemoryTables::new(SIZES);
    tables.config = NodeConfig { host_netns: HOST_NETNS, ..NodeConfig::default() };
    for address in node_addresses() {
        tables.local_addresses.insert(address, LocalAddress::new(true));
    }
    tables
}

fn node_addresses() -> impl Iterator<Item = Addr> {
    NODE_ADDRESSES.iter().filter_map(|text| text.parse::<std::net::IpAddr>().ok()).map(Addr::from)
}

/// Looks at tables elsewhere through what was read of them just now.
pub fn look_at_dump(dump: &TableDump, allowed: &Allowed, netns: u64) -> Result<u64, String> {
    let config = NodeConfig { host_netns: HOST_NETNS, ..NodeConfig::default() };
    let snapshot = Snapshot::new(dump, config, node_addresses());
    allowed.check_sets(&snapshot)?;
    allowed.check(|to| ask(&snapshot, netns, to))
}

/// How a walk went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub changes: u64,
    pub restarts: u64,
    pub operations: u64,
    pub lookups: u64,
    /// How often everything was written and compared with the oracle.
    pub compared: u64,
}

struct Observer {
    allowed: Allowed,
    random: Random,
    operations: u64,
    lookups: u64,
    wrong: Option<String>,
    /// The operations since everything was written.
    log: Vec<String>,
}

impl Observer {
    fn look(&mut self, tables: &impl Observed, op: &TableOp) {
        self.operations += 1;
        self.log.push(format!("{op:?}"));
        if self.wrong.is_some() {
            return;
        }
        match tables.look(&self.allowed, HOST_NETNS + self.random.below(3)) {
            Ok(lookups) => self.lookups += lookups,
            Err(wrong) => self.wrong = Some(format!("{wrong}\noperations so far:\n{}", self.log.join("\n"))),
        }
    }
}

/// `changes` random changes from `seed`. The error tells what went wrong after which change, and of what.
pub fn walk<W: Observed>(tables: W, seed: u64, changes: u64) -> Result<Summary, String> {
    let config = OracleConfig::new(THIS_NODE);
    let mut random = Random::new(seed);
    let observer = RefCell::new(Observer {
        allowed: Allowed::default(),
        random: Random::new(seed ^ 1),
        operations: 0,
        lookups: 0,
        wrong: None,
        log: Vec::new(),
    });
    observer.borrow_mut().allowed.only(&[]);
    let watched =
        Watched { inner: tables, look: Box::new(|tables, op| observer.borrow_mut().look(tables, op)) };
    let mut tables = FaultyTables::new(watched, FAILING, seed);
    let (mut world, mut pipeline) = (World::default(), Pipeline::with_sizes(model_config(&config), SIZES));
    let (mut summary, mut needs_prune) = (Summary { changes, ..Summary::default() }, false);
    for step in 1..=changes {
        let change = mutation(&mut random, &world);
        world.apply(&change);
        let wanted = expected(&world, &config);
        observer.borrow_mut().allowed.also(&wanted);
        let told = |text: String| {
            format!(
                "seed {seed}, change {step}: {text}\nchange: {}\nworld:\n{}",
                name(&change),
                describe(&world)
            )
        };
        match &change {
            Mutation::Put(object) => pipeline.file(&path(&object.key()), Some(&manifest(object))),
            Mutation::Delete(key) => pipeline.file(&path(key), None),
        };
        let outcome = pipeline.reconcile(&mut tables);
        if outcome.is_settled() && !pipeline.dirty.is_empty() {
            return Err(told(format!("all is written and yet dirty: {:?}", pipeline.dirty)));
        }
        // At times the agent dies before everything is written.
        if random.chance(2) {
            pipeline = restarted(&config, &world, &tables.inner.inner.read()?);
            needs_prune = true;
            summary.restarts += 1;
        }
        // At times the next change comes before everything is written.
        if random.chance(60) || step == changes {
            if needs_prune {
                // What fails stays dirty.
                let _ = pipeline.planner.prune(&pipeline.balancer, &mut pipeline.dirty, &mut tables);
                needs_prune = false;
            }
            pipeline.settle(&mut tables, 500).map_err(told)?;
            let dump = tables.inner.inner.read()?;
            check_bits(&dump).map_err(told)?;
            if let Some(difference) = difference(&wanted, &rows(&dump)) {
                return Err(told(difference));
            }
            let mut observer = observer.borrow_mut();
            observer.allowed.only(&wanted);
            if observer.wrong.is_none() {
                observer.log.clear();
            }
            summary.compared += 1;
        } else if random.chance(50) {
            pipeline.pass_grace_period();
        }
        if let Some(wrong) = observer.borrow_mut().wrong.take() {
            return Err(told(wrong));
        }
    }
    let observer = observer.borrow();
    Ok(Summary { operations: observer.operations, lookups: observer.lookups, ..summary })
}

/// An agent that finds what the last one left.
fn restarted(config: &OracleConfig, world: &World, dump: &TableDump) -> Pipeline {
    let mut pipeline = Pipeline::with_sizes(model_config(config), SIZES);
    pipeline.planner.restore(dump);
    for (key, object) in &world.objects {
        pipeline.file(&path(key), Some(&manifest(object)));
    }
    pipeline.dirty.merge(pipeline.balancer.everything());
    pipeline
}

fn expected(world: &World, config: &OracleConfig) -> Vec<Row> {
    expected_rows(oracle(&world.by_kind(), config))
}

fn name(change: &Mutation) -> String {
    match change {
        Mutation::Put(object) => format!("put {:?}", object.key()),
        Mutation::Delete(key) => format!("delete {key:?}"),
    }
}
