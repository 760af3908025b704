//! Values that are right by themselves and wrong together.

use serde_json::{Value, json};

/// What of a victim is changed (JSON pointer and value), and the path of the reject that must name it.
pub(crate) struct Contradiction {
    pub(crate) what: &'static str,
    pub(crate) object: &'static str,
    pub(crate) pointer: &'static str,
    pub(crate) value: Value,
    pub(crate) named: &'static str,
}

pub(crate) fn contradictions() -> Vec<Contradiction> {
    let case = |what, object, pointer, value, named| Contradiction { what, object, pointer, value, named };
    vec![
        case("FQDN slice", "slice", "/addressType", json!("FQDN"), "addressType"),
        case(
            "missing service",
            "slice",
            "/metadata/labels/kubernetes.io~1service-name",
            json!("nobody"),
            "metadata.labels[kubernetes.io/service-name]",
        ),
        case(
            "no service",
            "slice",
            "/metadata/labels",
            json!({}),
            "metadata.labels[kubernetes.io/service-name]",
        ),
        case(
            "IPv6 endpoint in an IPv4 slice",
            "slice",
            "/endpoints/0/addresses/0",
            json!("fd00::66"),
            "endpoints[0].addresses[0]",
        ),
        case(
            "IPv4 endpoints in an IPv6 slice",
            "slice",
            "/addressType",
            json!("IPv6"),
            "endpoints[0].addresses[0]",
        ),
        case(
            "endpoint without address",
            "slice",
            "/endpoints/1/addresses",
            json!([]),
            "endpoints[1].addresses[0]",
        ),
        case("port without number", "slice", "/ports/0", json!({"name": "web"}), "ports[0].port"),
        case(
            "loopback endpoint",
            "slice",
            "/endpoints/0/addresses/0",
            json!("127.0.0.1"),
            "endpoints[0].addresses[0]",
        ),
        case(
            "any address",
            "slice",
            "/endpoints/0/addresses/0",
            json!("0.0.0.0"),
            "endpoints[0].addresses[0]",
        ),
        case(
            "two IPv4 addresses",
            "service",
            "/spec/clusterIPs/1",
            json!("10.96.0.68"),
            "spec.clusterIPs[1]",
        ),
        case(
            "cluster IP on loopback",
            "service",
            "/spec/clusterIPs/0",
            json!("127.0.0.1"),
            "spec.clusterIPs[0]",
        ),
        case("any cluster IP", "service", "/spec/clusterIPs/1", json!("::"), "spec.clusterIPs[1]"),
        case(
            "external IP of no family",
            "service",
            "/spec/clusterIPs",
            json!(["10.96.0.66"]),
            "spec.externalIPs[1]",
        ),
        case(
            "port name twice",
            "service",
            "/spec/ports/1",
            json!({"name": "web", "port": 81}),
            "spec.ports[1]",
        ),
        case("port twice", "service", "/spec/ports/1", json!({"name": "b", "port": 80}), "spec.ports[1]"),
        case(
            "node port of a ClusterIP",
            "service",
            "/spec/type",
            json!("ClusterIP"),
            "spec.ports[0].nodePort",
        ),
        case(
            "ingress of a NodePort service",
            "service",
            "/spec/type",
            json!("NodePort"),
            "status.loadBalancer.ingress[0].ip",
        ),
        case("no cluster IP", "service", "/spec", json!({"ports": [{"port": 80}]}), "spec.clusterIPs"),
        case(
            "host IP of no family",
            "pod",
            "/spec/containers/0/ports/0/hostIP",
            json!("2001:db8::67"),
            "spec.containers[].ports[].hostIP",
        ),
        case(
            "host IP on loopback",
            "pod",
            "/spec/containers/0/ports/0/hostIP",
            json!("127.0.0.1"),
            "spec.containers[0].ports[0].hostIP",
        ),
        case("other version", "slice", "/apiVersion", json!("discovery.k8s.io/v1beta1"), "apiVersion"),
        case("number for version", "service", "/apiVersion", json!(1), "apiVersion"),
        case("no version", "service", "/apiVersion", Value::Null, "apiVersion"),
    ]
}
