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
