use super::*;

const TAINT: &str = "node.cilium.io/agent-not-ready";

fn config() -> ReadinessConfig {
    ReadinessConfig {
        agents: agents(),
        taint_key: TAINT.to_owned(),
        remove_taint: true,
        set_taint: true,
        set_condition: true,
        workers: 10,
    }
}

/// A Node whose kubelet reports, with taints and conditions beside those that are the operator's.
fn tainted(api: &mut FakeApi, name: &str) {
    let taints = json!([
        {"key": "dedicated", "value": "dns", "effect": "NoSchedule"},
        {"key": TAINT, "effect": "NoSchedule"},
        {"key": TAINT, "value": "true", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        {"key": "leaving", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:01Z"},
    ]);
    let conditions = json!([
        {"type": "Ready", "status": "True"},
        {"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"},
    ]);
    api.put(Kind::Node, name, json!({"spec": {"taints": taints}, "status": {"conditions": conditions}}));
}

fn keys(api: &FakeApi, name: &str) -> Vec<String> {
    let taints = &api.get(Kind::Node, name).unwrap()["spec"]["taints"];
    taints.as_array().into_iter().flatten().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn where_the_agent_is_ready_the_condition_is_set_and_the_taint_goes_each_once() {
    let mut api = FakeApi::default();
    tainted(&mut api, "a");
    let mut readiness = Readiness::new(config());
    assert_eq!(turn(&mut api, &mut readiness), [], "no agent is there");
    agent(&mut api, "a", false);
    assert_eq!(turn(&mut api, &mut readiness), []);
    agent(&mut api, "a", true);
    api.clock = 5;
    assert_eq!(turn(&mut api, &mut readiness).len(), 1, "one write a Node: each names its version");
    assert_eq!(turn(&mut api, &mut readiness).len(), 1);
    let node = api.get(Kind::Node, "a").unwrap();
    let taints = json!([
        {"key": "dedicated", "value": "dns", "effect": "NoSchedule"},
        {"key": "leaving", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:01Z"},
    ]);
    assert_eq!(node["spec"]["taints"], taints, "others stay as they are");
    let up = json!({
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": "CiliumIsUp",
        "message": "Cilium is running on this node",
        "lastHeartbeatTime": "2026-01-01T00:00:05Z",
        "lastTransitionTime": "2026-01-01T00:00:05Z",
    });
    assert_eq!(node["status"]["conditions"], json!([{"type": "Ready", "status": "True"}, up]));
    api.clock += 3600;
    assert_eq!(turn(&mut api, &mut readiness), [], "no heartbeat");
    agent(&mut api, "a", true);
    assert_eq!(turn(&mut api, &mut Readiness::new(config())), [], "nor with the next leader");
}

#[test]
fn each_part_can_be_switched_off() {
    let mut api = FakeApi::default();
    tainted(&mut api, "a");
    agent(&mut api, "a", true);
    let mut only_taint = Readiness::new(ReadinessConfig { set_condition: false, ..config() });
    let mut only_condition = Readiness::new(ReadinessConfig { remove_taint: false, ..config() });
    let kinds = |writes: &[Write]| -> Vec<bool> {
        writes
            .iter()
            .map(|write| matches!(write.change, Change::Patch { subresource: Some(_), .. }))
            .collect()
    };
    assert_eq!(kinds(&turn(&mut api, &mut only_taint)), [false]);
    assert_eq!(turn(&mut api, &mut only_taint), []);
    tainted(&mut api, "a");
    assert_eq!(kinds(&turn(&mut api, &mut only_condition)), [true]);
    assert_eq!(turn(&mut api, &mut only_condition), []);
}

#[test]
fn a_pod_that_is_older_than_the_node_counts_when_its_kubelet_has_reported() {
    let mut api = FakeApi::default();
    agent(&mut api, "a", true);
    api.clock = 100;
    tainted(&mut api, "a");
    let mut readiness = Readiness::new(config());
    let plan = readiness.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(Duration::from_secs(120))));
    api.clock += 120;
    assert_eq!(turn(&mut api, &mut readiness).len(), 1);
}

#[test]
fn a_node_is_tainted_at_once_where_no_agent_was_ever_ready_and_later_where_one_is_started_anew() {
    let mut api = FakeApi::default();
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    agent(&mut api, "a", false);
    let mut readiness = Readiness::new(config());
    assert_eq!(turn(&mut api, &mut Readiness::new(ReadinessConfig { set_taint: false, ..config() })), []);
    assert_eq!(turn(&mut api, &mut readiness).len(), 1);
    assert_eq!((keys(&api, "a"), turn(&mut api, &mut readiness)), (vec![TAINT.to_owned()], vec![]));
    agent(&mut api, "a", true);
    turn(&mut api, &mut readiness);
    turn(&mut api, &mut readiness);
    assert_eq!(keys(&api, "a"), [""; 0]);
    api.clock += 1000;
    agent(&mut api, "a", false);
    let plan = readiness.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(Duration::from_secs(30))));
    // It was ready for a moment: the time begins anew.
    api.clock += 29;
    agent(&mut api, "a", true);
    assert_eq!(turn(&mut api, &mut readiness), []);
    agent(&mut api, "a", false);
    assert_eq!(turn(&mut api, &mut readiness), []);
    api.clock += 29;
    assert_eq!(turn(&mut api, &mut readiness), []);
    api.clock += 1;
    assert_eq!(turn(&mut api, &mut readiness).len(), 1);
}

#[test]
fn an_agent_that_is_started_anew_is_no_reason_though_no_condition_says_that_it_was_ready() {
    let mut api = FakeApi::default();
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    let config = || ReadinessConfig { set_condition: false, ..config() };
    let (mut leader, mut next) = (Readiness::new(config()), Readiness::new(config()));
    agent(&mut api, "a", true);
    assert_eq!(turn(&mut api, &mut leader), []);
    api.clock = 60;
    agent(&mut api, "a", false);
    let grace = (vec![], Some(Duration::from_secs(30)));
    let plan = leader.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), grace);
    api.clock = 1000;
    let plan = next.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), grace, "the next leader does not know it");
    // Another Node of the name is another one.
    api.remove(Kind::Node, "a");
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    agent(&mut api, "a", false);
    api.put(Kind::Pod, "default/newer", json!({}));
    assert_eq!(turn(&mut api, &mut leader).len(), 1);
}

#[test]
fn nothing_is_written_by_what_pods_said_before_they_were_heard_of_no_more() {
    let mut api = FakeApi::default();
    tainted(&mut api, "a");
    tainted(&mut api, "b");
    api.put(Kind::Node, "b", json!({"spec": {"taints": []}}));
    agent(&mut api, "a", true);
    agent(&mut api, "b", false);
    // Made anew, with the pod that it had.
    api.clock = 1000;
    api.remove(Kind::Node, "a");
    tainted(&mut api, "a");
    let (mut replica, mut readiness) = (Replica::new(&api), Readiness::new(config()));
    let plan = |replica: &Replica, readiness: &mut Readiness, api: &FakeApi| {
        let plan = readiness.plan(&replica.observed, at(api));
        (
            plan.writes.into_iter().map(|write| write.object).collect::<Vec<_>>(),
            plan.again.map(|again| again.as_secs()),
        )
    };
    assert_eq!(plan(&replica, &mut readiness, &api), (vec![], Some(30)));
    for kind in [Kind::Pod, Kind::Node] {
        replica.observed.hear(kind, at(&api).monotonic, at(&api));
        api.clock += 300;
        assert_eq!(plan(&replica, &mut readiness, &api), (vec![], None), "{kind:?}");
        replica.observed.hear(Kind::Pod, at(&api).monotonic, at(&api));
        replica.observed.hear(Kind::Node, at(&api).monotonic, at(&api));
        assert_eq!(
            plan(&replica, &mut readiness, &api),
            (vec!["a".to_owned()], Some(30)),
            "b has its time anew"
        );
    }
    // Its kubelet says nothing.
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    assert_eq!(turn(&mut api, &mut readiness), []);
}

#[test]
fn neither_an_outage_nor_a_watch_that_lags_taints_a_node() {
    let mut api = FakeApi::default();
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    // As the node controller writes it of all pods of a node that it has not heard of.
    agent(&mut api, "a", false);
    let mut readiness = Readiness::new(config());
    assert_eq!(turn(&mut api, &mut readiness), []);
    let mut replica = Replica::new(&api);
    api.put(Kind::Node, "a", json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
    agent(&mut api, "a", true);
    replica.follow(&api, Kind::Node, usize::MAX);
    assert_eq!(readiness.plan(&replica.observed, at(&api)).writes, []);
}

#[test]
fn a_late_write_of_taints_does_not_undo_what_somebody_did_meanwhile() {
    let mut api = FakeApi::default();
    tainted(&mut api, "a");
    agent(&mut api, "a", true);
    let config = ReadinessConfig { set_condition: false, ..config() };
    let late = Readiness::new(config).plan(&Replica::new(&api).observed, at(&api)).writes;
    api.put(Kind::Node, "a", json!({"spec": {"taints": [{"key": "cordon", "effect": "NoSchedule"}]}}));
    assert_eq!(api.write(&late[0]), Outcome::Late);
    assert_eq!(keys(&api, "a"), ["cordon"]);
}
