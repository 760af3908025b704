mod readiness;
mod together;
mod unmanaged;

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::controller::{Controller, Now, Plan};
use crate::fake_api::{DAY, FakeApi, Replica};
use crate::observed::Kind;
use crate::write::{Change, Outcome, Write};

fn at(api: &FakeApi) -> Now {
    let seconds = u64::try_from(api.clock).unwrap();
    Now { wall: Duration::from_secs(DAY + seconds), monotonic: Duration::from_secs(seconds) }
}

fn agents() -> Agents {
    Agents { namespace: "kube-system".to_owned(), labels: Selector::parse("k8s-app=portway").unwrap() }
}

/// A pod of the agent.
fn agent(api: &mut FakeApi, node: &str, is_ready: bool) {
    let ready = if is_ready { "True" } else { "False" };
    let fields = json!({
        "metadata": {"labels": {"k8s-app": "portway"}},
        "spec": {"nodeName": node, "hostNetwork": true},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    });
    api.put(Kind::Pod, &format!("kube-system/portway-{node}"), fields);
}

fn node(api: &mut FakeApi, name: &str) {
    let addresses = json!([
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "InternalIP", "address": "2001:DB8::1"},
        {"type": "ExternalIP", "address": "198.51.100.1"},
        {"type": "Hostname", "address": "a"},
    ]);
    let fields = json!({"spec": {"podCIDRs": ["10.0.1.0/24"]}, "status": {"addresses": addresses}});
    api.put(Kind::Node, name, fields);
}

/// What is written at once, all of which is done.
fn turn(api: &mut FakeApi, controller: &mut dyn Controller) -> Vec<Write> {
    let plan = controller.plan(&Replica::new(api).observed, at(api));
    for write in &plan.writes {
        let outcome = api.write(write);
        assert!(matches!(outcome, Outcome::Done { .. }), "{write:?}");
        controller.done(write, &outcome);
    }
    plan.writes
}

fn discovery() -> Discovery {
    Discovery::new(DiscoveryConfig { has_pod_cidrs_of_nodes: false })
}

#[test]
fn a_node_gets_a_cilium_node_with_its_addresses_and_its_owner() {
    let mut api = FakeApi::default();
    node(&mut api, "a");
    turn(&mut api, &mut discovery());
    let made = api.get(Kind::CiliumNode, "a").unwrap();
    let expected = json!([
        {"type": "InternalIP", "ip": "192.0.2.1"},
        {"type": "InternalIP", "ip": "2001:db8::1"},
        {"type": "ExternalIP", "ip": "198.51.100.1"},
    ]);
    assert_eq!((&made["spec"]["addresses"], &made["spec"]["ipam"]), (&expected, &Value::Null));
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], api.get(Kind::Node, "a").unwrap()["metadata"]["uid"]);
    assert_eq!(turn(&mut api, &mut discovery()), [], "a second plan is empty");
    let mut other = FakeApi::default();
    node(&mut other, "a");
    turn(&mut other, &mut Discovery::new(DiscoveryConfig { has_pod_cidrs_of_nodes: true }));
    let made = other.get(Kind::CiliumNode, "a").unwrap();
    assert_eq!(made["spec"]["ipam"], json!({"podCIDRs": ["10.0.1.0/24"]}));
}

#[test]
fn an_agents_cilium_node_is_left_alone_but_for_addresses_that_it_lacks_altogether() {
    let mut api = FakeApi::default();
    node(&mut api, "a");
    let spec = json!({"addresses": [{"type": "ExternalIP", "ip": "203.0.113.7"}]});
    api.put(Kind::CiliumNode, "a", json!({"spec": spec}));
    assert_eq!(turn(&mut api, &mut discovery()), []);
    let spec = json!({"addresses": [{"type": "CiliumInternalIP", "ip": "10.0.1.1"}], "bootid": "b"});
    api.put(Kind::CiliumNode, "a", json!({"spec": spec}));
    assert_eq!(turn(&mut api, &mut discovery()).len(), 1);
    let spec = &api.get(Kind::CiliumNode, "a").unwrap()["spec"];
    let kinds: Vec<_> = spec["addresses"].as_array().unwrap().iter().map(|at| at["type"].clone()).collect();
    assert_eq!(kinds, ["InternalIP", "InternalIP", "ExternalIP", "CiliumInternalIP"]);
    assert_eq!(spec["bootid"], "b");
}

#[test]
fn one_that_cannot_be_read_is_there_and_others_are_made_beside_it() {
    let mut api = FakeApi::default();
    node(&mut api, "a");
    node(&mut api, "b");
    api.put(Kind::CiliumNode, "a", json!({"spec": 7}));
    let made: Vec<_> = turn(&mut api, &mut discovery()).into_iter().map(|write| write.object).collect();
    assert_eq!(made, ["b"]);
}

#[test]
fn a_cilium_node_goes_when_its_node_has_been_gone_for_an_interval() {
    let mut api = FakeApi::default();
    for name in ["a", "b", "c"] {
        api.put(Kind::CiliumNode, name, json!({}));
        node(&mut api, name);
    }
    let mut gc = Gc::new(Duration::from_secs(300));
    assert_eq!(turn(&mut api, &mut gc), []);
    api.remove(Kind::Node, "a");
    api.remove(Kind::Node, "b");
    let plan = gc.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(Duration::from_secs(300))));
    // Another one of the name begins anew, and a Node that is back is back.
    api.clock += 200;
    api.remove(Kind::CiliumNode, "a");
    api.put(Kind::CiliumNode, "a", json!({}));
    assert_eq!(turn(&mut api, &mut gc), []);
    api.clock += 100;
    let deleted = turn(&mut api, &mut gc);
    assert!(deleted.len() == 1 && deleted[0].object == "b", "{deleted:?}");
    assert!(matches!(&deleted[0].change, Change::Delete { uid, .. } if !uid.is_empty()));
    node(&mut api, "a");
    api.clock += 600;
    assert_eq!(turn(&mut api, &mut gc), []);
}

#[test]
fn a_watch_of_nodes_that_lags_deletes_no_cilium_node_of_a_new_node() {
    let mut api = FakeApi::default();
    node(&mut api, "other");
    let mut replica = Replica::new(&api);
    node(&mut api, "new");
    api.put(Kind::CiliumNode, "new", json!({}));
    replica.follow(&api, Kind::CiliumNode, usize::MAX);
    let mut gc = Gc::new(Duration::from_secs(300));
    for left in [390, 90] {
        let plan = gc.plan(&replica.observed, at(&api));
        assert_eq!((plan.writes, plan.again), (vec![], Some(Duration::from_secs(left))));
        api.clock += 300;
    }
    api.clock -= 300;
    replica.follow(&api, Kind::Node, usize::MAX);
    assert_eq!(gc.plan(&replica.observed, at(&api)).writes, []);
}

#[test]
fn while_nothing_is_heard_of_nodes_no_cilium_node_goes_and_its_time_begins_anew() {
    let mut api = FakeApi::default();
    api.put(Kind::CiliumNode, "a", json!({}));
    node(&mut api, "other");
    let (mut replica, mut gc) = (Replica::new(&api), Gc::new(Duration::from_secs(300)));
    let told = |replica: &Replica, gc: &mut Gc, api: &FakeApi| gc.plan(&replica.observed, at(api));
    assert_eq!(told(&replica, &mut gc, &api).again, Some(Duration::from_secs(300)));
    replica.observed.hear(Kind::Node, at(&api).monotonic, at(&api));
    api.clock += 1000;
    assert_eq!(told(&replica, &mut gc, &api), Plan::default());
    replica.observed.hear(Kind::Node, at(&api).monotonic, at(&api));
    let plan = told(&replica, &mut gc, &api);
    assert_eq!((plan.writes, plan.again), (vec![], Some(Duration::from_secs(300))));
}

#[test]
fn a_cilium_node_that_is_no_nodes_is_left_alone() {
    let mut api = FakeApi::default();
    let owner = |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "a", "uid": "u"}]);
    let kept = |value: &str| json!({"metadata": {"annotations": {"cilium.io/do-not-gc": value}}});
    api.put(
        Kind::CiliumNode,
        "workload",
        json!({"metadata": {"ownerReferences": owner("CiliumExternalWorkload")}}),
    );
    api.put(Kind::CiliumNode, "kept", kept("True"));
    api.put(Kind::CiliumNode, "of-node", json!({"metadata": {"ownerReferences": owner("Node")}}));
    api.put(Kind::CiliumNode, "not-kept", kept("false"));
    let mut gc = Gc::new(Duration::from_secs(300));
    turn(&mut api, &mut gc);
    api.clock += 400;
    let deleted: Vec<_> = turn(&mut api, &mut gc).into_iter().map(|write| write.object).collect();
    assert_eq!(deleted, ["not-kept", "of-node"]);
}
