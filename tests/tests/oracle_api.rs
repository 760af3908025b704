//! An API server whose watches are cut, repeat themselves, come out of order, skip events and forget, and an agent that
//! is started anew among all that: in the end the tables are what the oracle makes of the objects.
//!
//! 500 runs; 10,000 with PORTWAY_LONG=1. PORTWAY_SEED=N runs the one run N.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portway_datapath::layout::Sizes;
use portway_model::k8s::Manifests;
use portway_model::loadbalancer::{Config, Desired as _, Dirty, LoadBalancer, Restored, Union};
use portway_model::plan::{Options, Planner};
use portway_model::tables::{MemoryTables, Row, rows};
use portway_tests::comparison::api::{ApiServer, KINDS, Told, Watch, object_kind};
use portway_tests::comparison::{describe, difference, expected_rows, model_config};
use portway_tests::oracle::oracle;
use portway_tests::oracle::random::{Random, config, mutation, world};
use portway_tests::oracle::world::{Mutation, World};

const OPTIONS: Options = Options { sizes: Sizes::DEFAULT, maglev: None };

/// What an agent has in its memory.
struct Agent {
    config: Config,
    manifests: Manifests,
    balancer: LoadBalancer,
    planner: Planner,
    restored: Restored,
    dirty: Dirty,
    watches: Vec<Watch>,
    is_exact: bool,
    /// Objects that came too late.
    older: u64,
}

impl Agent {
    fn new(config: Config, tables: &MemoryTables) -> Self {
        let dump = tables.dump();
        let mut planner = Planner::new(OPTIONS);
        planner.restore(&dump);
        Self {
            manifests: Manifests::new(),
            balancer: LoadBalancer::new(config.clone()),
            config,
            planner,
            restored: Restored::new(&dump),
            dirty: Dirty::default(),
            watches: KINDS.map(Watch::new).into(),
            is_exact: false,
            older: 0,
        }
    }

    fn take(&mut self, at: usize, told: &Told) {
        let kind = object_kind(self.watches[at].kind);
        let change = self.manifests.watched(kind, told.watched());
        self.older += change.older;
        change.events.into_iter().for_each(|event| self.balancer.apply(event));
    }

    fn step(&mut self, at: usize, server: &ApiServer, random: &mut Random, trouble: u64) {
        let told = self.watches[at].step(server, random, trouble);
        told.iter().for_each(|told| self.take(at, told));
    }

    /// One pass of writing what was seen, and what the first complete sync brings.
    fn program(&mut self, tables: &mut MemoryTables) -> Result<(), String> {
        let mut dirty = self.balancer.take_dirty();
        self.restored.learn(&self.balancer, &mut dirty);
        self.dirty.merge(dirty);
        let is_first = !self.is_exact && self.watches.iter().all(|watch| watch.has_synced);
        let outcome = if is_first {
            self.is_exact = true;
            self.restored.clear();
            self.dirty.merge(self.balancer.everything());
            self.planner.prune(&self.balancer, &mut self.dirty, tables)
        } else {
            let desired = Union { balancer: &self.balancer, restored: &self.restored };
            self.planner.reconcile(&desired, &mut self.dirty, tables)
        };
        if let Some(retired) = self.planner.take_retired() {
            self.planner.reclaim(retired);
        }
        match outcome.failures.first() {
            Some(failure) => Err(format!("not written: {failure}")),
            None => Ok(()),
        }
    }

    /// What the versions tell that events did not. How many kinds are listed again.
    fn audit(&mut self, server: &ApiServer) -> usize {
        let mut wrong = 0;
        for watch in &mut self.watches {
            let held = self.manifests.versions(object_kind(watch.kind));
            let held = held.map(|(name, version)| (name.to_owned(), version)).collect();
            if server.versions(watch.kind) != held {
                watch.relist();
                wrong += 1;
            }
        }
        wrong
    }
}

/// What a run went through.
#[derive(Debug, Default)]
struct Summary {
    rows: usize,
    restarts: u64,
    older: u64,
    audits: usize,
}

fn run(seed: u64, summary: &mut Summary) -> Result<(), String> {
    let mut random = Random::new(seed);
    let oracle_config = config(&mut random);
    let model_config = model_config(&oracle_config);
    let mut server = ApiServer::default();
    for object in world(&mut random).objects.into_values() {
        server.change(&Mutation::Put(object));
    }
    let mut tables = MemoryTables::new(OPTIONS.sizes);
    let mut agent = Agent::new(model_config, &tables);
    // Rows that nothing may take away: of a restart while nothing changes.
    let mut kept: Option<Vec<Row>> = None;
    for _ in 0..150 + random.below(150) {
        match random.below(100) {
            0..20 if kept.is_none() => server.change(&mutation(&mut random, &server.world)),
            20 | 21 => server.compact(),
            22..62 => {
                let at = random.below(4) as usize;
                agent.step(at, &server, &mut random, 25);
            }
            62..82 => {
                agent.program(&mut tables)?;
                if let Some(before) = &kept {
                    check_nothing_lost(before, &rows(&tables.dump()), &unready(&server.world))?;
                }
                kept.take_if(|_| agent.is_exact);
            }
            82 => {
                let is_quiet =
                    settle(&mut agent, &server, &mut tables, &mut random).is_ok() && random.chance(70);
                kept = is_quiet.then(|| rows(&tables.dump()));
                summary.restarts += 1;
                summary.older += agent.older;
                agent = Agent::new(agent.config, &tables);
            }
            _ => {}
        }
    }
    // The API server behaves again.
    summary.audits += settle(&mut agent, &server, &mut tables, &mut random)?;
    summary.older += agent.older;
    for watch in &agent.watches {
        let held = agent.manifests.versions(object_kind(watch.kind));
        let held = held.map(|(name, version)| (name.to_owned(), version)).collect();
        if server.versions(watch.kind) != held {
            return Err(format!(
                "{:?}s: {held:?} are held, not {:?}",
                watch.kind,
                server.versions(watch.kind)
            ));
        }
    }
    let (expected, model) =
        (expected_rows(oracle(&server.world.by_kind(), &oracle_config)), rows(&tables.dump()));
    summary.rows += expected.len();
    match difference(&expected, &model) {
        None => Ok(()),
        Some(difference) => Err(format!("{difference}\n{}", describe(&server.world))),
    }
}

/// Without any trouble until nothing is left to tell, with an audit. How many kinds that found wrong.
fn settle(
    agent: &mut Agent,
    server: &ApiServer,
    tables: &mut MemoryTables,
    random: &mut Random,
) -> Result<usize, String> {
    let mut wrong = 0;
    for round in 0..2 {
        for at in 0..KINDS.len() {
            while !agent.watches[at].is_idle(server) {
                agent.step(at, server, random, 0);
            }
        }
        if round == 0 {
            wrong = agent.audit(server);
        }
    }
    for _ in 0..10 {
        agent.program(tables)?;
        if agent.dirty.is_empty() {
            return Ok(wrong);
        }
    }
    Err(format!("never settled: {:?}", agent.dirty))
}

/// Addresses that some slice calls not ready. Another one may call them ready: then that counts, once it is seen.
fn unready(world: &World) -> BTreeSet<IpAddr> {
    let mut unready = BTreeSet::new();
    for slice in world.by_kind().slices {
        for endpoint in slice.endpoints.into_iter().flatten() {
            if endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(false) {
                unready.extend(endpoint.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()));
            }
        }
    }
    unready
}

/// While nothing changes, a restart takes no frontend away, gives none to another service, and takes no backend away
/// that is ready.
fn check_nothing_lost(before: &[Row], now: &[Row], unready: &BTreeSet<IpAddr>) -> Result<(), String> {
    for row in before {
        let at = |other: &&Row| {
            (&other.address, other.port, &other.protocol, &other.service)
                == (&row.address, row.port, &row.protocol, &row.service)
        };
        let Some(other) = now.iter().find(at) else {
            return Err(format!("a restart lost {row:?}"));
        };
        let is_ready = |backend: &&String| {
            let address: Result<SocketAddr, _> = backend.parse();
            address.is_ok_and(|address| !unready.contains(&address.ip()))
        };
        let has_all = |some: &[String], all: &[String]| {
            some.iter().filter(is_ready).all(|backend| all.contains(backend))
        };
        if !has_all(&row.backends.cluster, &other.backends.cluster)
            || !has_all(&row.backends.local, &other.backends.local)
        {
            return Err(format!("a restart took backends from {row:?}: {other:?}"));
        }
    }
    Ok(())
}

#[test]
fn whatever_a_watch_sees_the_tables_end_as_the_objects_say() {
    let is_long = std::env::var_os("PORTWAY_LONG").is_some_and(|value| value == "1");
    let seeds = match std::env::var("PORTWAY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..if is_long { 10_000 } else { 500 },
    };
    let runs = seeds.end - seeds.start;
    let mut summary = Summary::default();
    for seed in seeds {
        if let Err(wrong) = run(seed, &mut summary) {
            panic!("run {seed}: {wrong}");
        }
    }
    println!("{runs} runs: 0 differences, {summary:?}");
    if runs > 1 {
        let Summary { rows, restarts, older, audits } = summary;
        assert!(rows > 0 && restarts > 0 && older > 0 && audits > 0, "something never happened");
    }
}
