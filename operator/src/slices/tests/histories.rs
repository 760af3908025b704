//! Random histories of CiliumEndpoints, against which plans come through in part, late, or not at all.

use std::collections::{BTreeMap, BTreeSet};

use portway_model::crd::CoreCiliumEndpoint;
use serde_json::Value;

use super::fake::{Api, Dice};
use crate::slices::plan::{Filling, Mode, Planned};
use crate::write::Outcome;

const SEEDS: u64 = 80;

fn filling(dice: &mut Dice) -> Filling {
    Filling { most: 1 + dice.below(4), mode: if dice.one_in(2) { Mode::Identity } else { Mode::Fcfs } }
}

/// One change of the cluster.
fn happen(api: &mut Api, dice: &mut Dice) {
    let name = format!("{}/{}", ["a", "b"][dice.below(2)], dice.below(9));
    let identity = 300 + dice.below(3) as u32;
    let address = format!("10.0.0.{}", dice.below(20));
    match dice.below(8) {
        0..=2 => api.make(&name, identity, &address),
        3..=4 => drop(api.endpoints.remove(&name)),
        5 => api.change(&name, |status| status["identity"] = serde_json::json!({"id": identity})),
        6 => api.change(&name, |status| status["networking"]["addressing"][0]["ipv4"] = Value::from(address)),
        _ => api.change(&name, |status| status["identity"] = Value::Null),
    }
    // Null is nothing.
    if let Some(object) = api.endpoints.get_mut(&name)
        && object["status"]["identity"].is_null()
        && let Some(status) = object["status"].as_object_mut()
    {
        status.remove("identity");
    }
}

/// What must be once nothing is left to do.
fn is_settled(api: &Api, filling: Filling, seed: u64) {
    assert_eq!(api.plan(filling), [], "seed {seed}");
    let observed = api.observed();
    let mut seats: BTreeMap<String, usize> = BTreeMap::new();
    for slice in observed.slices.iter() {
        assert!((1..=filling.most).contains(&slice.endpoints.len()), "seed {seed}: {slice:?}");
        for element in &slice.endpoints {
            let name = format!("{}/{}", slice.of, element.name);
            let endpoint =
                observed.endpoints.get(&name).unwrap_or_else(|| panic!("seed {seed}: {name} is gone"));
            if endpoint.core.id != 0 {
                assert_eq!(*element, endpoint.core, "seed {seed}");
            }
            *seats.entry(name).or_default() += 1;
        }
    }
    for endpoint in observed.endpoints.iter() {
        let count = seats.get(&endpoint.meta.full_name()).copied().unwrap_or_default();
        // Of one that is not ready nobody knows which slice is right.
        assert!(count == 1 || endpoint.core.id == 0, "seed {seed}: {endpoint:?} is in {count} slices");
    }
}

/// Writes, and what must hold over each write: nothing that is told rightly is told no more, and nobody who is told at
/// all vanishes.
fn write(api: &mut Api, planned: &Planned, seed: u64) -> Outcome {
    let (right, any) = api.known();
    let outcome = api.write(&planned.write);
    let (right_after, any_after) = api.known();
    let lost: BTreeSet<_> = right.difference(&right_after).collect();
    assert!(lost.is_empty(), "seed {seed}: {lost:?} after {planned:?}");
    let gone = any.difference(&any_after);
    // Its element may be one of an endpoint of the same name that is gone.
    let gone: Vec<_> = gone.filter(|name| right.contains(*name)).collect();
    assert!(gone.is_empty(), "seed {seed}: {gone:?} after {planned:?}");
    outcome
}

#[test]
fn an_operator_that_is_killed_and_refused_anywhere_comes_to_what_the_endpoints_say() {
    for seed in 1..=SEEDS {
        let mut dice = Dice::new(seed);
        let filling = filling(&mut dice);
        let mut api = Api::default();
        for _ in 0..60 {
            for _ in 0..dice.below(4) {
                happen(&mut api, &mut dice);
            }
            let batch = dice.below(6);
            // What is planned comes through in part, and after it the next plan knows all.
            for planned in api.plan(filling).iter().take(batch) {
                if !dice.one_in(4) {
                    write(&mut api, planned, seed);
                }
            }
        }
        api.settle(filling);
        is_settled(&api, filling, seed);
    }
}

#[test]
fn a_turn_that_comes_through_leaves_nothing_stale() {
    for seed in 1..=SEEDS {
        let mut dice = Dice::new(seed + 1000);
        let filling = filling(&mut dice);
        let mut api = Api::default();
        for _ in 0..30 {
            for _ in 0..1 + dice.below(4) {
                happen(&mut api, &mut dice);
            }
            for planned in api.plan(filling) {
                assert!(matches!(write(&mut api, &planned, seed), Outcome::Done { .. }));
            }
            let observed = api.observed();
            let mut told: BTreeMap<String, Vec<&CoreCiliumEndpoint>> = BTreeMap::new();
            for slice in observed.slices.iter() {
                for element in &slice.endpoints {
                    told.entry(format!("{}/{}", slice.of, element.name)).or_default().push(element);
                }
            }
            for endpoint in observed.endpoints.iter().filter(|endpoint| endpoint.core.id != 0) {
                let told = told.remove(&endpoint.meta.full_name()).unwrap_or_default();
                let is_right = !told.is_empty() && told.iter().all(|told| **told == endpoint.core);
                assert!(is_right, "seed {seed}: {endpoint:?} is {told:?}");
            }
        }
    }
}

#[test]
fn two_replicas_that_write_from_what_they_saw_long_ago_leave_no_endpoint_twice() {
    for seed in 1..=SEEDS {
        let mut dice = Dice::new(seed + 2000);
        let filling = filling(&mut dice);
        let mut api = Api::default();
        let mut late: Vec<Planned> = Vec::new();
        for _ in 0..60 {
            for _ in 0..dice.below(3) {
                happen(&mut api, &mut dice);
            }
            let planned = api.plan(filling);
            if dice.one_in(3) {
                // Frozen with all of it on its way.
                late.extend(planned);
            } else {
                planned.iter().for_each(|planned| drop(write(&mut api, planned, seed)));
            }
            while !late.is_empty() && dice.one_in(3) {
                let planned = late.swap_remove(dice.below(late.len()));
                api.write(&planned.write);
            }
        }
        for planned in late {
            api.write(&planned.write);
        }
        api.settle(filling);
        is_settled(&api, filling, seed);
    }
}
