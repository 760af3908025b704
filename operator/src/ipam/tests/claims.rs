//! What random histories come upon too rarely: claims that an operator knows wrongly.

use portway_model::node::Prefix;

use super::*;
use crate::ipam::book::{Book, Claim, Epoch};
use crate::write::Outcome;

fn kinds(plan: &Plan) -> Vec<Kind> {
    plan.writes.iter().map(|write| write.kind).collect()
}

/// What the first write does to a key of the pool object; `None`: it says nothing of it.
fn change(plan: &Plan, key: &str) -> Option<Value> {
    let Change::Patch { body, .. } = &plan.writes.first()?.change else { return None };
    body["data"].get(key).cloned()
}

#[test]
fn a_node_of_the_same_name_does_not_get_what_an_old_pool_object_says_of_the_one_before() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/24", 24));
    node(&mut api, "a");
    settle(&mut api, &config);
    let mut stale = Replica::new(&api);
    api.remove(Kind::CiliumNode, "a");
    api.remove(Kind::Node, "a");
    settle(&mut api, &config);
    api.clock += LONG;
    node(&mut api, "b");
    // Claimed, and on its way.
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    plan.writes.iter().for_each(|write| drop(api.write(write)));
    assert_eq!((claim(&api, "b"), cidrs(&api, "b")), (Some("10.0.0.0/24".to_owned()), vec![]));
    node(&mut api, "a");
    for kind in [Kind::CiliumNode, Kind::Node] {
        stale.follow(&api, kind, usize::MAX);
    }
    let plan = ipam(&config).plan(&stale.observed, at(&api));
    assert_eq!(plan.writes[0].kind, Kind::ClusterPool);
    assert_eq!(api.write(&plan.writes[0]), Outcome::Late, "the claim");
    plan.writes.iter().for_each(|write| drop(api.write(write)));
    assert_eq!((cidrs(&api, "a"), cidrs(&api, "b")), (vec![], vec![]));
}

#[test]
fn of_two_claims_of_one_cidr_neither_is_written_and_both_nodes_get_others() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    settle(&mut api, &config);
    api.clock += LONG;
    node(&mut api, "a");
    node(&mut api, "b");
    let epoch = Book::read(&data(&api)).epoch;
    let claims = |name: &str| {
        let uid = api.get(Kind::CiliumNode, name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        (name.to_owned(), Claim { uid, cidrs: vec![Prefix::parse("10.0.0.0/24").unwrap()] })
    };
    let book = Book { claims: [claims("a"), claims("b")].into(), epoch, as_of: 1, ..Book::default() };
    api.put(Kind::ClusterPool, POOL, json!({"data": book.data()}));
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    assert_eq!(kinds(&plan), [Kind::ClusterPool]);
    settle(&mut api, &config);
    assert_eq!([cidrs(&api, "a"), cidrs(&api, "b")], [["10.0.1.0/24"], ["10.0.2.0/24"]]);
    assert_eq!(claim(&api, "a"), Some("10.0.0.0/24,10.0.1.0/24".to_owned()), "it may be on its way");
}

#[test]
fn who_edits_the_pool_object_begins_another_epoch() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    node(&mut api, "a");
    settle(&mut api, &config);
    let before = Book::read(&data(&api)).epoch.unwrap();
    api.put(Kind::ClusterPool, POOL, json!({"data": {"a": null}}));
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((kinds(&plan), change(&plan, "_epoch")), (vec![Kind::ClusterPool], Some(Value::Null)));
    settle(&mut api, &config);
    let after = Book::read(&data(&api));
    assert!(after.epoch.unwrap().version > before.version && !after.is_damaged, "{after:?}");
}

#[test]
fn a_node_that_was_marked_for_a_later_epoch_waits_until_that_is_known() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    settle(&mut api, &config);
    let mut stale = Replica::new(&api);
    let Epoch { version, .. } = Book::read(&data(&api)).epoch.unwrap();
    let marked = json!({(crate::observed::CiliumNode::EPOCH): (version + 1).to_string()});
    api.put(Kind::CiliumNode, "a", json!({"metadata": {"annotations": marked}}));
    stale.follow(&api, Kind::CiliumNode, usize::MAX);
    let plan = ipam(&config).plan(&stale.observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(PATIENCE)));
    // Of an API server that was put back to what it was long ago there is no later one.
    api.clock += 300;
    let plan = ipam(&config).plan(&stale.observed, at(&api));
    assert!(kinds(&plan).contains(&Kind::CiliumNode), "{plan:?}");
}

#[test]
fn a_node_that_was_marked_for_an_earlier_epoch_is_marked_anew_before_anything_is_given() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    settle(&mut api, &config);
    let marked = json!({(crate::observed::CiliumNode::EPOCH): "0"});
    api.put(Kind::CiliumNode, "a", json!({"metadata": {"annotations": marked}}));
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    assert_eq!(kinds(&plan), [Kind::CiliumNode]);
    let Change::Patch { body, .. } = &plan.writes[0].change else { panic!("{plan:?}") };
    assert!(body["spec"].is_null() && body["metadata"]["annotations"].is_object(), "{body}");
}

#[test]
fn a_claim_does_not_end_for_who_has_not_seen_the_later_one_of_the_name() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    api.put(Kind::CiliumNode, "a", json!({"spec": {}}));
    node(&mut api, "other");
    settle(&mut api, &config);
    api.clock += LONG;
    api.put(Kind::Node, "a", json!({}));
    api.remove(Kind::CiliumNode, "a");
    let mut late = Replica::new(&api);
    api.put(Kind::CiliumNode, "a", json!({"spec": {}}));
    // Claimed anew, and not yet written.
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    assert!(matches!(api.write(&plan.writes[0]), Outcome::Done { .. }), "{plan:?}");
    api.remove(Kind::Node, "a");
    late.follow(&api, Kind::ClusterPool, usize::MAX);
    late.follow(&api, Kind::Node, usize::MAX);
    assert_eq!(ipam(&config).plan(&late.observed, at(&api)).writes, []);
}

fn data(api: &FakeApi) -> std::collections::BTreeMap<String, String> {
    serde_json::from_value(api.get(Kind::ClusterPool, POOL).unwrap()["data"].clone()).unwrap()
}
