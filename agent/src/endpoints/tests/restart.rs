//! Agents one after the other on the same node.

use super::*;

#[test]
fn a_restart_keeps_pods_that_are_there_and_forgets_those_that_are_not() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("opted-out", Some("false"));
    let endpoints = node.serving();
    let kept = endpoints.add(&of_pod("kept", "opted-out"), &netns()).unwrap();
    for container in ["gone", "noted", "anew"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    let before = endpoints.find(&id("kept")).unwrap();
    drop(endpoints);
    deletions::note(&node.notes(), &id("noted")).unwrap();
    deletions::note(&node.notes(), &id("never-seen")).unwrap();
    node.kernel.with(|state| {
        state.links.remove(&record::link_name(&id("gone")));
        state.links.get_mut(&record::link_name(&id("anew"))).unwrap().ifindex = 99;
        state.links.insert("pw0123456789a".to_owned(), Found { ifindex: 98, mac: Mac::default() });
        state.links.insert("eth0".to_owned(), Found { ifindex: 2, mac: Mac::default() });
        state.attached.insert("pw0123456789a".to_owned());
    });

    let (endpoints, restored) = node.start();
    let mut ended = restored.ended.clone();
    ended.sort_unstable();
    assert_eq!(
        (restored.endpoints, ended, restored.swept.len()),
        (1, ["anew", "gone", "noted"].map(str::to_owned).to_vec(), 1)
    );
    assert_eq!(endpoints.list()[0].state, State::Restoring);
    assert_eq!(node.kernel.traces(), (2, 1, 1, 1), "its link and eth0");
    assert!(deletions::notes(&node.notes()).unwrap().is_empty());

    // Nobody else gets its address while it is not served yet, nor after.
    endpoints.serve();
    let after = endpoints.find(&id("kept")).unwrap();
    assert_eq!((after.state, after.id, &after.link), (State::Ready, before.id, &before.link));
    assert!(!after.socket_lb);
    let other = endpoints.add(&request("other"), &netns()).unwrap();
    assert_ne!(addresses(&other), addresses(&kept));
    assert_ne!(endpoints.find(&id("other")).unwrap().id, before.id);
}

#[test]
fn a_pod_that_was_being_made_when_the_agent_ended_is_taken_back() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.add(&request("a"), &netns()).unwrap();
    let half = |endpoint: &mut Endpoint| endpoint.enter(State::Regenerating, "");
    endpoints.update(2, half).unwrap();
    let (endpoints, restored) = node.start();
    assert_eq!((restored.endpoints, restored.ended.len()), (0, 1));
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0));
}

#[test]
fn a_pod_whose_record_cannot_be_read_keeps_everything_that_it_has_until_it_ends() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("u", Some("false"));
    let endpoints = node.serving();
    let first = endpoints.add(&of_pod("a", "u"), &netns()).unwrap();
    endpoints.add(&request("b"), &netns()).unwrap();
    endpoints.add(&request("gone"), &netns()).unwrap();
    std::fs::write(node.dir.path().join("endpoints/2.json"), "{").unwrap();
    node.kernel.with(|state| state.links.remove(&record::link_name(&id("gone"))));
    let a = record::link_name(&id("a"));
    let of_a = |node: &Node| {
        node.kernel.with(|state| {
            let ifindex = state.links.get(&a).map(|link| link.ifindex);
            let entries = state.endpoints.values().filter(|value| Some(value.ifindex) == ifindex);
            (ifindex.is_some(), entries.count(), state.netns.len(), state.attached.contains(&a))
        })
    };
    let (endpoints, restored) = node.start();
    assert_eq!((restored.endpoints, restored.swept.len(), of_a(&node)), (1, 0, (true, 1, 1, true)));
    // An earlier agent's programs are replaced.
    node.kernel.with(|state| state.attached.clear());
    endpoints.serve();
    endpoints.look();
    assert_eq!(of_a(&node), (true, 1, 1, true));

    // Nobody gets its address or its number, however many pods come and have come.
    endpoints.known().last_id = u16::MAX;
    for number in 0..252 {
        let added = endpoints.add(&request(&format!("c{number}")), &netns());
        let Ok(added) = added else { break };
        assert_ne!(addresses(&added), addresses(&first));
    }
    assert!(endpoints.get(2).is_none());
    assert_eq!(used(&endpoints), 253);
    assert_eq!(endpoints.check(&request("a"), &netns()).unwrap_err().code, code::TRY_AGAIN);
    assert_eq!(endpoints.check(&request("none"), &netns()).unwrap_err().code, code::UNKNOWN_CONTAINER);

    endpoints.delete(&id("a")).unwrap();
    assert_eq!((of_a(&node).0, of_a(&node).3, used(&endpoints)), (false, false, 252));
    assert!(!node.dir.path().join("endpoints/2.json").exists());
}

#[test]
fn a_pod_whose_record_cannot_be_read_goes_with_its_interface() {
    let node = Node::new(&["10.0.0.0/24"]);
    node.serving().add(&request("a"), &netns()).unwrap();
    std::fs::write(node.dir.path().join("endpoints/2.json"), "{").unwrap();
    let endpoints = node.serving();
    node.kernel.with(|state| state.links.clear());
    endpoints.look();
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0));
}

#[test]
fn an_endpoint_that_cannot_be_restored_is_tried_again() {
    let node = Node::new(&["10.0.0.0/24"]);
    node.serving().add(&request("a"), &netns()).unwrap();
    let (endpoints, _) = node.start();
    node.kernel.with(|state| state.refuses = Some("attach"));
    endpoints.serve();
    assert_eq!(endpoints.list()[0].state, State::Restoring);
    assert!(endpoints.retry());
    node.kernel.with(|state| state.refuses = None);
    assert!(!endpoints.retry());
    assert_eq!(endpoints.list()[0].state, State::Ready);
}

#[test]
fn requests_before_the_agent_serves_wait_and_not_for_ever() {
    let node = Node::new(&["10.0.0.0/24"]);
    let (endpoints, _) = node.start();
    let failure = endpoints.add(&request("a"), &netns()).unwrap_err();
    assert_eq!(failure.code, code::TRY_AGAIN);
    assert_eq!(endpoints.status().unwrap_err().code, code::NOT_AVAILABLE);
    let waiting = {
        let endpoints = endpoints.clone();
        std::thread::spawn(move || endpoints.add(&request("a"), &netns()))
    };
    endpoints.serve();
    waiting.join().unwrap().unwrap();
    endpoints.status().unwrap();
}

#[test]
fn check_waits_for_an_endpoint_that_is_being_restored_and_not_for_ever() {
    let mut node = Node::new(&["10.0.0.0/24"]);
    node.serving().add(&request("a"), &netns()).unwrap();
    let (endpoints, _) = node.start();
    assert_eq!(endpoints.check(&request("a"), &netns()).unwrap_err().code, code::TRY_AGAIN);
    node.settings.patience = Duration::from_secs(30);
    let (endpoints, _) = node.start();
    let waiting = {
        let endpoints = endpoints.clone();
        std::thread::spawn(move || endpoints.check(&request("a"), &netns()))
    };
    endpoints.serve();
    waiting.join().unwrap().unwrap();
}
