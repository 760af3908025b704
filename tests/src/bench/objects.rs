//! Large sets of services, as one JSON text each.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

/// The pod of a benchmark answers on every address of this /9, so each endpoint has an address of its own.
pub const ENDPOINTS: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
pub const ENDPOINT_BITS: u8 = 9;
/// The port that the backends answer on.
pub const PORT: u16 = 8080;

/// The cluster address of service `n`.
pub fn frontend(n: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + n + 1).into(), 80)
}

/// The `n`th endpoint address of all.
pub fn endpoint(n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(ENDPOINTS) + n + 1)
}

/// Service number `n`, with one port.
fn service(text: &mut String, n: u32) {
    let ip = frontend(n).ip();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"service-{n}","namespace":"bench","uid":"00000000-0000-0000-0000-{n:012}","creationTimestamp":"2026-01-01T00:00:00Z"}},"spec":{{"type":"ClusterIP","clusterIP":"{ip}","clusterIPs":["{ip}"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster","sessionAffinity":"None","selector":{{"app":"service-{n}"}},"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":{PORT}}}]}},"status":{{"loadBalancer":{{}}}}}}"#
    );
}

/// The slice `suffix` of service `n` with these endpoints.
fn slice(text: &mut String, n: u32, suffix: &str, endpoints: impl Iterator<Item = Ipv4Addr>) {
    let _ = write!(
        text,
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"service-{n}-{suffix}","namespace":"bench","labels":{{"kubernetes.io/service-name":"service-{n}"}}}},"addressType":"IPv4","ports":[{{"name":"http","protocol":"TCP","port":{PORT}}}],"endpoints":["#
    );
    for (position, addr) in endpoints.enumerate() {
        let comma = if position == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"addresses":["{addr}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{}","targetRef":{{"kind":"Pod","name":"service-{n}-{position}","namespace":"bench"}},"zone":"zone-{}"}}"#,
            position % 100,
            position % 3,
        );
    }
    text.push_str("]}");
}

/// A List of `services` services, each with a slice of `endpoints` endpoints of its own.
pub fn services(services: u32, endpoints: u32) -> String {
    list(services, |n| (n * endpoints..(n + 1) * endpoints).map(endpoint).collect())
}

/// A List of `services` services that share one endpoint, number 0.
pub fn services_of_one_backend(services: u32) -> String {
    list(services, |_| vec![endpoint(0)])
}

fn list(services: u32, endpoints: impl Fn(u32) -> Vec<Ipv4Addr>) -> String {
    let mut text = String::from(r#"{"apiVersion":"v1","kind":"List","items":["#);
    for n in 0..services {
        if n > 0 {
            text.push(',');
        }
        service(&mut text, n);
        text.push(',');
        slice(&mut text, n, "a", endpoints(n).into_iter());
    }
    text.push_str("]}");
    text
}

/// One slice of service `n` with the one endpoint `addr`.
pub fn one_endpoint(n: u32, addr: Ipv4Addr) -> String {
    let mut text = String::new();
    slice(&mut text, n, "b", std::iter::once(addr));
    text
}

/// Service number `n` alone, without endpoints.
pub fn one_service(n: u32) -> String {
    let mut text = String::new();
    service(&mut text, n);
    text
}
