//! When claims end, and who gets what is free again.

use super::*;

#[test]
fn a_cidr_goes_with_both_objects_of_its_node_and_one_that_comes_back_keeps_it() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    for name in ["a", "b", "c"] {
        node(&mut api, name);
    }
    settle(&mut api, &config);
    api.remove(Kind::CiliumNode, "a");
    api.remove(Kind::Node, "b");
    settle(&mut api, &config);
    assert_eq!([claim(&api, "a"), claim(&api, "b")].map(Option::unwrap), ["10.0.0.0/24", "10.0.1.0/24"]);
    api.put(Kind::CiliumNode, "a", json!({"spec": {}}));
    settle(&mut api, &config);
    assert_eq!(cidrs(&api, "a"), ["10.0.0.0/24"], "it is another CiliumNode of the same Node");
    api.remove(Kind::CiliumNode, "b");
    api.clock += LONG;
    node(&mut api, "d");
    settle(&mut api, &config);
    assert_eq!((claim(&api, "b"), cidrs(&api, "d")), (None, vec!["10.0.3.0/24".to_owned()]));
    node(&mut api, "e");
    settle(&mut api, &config);
    assert_eq!(cidrs(&api, "e"), ["10.0.1.0/24"]);
}

#[test]
fn a_cidr_that_is_free_again_is_given_after_all_others_whoever_leads() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    for name in ["a", "b"] {
        node(&mut api, name);
    }
    settle(&mut api, &config);
    for kind in [Kind::CiliumNode, Kind::Node] {
        api.remove(kind, "a");
    }
    settle(&mut api, &config);
    assert_eq!(claim(&api, "a"), None);
    let mut given = Vec::new();
    for name in ["c", "d", "e"] {
        node(&mut api, name);
        settle(&mut api, &config);
        given.extend(cidrs(&api, name));
    }
    assert_eq!(given, ["10.0.2.0/24", "10.0.3.0/24", "10.0.0.0/24"]);
}

#[test]
fn a_claim_ends_when_both_objects_have_been_gone_for_a_minute_in_which_they_were_heard_of() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    node(&mut api, "a");
    settle(&mut api, &config);
    for kind in [Kind::CiliumNode, Kind::Node] {
        api.remove(kind, "a");
    }
    let (mut replica, mut ipam) = (Replica::new(&api), ipam(&config));
    let plan = |replica: &Replica, ipam: &mut Ipam, api: &FakeApi| {
        let plan = ipam.plan(&replica.observed, at(api));
        (plan.writes.len(), plan.again.map(|again| again.as_secs()))
    };
    assert_eq!(plan(&replica, &mut ipam, &api), (0, Some(60)));
    api.clock += 59;
    assert_eq!(plan(&replica, &mut ipam, &api), (0, Some(1)));
    for kind in [Kind::CiliumNode, Kind::Node] {
        replica.observed.hear(kind, at(&api).monotonic, at(&api));
        api.clock += 100;
        assert_eq!(plan(&replica, &mut ipam, &api), (0, None), "{kind:?}");
        for kind in [Kind::CiliumNode, Kind::Node] {
            replica.observed.hear(kind, at(&api).monotonic, at(&api));
        }
        assert_eq!(plan(&replica, &mut ipam, &api), (0, Some(60)), "its time begins anew");
    }
    api.clock += 60;
    assert_eq!(plan(&replica, &mut ipam, &api), (1, None));
    assert_eq!(plan(&replica, &mut ipam, &api), (1, None), "until it is seen");
}

#[test]
fn who_has_not_seen_all_cilium_nodes_lets_no_claim_go() {
    let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
    settle(&mut api, &config);
    let mut late = Replica::new(&api);
    api.put(Kind::CiliumNode, "a", json!({"spec": {}}));
    settle(&mut api, &config);
    late.follow(&api, Kind::ClusterPool, usize::MAX);
    assert_eq!(ipam(&config).plan(&late.observed, at(&api)).writes, []);
}

/// A leader's turns until there is nothing to write, in no time.
fn lead(api: &mut FakeApi, replica: &mut Replica, ipam: &mut Ipam) {
    for _ in 0..20 {
        replica.catch_up(api);
        let writes = ipam.plan(&replica.observed, at(api)).writes;
        if writes.is_empty() {
            return;
        }
        writes.iter().for_each(|write| drop(api.write(write)));
    }
    panic!("it never ends");
}

#[test]
fn what_a_node_had_that_is_gone_rests_though_the_pool_object_is_deleted_or_emptied() {
    let losses: [fn(&mut FakeApi); 4] = [
        |api| api.remove(Kind::ClusterPool, POOL),
        |api| api.put(Kind::ClusterPool, POOL, json!({"data": {"a": null}})),
        // Of another pool.
        |api| {
            let mut data = api.get(Kind::ClusterPool, POOL).unwrap()["data"].clone();
            for claim in data.as_object_mut().unwrap().values_mut() {
                *claim = claim.as_str().unwrap().replace("10.0.", "10.9.").into();
            }
            api.put(Kind::ClusterPool, POOL, json!({"data": data}));
        },
        // By hand, with nothing in it.
        |api| {
            api.remove(Kind::ClusterPool, POOL);
            api.put(Kind::ClusterPool, POOL, json!({"data": {}}));
        },
    ];
    for lose in losses {
        let (mut api, config) = (FakeApi::default(), config("10.0.0.0/22", 24));
        let (mut replica, mut leader) = (Replica::new(&api), ipam(&config));
        for name in ["a", "b"] {
            node(&mut api, name);
        }
        lead(&mut api, &mut replica, &mut leader);
        for kind in [Kind::CiliumNode, Kind::Node] {
            api.remove(kind, "a");
        }
        lead(&mut api, &mut replica, &mut leader);
        api.clock += 10;
        lose(&mut api);
        node(&mut api, "c");
        lead(&mut api, &mut replica, &mut leader);
        assert_eq!(
            (claim(&api, "a").unwrap().split(',').next(), &*cidrs(&api, "c")[0]),
            (Some("10.0.0.0/24"), "10.0.2.0/24"),
            "the machine may be cut off, with pods that still run"
        );
        assert_eq!(cidrs(&api, "b"), ["10.0.1.0/24"], "what it has it keeps, and no more");
        // One that is made anew has what it had.
        api.remove(Kind::CiliumNode, "b");
        lead(&mut api, &mut replica, &mut leader);
        lose(&mut api);
        api.put(Kind::CiliumNode, "b", json!({"spec": {}}));
        lead(&mut api, &mut replica, &mut leader);
        assert_eq!(cidrs(&api, "b"), ["10.0.1.0/24"]);
        // Its time goes on, and ends.
        api.clock += 48;
        lead(&mut api, &mut replica, &mut leader);
        assert!(claim(&api, "a").is_some());
        api.clock += 2;
        lead(&mut api, &mut replica, &mut leader);
        assert_eq!(claim(&api, "a"), None);
        for (name, wanted) in [("d", "10.0.3.0/24"), ("e", "10.0.0.0/24")] {
            node(&mut api, name);
            lead(&mut api, &mut replica, &mut leader);
            assert_eq!(cidrs(&api, name), [wanted], "the one that rested comes last");
        }
    }
}
