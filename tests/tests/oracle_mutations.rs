//! Random changes one after the other, on tables that fail one write in ten: after every operation each lookup gives
//! what it gave before the change or what it should give after it, and once everything is written the tables are what
//! the oracle says.
//!
//! 10,000 changes; 100,000 with PORTWAY_LONG=1. PORTWAY_SEED=N begins from another seed.

use std::cell::RefCell;

use portway_datapath::layout::Sizes;
use portway_datapath::{Addr, LocalAddress};
use portway_model::loadbalancer::Desired as _;
use portway_model::tables::{FaultyTables, MemoryTables, Row, TableOp, rows};
use portway_tests::comparison::lookups::{Allowed, HOST_NETNS, NODE_ADDRESSES, Watched, ask, check_bits};
use portway_tests::comparison::{
    Pipeline, describe, difference, expected_rows, manifest, model_config, path,
};
use portway_tests::oracle::random::{Random, THIS_NODE, mutation};
use portway_tests::oracle::world::{Mutation, World};
use portway_tests::oracle::{OracleConfig, oracle};

/// Room for a few times what a world needs, so that everything is used again and again.
const SIZES: Sizes = Sizes {
    frontends: 1024,
    services: 256,
    runs: 4096,
    backends: 1024,
    source_ranges: 512,
    ..Sizes::DEFAULT
};

/// One write in so many fails.
const FAILING: u64 = 10;

/// Looks up what a client would get, after every operation.
struct Observer {
    allowed: Allowed,
    random: Random,
    operations: u64,
    lookups: u64,
    wrong: Option<String>,
    /// Since the last change.
    log: Vec<String>,
}

impl Observer {
    fn look(&mut self, tables: &MemoryTables, op: &TableOp) {
        self.operations += 1;
        self.log.push(format!("{op:?}"));
        if self.wrong.is_some() {
            return;
        }
        let netns = HOST_NETNS + self.random.below(3);
        let found = self.allowed.check(|to| ask(tables, netns, to));
        match found.and_then(|lookups| self.allowed.check_sets(tables).map(|()| lookups)) {
            Ok(lookups) => self.lookups += lookups,
            Err(wrong) => self.wrong = Some(format!("{wrong}\noperations:\n{}", self.log.join("\n"))),
        }
    }
}

fn node_tables() -> MemoryTables {
    let mut tables = MemoryTables::new(SIZES);
    tables.config.host_netns = HOST_NETNS;
    for address in NODE_ADDRESSES {
        let address: std::net::IpAddr = address.parse().expect("an address");
        tables.local_addresses.insert(Addr::from(address), LocalAddress::new(true));
    }
    tables
}

fn restarted(config: &OracleConfig, world: &World, tables: &MemoryTables) -> Pipeline {
    let mut pipeline = Pipeline::with_sizes(model_config(config), SIZES);
    pipeline.planner.restore(&tables.dump());
    for (key, object) in &world.objects {
        pipeline.file(&path(key), Some(&manifest(object)));
    }
    pipeline.dirty.merge(pipeline.balancer.everything());
    pipeline
}

fn expected(world: &World, config: &OracleConfig) -> Vec<Row> {
    expected_rows(oracle(&world.by_kind(), config))
}

/// `changes` of them from `seed`. The error tells what went wrong after which change.
fn follow(seed: u64, changes: u64) -> Result<String, String> {
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
        Watched { inner: node_tables(), look: Box::new(|tables, op| observer.borrow_mut().look(tables, op)) };
    let mut tables = FaultyTables::new(watched, FAILING, seed);
    let (mut world, mut pipeline) = (World::default(), Pipeline::with_sizes(model_config(&config), SIZES));
    let (mut settled, mut restarts, mut needs_prune) = (0, 0, false);
    for step in 1..=changes {
        let change = mutation(&mut random, &world);
        world.apply(&change);
        let rows_wanted = expected(&world, &config);
        observer.borrow_mut().allowed.also(&rows_wanted);
        if std::env::var_os("PORTWAY_SEED").is_none() {
            observer.borrow_mut().log.clear();
        } else {
            observer.borrow_mut().log.push(format!("== change {step} {}", name(&change)));
        }
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
        // At times a change comes while the last one is not written yet, at times the agent dies in between.
        let settles = random.chance(60) || step == changes;
        let outcome = pipeline.reconcile(&mut tables);
        if outcome.is_settled() && !pipeline.dirty.is_empty() {
            return Err(told(format!("all is written and yet dirty: {:?}", pipeline.dirty)));
        }
        if random.chance(2) {
            pipeline = restarted(&config, &world, &tables.inner.inner);
            needs_prune = true;
            restarts += 1;
        }
        if settles {
            if needs_prune {
                let _ = pipeline.planner.prune(&pipeline.balancer, &mut pipeline.dirty, &mut tables);
                needs_prune = false;
            }
            pipeline.settle(&mut tables, 500).map_err(told)?;
            settled += 1;
            let dump = tables.inner.inner.dump();
            check_bits(&dump).map_err(told)?;
            let found = rows(&dump);
            if let Some(difference) = difference(&rows_wanted, &found) {
                return Err(told(difference));
            }
            observer.borrow_mut().allowed.only(&rows_wanted);
        } else if random.chance(50) {
            pipeline.pass_grace_period();
        }
        if let Some(wrong) = observer.borrow_mut().wrong.take() {
            return Err(told(wrong));
        }
    }
    let Observer { operations, lookups, .. } = &*observer.borrow();
    Ok(format!(
        "{changes} changes, {restarts} restarts, {operations} operations, {lookups} lookups, compared {settled} times: 0 differences"
    ))
}

fn name(change: &Mutation) -> String {
    match change {
        Mutation::Put(object) => format!("put {:?}", object.key()),
        Mutation::Delete(key) => format!("delete {key:?}"),
    }
}

#[test]
fn every_lookup_gives_the_old_or_the_new_set_whatever_fails() {
    let is_long = std::env::var_os("PORTWAY_LONG").is_some_and(|value| value == "1");
    let seed = std::env::var("PORTWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    // Several walks: one alone would stay near the worlds it has been in.
    let (walks, changes) = if is_long { (20, 5_000) } else { (10, 1_000) };
    for walk in 0..walks {
        match follow(seed + walk, changes) {
            Ok(summary) => println!("seed {}: {summary}", seed + walk),
            Err(wrong) => panic!("{wrong}"),
        }
    }
}
