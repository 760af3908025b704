//! How endpoints end.

use super::*;

#[test]
fn programs_look_at_what_a_pod_sends_until_its_link_is_gone() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.add(&request("a"), &netns()).unwrap();
    node.kernel.with(|state| state.refuses = Some("delete_link"));
    assert!(endpoints.delete(&id("a")).is_err());
    assert_eq!(node.kernel.with(|state| state.attached.len()), 1);
    node.kernel.with(|state| state.refuses = None);
    endpoints.delete(&id("a")).unwrap();
    assert_eq!(node.kernel.with(|state| (state.unguarded.clone(), state.attached.len())), (Vec::new(), 0));
}

#[test]
fn a_removal_that_failed_is_tried_again_without_a_request() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.add(&request("a"), &netns()).unwrap();
    node.kernel.with(|state| state.refuses = Some("delete_link"));
    assert!(endpoints.delete(&id("a")).is_err());
    endpoints.look();
    assert_eq!(endpoints.list()[0].state, State::Disconnecting);
    node.kernel.with(|state| state.refuses = None);
    endpoints.look();
    assert_eq!((node.kernel.traces(), used(&endpoints)), ((0, 0, 0, 0), 0));
}

#[test]
fn an_endpoint_that_is_being_restored_goes_with_its_interface() {
    let node = Node::new(&["10.0.0.0/24"]);
    node.serving().add(&request("a"), &netns()).unwrap();
    let (endpoints, _) = node.start();
    node.kernel.with(|state| state.links.clear());
    endpoints.look();
    assert_eq!((endpoints.list().len(), node.kernel.traces()), (0, (0, 0, 0, 0)));
}

#[test]
fn one_endpoint_that_cannot_be_removed_keeps_neither_the_others_nor_the_agent_from_going_on() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b", "c"] {
        endpoints.add(&request(container), &netns()).unwrap();
    }
    let [a, b] = ["a", "b"].map(|container| record::link_name(&id(container)));
    node.kernel.with(|state| {
        state.links.retain(|name, _| *name != a && *name != b);
        state.keeps = Some(a.clone());
    });
    endpoints.remove_gone().unwrap();
    let left = |endpoints: &Endpoints| {
        endpoints.list().into_iter().map(|it| (it.attachment.container, it.state)).collect::<Vec<_>>()
    };
    assert_eq!(left(&endpoints), [("a".to_owned(), State::Disconnecting), ("c".to_owned(), State::Ready)]);

    let (endpoints, restored) = node.start();
    assert_eq!(restored.endpoints, 1);
    endpoints.serve();
    assert_eq!(left(&endpoints), [("a".to_owned(), State::Disconnecting), ("c".to_owned(), State::Ready)]);
    node.kernel.with(|state| state.keeps = None);
    endpoints.look();
    assert_eq!((left(&endpoints).len(), node.kernel.traces()), (1, (1, 1, 0, 1)));
}

#[test]
fn a_note_of_the_plugin_is_read_while_the_agent_runs_and_is_not_about_a_pod_that_came_after_it() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    for container in ["a", "b"] {
        endpoints.add(&request(container), &netns()).unwrap();
        deletions::note(&node.notes(), &id(container)).unwrap();
    }
    endpoints.add(&request("b"), &netns()).unwrap();
    endpoints.look();
    let left: Vec<_> = endpoints.list().into_iter().map(|it| it.attachment.container).collect();
    assert_eq!((left, node.kernel.traces()), (vec!["b".to_owned()], (1, 1, 0, 1)));
    assert!(deletions::notes(&node.notes()).unwrap().is_empty());

    // It stays for as long as what it asks for cannot be done.
    deletions::note(&node.notes(), &id("b")).unwrap();
    node.kernel.with(|state| state.refuses = Some("delete_link"));
    endpoints.look();
    assert_eq!(deletions::notes(&node.notes()).unwrap().len(), 1);
    node.kernel.with(|state| state.refuses = None);
    endpoints.look();
    assert_eq!((endpoints.list().len(), deletions::notes(&node.notes()).unwrap().len()), (0, 0));
}
