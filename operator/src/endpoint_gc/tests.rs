use portway_runtime::kubernetes::WatchEvent;
use serde_json::{Value, json};

use super::*;
use crate::write::Change;

const INTERVAL: Duration = Duration::from_secs(300);
/// 2026-11-30T10:00:00Z.
const NOON: i64 = 1_796_032_800;

fn at(seconds: u64) -> Now {
    Now { wall: Duration::from_secs(NOON as u64 + seconds), monotonic: Duration::from_secs(1000 + seconds) }
}

fn gc() -> EndpointGc {
    EndpointGc::new(Config { interval: INTERVAL }, Metrics::new(&prometheus::Registry::new()).unwrap())
}

fn pod(observed: &mut Observed, name: &str, uid: &str, phase: &str) {
    let metadata = json!({"name": name, "namespace": "a", "uid": uid, "resourceVersion": "5"});
    observed.pods.apply(&json!({"metadata": metadata, "status": {"phase": phase}}).to_string());
}

/// Made at 09:00, an hour ago, unless `created` says otherwise.
fn endpoint(observed: &mut Observed, name: &str, pod_uid: &str, more: Value) {
    let mut metadata = json!({
        "name": name, "namespace": "a", "uid": format!("of-{name}-{pod_uid}"), "resourceVersion": "7",
        "creationTimestamp": "2026-11-30T09:00:00Z",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod_uid}],
    });
    if let (Value::Object(metadata), Value::Object(more)) = (&mut metadata, more) {
        metadata.extend(more);
    }
    observed.endpoints.apply(&json!({"metadata": metadata, "status": {"id": 7}}).to_string());
    // Pods are known as of later.
    observed.pods.take(WatchEvent::ListEnds { version: 50 });
}

/// What is deleted: the object, its UID and its version.
fn deleted(plan: &Plan) -> Vec<(&str, &str, u64)> {
    let mut found = Vec::new();
    for write in &plan.writes {
        let Change::Delete { uid, version } = &write.change else { panic!("{write:?}") };
        found.push((write.object.as_str(), &**uid, *version));
    }
    found
}

#[test]
fn endpoints_go_whose_pod_is_gone_or_over_or_another_one() {
    let mut observed = Observed::fresh();
    for (name, uid, phase) in [
        ("runs", "1", "Running"),
        ("done", "2", "Succeeded"),
        ("failed", "3", "Failed"),
        ("again", "5", "Pending"),
    ] {
        pod(&mut observed, name, uid, phase);
    }
    for (name, uid) in [("runs", "1"), ("done", "2"), ("failed", "3"), ("again", "4"), ("gone", "6")] {
        endpoint(&mut observed, name, uid, json!({}));
    }
    // Without owners the name counts; of other owners it is not this one's business.
    endpoint(&mut observed, "bare", "", json!({"ownerReferences": []}));
    let node = json!([{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "name": "n", "uid": "9"}]);
    endpoint(&mut observed, "ingress", "", json!({"ownerReferences": node}));
    endpoint(&mut observed, "going", "8", json!({"deletionTimestamp": "2026-11-30T09:59:00Z"}));
    // A pod that cannot be read is there.
    endpoint(&mut observed, "odd", "10", json!({}));
    observed.pods.apply(r#"{"metadata": {"name": "odd", "namespace": "a"}, "status": 7}"#);
    let plan = gc().plan(&observed, at(0));
    let expected = [
        ("a/again", "of-again-4", 7),
        ("a/bare", "of-bare-", 7),
        ("a/done", "of-done-2", 7),
        ("a/failed", "of-failed-3", 7),
        ("a/gone", "of-gone-6", 7),
    ];
    assert_eq!(deleted(&plan), expected);
    assert_eq!(plan.again, Some(INTERVAL));
}

#[test]
fn a_young_endpoint_is_given_a_second_round() {
    let young = json!({"creationTimestamp": "2026-11-30T09:59:30Z"});
    let mut observed = Observed::fresh();
    endpoint(&mut observed, "x", "1", young.clone());
    let mut gc = gc();
    assert_eq!(deleted(&gc.plan(&observed, at(0))), []);
    // Nothing is looked at between rounds, whatever changes.
    assert_eq!(deleted(&gc.plan(&observed, at(100))), []);
    assert_eq!(gc.plan(&observed, at(100)).again, Some(Duration::from_secs(200)));
    assert_eq!(deleted(&gc.plan(&observed, at(300))).len(), 1);
    // Of another object of that name it is the first round.
    let mut gc = self::gc();
    gc.plan(&observed, at(0));
    let mut observed = Observed::fresh();
    endpoint(&mut observed, "x", "2", json!({"creationTimestamp": "2026-11-30T10:04:30Z"}));
    assert_eq!(deleted(&gc.plan(&observed, at(300))), []);
    // The pod is told in between.
    pod(&mut observed, "x", "2", "Running");
    assert_eq!(deleted(&gc.plan(&observed, at(600))), []);
}

#[test]
fn what_is_to_go_is_tried_until_it_is_gone_and_spared_if_its_pod_comes() {
    let mut observed = Observed::fresh();
    for name in ["x", "y", "z"] {
        endpoint(&mut observed, name, "1", json!({}));
    }
    let mut gc = gc();
    assert_eq!(deleted(&gc.plan(&observed, at(0))).len(), 3);
    // Of the next turn, long before the next round: x was deleted, of y there is another one, z is refused.
    let mut later = Observed::fresh();
    endpoint(&mut later, "y", "2", json!({}));
    endpoint(&mut later, "z", "1", json!({"resourceVersion": "8"}));
    endpoint(&mut later, "w", "1", json!({}));
    assert_eq!(deleted(&gc.plan(&later, at(1))), [("a/z", "of-z-1", 8)]);
    pod(&mut later, "z", "1", "Running");
    assert_eq!(deleted(&gc.plan(&later, at(2))), []);
}

#[test]
fn what_was_deleted_is_counted() {
    let registry = prometheus::Registry::new();
    let mut gc = EndpointGc::new(Config { interval: INTERVAL }, Metrics::new(&registry).unwrap());
    let mut observed = Observed::fresh();
    endpoint(&mut observed, "x", "1", json!({}));
    let write = gc.plan(&observed, at(0)).writes.remove(0);
    for outcome in [Outcome::Done { version: 0 }, Outcome::Late, Outcome::Failed("no".to_owned())] {
        gc.done(&write, &outcome);
    }
    let text = portway_runtime::metrics::render(&registry).unwrap();
    for outcome in ["success", "fail"] {
        let line = format!("cilium_operator_endpoint_gc_objects{{outcome=\"{outcome}\"}} 1");
        assert!(text.contains(&line), "{text}");
    }
}

/// The watch of pods stands still, that of endpoints goes on.
#[test]
fn an_endpoint_is_not_judged_by_what_was_known_of_pods_before_it() {
    let mut observed = Observed::fresh();
    endpoint(&mut observed, "x", "1", json!({"resourceVersion": "51"}));
    let mut gc = gc();
    for round in 0..3 {
        assert_eq!(deleted(&gc.plan(&observed, at(300 * round))), []);
    }
    observed.pods.take(WatchEvent::ListEnds { version: 51 });
    assert_eq!(deleted(&gc.plan(&observed, at(900))).len(), 1);
}

#[test]
fn nothing_goes_while_nothing_is_heard_of_pods() {
    let mut observed = Observed::fresh();
    endpoint(&mut observed, "x", "1", json!({}));
    observed.hear(Kind::Pod, at(0).monotonic, at(0));
    let mut gc = gc();
    assert_eq!(gc.plan(&observed, at(91)), Plan::default());
    assert!(observed.hear(Kind::Pod, at(92).monotonic, at(92)), "it calls for a turn");
    assert_eq!(deleted(&gc.plan(&observed, at(93))).len(), 1);
    // What is to go is spared too.
    assert_eq!(gc.plan(&observed, at(200)), Plan::default());
    // The definition of pods is gone, so to say.
    observed.hear(Kind::Pod, at(300).monotonic, at(300));
    observed.take(Kind::Pod, WatchEvent::KindGone);
    assert_eq!(gc.plan(&observed, at(300)), Plan::default());
}
