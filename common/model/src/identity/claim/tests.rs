//! The protocol of claims in all orders of what can happen: clients create, read, confirm, refer, hold, release and crash;
//! a collector marks, unmarks and deletes; late writes land.
//!
//! With `PORTWAY_LONG` clients begin and collectors look as often as they like: minutes, and all worlds there are.

mod checker;
mod server;
mod steps;
mod uses;
mod world;

use portway_datapath::NumericIdentity;

use super::{Action, Claim, Right};
use crate::identity::seen::{Seen, Standing};
use checker::{FOUND_BY_USE, Outcome, RULES, faults};
use uses::Use;
use world::{CURRENT, LeftOut, Rules, SETS, Set};

/// The label sets have the same home, or neighbouring ones.
const HOMES: [[u32; 2]; 2] = [[256, 256], [256, 257]];
/// Two clients that may want either label set.
const ANY: &[&[Set]] = &[&SETS, &SETS];
const ONE_EACH: &[&[Set]] = &[&[Set::A], &[Set::B]];
/// B's clients meet while A goes.
const THREE: &[&[Set]] = &[&[Set::A], &[Set::B], &[Set::B]];

fn is_long() -> bool {
    std::env::var_os("PORTWAY_LONG").is_some()
}

#[track_caller]
fn assert_sound(outcome: &Outcome) {
    assert!(outcome.faults.is_empty(), "{outcome:#?}");
    assert!(outcome.states > 1_000, "{outcome:#?}");
}

#[test]
fn two_clients_never_disagree() {
    for homes in HOMES {
        let bounded = Rules { homes, clients: ANY, starts: Some(2), collections: Some(3), ..RULES };
        let outcome =
            faults(if is_long() { Rules { starts: None, collections: None, ..bounded } } else { bounded });
        assert_sound(&outcome);
        assert_eq!(outcome.missing, [""; 0], "the checker does not see what it should");
    }
}

#[test]
fn three_clients_never_disagree() {
    for homes in HOMES {
        let bounded = Rules { homes, clients: THREE, starts: Some(1), collections: Some(2), ..RULES };
        assert_sound(&faults(if is_long() { Rules { collections: None, ..bounded } } else { bounded }));
    }
}

#[test]
fn crashes_late_writes_and_late_news_change_nothing_of_that() {
    for homes in HOMES {
        let rules = Rules { homes, starts: Some(1), collections: Some(2), ..RULES };
        assert_sound(&faults(Rules { clients: THREE, crashes: 1, ..rules.clone() }));
        assert_sound(&faults(Rules { clients: THREE, late_writes: 1, ..rules.clone() }));
        assert_sound(&faults(Rules { clients: THREE, is_news_late: true, ..rules.clone() }));
        assert_sound(&faults(Rules {
            clients: ONE_EACH,
            collectors: 2,
            collections: Some(if is_long() { 4 } else { 2 }),
            crashes: 1,
            late_writes: 1,
            is_news_late: true,
            ..rules
        }));
    }
}

/// Agents do not wait for their references with what starts: they rely on the time that collectors leave.
#[test]
fn who_uses_a_number_before_it_is_referred_to_relies_on_the_wait_between_mark_and_delete() {
    for homes in HOMES {
        let uses = Use::Settled { is_in_time: true };
        let rules = Rules { homes, uses, starts: Some(1), collections: Some(3), ..RULES };
        assert_sound(&faults(Rules { clients: THREE, ..rules.clone() }));
        if is_long() || homes == HOMES[0] {
            assert_sound(&faults(Rules { clients: ANY, collectors: 2, ..rules.clone() }));
        }
        let uses = Use::Settled { is_in_time: false };
        let outcome = faults(Rules { clients: THREE, uses, ..rules });
        let found = outcome.faults.keys().any(|fault| FOUND_BY_USE.contains(fault));
        assert!(found, "the wait is not needed: {outcome:#?}");
    }
}

#[test]
fn what_others_do_without_rules_is_survived() {
    for homes in HOMES {
        let rules = Rules { homes, starts: Some(1), collections: Some(0), foreign: 2, ..RULES };
        assert_sound(&faults(Rules { clients: ANY, ..rules }));
    }
}

/// Where the operator makes numbers, beside agents that do, too, and such that wait for it, in every order of restarts: of
/// mode agent, both or operator.
const MODES: Rules = Rules {
    rights: &[Right::Create, Right::Wait],
    clients: ONE_EACH,
    keepers: &SETS,
    starts: Some(1),
    collections: Some(1),
    ..RULES
};
const B_ALONE: &[&[Set]] = &[&[Set::B]];
const B_TWICE: &[&[Set]] = &[&[Set::B], &[Set::B]];

#[test]
fn an_operator_and_agents_of_any_mode_never_disagree() {
    let collections = Some(if is_long() { 3 } else { 1 });
    for homes in HOMES {
        let rules = Rules { homes, collections, ..MODES };
        assert_sound(&faults(rules.clone()));
        if is_long() || homes == HOMES[0] {
            assert_sound(&faults(Rules { clients: B_TWICE, crashes: 1, ..rules }));
        }
    }
}

#[test]
fn whoever_finds_no_number_looks_at_a_tentative_one_whose_maker_may_be_gone() {
    let number = NumericIdentity::new(300);
    let mut claim = Claim::new(number, Right::Create);
    claim.done(Action::List, super::Outcome::Listed(Vec::new()));
    assert_eq!(claim.next(|_| true), Action::Exhausted);
    let new = Seen { number, version: CURRENT, standing: Standing::New, is_marked: false, created: 0 };
    claim.observe(&[new]);
    assert_eq!(claim.next(|_| true), Action::Exhausted, "whoever makes it goes first");
    claim.retry(false);
    assert_eq!(claim.next(|_| true), Action::Exhausted);
    claim.retry(true);
    assert_eq!(claim.next(|_| true), Action::List);
    claim.done(Action::List, super::Outcome::Listed(vec![new]));
    assert_eq!(claim.next(|_| true), Action::Confirm { number, version: CURRENT });
}

/// As in a cluster whose last numbers are the operator's to give.
#[test]
fn whoever_finds_no_number_takes_the_one_that_an_operator_makes() {
    let full = Rules { is_full: true, clients: B_ALONE, starts: Some(2), collections: Some(2), ..MODES };
    for homes in HOMES {
        let rules = Rules { homes, crashes: 1, keepers: &[Set::B], ..full.clone() };
        assert_sound(&faults(rules.clone()));
        assert_sound(&faults(Rules { are_answers_late: true, ..rules.clone() }));
        let rules = Rules { starts: Some(1), ..rules };
        assert_sound(&faults(Rules { is_news_late: true, keepers: &[Set::B, Set::B], ..rules.clone() }));
        assert_sound(&faults(Rules { clients: B_TWICE, keepers: &SETS, ..rules }));
    }
}

#[test]
fn two_operators_that_both_believe_they_lead_never_disagree() {
    let keepers = &[Set::A, Set::B, Set::B];
    let bounded = Rules { clients: B_ALONE, keepers, ..MODES };
    for homes in HOMES {
        let collections = Some(if is_long() { 3 } else { 1 });
        assert_sound(&faults(Rules { homes, collections, ..bounded.clone() }));
        assert_sound(&faults(Rules {
            homes,
            is_news_late: true,
            crashes: 1,
            keepers: &[Set::B, Set::B],
            ..bounded.clone()
        }));
    }
}

#[test]
fn without_the_read_after_create_operators_make_two_of_a_label_set() {
    let left_out = LeftOut::ReadAfterCreate;
    let keepers = &[Set::A, Set::B, Set::B];
    let outcome = faults(Rules { left_out, keepers, clients: &[], collections: Some(2), ..MODES });
    assert!(outcome.faults.contains_key(checker::ONE_CONFIRMED), "{outcome:#?}");
}

#[test]
fn answers_and_news_that_overtake_each_other_change_nothing() {
    for homes in HOMES {
        let rules = Rules { homes, starts: Some(1), collections: Some(2), are_answers_late: true, ..RULES };
        assert_sound(&faults(Rules { clients: ANY, ..rules.clone() }));
    }
}

/// What is found where a part of the protocol is left out.
fn fault_without(left_out: LeftOut, rules: Rules) -> Outcome {
    let outcome = faults(Rules { left_out, ..rules });
    let found = outcome.faults.keys().any(|fault| FOUND_BY_USE.contains(fault));
    assert!(found, "{left_out:?} is not missed: {outcome:#?}");
    outcome
}

#[test]
fn without_the_read_after_create_a_label_set_has_two_numbers() {
    let rules = Rules { clients: THREE, starts: Some(1), collections: Some(2), ..RULES };
    let outcome = fault_without(LeftOut::ReadAfterCreate, rules);
    assert!(outcome.faults.contains_key(checker::ONE_NUMBER), "{outcome:#?}");
}

#[test]
fn no_part_of_the_protocol_can_be_left_out() {
    let rules = Rules { clients: THREE, starts: Some(1), collections: Some(2), ..RULES };
    fault_without(LeftOut::Preconditions, rules.clone());
    fault_without(LeftOut::ReferenceBeforeUse, rules.clone());
    // One collector alone does not see what it missed.
    let rules = Rules { clients: ONE_EACH, collectors: 2, ..rules };
    assert_sound(&faults(rules.clone()));
    fault_without(LeftOut::CollectorsOrder, rules);
}
