mod claims;
mod history;
mod release;

use std::time::Duration;

use portway_datapath::Family;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::{DAY, FakeApi, Replica};
use crate::write::{Change, Write};

/// After that a CiliumNode is younger than the epoch, whoever's clock it is by.
const LONG: i64 = 2 * 3600;
const POOL: &str = "kube-system/portway-pod-cidrs";

fn config(v4: &str, mask: u8) -> Config {
    let pools = vec![Pool::parse(Family::V4, v4, mask).unwrap()];
    Config { namespace: "kube-system".to_owned(), pools, workers: 50, patience: PATIENCE }
}

fn dual() -> Config {
    let mut config = config("10.0.0.0/8", 24);
    config.pools.push(Pool::parse(Family::V6, "fd00::/104", 112).unwrap());
    config
}

fn at(api: &FakeApi) -> Now {
    let seconds = u64::try_from(api.clock).unwrap();
    Now { wall: Duration::from_secs(DAY + seconds), monotonic: Duration::from_secs(seconds) }
}

fn ipam(config: &Config) -> Ipam {
    Ipam::new(config.clone(), Metrics::new(&prometheus::Registry::new()).unwrap())
}

/// Turns until there is nothing more to write.
fn settle(api: &mut FakeApi, config: &Config) -> Plan {
    let mut replica = Replica::new(api);
    let mut ipam = ipam(config);
    for _ in 0..20 {
        let plan = ipam.plan(&replica.observed, at(api));
        match plan.again {
            Some(again) if plan.writes.is_empty() => api.clock += i64::try_from(again.as_secs()).unwrap(),
            None if plan.writes.is_empty() => return plan,
            Some(_) | None => {}
        }
        for write in &plan.writes {
            assert!(matches!(api.write(write), crate::write::Outcome::Done { .. }), "{write:?}");
        }
        replica.catch_up(api);
    }
    panic!("it never ends");
}

fn node(api: &mut FakeApi, name: &str) {
    api.clock += 1;
    api.put(Kind::Node, name, json!({}));
    api.put(Kind::CiliumNode, name, json!({"spec": {}}));
}

fn has(api: &mut FakeApi, name: &str, cidrs: &[&str]) {
    api.put(Kind::CiliumNode, name, json!({"spec": {"ipam": {"podCIDRs": cidrs}}}));
}

fn cidrs(api: &FakeApi, name: &str) -> Vec<String> {
    let cidrs = &api.get(Kind::CiliumNode, name).unwrap()["spec"]["ipam"]["podCIDRs"];
    cidrs.as_array().into_iter().flatten().map(|cidr| cidr.as_str().unwrap().to_owned()).collect()
}

fn error(api: &FakeApi, name: &str) -> String {
    let error = &api.get(Kind::CiliumNode, name).unwrap()["status"]["ipam"]["operator-status"]["error"];
    error.as_str().unwrap_or_default().to_owned()
}

fn claim(api: &FakeApi, name: &str) -> Option<String> {
    let value = api.get(Kind::ClusterPool, POOL)?["data"].get(name)?.as_str()?;
    Some(value.split(' ').next().unwrap().to_owned())
}

#[test]
fn each_node_gets_the_next_free_cidr_of_each_family() {
    let mut api = FakeApi::default();
    for name in ["b", "a", "node.example"] {
        node(&mut api, name);
    }
    let plan = settle(&mut api, &dual());
    assert_eq!((plan.troubles, plan.again), (vec![], None));
    // The older first.
    assert_eq!(cidrs(&api, "b"), ["10.0.0.0/24", "fd00::/112"]);
    assert_eq!(cidrs(&api, "a"), ["10.0.1.0/24", "fd00::1:0/112"]);
    assert_eq!(claim(&api, "node.example").unwrap(), "10.0.2.0/24,fd00::2:0/112");
}

#[test]
fn a_cidr_is_written_once_its_claim_is_seen_and_many_are_claimed_at_once() {
    let mut api = FakeApi::default();
    settle(&mut api, &dual());
    api.clock += LONG;
    for number in 0..100 {
        node(&mut api, &format!("n{number}"));
    }
    let mut replica = Replica::new(&api);
    let mut ipam = ipam(&dual());
    let first = ipam.plan(&replica.observed, at(&api)).writes;
    assert_eq!(first.iter().map(|write| write.kind).collect::<Vec<_>>(), [Kind::ClusterPool]);
    assert_eq!(ipam.plan(&replica.observed, at(&api)).writes, first, "what is not seen counts for nothing");
    api.write(&first[0]);
    replica.catch_up(&api);
    let second = ipam.plan(&replica.observed, at(&api)).writes;
    assert!(second.len() == 100 && second.iter().all(|write| write.kind == Kind::CiliumNode), "{second:?}");
}

#[test]
fn what_nodes_have_is_adopted_with_the_creation_of_the_pool_object() {
    let mut api = FakeApi::default();
    for name in ["a", "b", "c"] {
        node(&mut api, name);
    }
    has(&mut api, "b", &["10.0.0.0/24"]);
    has(&mut api, "c", &["172.16.0.0/24"]);
    let writes = ipam(&dual()).plan(&Replica::new(&api).observed, at(&api)).writes;
    let [Write { kind: Kind::ClusterPool, change: Change::Create(body), .. }] = &writes[..] else {
        panic!("{writes:?}")
    };
    let nodes: Vec<_> =
        body["data"].as_object().unwrap().keys().filter(|key| !key.starts_with('_')).collect();
    assert_eq!(nodes, ["b", "c"]);
    settle(&mut api, &dual());
    assert_eq!(cidrs(&api, "a")[0], "10.0.1.0/24");
    assert_eq!(cidrs(&api, "b"), ["10.0.0.0/24", "fd00::1:0/112"]);
    assert_eq!(cidrs(&api, "c"), ["172.16.0.0/24", "fd00::2:0/112"], "honoured, though no pool has it");
}

#[test]
fn exhaustion_is_an_error_of_the_node_that_goes_when_it_is_over() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/23", 24));
    for name in ["a", "b", "c"] {
        node(&mut api, name);
    }
    let plan = settle(&mut api, &config);
    let expected = "no /24 of cluster-pool-ipv4-cidr 10.0.0.0/23 is free: add a range to it, or remove nodes";
    assert_eq!(error(&api, "c"), expected);
    assert_eq!(plan.troubles.iter().map(|trouble| &*trouble.object).collect::<Vec<_>>(), ["c"]);
    api.remove(Kind::Node, "a");
    api.remove(Kind::CiliumNode, "a");
    assert_eq!(settle(&mut api, &config).troubles, []);
    assert_eq!((error(&api, "c"), cidrs(&api, "c")), (String::new(), vec!["10.0.0.0/24".to_owned()]));
}

#[test]
fn of_two_nodes_with_one_cidr_the_older_keeps_it_and_the_other_is_told() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    for name in ["z", "a", "c"] {
        node(&mut api, name);
    }
    has(&mut api, "a", &["10.0.1.0/25"]);
    has(&mut api, "z", &["10.0.0.0/23"]);
    settle(&mut api, &config);
    assert_eq!(error(&api, "z"), "");
    let expected = "spec.ipam.podCIDRs has 10.0.1.0/25, which overlaps 10.0.0.0/23 of CiliumNode z, which is older; \
                    drain the node and delete its CiliumNode: it then gets another one";
    assert_eq!((error(&api, "a"), cidrs(&api, "a")), (expected.to_owned(), vec!["10.0.1.0/25".to_owned()]));
    assert_eq!(cidrs(&api, "c"), ["10.0.2.0/24"]);
    api.remove(Kind::CiliumNode, "a");
    api.put(Kind::CiliumNode, "a", json!({"spec": {}}));
    settle(&mut api, &config);
    assert_eq!((error(&api, "a"), cidrs(&api, "a")), (String::new(), vec!["10.0.3.0/24".to_owned()]));
}

#[test]
fn no_node_gets_a_cidr_with_an_address_of_a_machine_in_it() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    node(&mut api, "a");
    api.put(
        Kind::Node,
        "a",
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}),
    );
    node(&mut api, "b");
    let internal =
        json!([{"type": "CiliumInternalIP", "ip": "10.0.1.1"}, {"type": "ExternalIP", "ip": "10.0.2.9"}]);
    api.put(Kind::CiliumNode, "b", json!({"spec": {"addresses": internal}}));
    settle(&mut api, &config);
    assert_eq!(
        (cidrs(&api, "a"), cidrs(&api, "b")),
        (vec!["10.0.1.0/24".into()], vec!["10.0.3.0/24".into()])
    );
    assert_eq!([error(&api, "a"), error(&api, "b")], ["", ""], "the others of the range are as good as any");
    // A machine that comes with an address of a node's pods.
    node(&mut api, "c");
    api.put(
        Kind::Node,
        "c",
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.1.77"}]}}),
    );
    settle(&mut api, &config);
    let told = error(&api, "a");
    assert!(told.contains("has 10.0.1.0/24, which the address 10.0.1.77 of node c lies in"), "{told}");
}

#[test]
fn a_pool_object_that_is_edited_or_deleted_is_made_anew_and_changes_nobodys_cidrs() {
    let edits: [Value; 4] = [
        json!({"a": null}),
        json!({"a": "10.0.9.0/24 uid-1"}),
        json!({"b": "nonsense", "_sum": null}),
        json!({"_epoch": null}),
    ];
    for edit in edits {
        let mut api = FakeApi::default();
        for name in ["a", "b"] {
            node(&mut api, name);
        }
        settle(&mut api, &dual());
        let before = [cidrs(&api, "a"), cidrs(&api, "b")];
        api.put(Kind::ClusterPool, POOL, json!({"data": edit}));
        node(&mut api, "c");
        settle(&mut api, &dual());
        api.remove(Kind::ClusterPool, POOL);
        node(&mut api, "d");
        settle(&mut api, &dual());
        assert_eq!([cidrs(&api, "a"), cidrs(&api, "b")], before, "{edit}");
        assert_eq!(cidrs(&api, "d").len(), 2);
        assert_eq!(claim(&api, "a").unwrap(), before[0].join(","));
    }
}

#[test]
fn a_cidr_that_an_earlier_pool_object_knew_of_is_not_written_late() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    settle(&mut api, &config);
    api.clock += LONG;
    node(&mut api, "b");
    // This one claims the lowest, is frozen, and its claim is deleted with all others.
    let mut frozen = Replica::new(&api);
    let plan = ipam(&config).plan(&frozen.observed, at(&api));
    plan.writes.iter().for_each(|write| drop(api.write(write)));
    frozen.catch_up(&api);
    let late = ipam(&config).plan(&frozen.observed, at(&api)).writes;
    assert!(late.len() == 1 && late[0].kind == Kind::CiliumNode, "{late:?}");
    api.remove(Kind::ClusterPool, POOL);
    // Older than the other one, so that it comes first.
    api.put(Kind::CiliumNode, "a", json!({"metadata": {"creationTimestamp": "2025-01-01T00:00:00Z"}}));
    let mut replica = Replica::new(&api);
    let mut next = ipam(&config);
    while cidrs(&api, "a").is_empty() {
        for write in next.plan(&replica.observed, at(&api)).writes {
            api.write(&write);
        }
        replica.catch_up(&api);
    }
    assert_eq!(api.write(&late[0]), crate::write::Outcome::Late);
    settle(&mut api, &config);
    assert_eq!(
        (cidrs(&api, "a"), cidrs(&api, "b")),
        (vec!["10.0.0.0/24".into()], vec!["10.0.1.0/24".into()])
    );
}

#[test]
fn a_node_that_cannot_be_touched_keeps_the_others_waiting_for_a_while_only() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    node(&mut api, "stuck");
    node(&mut api, "other");
    let turns = |api: &mut FakeApi| {
        for _ in 0..6 {
            let plan = ipam(&config).plan(&Replica::new(api).observed, at(api));
            let writes = plan.writes.iter().filter(|write| write.object != "stuck").collect::<Vec<_>>();
            writes.into_iter().for_each(|write| drop(api.write(write)));
            if api.get(Kind::ClusterPool, POOL).unwrap()["data"]["_epoch"].is_string()
                && cidrs(api, "other").is_empty()
            {
                assert!(plan.again.is_none_or(|again| again <= Duration::from_secs(300)));
            }
        }
    };
    turns(&mut api);
    assert_eq!(cidrs(&api, "other"), [""; 0]);
    api.clock += 301;
    turns(&mut api);
    assert_eq!(cidrs(&api, "other").len(), 1);
    assert_eq!(cidrs(&api, "stuck"), [""; 0]);
}

#[test]
fn an_object_that_cannot_be_read_is_told_of_and_no_claim_is_made_beside_it() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    node(&mut api, "a");
    has(&mut api, "a", &["10.0.1/24"]);
    api.put(Kind::ClusterPool, POOL, json!({"data": 7}));
    let plan = ipam(&config).plan(&Replica::new(&api).observed, at(&api));
    assert_eq!((plan.writes.len(), plan.troubles[0].reason), (0, "PoolObjectUnreadable"));
    api.remove(Kind::ClusterPool, POOL);
    settle(&mut api, &config);
    assert_eq!(
        error(&api, "a"),
        "spec.ipam.podCIDRs has \"10.0.1/24\", which is no CIDR of pods: take it out"
    );
    assert_eq!(cidrs(&api, "a"), ["10.0.1/24", "10.0.0.0/24"]);
}

#[test]
fn a_cluster_of_five_thousand_nodes_has_its_cidrs_after_five_turns() {
    let mut api = FakeApi::default();
    for number in 0..5000 {
        api.put(Kind::CiliumNode, &format!("node-{number}.example"), json!({"spec": {}}));
    }
    let mut config = config("10.0.0.0/8", 24);
    config.pools.push(Pool::parse(Family::V6, "fd00::/96", 112).unwrap());
    let (mut replica, mut ipam) = (Replica::new(&api), ipam(&config));
    let mut turns = Vec::new();
    loop {
        let writes = ipam.plan(&replica.observed, at(&api)).writes;
        if writes.is_empty() {
            break;
        }
        turns.push(writes.len());
        writes.iter().for_each(|write| drop(api.write(write)));
        replica.catch_up(&api);
    }
    // The object, its epoch, a mark on each, all claims at once, and what was claimed.
    assert_eq!(turns, [1, 1, 5000, 1, 5000]);
    let data = api.get(Kind::ClusterPool, POOL).unwrap()["data"].as_object().unwrap();
    let size: usize = data.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum();
    assert!(size < 1 << 20, "{size}");
}

#[test]
fn metrics_tell_how_much_is_left() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/23", 24));
    for name in ["a", "b", "c"] {
        node(&mut api, name);
    }
    settle(&mut api, &config);
    let registry = prometheus::Registry::new();
    let metrics = Metrics::new(&registry).unwrap();
    let mut leader = Ipam::new(config, metrics);
    leader.plan(&Replica::new(&api).observed, at(&api));
    let gather = || {
        let mut told = Vec::new();
        for family in registry.gather() {
            for metric in family.get_metric() {
                let label = metric.get_label()[0].value().to_owned();
                told.push((family.name().to_owned(), label, metric.get_gauge().get_value()));
            }
        }
        told
    };
    let told = gather();
    let expected = [
        ("available_ips", "ipv4", 0.0),
        ("needed_ips", "ipv4", 256.0),
        ("nodes", "at-capacity", 1.0),
        ("nodes", "in-deficit", 1.0),
        ("nodes", "total", 3.0),
        ("used_ips", "ipv4", 512.0),
    ];
    let expected = expected
        .map(|(name, label, value)| (format!("cilium_operator_ipam_{name}"), label.to_owned(), value));
    assert_eq!(told, expected);
    drop(leader);
    assert_eq!(gather(), [], "another replica tells them");
}
