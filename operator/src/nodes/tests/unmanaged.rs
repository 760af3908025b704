use super::*;

const INTERVAL: Duration = Duration::from_secs(15);

fn unmanaged() -> Unmanaged {
    unmanaged_beside_slices(true)
}

fn unmanaged_beside_slices(has_slices: bool) -> Unmanaged {
    let selector = Selector::parse("k8s-app=kube-dns").unwrap();
    let config = UnmanagedConfig { agents: agents(), selector, interval: INTERVAL, has_slices };
    Unmanaged::new(config, UnmanagedMetrics::new(&prometheus::Registry::new()).unwrap())
}

fn dns(api: &mut FakeApi, name: &str, node: &str) {
    let fields = json!({
        "metadata": {"labels": {"k8s-app": "kube-dns"}},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIP": "172.17.0.2"},
    });
    api.put(Kind::Pod, &format!("kube-system/{name}"), fields);
}

fn deleted(api: &mut FakeApi, unmanaged: &mut Unmanaged) -> Vec<String> {
    turn(api, unmanaged).into_iter().map(|write| write.object).collect()
}

/// A plan of what the replica knows: what is deleted, and when it is asked again.
fn plan(api: &FakeApi, replica: &Replica, unmanaged: &mut Unmanaged) -> (Vec<String>, Option<u64>) {
    let plan = unmanaged.plan(&replica.observed, at(api));
    (plan.writes.into_iter().map(|write| write.object).collect(), plan.again.map(|again| again.as_secs()))
}

/// As [`plan`] of everything.
fn now(api: &FakeApi, unmanaged: &mut Unmanaged) -> (Vec<String>, Option<u64>) {
    plan(api, &Replica::new(api), unmanaged)
}

/// A pod `lost` that is older than its node's agent, and another of another node, whose agent tells of its endpoint.
fn lost(api: &mut FakeApi) {
    dns(api, "lost", "n1");
    api.clock += 1;
    agent(api, "n1", true);
    agent(api, "n2", true);
    api.clock += 1;
    api.put(
        Kind::Pod,
        "default/other",
        json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}),
    );
    api.put(Kind::CiliumEndpoint, "default/other", json!({}));
}

#[test]
fn name_servers_without_an_endpoint_are_deleted_one_in_an_interval() {
    let mut api = FakeApi::default();
    for name in ["a", "b", "c"] {
        dns(&mut api, name, "n1");
    }
    dns(&mut api, "elsewhere", "n2");
    api.put(Kind::CiliumEndpoint, "kube-system/b", json!({"status": {}}));
    let mut unmanaged = unmanaged();
    assert_eq!(now(&api, &mut unmanaged), (vec![], None), "no agent is there");
    api.clock = 100;
    agent(&mut api, "n1", true);
    assert_eq!(now(&api, &mut unmanaged), (vec![], Some(15)), "the agent may be about to");
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/a"]);
    assert_eq!(now(&api, &mut unmanaged), (vec![], Some(15)));
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/c"]);
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
}

#[test]
fn a_pod_that_the_network_need_not_know_is_left_alone() {
    let mut api = FakeApi::default();
    let others = [
        json!({"spec": {"hostNetwork": true}}),
        json!({"status": {"phase": "Pending"}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"podIP": ""}}),
        json!({"metadata": {"labels": {"k8s-app": "other"}}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"nodeName": ""}}),
    ];
    for (number, fields) in others.into_iter().enumerate() {
        dns(&mut api, &format!("d{number}"), "n1");
        api.put(Kind::Pod, &format!("kube-system/d{number}"), fields);
    }
    dns(&mut api, "sliced", "n1");
    api.put(
        Kind::CiliumEndpointSlice,
        "s",
        json!({"namespace": "kube-system", "endpoints": [{"name": "sliced", "id": 1}]}),
    );
    api.clock = 1;
    agent(&mut api, "n1", true);
    let mut unmanaged = unmanaged();
    for _ in 0..5 {
        assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
        api.clock += 100;
    }
}

#[test]
fn a_pod_has_time_from_when_it_has_no_endpoint_and_more_where_endpoints_may_not_have_been_told() {
    let mut api = FakeApi::default();
    lost(&mut api);
    api.put(Kind::Pod, "kube-system/lost", json!({"status": {"podIP": ""}}));
    let (mut replica, mut unmanaged) = (Replica::new(&api), unmanaged());
    assert_eq!(plan(&api, &replica, &mut unmanaged), (vec![], None));
    api.clock = 1000;
    dns(&mut api, "lost", "n1");
    replica.follow(&api, Kind::Pod, usize::MAX);
    assert_eq!(plan(&api, &replica, &mut unmanaged), (vec![], Some(120)), "it is old, and runs only now");
    api.put(Kind::CiliumEndpoint, "default/another", json!({}));
    replica.follow(&api, Kind::CiliumEndpoint, usize::MAX);
    assert_eq!(plan(&api, &replica, &mut unmanaged), (vec![], Some(30)));
    api.clock += 30;
    assert_eq!(plan(&api, &replica, &mut unmanaged).0, ["kube-system/lost"]);
}

#[test]
fn a_pod_that_had_an_endpoint_is_left_alone_whatever_becomes_of_that() {
    let mut api = FakeApi::default();
    lost(&mut api);
    api.put(Kind::CiliumEndpoint, "kube-system/lost", json!({}));
    let (mut first, mut next) = (unmanaged(), unmanaged());
    assert_eq!(now(&api, &mut first), (vec![], None));
    api.remove(Kind::CiliumEndpoint, "kube-system/lost");
    for _ in 0..10 {
        api.clock += 100;
        assert_eq!(now(&api, &mut first), (vec![], None));
    }
    assert_eq!(now(&api, &mut next), (vec![], Some(30)), "the next leader gives it time");
}

#[test]
fn nothing_is_deleted_by_what_is_known_of_endpoints_that_are_heard_of_no_more() {
    let mut api = FakeApi::default();
    lost(&mut api);
    let mut unmanaged = unmanaged();
    assert_eq!(now(&api, &mut unmanaged), (vec![], Some(30)));
    for kind in [Kind::Pod, Kind::CiliumEndpoint, Kind::CiliumEndpointSlice] {
        let mut replica = Replica::new(&api);
        replica.observed.hear(kind, at(&api).monotonic, at(&api));
        for _ in 0..10 {
            api.clock += 100;
            assert_eq!(plan(&api, &replica, &mut unmanaged), (vec![], None), "{kind:?}");
        }
        replica.observed.hear(kind, at(&api).monotonic, at(&api));
        assert_eq!(plan(&api, &replica, &mut unmanaged), (vec![], Some(30)), "its time begins anew");
    }
    api.put(Kind::CiliumEndpointSlice, "s", json!({"endpoints": 7}));
    api.clock += 1000;
    assert_eq!(now(&api, &mut unmanaged), (vec![], None), "it may be in that one");
}

#[test]
fn a_pod_that_is_younger_than_its_agent_is_ready_is_the_agents() {
    let mut api = FakeApi::default();
    lost(&mut api);
    let (mut first, mut second) = (unmanaged(), unmanaged());
    dns(&mut api, "made", "n1");
    assert_eq!(now(&api, &mut first), (vec![], Some(30)));
    // Of which its agent does not tell: it tells of none.
    api.clock += 100;
    assert_eq!(now(&api, &mut first), (vec![], Some(30)));
    api.put(Kind::CiliumEndpoint, "kube-system/made", json!({}));
    assert_eq!(now(&api, &mut first).0, ["kube-system/lost"]);
    // Nor is anything lost while no agent tells of any endpoint.
    api.remove(Kind::Pod, "kube-system/made");
    for name in ["kube-system/made", "default/other"] {
        api.remove(Kind::CiliumEndpoint, name);
    }
    now(&api, &mut second);
    api.clock += 100;
    assert_eq!(now(&api, &mut second), (vec![], Some(30)));
    api.remove(Kind::Pod, "default/other");
    assert_eq!(now(&api, &mut second).0, ["kube-system/lost"], "there is none to tell of");
    api.remove(Kind::Pod, "kube-system/lost");
    dns(&mut api, "made", "n1");
    now(&api, &mut second);
    api.clock += 100;
    assert_eq!(now(&api, &mut second), (vec![], None), "it is not lost");
}

#[test]
fn pauses_grow_while_pods_that_come_after_a_deletion_have_no_endpoints_either() {
    let mut api = FakeApi::default();
    lost(&mut api);
    dns(&mut api, "old", "n1");
    api.put(Kind::Pod, "kube-system/old", json!({"status": {"podIP": ""}}));
    let (mut unmanaged, mut times, mut number) = (unmanaged(), Vec::new(), 0);
    while times.len() < 8 {
        api.clock += 5;
        if !deleted(&mut api, &mut unmanaged).is_empty() {
            times.push(api.clock);
            number += 1;
            dns(&mut api, &format!("next-{number}"), "n1");
            // It is ready again and again.
            api.remove(Kind::Pod, "kube-system/portway-n1");
            agent(&mut api, "n1", true);
        }
    }
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [35, 60, 120, 240, 300, 300, 300]);
    // One that has an endpoint ends it.
    api.put(Kind::CiliumEndpoint, &format!("kube-system/next-{number}"), json!({}));
    dns(&mut api, "old", "n1");
    assert_eq!(now(&api, &mut unmanaged), (vec![], Some(30)));
}

#[test]
fn a_deletion_that_came_too_late_counts_for_nothing() {
    let mut api = FakeApi::default();
    dns(&mut api, "a", "n1");
    dns(&mut api, "b", "n1");
    agent(&mut api, "n1", true);
    let mut unmanaged = unmanaged();
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
    api.clock = 100;
    let plan = unmanaged.plan(&Replica::new(&api).observed, at(&api));
    api.remove(Kind::Pod, "kube-system/a");
    let outcome = api.write(&plan.writes[0]);
    assert_eq!(outcome, Outcome::Late);
    unmanaged.done(&plan.writes[0], &outcome);
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/b"]);
}

#[test]
fn a_late_deletion_of_a_pod_that_has_changed_since_does_nothing() {
    let mut api = FakeApi::default();
    lost(&mut api);
    let mut unmanaged = unmanaged();
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
    api.clock += 100;
    let plan = unmanaged.plan(&Replica::new(&api).observed, at(&api));
    // Its kubelet has begun it anew, in the network of the agent.
    api.put(Kind::Pod, "kube-system/lost", json!({"status": {"podIP": "10.0.0.2"}}));
    let outcome = api.write(&plan.writes[0]);
    assert_eq!((outcome.clone(), api.get(Kind::Pod, "kube-system/lost").is_some()), (Outcome::Late, true));
    unmanaged.done(&plan.writes[0], &outcome);
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/lost"], "whoever looks again deletes it");
}

#[test]
fn slices_that_are_left_when_they_are_off_hide_no_pod_and_hold_nothing_up() {
    let mut api = FakeApi::default();
    lost(&mut api);
    for (name, endpoints) in [("left", json!([{"name": "lost", "id": 1}])), ("unreadable", json!(7))] {
        let slice = json!({"namespace": "kube-system", "endpoints": endpoints});
        api.put(Kind::CiliumEndpointSlice, name, slice);
    }
    for (has_slices, expected) in [(true, &[][..]), (false, &["kube-system/lost"])] {
        let mut unmanaged = unmanaged_beside_slices(has_slices);
        assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
        api.clock += 100;
        assert_eq!(deleted(&mut api, &mut unmanaged), expected, "{has_slices}");
    }
}
