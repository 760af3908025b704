//! Pods that leave the socket programs and come back.

use super::*;

fn opted_out(node: &Node) -> usize {
    node.kernel.traces().2
}

#[test]
fn an_annotation_that_changed_while_no_agent_ran_holds_once_the_next_one_serves() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("u", None);
    node.serving().add(&of_pod("a", "u"), &netns()).unwrap();
    let node = node.with_pod("u", Some("false"));
    let endpoints = node.serving();
    assert_eq!((opted_out(&node), endpoints.list()[0].socket_lb), (1, false));
}

#[test]
fn an_annotation_that_changes_while_somebody_works_at_the_endpoint_is_followed_after_it() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("u", None);
    let endpoints = node.serving();
    endpoints.add(&of_pod("a", "u"), &netns()).unwrap();
    let claim = endpoints.try_claim(&id("a")).unwrap();
    endpoints.follow(Arc::new(with_pod(&node.view, "u", Some("false"))));
    assert_eq!(opted_out(&node), 0);
    drop(claim);
    endpoints.look();
    assert_eq!((opted_out(&node), endpoints.list()[0].socket_lb), (1, false));
}

#[test]
fn a_namespace_leaves_the_socket_programs_for_as_long_as_one_endpoint_in_it_does() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("u", Some("false"));
    let endpoints = node.serving();
    endpoints.add(&of_pod("a", "u"), &netns()).unwrap();
    let second =
        Attachment { id: AttachmentId { interface: "net1".to_owned(), ..id("a") }, ..of_pod("a", "u") };
    endpoints.add(&second, &netns()).unwrap();
    endpoints.delete(&second.id).unwrap();
    assert_eq!(opted_out(&node), 1);
    endpoints.delete(&id("a")).unwrap();
    assert_eq!(opted_out(&node), 0);
}

#[test]
fn what_was_decided_of_an_endpoint_that_has_ended_is_not_done() {
    let node = Node::new(&["10.0.0.0/24"]).with_pod("u", None);
    let endpoints = node.serving();
    endpoints.add(&of_pod("a", "u"), &netns()).unwrap();
    let endpoint = endpoints.list().remove(0);
    endpoints.delete(&id("a")).unwrap();
    endpoints.known().view = Arc::new(with_pod(&node.view, "u", Some("false")));
    endpoints.follow_annotation(&endpoint).unwrap();
    assert_eq!(opted_out(&node), 0);
}
