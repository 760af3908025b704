use super::*;

const INTERVAL: Duration = Duration::from_secs(15);

fn unmanaged() -> Unmanaged {
    let selector = Selector::parse("k8s-app=kube-dns").unwrap();
    let config = UnmanagedConfig { agents: agents(), selector, interval: INTERVAL };
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

#[test]
fn name_servers_without_an_endpoint_are_deleted_one_in_an_interval() {
    let mut api = FakeApi::default();
    for name in ["a", "b", "c"] {
        dns(&mut api, name, "n1");
    }
    dns(&mut api, "elsewhere", "n2");
    api.put(Kind::CiliumEndpoint, "kube-system/b", json!({"status": {}}));
    let mut unmanaged = unmanaged();
    api.clock = 100;
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0], "no agent is there");
    agent(&mut api, "n1", true);
    let plan = unmanaged.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(INTERVAL)), "the agent may be about to");
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/a"]);
    let plan = unmanaged.plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes, plan.again), (vec![], Some(INTERVAL)));
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/c"]);
    api.clock += 15;
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
}

#[test]
fn a_pod_that_the_network_need_not_know_is_left_alone() {
    let mut api = FakeApi::default();
    api.clock = 0;
    agent(&mut api, "n1", true);
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
    let mut unmanaged = unmanaged();
    for _ in 0..5 {
        assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
        api.clock += 100;
    }
}

#[test]
fn a_young_pod_has_time_and_more_where_endpoints_may_not_have_been_told() {
    let mut api = FakeApi::default();
    agent(&mut api, "n1", true);
    let mut replica = Replica::new(&api);
    let mut unmanaged = unmanaged();
    unmanaged.plan(&replica.observed, at(&api));
    api.clock = 1000;
    dns(&mut api, "a", "n1");
    let again = |replica: &Replica, unmanaged: &mut Unmanaged, api: &FakeApi| {
        unmanaged.plan(&replica.observed, at(api)).again.map(|again| again.as_secs())
    };
    replica.follow(&api, Kind::Pod, usize::MAX);
    assert_eq!(again(&replica, &mut unmanaged, &api), Some(120));
    api.put(Kind::CiliumEndpoint, "default/other", json!({}));
    replica.follow(&api, Kind::CiliumEndpoint, usize::MAX);
    assert_eq!(again(&replica, &mut unmanaged, &api), Some(30));
}

#[test]
fn a_pod_that_comes_back_with_its_name_and_without_an_endpoint_rests() {
    let mut api = FakeApi::default();
    agent(&mut api, "n1", true);
    let mut unmanaged = unmanaged();
    let mut count = 0;
    for _ in 0..60 {
        api.clock += 15;
        if api.get(Kind::Pod, "kube-system/dns-0").is_none() {
            dns(&mut api, "dns-0", "n1");
        }
        count += deleted(&mut api, &mut unmanaged).len();
    }
    assert_eq!(count, 3, "in 900 seconds");
}

#[test]
fn a_deletion_that_came_too_late_counts_for_nothing() {
    let mut api = FakeApi::default();
    agent(&mut api, "n1", true);
    dns(&mut api, "a", "n1");
    let mut unmanaged = unmanaged();
    assert_eq!(deleted(&mut api, &mut unmanaged), [""; 0]);
    api.clock = 100;
    let plan = unmanaged.plan(&Replica::new(&api).observed, at(&api));
    api.remove(Kind::Pod, "kube-system/a");
    let outcome = api.write(&plan.writes[0]);
    assert_eq!(outcome, Outcome::Late);
    unmanaged.done(&plan.writes[0], &outcome);
    dns(&mut api, "b", "n1");
    api.clock += 40;
    assert_eq!(deleted(&mut api, &mut unmanaged), ["kube-system/b"]);
}
