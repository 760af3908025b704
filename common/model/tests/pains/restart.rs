//! A restart of the agent, and more than one source.

use portway_model::k8s::ObjectKind::{EndpointSlice, Service};
use portway_model::k8s::Watched;

use super::node::{Node, service, set, slice, tally};
use super::{slices, two_slices};

#[test]
fn pain_03_a_restart_keeps_backends_of_slices_not_seen_yet() {
    let mut node = two_slices().restart();
    let all = set(&["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"]);
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.program();
    assert_eq!(node.backends("10.96.0.1"), all);
    node.watch(EndpointSlice, Watched::ListBegins);
    node.watch(EndpointSlice, Watched::Listed(&slices()[0]));
    node.program();
    assert_eq!((node.backends("10.96.0.1"), node.maps.ops.len()), (all.clone(), 0));
    // What was seen counts, also where it is not ready any more or new: only what was not seen is kept.
    node.applied(EndpointSlice, &slice("web-1", 7, "web", &["10.1.0.2 -", "10.1.0.9"]));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.9", "10.1.0.3", "10.1.0.4"]));
    node.watch(EndpointSlice, Watched::Listed(&slice("web-2", 8, "web", &["10.1.0.4"])));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.9", "10.1.0.3", "10.1.0.4"]));
    node.watch(EndpointSlice, Watched::ListEnds);
    node.synced();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.9", "10.1.0.4"]));
}

#[test]
fn pain_03_a_restart_that_finds_nothing_new_writes_nothing() {
    let mut node = two_slices().restart();
    node.list(EndpointSlice, &slices());
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.program();
    node.synced();
    assert_eq!(tally(&node.maps.ops), [].into());
}

#[test]
fn pain_03_what_was_seen_and_went_again_does_not_stay() {
    let mut node = two_slices().restart();
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.watch(EndpointSlice, Watched::ListBegins);
    node.watch(EndpointSlice, Watched::Listed(&slices()[0]));
    node.program();
    node.watch(EndpointSlice, Watched::Deleted(&slice("web-1", 9, "web", &[])));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.3", "10.1.0.4"]));
    // A frontend that its service does not have any more goes with the first sight of the service.
    node.applied(Service, &service("web", 10, "10.96.0.2", ""));
    node.program();
    assert_eq!(
        (node.backends("10.96.0.1"), node.backends("10.96.0.2")),
        (None, set(&["10.1.0.3", "10.1.0.4"]))
    );
    node.watch(Service, Watched::Deleted(&service("web", 11, "10.96.0.2", "")));
    node.program();
    assert_eq!((node.backends("10.96.0.2"), node.rows()), (None, vec![]));
}

#[test]
fn pain_03_an_address_that_a_service_lost_while_the_agent_was_down_goes_with_its_first_sight() {
    let mut node = two_slices().restart();
    node.watch(Service, Watched::ListBegins);
    node.watch(Service, Watched::Listed(&service("web", 4, "10.96.0.2", "")));
    node.program();
    assert_eq!((node.backends("10.96.0.1"), node.backends("10.96.0.2").unwrap().len()), (None, 4));
    // It goes and comes again: what an earlier agent knew of it does not.
    node.watch(Service, Watched::Deleted(&service("web", 5, "10.96.0.2", "")));
    node.program();
    node.applied(Service, &service("web", 6, "10.96.0.2", ""));
    node.program();
    assert_eq!(node.backends("10.96.0.2"), set(&[]));
}

#[test]
fn pain_04_a_frontend_stays_with_an_owner_that_was_not_seen_yet() {
    // Both want 10.96.0.1; the cluster address wins.
    let thief = service("thief", 2, "10.96.0.9", r#", "externalIPs": ["10.96.0.1"]"#);
    let web = service("web", 1, "10.96.0.1", "");
    let of_both = [slice("thief-1", 4, "thief", &["10.1.0.66"]), slice("web-1", 3, "web", &["10.1.0.1"])];
    let mut node = Node::new();
    node.list(Service, &[thief.clone(), web.clone()]);
    node.list(EndpointSlice, &of_both);
    node.synced();
    let mut node = node.restart();
    node.list(EndpointSlice, &of_both);
    node.watch(Service, Watched::ListBegins);
    node.watch(Service, Watched::Listed(&thief));
    node.program();
    assert_eq!((node.backends("10.96.0.1"), node.maps.ops.len()), (set(&["10.1.0.1"]), 0));
    node.watch(Service, Watched::Listed(&web));
    node.program();
    node.watch(Service, Watched::ListEnds);
    node.synced();
    assert_eq!((node.backends("10.96.0.1"), node.maps.ops.len()), (set(&["10.1.0.1"]), 0));
    // Were it gone, the other one would have the frontend once that is known, and a file's at once.
    let mut node = node.restart();
    node.list(EndpointSlice, &of_both);
    node.list(Service, std::slice::from_ref(&thief));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.1"]));
    node.synced();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.66"]));
    let mut node = node.restart();
    node.file("dns.yaml", &FILE.replace("10.96.0.10", "10.96.0.1"));
    node.program();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.0.66"]));
    node.directory_synced();
    assert_eq!(node.backends("10.96.0.1"), set(&["10.1.1.1", "10.1.1.2"]));
}

#[test]
fn pain_04_no_service_goes_before_every_kind_has_synced() {
    let address = |n: usize| format!("10.96.{}.{}", n / 250, 1 + n % 250);
    let services =
        |from, to| (from..to).map(|n| service(&format!("s{n}"), 1, &address(n), "")).collect::<Vec<_>>();
    let slices: Vec<_> = (0..500)
        .map(|n| {
            slice(&format!("s{n}-x"), 2, &format!("s{n}"), &[&format!("10.2.{}.{}", n / 250, 1 + n % 250)])
        })
        .collect();
    let mut node = Node::new();
    node.list(Service, &services(0, 500));
    node.list(EndpointSlice, &slices);
    node.synced();
    let before = node.maps.tables.dump();
    let mut node = node.restart();
    node.list(EndpointSlice, &slices);
    node.program();
    assert_eq!((node.maps.ops.len(), &node.maps.tables.dump()), (0, &before));
    // The first page of two.
    node.watch(Service, Watched::ListBegins);
    services(0, 250).iter().for_each(|service| node.watch(Service, Watched::Listed(service)));
    node.program();
    assert_eq!((node.maps.ops.len(), &node.maps.tables.dump()), (0, &before));
    services(250, 499).iter().for_each(|service| node.watch(Service, Watched::Listed(service)));
    node.watch(Service, Watched::ListEnds);
    node.synced();
    assert_eq!(node.rows().len(), 499);
}

const FILE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: ns}
spec: {clusterIPs: [10.96.0.10], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: ns, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.1.1]}, {addresses: [10.1.1.2]}]
"#;

#[test]
fn pain_05_what_files_have_is_exact_while_another_source_is_silent() {
    let mut node = Node::new();
    node.file("dns.yaml", FILE);
    node.list(Service, &[service("web", 1, "10.96.0.1", "")]);
    node.list(EndpointSlice, &slices());
    node.synced();
    // While the agent is down one endpoint goes; afterwards the API server never answers.
    let mut node = node.restart();
    node.file("dns.yaml", &FILE.replace(", {addresses: [10.1.1.2]}", ""));
    node.program();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.1.1", "10.1.1.2"]));
    node.directory_synced();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.1.1"]));
    // What the API server had is served, and changes of files are too.
    assert_eq!(node.backends("10.96.0.1").unwrap().len(), 4);
    node.file("dns.yaml", &FILE.replace("10.1.1.2", "10.1.1.7"));
    node.program();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.1.1", "10.1.1.7"]));
}

#[test]
fn pain_06_a_service_that_two_sources_have_has_one_owner() {
    let mut node = Node::new();
    node.list(Service, &[service("dns", 1, "10.96.0.10", "")]);
    node.list(EndpointSlice, &[slice("dns-1", 2, "dns", &["10.1.0.1", "10.1.0.2"])]);
    node.synced();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.0.1", "10.1.0.2"]));
    // A file that takes the service over is made while the agent is down.
    let mut node = node.restart();
    node.list(Service, &[service("dns", 1, "10.96.0.10", "")]);
    node.list(EndpointSlice, &[slice("dns-1", 2, "dns", &["10.1.0.1", "10.1.0.2"])]);
    node.file("dns.yaml", FILE);
    node.synced();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.1.1", "10.1.1.2"]));
    // Whatever the other one does, no backend of its comes back.
    node.applied(EndpointSlice, &slice("dns-1", 5, "dns", &["10.1.0.1", "10.1.0.3"]));
    node.program();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.1.1", "10.1.1.2"]));
    let change = node.manifests.remove(std::path::Path::new("dns.yaml"));
    node.take(change);
    node.program();
    assert_eq!(node.backends("10.96.0.10"), set(&["10.1.0.1", "10.1.0.3"]));
}
