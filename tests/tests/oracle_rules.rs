//! Do the random worlds exercise every rule? A world is only worth something for a rule if its rows differ without
//! what the rule looks at.

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use portway_tests::oracle::random::{Random, THIS_NODE, world};
use portway_tests::oracle::{Objects, OracleConfig, oracle};

const WORLDS: u64 = 1_000;

/// How many worlds have other rows after `erase`.
fn worlds_that_notice(erase: impl Fn(&mut Objects)) -> usize {
    (0..WORLDS)
        .filter(|seed| {
            let mut objects = world(&mut Random::new(*seed)).by_kind();
            let before = oracle(&objects, &OracleConfig::new(THIS_NODE));
            erase(&mut objects);
            before != oracle(&objects, &OracleConfig::new(THIS_NODE))
        })
        .count()
}

fn services(change: fn(&mut Service)) -> impl Fn(&mut Objects) {
    move |objects| objects.services.iter_mut().for_each(change)
}

fn slices(change: fn(&mut EndpointSlice)) -> impl Fn(&mut Objects) {
    move |objects| objects.slices.iter_mut().for_each(change)
}

fn endpoints(change: fn(&mut Endpoint)) -> impl Fn(&mut Objects) {
    move |objects| {
        objects.slices.iter_mut().flat_map(|slice| slice.endpoints.iter_mut().flatten()).for_each(change)
    }
}

fn pods(change: fn(&mut Pod)) -> impl Fn(&mut Objects) {
    move |objects| objects.pods.iter_mut().for_each(change)
}

fn container_ports(change: fn(&mut k8s_openapi::api::core::v1::ContainerPort)) -> impl Fn(&mut Objects) {
    move |objects| {
        for pod in &mut objects.pods {
            let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
            containers.flat_map(|container| container.ports.iter_mut().flatten()).for_each(change);
        }
    }
}

#[test]
fn every_rule_changes_the_rows_of_some_worlds() {
    let spec = |change: fn(&mut k8s_openapi::api::core::v1::ServiceSpec)| {
        move |objects: &mut Objects| {
            objects.services.iter_mut().filter_map(|s| s.spec.as_mut()).for_each(change)
        }
    };
    let label = |key: &'static str| {
        move |objects: &mut Objects| {
            let services = objects.services.iter_mut().map(|o| &mut o.metadata);
            for meta in services.chain(objects.slices.iter_mut().map(|o| &mut o.metadata)) {
                if let Some(labels) = &mut meta.labels {
                    labels.remove(key);
                }
            }
        }
    };
    let noticed = [
        ("cluster IPs", worlds_that_notice(spec(|s| s.cluster_ips = Some(vec!["10.96.77.7".to_owned()])))),
        ("clusterIP alone", worlds_that_notice(spec(|s| s.cluster_ip = None))),
        ("external IPs", worlds_that_notice(spec(|s| s.external_ips = None))),
        ("ingress", worlds_that_notice(services(|s| s.status = None))),
        (
            "ipMode",
            worlds_that_notice(services(|s| {
                let ingress = s.status.iter_mut().flat_map(|s| s.load_balancer.iter_mut());
                ingress.flat_map(|l| l.ingress.iter_mut().flatten()).for_each(|i| i.ip_mode = None);
            })),
        ),
        ("source ranges", worlds_that_notice(spec(|s| s.load_balancer_source_ranges = None))),
        ("affinity", worlds_that_notice(spec(|s| s.session_affinity = None))),
        ("affinity timeout", worlds_that_notice(spec(|s| s.session_affinity_config = None))),
        ("internal policy", worlds_that_notice(spec(|s| s.internal_traffic_policy = None))),
        ("external policy", worlds_that_notice(spec(|s| s.external_traffic_policy = None))),
        (
            "node ports",
            worlds_that_notice(spec(|s| s.ports.iter_mut().flatten().for_each(|p| p.node_port = None))),
        ),
        (
            "protocols",
            worlds_that_notice(spec(|s| s.ports.iter_mut().flatten().for_each(|p| p.protocol = None))),
        ),
        (
            "port names",
            worlds_that_notice(spec(|s| s.ports.iter_mut().flatten().for_each(|p| p.name = None))),
        ),
        ("external names", worlds_that_notice(spec(|s| s.type_ = None))),
        ("ages of services", worlds_that_notice(services(|s| s.metadata.creation_timestamp = None))),
        ("proxy names", worlds_that_notice(label("service.kubernetes.io/service-proxy-name"))),
        ("headless labels", worlds_that_notice(label("service.kubernetes.io/headless"))),
        ("service names of slices", worlds_that_notice(label("kubernetes.io/service-name"))),
        ("address types", worlds_that_notice(slices(|s| s.address_type = "FQDN".to_owned()))),
        (
            "numbers of endpoint ports",
            worlds_that_notice(slices(|s| {
                s.ports.iter_mut().flatten().for_each(|p| p.port = p.port.or(Some(1)));
            })),
        ),
        ("order of slices", worlds_that_notice(slices(turn_order))),
        ("second addresses", worlds_that_notice(endpoints(|e| e.addresses.reverse()))),
        ("conditions", worlds_that_notice(endpoints(|e| e.conditions = None))),
        ("ready", worlds_that_notice(endpoints(|e| condition(e).ready = None))),
        ("serving", worlds_that_notice(endpoints(|e| condition(e).serving = None))),
        ("terminating", worlds_that_notice(endpoints(|e| condition(e).terminating = None))),
        ("nodes of endpoints", worlds_that_notice(endpoints(|e| e.node_name = None))),
        ("hints", worlds_that_notice(endpoints(|e| e.hints = None))),
        (
            "zone hints",
            worlds_that_notice(endpoints(|e| e.hints.iter_mut().for_each(|h| h.for_zones = None))),
        ),
        (
            "node hints",
            worlds_that_notice(endpoints(|e| e.hints.iter_mut().for_each(|h| h.for_nodes = None))),
        ),
        ("zone of the node", worlds_that_notice(|objects| objects.nodes.clear())),
        ("nodes of pods", worlds_that_notice(pods(|p| p.spec.iter_mut().for_each(|s| s.node_name = None)))),
        ("phases", worlds_that_notice(pods(|p| p.status.iter_mut().for_each(|s| s.phase = None)))),
        ("pod IPs", worlds_that_notice(pods(|p| p.status.iter_mut().for_each(|s| s.pod_ips = None)))),
        ("ages of pods", worlds_that_notice(pods(|p| p.metadata.creation_timestamp = None))),
        ("host network", worlds_that_notice(pods(|p| p.spec.iter_mut().for_each(|s| s.host_network = None)))),
        ("sidecars", worlds_that_notice(pods(|p| p.spec.iter_mut().for_each(|s| s.init_containers = None)))),
        (
            "one-off init containers",
            worlds_that_notice(pods(|p| {
                let init = p.spec.iter_mut().flat_map(|s| s.init_containers.iter_mut().flatten());
                init.for_each(|c| c.restart_policy = Some("Always".to_owned()));
            })),
        ),
        ("host ports", worlds_that_notice(container_ports(|p| p.host_port = None))),
        ("host IPs", worlds_that_notice(container_ports(|p| p.host_ip = None))),
        ("protocols of host ports", worlds_that_notice(container_ports(|p| p.protocol = None))),
    ];
    for (rule, worlds) in noticed {
        println!("{worlds:>5} of {WORLDS} worlds have other rows without: {rule}");
    }
    let idle: Vec<_> = noticed.iter().filter(|(_, worlds)| *worlds < 10).collect();
    assert!(idle.is_empty(), "too few worlds exercise these rules: {idle:?}");
}

fn condition(endpoint: &mut Endpoint) -> &mut k8s_openapi::api::discovery::v1::EndpointConditions {
    endpoint.conditions.get_or_insert_default()
}

/// x1 … x3 become x9 … x7.
fn turn_order(slice: &mut EndpointSlice) {
    let turn = |c: char| c.to_digit(10).and_then(|n| char::from_digit(10 - n, 10)).unwrap_or(c);
    slice.metadata.name = slice.metadata.name.take().map(|name| name.chars().map(turn).collect());
}
