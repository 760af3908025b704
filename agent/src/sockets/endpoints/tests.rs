use portway_datapath::Family;
use portway_model::k8s::{Pod, SlicePort};

use super::*;

const PORT: Port = Port::new(8080);

fn addr(n: u8) -> Addr {
    Addr::v4([10, 244, 0, n])
}

fn endpoint(n: u8) -> Endpoint {
    Endpoint { addr: addr(n), node: None, hints: None, ready: true, serving: true, terminating: false }
}

fn slice(name: &str, service: &str, endpoints: Vec<Endpoint>) -> Event {
    Event::Apply(Object::EndpointSlice(Arc::new(EndpointSlice {
        name: name.into(),
        service: service.into(),
        proxy_name: None,
        labelled_headless: false,
        family: Family::V4,
        ports: Box::new([SlicePort { name: "p".into(), protocol: Protocol::UDP, port: PORT }]),
        endpoints: endpoints.into(),
    })))
}

fn pod(uid: &str, live: bool) -> Event {
    Event::Apply(Object::Pod(Arc::new(Pod {
        name: "ns/pod".into(),
        uid: uid.into(),
        created: None,
        node: None,
        live,
        ips: Box::new([addr(9)]),
        host_ports: Box::default(),
        labels: Box::default(),
        service_account: None,
        annotations: Box::default(),
    })))
}

fn delete(kind: ObjectKind, name: &str, uid: &str) -> Event {
    Event::Delete(ObjectKey { kind, name: name.into(), uid: uid.into() })
}

fn serves(endpoints: &Endpoints, service: &str, n: u8) -> bool {
    endpoints.serves(service, addr(n), PORT, Protocol::UDP)
}

#[test]
fn an_endpoint_counts_for_its_service_port_and_protocol_alone() {
    let mut endpoints = Endpoints::default();
    assert!(!endpoints.apply(slice("ns/a-1", "ns/a", vec![endpoint(1)])));
    assert!(serves(&endpoints, "ns/a", 1));
    assert!(!serves(&endpoints, "ns/b", 1) && !serves(&endpoints, "ns/a", 2));
    assert!(!endpoints.serves("ns/a", addr(1), Port::new(1), Protocol::UDP));
    assert!(!endpoints.serves("ns/a", addr(1), PORT, Protocol::TCP));
}

#[test]
fn what_still_serves_while_it_terminates_answers_and_what_is_not_ready_does_not() {
    let mut endpoints = Endpoints::default();
    let ready = vec![endpoint(1)];
    endpoints.apply(slice("ns/a-1", "ns/a", ready.clone()));
    let terminating = Endpoint { ready: false, terminating: true, ..endpoint(1) };
    // Nothing is lost: no sweep.
    assert!(!endpoints.apply(slice("ns/a-1", "ns/a", vec![terminating.clone(), endpoint(2)])));
    assert!(serves(&endpoints, "ns/a", 1));
    let failing = Endpoint { serving: false, ..terminating };
    assert!(endpoints.apply(slice("ns/a-1", "ns/a", vec![failing, endpoint(2)])));
    assert!(!serves(&endpoints, "ns/a", 1) && endpoints.has(addr(1)));
    // Gone as well: TCP connections may be stale by that.
    assert!(endpoints.apply(slice("ns/a-1", "ns/a", vec![endpoint(2)])));
    assert!(!endpoints.has(addr(1)));
}

#[test]
fn an_address_is_somebodys_as_long_as_one_slice_has_it() {
    let mut endpoints = Endpoints::default();
    endpoints.apply(slice("ns/a-1", "ns/a", vec![endpoint(1)]));
    endpoints.apply(slice("ns/b-1", "ns/b", vec![endpoint(1)]));
    assert!(endpoints.apply(delete(ObjectKind::EndpointSlice, "ns/a-1", "")));
    assert!(endpoints.has(addr(1)) && !serves(&endpoints, "ns/a", 1));
    // A slice that goes to another service takes its endpoints along.
    assert!(endpoints.apply(slice("ns/b-1", "ns/a", vec![endpoint(1)])));
    assert!(serves(&endpoints, "ns/a", 1) && !serves(&endpoints, "ns/b", 1));
    assert!(endpoints.apply(delete(ObjectKind::EndpointSlice, "ns/b-1", "")));
    assert!(!endpoints.has(addr(1)));
    assert!(endpoints.by_service.is_empty() && endpoints.by_address.is_empty());
}

#[test]
fn absence_counts_from_the_first_question_and_anew_after_a_return() {
    let (mut endpoints, start) = (Endpoints::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(endpoints.absent_for(addr(1), at(0)), Some(Duration::ZERO));
    assert_eq!(endpoints.absent_for(addr(1), at(9)), Some(Duration::from_secs(9)));
    endpoints.apply(slice("ns/a-1", "ns/a", vec![endpoint(1)]));
    assert_eq!(endpoints.absent_for(addr(1), at(10)), None);
    endpoints.apply(delete(ObjectKind::EndpointSlice, "ns/a-1", ""));
    assert_eq!(endpoints.absent_for(addr(1), at(11)), Some(Duration::ZERO));
    // Also where it was back and gone between two questions.
    endpoints.apply(slice("ns/a-1", "ns/a", vec![endpoint(1)]));
    endpoints.apply(delete(ObjectKind::EndpointSlice, "ns/a-1", ""));
    assert_eq!(endpoints.absent_for(addr(1), at(12)), Some(Duration::ZERO));
    endpoints.retain_absent(&HashSet::new());
    assert!(endpoints.absent.is_empty());
}

#[test]
fn a_pod_has_its_addresses_until_it_or_its_successor_ends() {
    let mut endpoints = Endpoints::default();
    assert!(!endpoints.apply(pod("one", true)));
    // Late news of a predecessor.
    assert!(!endpoints.apply(delete(ObjectKind::Pod, "ns/pod", "zero")));
    endpoints.apply(pod("two", true));
    assert!(endpoints.has(addr(9)));
    assert!(endpoints.apply(pod("two", false)));
    assert!(!endpoints.has(addr(9)));
}
