//! The endpoint that other nodes probe.

use portway_datapath::EndpointId;

use super::*;
use crate::endpoints::HealthLinkError;

fn addr(text: &str) -> Addr {
    Addr::from(text.parse::<IpAddr>().unwrap())
}

fn held(node: &Node) -> Vec<Addr> {
    let is_healths = |value: &EndpointValue| value.id == EndpointId::HEALTH.get();
    node.kernel.with(|state| {
        state.endpoints.iter().filter(|(_, value)| is_healths(value)).map(|(addr, _)| *addr).collect()
    })
}

#[test]
fn it_has_a_link_as_pods_have_and_takes_no_address_from_them() {
    let node = Node::new(&["10.0.0.0/24", "fd00::/64"]);
    let (endpoints, _) = node.start();
    let wanted = [addr("10.0.0.1"), addr("fd00::1")];
    let early = endpoints.connect_health(&netns(), &wanted);
    assert!(matches!(early, Err(HealthLinkError::NotServing)), "{early:?}");
    assert_eq!(node.kernel.traces(), (0, 0, 0, 0));
    endpoints.serve();
    endpoints.connect_health(&netns(), &wanted).unwrap();
    assert_eq!((held(&node), node.kernel.traces()), (wanted.to_vec(), (1, 2, 0, 1)));
    let shown = endpoints.get(EndpointId::HEALTH.get()).unwrap();
    assert_eq!((shown.state, shown.name().as_str(), used(&endpoints)), (State::Ready, "@health", 0));
    let pod = endpoints.add(&request("a"), &netns()).unwrap();
    assert_eq!(addresses(&pod), ["10.0.0.2", "fd00::2"].map(|addr| addr.parse::<IpAddr>().unwrap()));
    // What a runtime asks of its own network is nothing to it, nor of a container that is called as it is.
    endpoints.collect("portway", &[]).unwrap();
    endpoints.collect("", &[]).unwrap();
    endpoints.delete(&id("health")).unwrap();
    assert_eq!((held(&node), used(&endpoints)), (wanted.to_vec(), 0));
}

#[test]
fn a_second_one_takes_the_place_of_the_first() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.connect_health(&netns(), &[addr("10.0.0.1")]).unwrap();
    endpoints.connect_health(&netns(), &[addr("10.9.0.1")]).unwrap();
    assert_eq!((held(&node), node.kernel.traces()), (vec![addr("10.9.0.1")], (1, 1, 0, 1)));
}

#[test]
fn it_and_a_pod_never_have_one_address_while_prefixes_change() {
    let mut node = Node::new(&["10.0.1.0/24"]);
    let endpoints = node.serving();
    endpoints.connect_health(&netns(), &[addr("10.0.1.1")]).unwrap();
    node.view = Node::new(&["10.0.1.0/30", "10.0.1.4/30"]).view;
    endpoints.follow(Arc::new(node.view.clone()));
    node.view = Node::new(&["10.0.0.0/23"]).view;
    endpoints.follow(Arc::new(node.view.clone()));
    for number in 0..510 {
        if let Ok(pod) = endpoints.add(&request(&format!("c{number}")), &netns()) {
            assert!(!addresses(&pod).contains(&addr("10.0.1.1").into()));
        }
    }
    assert_eq!((used(&endpoints), held(&node)), (508, vec![addr("10.0.1.1")]));
    let taken = endpoints.connect_health(&netns(), &[addr("10.0.1.0")]).unwrap_err();
    assert!(taken.to_string().contains("a pod of this node has its address 10.0.1.0"), "{taken}");
    endpoints.connect_health(&netns(), &[addr("10.0.0.1")]).unwrap();
    assert_eq!(held(&node), [addr("10.0.0.1")]);
}

#[test]
fn whatever_the_kernel_refuses_the_next_attempt_makes_it() {
    for step in ["create_link", "attach", "set_endpoint", "route", "configure_pod"] {
        let node = Node::new(&["10.0.0.0/24"]);
        let endpoints = node.serving();
        node.kernel.with(|state| state.refuses = Some(step));
        let refused = endpoints.connect_health(&netns(), &[addr("10.0.0.1")]);
        assert!(matches!(refused, Err(HealthLinkError::Endpoint(_))), "{step}: {refused:?}");
        node.kernel.with(|state| state.refuses = None);
        endpoints.connect_health(&netns(), &[addr("10.0.0.1")]).unwrap();
        assert_eq!((held(&node), node.kernel.traces()), (vec![addr("10.0.0.1")], (1, 1, 0, 1)), "{step}");
    }
}

#[test]
fn an_agent_takes_over_nothing_of_the_one_befores() {
    let node = Node::new(&["10.0.0.0/24"]);
    let endpoints = node.serving();
    endpoints.add(&request("a"), &netns()).unwrap();
    endpoints.connect_health(&netns(), &[addr("10.0.0.1")]).unwrap();
    drop(endpoints);
    let (endpoints, restored) = node.start();
    assert_eq!((restored.endpoints, restored.ended, restored.swept.len()), (1, Vec::new(), 1));
    assert_eq!((held(&node), endpoints.list().len()), (Vec::new(), 1));
}
