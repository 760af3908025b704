//! Random worlds: what the model makes of them is what the Kubernetes API text says (see `portway_tests::oracle`).
//!
//! 2,000 worlds; 100,000 with PORTWAY_LONG=1. PORTWAY_SEED=N runs the one world N.

use portway_datapath::layout::Sizes;
use portway_model::tables::{MemoryTables, rows};
use portway_tests::comparison::{
    Pipeline, describe, difference, expected_rows, manifest, model_config, path, unplanned,
};
use portway_tests::oracle::random::{Random, config, world};
use portway_tests::oracle::world::{World, shrink};
use portway_tests::oracle::{OracleConfig, oracle};

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// What differs between model and oracle. Objects come in a random order.
fn disagreement(world: &World, config: &OracleConfig, seed: u64) -> Option<String> {
    let mut tables = MemoryTables::new(Sizes::DEFAULT);
    let mut pipeline = Pipeline::new(model_config(config));
    let mut objects: Vec<_> = world.objects.iter().collect();
    let mut random = Random::new(seed);
    random.shuffle(&mut objects);
    for (key, object) in objects {
        let change = pipeline.file(&path(key), Some(&manifest(object)));
        if let Some(problem) = change.problem {
            return Some(format!("the model refuses a file: {problem:?}"));
        }
        // At times all at once, at times one by one.
        if random.chance(50)
            && let Err(problem) = pipeline.settle(&mut tables, 10)
        {
            return Some(problem);
        }
    }
    if let Err(problem) = pipeline.settle(&mut tables, 10) {
        return Some(problem);
    }
    let model = rows(&tables.dump());
    let difference = difference(&expected_rows(oracle(&world.by_kind(), config)), &model)?;
    Some(format!(
        "{difference}not as the load balancer wants it: {:#?}",
        unplanned(&pipeline.balancer, &model)
    ))
}

#[test]
fn random_worlds_have_the_rows_that_the_kubernetes_api_text_gives_them() {
    let seeds = match std::env::var("PORTWAY_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None if is_set("PORTWAY_LONG") => 0..100_000,
        None => 0..2_000,
    };
    let mut compared = 0;
    for seed in seeds.clone() {
        let mut random = Random::new(seed);
        let (config, world) = (config(&mut random), world(&mut random));
        if disagreement(&world, &config, seed).is_some() {
            let smallest = shrink(&world, |smaller| disagreement(smaller, &config, seed).is_some());
            let difference = disagreement(&smallest, &config, seed).unwrap_or_default();
            panic!("world {seed} differs\n{difference}\n{config:#?}\n{}", describe(&smallest));
        }
        compared += oracle(&world.by_kind(), &config).len();
    }
    println!("{} worlds, {compared} frontends: model and oracle agree", seeds.end - seeds.start);
}
