//! All that can happen in a small cluster, by stateright.

use std::collections::BTreeMap;

use portway_datapath::NumericIdentity;
use stateright::{Checker as _, Model, Property};

use super::super::Right;
use super::uses::Use;
use super::world::{LeftOut, Rules, SETS, Set, Step, World};
use crate::identity::seen::Standing;

pub(super) const ONE_NUMBER: &str = "a label set has one number in use";
const ONE_MEANING: &str = "a number in use means one label set";
pub(super) const ONE_CONFIRMED: &str = "one identity of a label set is confirmed";
const USED_IS_THERE: &str = "what is in use is there";
const CLAIMS_END: &str = "claims that nobody disturbs end, and agree";
/// What pods would suffer from.
pub(super) const FOUND_BY_USE: [&str; 3] = [ONE_NUMBER, ONE_MEANING, USED_IS_THERE];

#[derive(Clone, Debug)]
pub(super) struct Cluster(pub(super) Rules);

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        world.steps(&self.0, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        world.after(&self.0, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = Vec::new();
        // It is dear, and says nothing new of more clients.
        if self.0.clients.len() < 3 {
            properties.push(Property::always(CLAIMS_END, |Self(rules), world: &World| {
                world.at_rest(rules).is_some_and(|world| holds(&world) && agree(&world) && is_there(&world))
            }));
        }
        if self.0.foreign == 0 {
            properties.extend([
                Property::always(ONE_NUMBER, |_, world| agree(world)),
                Property::always(ONE_MEANING, |_, world| are_unique(world)),
                Property::always(ONE_CONFIRMED, |_, world: &World| {
                    SETS.iter().all(|set| {
                        let confirmed = |object: &&_| is_confirmed(object, *set);
                        world.objects.values().filter(confirmed).count() <= 1
                    })
                }),
                Property::always(USED_IS_THERE, |_, world| is_there(world)),
            ]);
        }
        // So that the others say something.
        properties.extend([
            Property::sometimes("two clients share a number", |_, world: &World| {
                let used: Vec<_> = world.used().collect();
                used.len() > 1 && used.windows(2).all(|pair| pair[0] == pair[1])
            }),
            Property::sometimes("both label sets are in use", |_, world: &World| {
                SETS.iter().all(|set| world.used().any(|(of, _)| of == *set))
            }),
            Property::sometimes(
                "a label set is beside its home, which is free",
                |Self(rules), world: &World| {
                    let home = NumericIdentity::new(rules.homes[1]);
                    world.used().any(|(set, number)| set == Set::B && number != home)
                        && !world.objects.contains_key(&home)
                },
            ),
            Property::sometimes("what is in use is marked", |_, world: &World| {
                world
                    .used()
                    .any(|(_, number)| world.objects.get(&number).is_some_and(|object| object.is_marked))
            }),
            Property::sometimes("two of a label set are tentative", |_, world: &World| {
                let tentative = |object: &&super::world::Identity| {
                    object.set == Set::B && object.standing != Standing::Confirmed
                };
                world.objects.values().filter(tentative).count() > 1
            }),
        ]);
        properties
    }
}

fn is_confirmed(object: &super::world::Identity, set: Set) -> bool {
    object.set == set && object.standing == Standing::Confirmed
}

fn agree(world: &World) -> bool {
    let mut numbers = BTreeMap::new();
    world.used().all(|(set, number)| *numbers.entry(set).or_insert(number) == number)
}

fn are_unique(world: &World) -> bool {
    let mut meanings = BTreeMap::new();
    world.used().all(|(set, number)| *meanings.entry(number).or_insert(set) == set)
}

fn is_there(world: &World) -> bool {
    world
        .used()
        .all(|(set, number)| world.objects.get(&number).is_some_and(|object| is_confirmed(object, set)))
}

/// Who wants a number has one.
fn holds(world: &World) -> bool {
    world
        .clients
        .iter()
        .filter(|client| !client.keeps)
        .all(|client| client.claim.is_some() == client.using.is_some())
}

/// The properties that do not hold, each with a shortest way there.
pub(super) fn faults(rules: Rules) -> Outcome {
    let checker = Cluster(rules).checker().threads(2).spawn_bfs().join();
    let mut outcome =
        Outcome { faults: BTreeMap::new(), missing: Vec::new(), states: checker.unique_state_count() };
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match (property.expectation, found) {
            (stateright::Expectation::Always, Some(path)) => {
                let steps = path.into_actions();
                outcome.faults.insert(property.name, steps.iter().map(|step| format!("{step:?}")).collect());
            }
            (stateright::Expectation::Sometimes, None) => outcome.missing.push(property.name),
            _ => {}
        }
    }
    outcome
}

#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) faults: BTreeMap<&'static str, Vec<String>>,
    /// What should be seen sometimes and never was.
    pub(super) missing: Vec<&'static str>,
    pub(super) states: usize,
}

pub(super) const RULES: Rules = Rules {
    left_out: LeftOut::Nothing,
    uses: Use::Held,
    homes: [256, 256],
    clients: &[&SETS, &SETS],
    rights: &[Right::Create],
    keepers: &[],
    are_answers_late: false,
    is_full: false,
    starts: None,
    collectors: 1,
    crashes: 0,
    late_writes: 0,
    is_news_late: false,
    foreign: 0,
    collections: None,
};
