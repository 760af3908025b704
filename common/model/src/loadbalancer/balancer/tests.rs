use std::collections::BTreeMap;

use portway_datapath::{FrontendKey, Port};

use super::LoadBalancer;
use crate::k8s::{Event, Format, Names, Object, decode};
use crate::loadbalancer::{Config, Desired, DesiredFrontend, DesiredService, Dirty, ServicePortKey};

fn objects(yaml: &str) -> Vec<Object> {
    let decoded = decode(yaml.as_bytes(), Format::Yaml, &mut Names::default()).unwrap();
    assert_eq!(decoded.rejects, []);
    decoded.objects
}

fn object(yaml: &str) -> Object {
    objects(yaml).remove(0)
}

fn service(name: &str, spec: &str, hour: u64) -> Object {
    let created = format!("2026-11-30T{hour:02}:00:00Z");
    object(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, creationTimestamp: \"{created}\"}}, spec: {{{spec}}}}}"
    ))
}

fn slice(name: &str, service: &str, family: &str, endpoints: &str) -> Object {
    object(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, labels: \
         {{kubernetes.io/service-name: {service}}}}}, addressType: {family}, ports: [{{port: 8080}}], \
         endpoints: [{endpoints}]}}"
    ))
}

fn pod(name: &str, uid: &str, ip: &str, phase: &str, hour: u64) -> Object {
    object(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, uid: {uid}, creationTimestamp: \
         \"2026-11-30T{hour:02}:00:00Z\"}}, spec: {{nodeName: node-a, containers: [{{ports: [{{containerPort: 80, \
         hostPort: 8080}}]}}]}}, status: {{phase: {phase}, podIPs: [{{ip: {ip}}}]}}}}"
    ))
}

fn load_balancer() -> LoadBalancer {
    LoadBalancer::new(Config::new("node-a"))
}

fn apply(load_balancer: &mut LoadBalancer, object: Object) -> Dirty {
    load_balancer.apply(Event::Apply(object));
    load_balancer.take_dirty()
}

fn delete(load_balancer: &mut LoadBalancer, object: &Object) -> Dirty {
    load_balancer.apply(Event::Delete(object.key()));
    load_balancer.take_dirty()
}

/// Where port 8080 of the node leads.
fn host_port_owner(load_balancer: &LoadBalancer) -> Option<String> {
    let key =
        FrontendKey::new(portway_datapath::Addr::ANY_V4, Port::new(8080), portway_datapath::Protocol::TCP);
    let service = load_balancer.frontend(&key)?.service;
    let backends = load_balancer.service(&service).unwrap().backends;
    Some(format!("{} {}", service.service(), backends.first().unwrap().addr))
}

/// pains.md row 19: the pod of this name and another UID takes over before its predecessor's end is told.
#[test]
fn pain_19_the_late_delete_of_a_recreated_pod_leaves_its_successor() {
    let mut lb = load_balancer();
    let (old, new) = (pod("db", "u1", "10.1.0.5", "Running", 1), pod("db", "u2", "10.1.0.6", "Running", 2));
    apply(&mut lb, old.clone());
    apply(&mut lb, new.clone());
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/db 10.1.0.6"));
    assert_eq!(delete(&mut lb, &old), Dirty::default());
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/db 10.1.0.6"));
    delete(&mut lb, &new);
    assert_eq!(host_port_owner(&lb), None);
}

/// pains.md row 21: two pods share an address; the old one's end is told late.
#[test]
fn pain_21_the_delete_of_an_old_pod_leaves_a_new_one_on_its_address() {
    let mut lb = load_balancer();
    let (old, new) = (pod("a", "u1", "10.1.0.5", "Running", 1), pod("b", "u2", "10.1.0.5", "Running", 2));
    apply(&mut lb, old.clone());
    apply(&mut lb, new);
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/b 10.1.0.5"));
    delete(&mut lb, &old);
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/b 10.1.0.5"));
}

#[test]
fn a_pod_that_ends_hands_its_host_port_to_the_next_newest_at_once() {
    let mut lb = load_balancer();
    for hour in 1..=3 {
        apply(
            &mut lb,
            pod(&format!("p{hour}"), &format!("u{hour}"), &format!("10.1.0.{hour}"), "Running", hour),
        );
    }
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/p3 10.1.0.3"));
    let dirty = apply(&mut lb, pod("p3", "u3", "10.1.0.3", "Succeeded", 3));
    assert_eq!(dirty.frontends.len(), 1);
    assert_eq!(host_port_owner(&lb).as_deref(), Some("default/p2 10.1.0.2"));
}

#[test]
fn a_change_dirties_its_own_service_and_nothing_else() {
    let mut lb = load_balancer();
    for n in 0..500 {
        let spec = format!("clusterIPs: [10.96.{}.{}], ports: [{{port: 80}}]", n / 250, n % 250 + 1);
        apply(&mut lb, service(&format!("s{n}"), &spec, 1));
        apply(&mut lb, slice(&format!("s{n}-1"), &format!("s{n}"), "IPv4", "{addresses: [10.1.0.1]}"));
    }
    assert_eq!(lb.everything().services.len(), 500);
    let dirty = apply(&mut lb, slice("s7-1", "s7", "IPv4", "{addresses: [10.1.0.2]}"));
    let named: Vec<_> = dirty.services.iter().map(ServicePortKey::service).collect();
    assert_eq!((named, dirty.frontends.len()), (vec!["default/s7"], 0));
}

#[test]
fn an_object_that_is_as_it_was_dirties_nothing() {
    let mut lb = load_balancer();
    let same = || {
        [
            service("a", "clusterIPs: [10.96.0.1], ports: [{port: 80}]", 1),
            slice("a-1", "a", "IPv4", "{addresses: [10.1.0.1]}"),
            pod("p", "u", "10.1.0.1", "Running", 1),
        ]
    };
    for object in same() {
        assert!(!apply(&mut lb, object).is_empty());
    }
    for object in same() {
        assert!(apply(&mut lb, object).is_empty());
    }
}

#[test]
fn a_loser_takes_over_in_place_and_gives_back() {
    let mut lb = load_balancer();
    let spec = "clusterIPs: [10.96.0.1], ports: [{port: 80}]";
    let (old, young) = (service("old", spec, 1), service("young", spec, 2));
    apply(&mut lb, young.clone());
    let dirty = apply(&mut lb, old.clone());
    assert_eq!(dirty.frontends.len(), 1);
    let key = *dirty.frontends.first().unwrap();
    assert_eq!(lb.frontend(&key).unwrap().service.service(), "default/old");
    assert_eq!(lb.conflicts().map(|c| c.name).collect::<Vec<_>>(), ["default/young"]);
    let young_key = lb.everything().services.into_iter().find(|k| k.service() == "default/young").unwrap();
    assert_eq!(lb.frontends_of(&young_key), []);
    assert_eq!(delete(&mut lb, &old).frontends.len(), 1);
    assert_eq!(lb.frontends_of(&young_key), [key]);
    assert_eq!(lb.conflicts().count(), 0);
}

type Wanted = (BTreeMap<ServicePortKey, DesiredService>, BTreeMap<FrontendKey, DesiredFrontend>);

fn wanted(lb: &LoadBalancer) -> Wanted {
    let everything = lb.everything();
    let services: BTreeMap<_, _> =
        everything.services.into_iter().map(|key| (key.clone(), lb.service(&key).unwrap())).collect();
    let frontends: BTreeMap<_, _> =
        everything.frontends.into_iter().map(|key| (key, lb.frontend(&key).unwrap())).collect();
    for key in services.keys() {
        let owned: Vec<_> =
            frontends.iter().filter(|(_, frontend)| frontend.service == *key).map(|(key, _)| *key).collect();
        assert_eq!(lb.frontends_of(key), owned);
    }
    for frontend in frontends.values() {
        assert!(services.contains_key(&frontend.service), "{frontend:?} belongs to nothing");
    }
    (services, frontends)
}

fn changed<K: Ord + Clone, V: PartialEq>(before: &BTreeMap<K, V>, after: &BTreeMap<K, V>) -> Vec<K> {
    let keys = before.keys().chain(after.keys());
    keys.filter(|key| before.get(key) != after.get(key)).cloned().collect()
}

/// Objects that have much to do with each other.
fn any_object(pick: &mut impl FnMut(u64) -> u64) -> Object {
    let name = ["a", "b", "c"][pick(3) as usize];
    match pick(6) {
        0 | 1 => {
            let ips = ["10.96.0.1", "10.96.0.1, \"fd00::1\"", "192.0.2.1", "\"fd00::1\""][pick(4) as usize];
            let externals =
                ["", "externalIPs: [192.0.2.1], "][if ips.contains('.') { pick(2) as usize } else { 0 }];
            let port =
                ["port: 80", "port: 80, nodePort: 8080", "port: 80, nodePort: 30080", "port: 81, name: x"]
                    [pick(4) as usize];
            let policy = ["Local", "Cluster"][pick(2) as usize];
            let spec = format!(
                "type: NodePort, clusterIPs: [{ips}], {externals}internalTrafficPolicy: {policy}, ports: [{{{port}}}]"
            );
            service(name, &spec, pick(3))
        }
        2 | 3 => {
            let zone = ["a", "b"][pick(2) as usize];
            let endpoints = [
                "".to_owned(),
                "{addresses: [10.1.0.1], nodeName: node-a}, {addresses: [10.1.0.2], nodeName: node-b}"
                    .to_owned(),
                format!("{{addresses: [10.1.0.1], hints: {{forZones: [{{name: {zone}}}]}}}}"),
                "{addresses: [10.1.0.1], conditions: {ready: false, serving: true, terminating: true}}"
                    .to_owned(),
            ];
            let of = ["a", "b", "c"][pick(3) as usize];
            slice(&format!("{name}-{}", pick(2)), of, "IPv4", &endpoints[pick(4) as usize])
        }
        4 => {
            let phase = ["Running", "Failed"][pick(2) as usize];
            pod(name, &format!("u{}", pick(2)), &format!("10.1.0.{}", pick(3) + 1), phase, pick(3))
        }
        _ => {
            let zone = ["a", "b"][pick(2) as usize];
            let labels = format!("labels: {{topology.kubernetes.io/zone: {zone}}}");
            object(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: node-a, {labels}}}}}"))
        }
    }
}

#[test]
fn whatever_comes_everything_that_changes_is_dirty_and_the_order_of_arrival_does_not_matter() {
    let mut random = 3u64;
    let mut pick = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut lb = load_balancer();
    let mut present: BTreeMap<_, Object> = BTreeMap::new();
    let mut before = wanted(&lb);
    for step in 0..3000 {
        let object = any_object(&mut pick);
        let dirty = if pick(4) == 0 {
            let gone = present.remove(&(object.kind(), object.name().to_string()));
            delete(&mut lb, &gone.unwrap_or(object))
        } else {
            present.insert((object.kind(), object.name().to_string()), object.clone());
            apply(&mut lb, object)
        };
        let after = wanted(&lb);
        for key in changed(&before.0, &after.0) {
            assert!(dirty.services.contains(&key), "step {step}: {key:?} changed and is not dirty");
        }
        for key in changed(&before.1, &after.1) {
            assert!(dirty.frontends.contains(&key), "step {step}: {key:?} changed and is not dirty");
        }
        if step % 20 == 0 {
            let mut fresh = load_balancer();
            let mut objects: Vec<_> = present.values().cloned().collect();
            for n in (1..objects.len()).rev() {
                objects.swap(n, pick(n as u64 + 1) as usize);
            }
            for object in objects {
                fresh.apply(Event::Apply(object));
            }
            assert_eq!(wanted(&fresh), after, "step {step}");
            let named =
                |lb: &LoadBalancer| (lb.rejects().collect::<Vec<_>>(), lb.conflicts().collect::<Vec<_>>());
            assert_eq!(named(&fresh), named(&lb), "step {step}");
        }
        before = after;
    }
}
