mod fake;
mod histories;

use std::time::{Duration, Instant};

use prometheus::Registry;
use serde_json::{Value, json};

use self::fake::Api;
use super::*;
use crate::write::{Change, Outcome};

const BY_IDENTITY: Filling = Filling { most: 3, mode: Mode::Identity };
const FCFS: Filling = Filling { most: 3, mode: Mode::Fcfs };

fn api(endpoints: &[(&str, u32)]) -> Api {
    let mut api = Api::default();
    for (n, (name, identity)) in endpoints.iter().enumerate() {
        api.make(name, *identity, &format!("10.0.0.{n}"));
    }
    api
}

fn sorted(api: &Api) -> Vec<Vec<String>> {
    let mut layout: Vec<_> = api.layout().into_values().collect();
    layout.iter_mut().for_each(|names| names.sort());
    layout.sort();
    layout
}

#[test]
fn endpoints_are_gathered_by_namespace_and_identity_or_as_they_come() {
    let endpoints =
        [("a/1", 300), ("a/2", 301), ("a/3", 300), ("b/1", 300), ("a/4", 300), ("a/5", 300), ("b/2", 302)];
    let mut by_identity = api(&endpoints);
    by_identity.settle(BY_IDENTITY);
    let expected: [&[&str]; 5] = [&["a/1", "a/3", "a/4"], &["a/2"], &["a/5"], &["b/1"], &["b/2"]];
    assert_eq!(sorted(&by_identity), expected);
    let mut fcfs = api(&endpoints);
    fcfs.settle(FCFS);
    assert_eq!(sorted(&fcfs), [&["a/1", "a/2", "a/3"][..], &["a/4", "a/5"], &["b/1", "b/2"]]);
    // The next one goes to the fullest that has room.
    fcfs.endpoints.remove("a/1");
    fcfs.endpoints.remove("a/2");
    fcfs.make("a/6", 300, "10.0.1.1");
    fcfs.settle(FCFS);
    assert_eq!(sorted(&fcfs), [&["a/3"][..], &["a/4", "a/5", "a/6"], &["b/1", "b/2"]]);
}

/// Pain 72 (cilium/cilium#31564).
#[test]
fn pain_72_a_restart_writes_nothing_whoever_wrote_the_slices() {
    let mut api = api(&[("a/1", 300), ("a/2", 301), ("a/3", 300)]);
    // Cilium's: nothing of Portway's in it, fields that Portway does not know, other fields left out or empty.
    let element = |n: u32, id: u32| {
        let networking = json!({"addressing": [{"ipv4": format!("10.0.0.{n}")}], "node": "192.0.2.1"});
        json!({
            "name": format!("{}", n + 1), "id": id, "networking": networking, "encryption": {"key": 0},
            "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}], "later-field": {"x": [1]},
        })
    };
    let mut bare = element(2, 300);
    bare.as_object_mut().unwrap().remove("encryption");
    api.put_slice("ces-x", "a", vec![element(0, 300), element(1, 301), bare]);
    for filling in [BY_IDENTITY, FCFS, Filling { most: 1, mode: Mode::Fcfs }] {
        assert_eq!(api.plan(Filling { most: filling.most, mode: Mode::Fcfs }), []);
    }
    // What others have added stays with what has to be written.
    api.change("a/2", |status| status["networking"]["addressing"][0]["ipv4"] = Value::from("10.0.0.9"));
    api.settle(FCFS);
    let told = api.told("a/2").remove(0);
    assert_eq!(told.others["later-field"], json!({"x": [1]}));
    assert_eq!(told.networking.unwrap().addressing[0].ipv4, "10.0.0.9");
    assert!(told.created.is_some() && told.service_account == "default");
    assert_eq!(api.plan(FCFS), []);
}

#[test]
fn an_endpoint_whose_identity_changes_is_right_everywhere_at_once_and_never_nowhere() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("a/3", 300), ("a/4", 301)]);
    api.settle(BY_IDENTITY);
    api.change("a/3", |status| status["identity"]["id"] = Value::from(301));
    let planned = api.plan(BY_IDENTITY);
    let counts: Vec<_> = planned.iter().map(|planned| (planned.inserted, planned.removed)).collect();
    assert_eq!(counts.iter().map(|(_, removed)| removed).sum::<usize>(), 0, "{planned:?}");
    for planned in planned {
        api.write(&planned.write);
    }
    let identities: Vec<_> = api.told("a/3").iter().map(|told| told.id).collect();
    assert_eq!(identities, [301, 301]);
    api.settle(BY_IDENTITY);
    assert_eq!(sorted(&api), [&["a/1", "a/2"][..], &["a/3", "a/4"]]);
    // One turn says it, the next one tidies up, a third one finds nothing.
    api.change("a/1", |status| status["identity"]["id"] = Value::from(302));
    assert_eq!(api.settle(BY_IDENTITY), 2);
    // All of a slice's change at once (labels of their namespace): the slice is of the other identity.
    for name in ["a/3", "a/4"] {
        api.change(name, |status| status["identity"]["id"] = Value::from(303));
    }
    assert_eq!(api.plan(BY_IDENTITY).len(), 1);
    assert_eq!(api.settle(BY_IDENTITY), 1);
}

/// Pain 71 (cilium/cilium#24581): killed between insert and remove.
#[test]
fn pain_71_what_a_killed_operator_left_in_two_slices_is_taken_out_of_the_wrong_one() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("a/3", 301)]);
    api.settle(BY_IDENTITY);
    api.change("a/2", |status| status["identity"]["id"] = Value::from(301));
    let insert = api.plan(BY_IDENTITY).into_iter().find(|planned| planned.inserted == 1).unwrap();
    api.write(&insert.write);
    // Here it is killed. In the old slice the old identity is still told.
    assert_eq!(api.told("a/2").len(), 2);
    api.settle(BY_IDENTITY);
    assert_eq!(sorted(&api), [&["a/1"][..], &["a/2", "a/3"]]);
    assert_eq!(api.told("a/2")[0].id, 301);
}

#[test]
fn an_endpoint_is_taken_out_only_where_its_own_slice_was_seen_to_say_what_it_is() {
    let mut api = api(&[("a/0", 301), ("a/1", 301), ("a/2", 300), ("a/3", 300)]);
    let element = |n: u32, id: u32, address: &str| {
        let networking = json!({"addressing": [{"ipv4": address}], "node": "192.0.2.1"});
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        json!({"name": n.to_string(), "id": id, "networking": networking, "named-ports": ports})
    };
    // Its own slice has an address that it had before; the slice of another identity knows the new one.
    api.put_slice("ces-x", "a", vec![element(0, 301, "10.9.9.9"), element(1, 301, "10.0.0.1")]);
    let others = [(0, 301), (2, 300), (3, 300)].map(|(n, id)| element(n, id, &format!("10.0.0.{n}")));
    api.put_slice("ces-y", "a", others.to_vec());
    let planned = api.plan(BY_IDENTITY);
    let written: Vec<_> = planned.iter().map(|planned| (&*planned.write.object, planned.removed)).collect();
    assert_eq!(written, [("ces-x", 0)]);
    assert_eq!(api.settle(BY_IDENTITY), 2);
    assert_eq!(sorted(&api), [&["a/0", "a/1"][..], &["a/2", "a/3"]]);
}

/// Pain 71: most pods deleted while nobody led.
#[test]
fn pain_71_what_went_while_no_operator_was_there_is_taken_out() {
    let filling = Filling { most: 10, mode: Mode::Identity };
    let names: Vec<String> = (0..100).map(|n| format!("a/p{n:02}")).collect();
    let mut api = Api::default();
    for (n, name) in names.iter().enumerate() {
        api.make(name, 300 + n as u32 % 3, &format!("10.0.1.{n}"));
    }
    api.settle(filling);
    names[5..].iter().for_each(|name| drop(api.endpoints.remove(name)));
    assert_eq!(api.settle(filling), 1);
    let left: Vec<_> = sorted(&api).concat();
    assert_eq!(left.len(), 5);
}

#[test]
fn an_endpoint_without_identity_or_address_is_not_told_and_keeps_what_was() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("a/3", 0)]);
    api.change("a/2", |status| drop(status.as_object_mut().unwrap().remove("networking")));
    api.settle(FCFS);
    assert_eq!(sorted(&api), [["a/1"]]);
    // One that loses its identity for a while, and one that can no longer be read.
    api.change("a/1", |status| drop(status.as_object_mut().unwrap().remove("identity")));
    assert_eq!(api.plan(FCFS), []);
    api.change("a/1", |status| status["identity"] = Value::from("?"));
    assert_eq!(api.plan(FCFS), []);
    // A pod of the same name begins without: it is not where its predecessor was.
    api.make("a/1", 0, "10.0.0.9");
    api.settle(FCFS);
    assert_eq!(api.layout().len(), 0);
}

#[test]
fn namespaces_with_priority_go_first_and_what_is_new_goes_before_what_is_tidied() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("c/1", 300), ("z/1", 300)]);
    api.settle(FCFS);
    let namespace =
        json!({"metadata": {"name": "z", "annotations": {"cilium.io/ces-namespace": "priority"}}});
    api.namespaces.insert("z".to_owned(), namespace);
    for gone in ["a/1", "z/1", "c/1"] {
        api.endpoints.remove(gone);
    }
    api.make("d/1", 300, "10.0.1.1");
    api.make("z/2", 300, "10.0.1.2");
    let planned = api.plan(FCFS);
    let order: Vec<_> = planned
        .iter()
        .map(|planned| (planned.has_priority, planned.inserted, planned.removed, planned.left))
        .collect();
    let expected = [(true, 1, 0, 1), (true, 0, 1, 0), (false, 1, 0, 1), (false, 0, 1, 1), (false, 0, 1, 0)];
    assert_eq!(order, expected);
}

#[test]
fn what_is_in_a_slice_stays_there_when_the_configuration_changes() {
    let endpoints: Vec<_> = (0..9).map(|n| (format!("a/{n}"), 300 + n % 3)).collect();
    let endpoints: Vec<_> = endpoints.iter().map(|(name, id)| (name.as_str(), *id)).collect();
    let mut api = api(&endpoints);
    api.settle(Filling { most: 9, mode: Mode::Fcfs });
    assert_eq!(api.layout().len(), 1);
    // Of three identities: nobody's, and over-full.
    assert_eq!(api.plan(BY_IDENTITY), []);
    assert_eq!(api.plan(FCFS), []);
    api.make("a/9", 300, "10.0.1.1");
    api.settle(BY_IDENTITY);
    assert_eq!(api.layout().len(), 2);
}

#[test]
fn two_replicas_that_make_a_slice_for_the_same_endpoints_make_the_same_slice() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("a/3", 300), ("a/4", 300)]);
    let frozen = api.plan(FCFS);
    assert_eq!(frozen.len(), 2);
    // The next leader has seen more.
    api.make("a/0", 300, "10.0.1.1");
    api.settle(FCFS);
    let before = api.layout();
    for late in frozen {
        assert_eq!(api.write(&late.write), Outcome::Late, "{:?}", late.write);
    }
    assert_eq!(api.layout(), before);
    // And one that comes when that slice is gone again is undone.
    let mut api = self::api(&[("a/1", 300)]);
    let late = api.plan(FCFS).remove(0);
    api.settle(FCFS);
    api.endpoints.clear();
    api.settle(FCFS);
    assert!(matches!(api.write(&late.write), Outcome::Done { .. }));
    api.settle(FCFS);
    assert_eq!(api.layout().len(), 0);
}

#[test]
fn a_slice_that_is_refused_again_and_again_does_not_hold_new_endpoints_back() {
    let mut api = api(&[("a/1", 300), ("b/1", 300)]);
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let limits = RateLimits::flat(10.0, 20).unwrap();
    let mut slices = Slices::new(Config { filling: FCFS, limits }, metrics);
    let now = Now { wall: Duration::ZERO, monotonic: Duration::ZERO };
    api.settle(FCFS);
    let bad = api.layout().into_iter().find(|(_, names)| names == &["a/1"]).unwrap().0;
    api.make("a/2", 300, "10.0.1.1");
    api.make("b/2", 300, "10.0.1.2");
    let mut turns = 0;
    while api.told("a/2").is_empty() {
        turns += 1;
        assert!(turns < 10, "{:?}", slices.plan(&api.observed(), now));
        for write in slices.plan(&api.observed(), now).writes {
            let outcome =
                if write.object == bad { Outcome::Failed("422".to_owned()) } else { api.write(&write) };
            slices.done(&write, &outcome);
        }
        api.make(&format!("b/{}", turns + 2), 300, "10.0.1.3");
    }
    assert_eq!(api.told("a/2").len(), 1);
}

#[test]
fn what_was_written_and_how_long_it_waited_is_counted() {
    let registry = Registry::new();
    let limits = RateLimits::flat(10.0, 20).unwrap();
    let mut slices = Slices::new(Config { filling: FCFS, limits }, Metrics::new(&registry).unwrap());
    let at = |seconds| Now { wall: Duration::ZERO, monotonic: Duration::from_secs(seconds) };
    let mut api = api(&[("a/1", 300), ("a/2", 300)]);
    let write = slices.plan(&api.observed(), at(1)).writes.remove(0);
    slices.done(&write, &Outcome::Failed("no".to_owned()));
    let write = slices.plan(&api.observed(), at(4)).writes.remove(0);
    let outcome = api.write(&write);
    slices.done(&write, &outcome);
    assert_eq!(slices.plan(&api.observed(), at(5)), Plan::default());
    let text = portway_runtime::metrics::render(&registry).unwrap();
    for line in [
        "cilium_operator_number_of_ceps_per_ces_sum 2",
        "cilium_operator_number_of_cep_changes_per_ces_sum{opcode=\"cepinserted\"} 2",
        "cilium_operator_ces_sync_total{outcome=\"success\"} 1",
        "cilium_operator_ces_sync_total{outcome=\"fail\"} 1",
        "cilium_operator_ces_queueing_delay_seconds_sum{queue=\"standard\"} 4",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn every_write_has_a_precondition() {
    let mut api = api(&[("a/1", 300), ("b/1", 300)]);
    api.settle(FCFS);
    api.endpoints.remove("b/1");
    api.make("a/2", 300, "10.0.1.1");
    api.make("c/1", 300, "10.0.1.2");
    let planned = api.plan(FCFS);
    assert_eq!(planned.len(), 3);
    for Planned { write, .. } in planned {
        match &write.change {
            Change::Create(body) => assert_eq!(body["metadata"]["name"], *write.object),
            Change::Patch { body, .. } => {
                let metadata = &body["metadata"];
                assert!(metadata["uid"].is_string() && metadata["resourceVersion"].is_string(), "{write:?}");
            }
            Change::Delete { uid, version } => assert!(!uid.is_empty() && *version > 0, "{write:?}"),
        }
    }
}

/// A debug build, on a machine that does other things: what counts is that nothing is quadratic.
#[test]
fn five_thousand_endpoints_in_a_thousand_slices_are_planned_in_no_time() {
    let filling = Filling { most: 5, mode: Mode::Identity };
    let mut api = Api::default();
    for n in 0..5000_u32 {
        api.make(&format!("ns{}/p{n}", n % 20), 300 + n % 1000, &format!("10.{}.{}.1", n / 256, n % 256));
    }
    api.settle(filling);
    assert_eq!(api.layout().len(), 1000);
    for name in (0..5000).step_by(7) {
        api.endpoints.remove(&format!("ns{}/p{name}", name % 20));
    }
    let observed = api.observed();
    let began = Instant::now();
    let planned = plan(&observed, filling, true, &|_| false);
    let took = began.elapsed();
    assert!(planned.len() > 400, "{}", planned.len());
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Of endpoints that are not known while no watch tells of them nothing can be said; those that are known are told all
/// the same.
#[test]
fn nothing_is_taken_out_while_nothing_is_heard_of_endpoints_or_of_slices() {
    let mut api = api(&[("a/1", 300), ("a/2", 300), ("b/1", 301)]);
    api.settle(FCFS);
    api.endpoints.remove("a/1");
    api.endpoints.remove("b/1");
    api.make("c/1", 302, "10.0.9.1");
    let at = |seconds| Now { wall: Duration::ZERO, monotonic: Duration::from_secs(seconds) };
    for silent in [Kind::CiliumEndpoint, Kind::CiliumEndpointSlice] {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let limits = RateLimits::flat(10.0, 20).unwrap();
        let mut slices = Slices::new(Config { filling: FCFS, limits }, metrics);
        let mut observed = api.observed();
        observed.hear(silent, Duration::from_secs(10), at(10));
        let writes = slices.plan(&observed, at(101)).writes;
        assert!(matches!(&writes[..], [Write { change: Change::Create(_), .. }]), "{writes:?}");
        assert!(observed.hear(silent, Duration::from_secs(102), at(102)));
        assert_eq!(slices.plan(&observed, at(102)).writes.len(), 3);
    }
}
