//! The objects that get a bad value, and their neighbours that must not notice.

use serde_json::{Value, json};

pub(crate) const NODE: &str = "node-a";

/// What is read only where clusterIPs and podIPs are absent.
fn of_one_address() -> Vec<(&'static str, Value)> {
    vec![
        (
            "one-address service",
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "victim-single", "namespace": "shop"},
                "spec": {"clusterIP": "10.96.0.67", "ports": [{"port": 80}]},
            }),
        ),
        (
            "one-address pod",
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "victim-1", "namespace": "shop"},
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "main", "ports": [{"containerPort": 8080, "hostPort": 18067}]}],
                },
                "status": {"phase": "Running", "podIP": "10.0.66.10"},
            }),
        ),
    ]
}

/// Everything about a victim says `victim`, so that a row or a reject of one is known by its name.
pub(crate) fn victims() -> Vec<(&'static str, Value)> {
    let mut victims = vec![
        (
            "service",
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {
                    "name": "victim", "namespace": "shop", "labels": {"app": "victim"},
                    "creationTimestamp": "2026-01-02T03:04:05Z",
                },
                "spec": {
                    "type": "LoadBalancer",
                    "clusterIP": "10.96.0.66",
                    "clusterIPs": ["10.96.0.66", "fd00:96::66"],
                    "externalIPs": ["192.0.2.66", "2001:db8::66"],
                    "internalTrafficPolicy": "Local",
                    "externalTrafficPolicy": "Local",
                    "sessionAffinity": "ClientIP",
                    "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                    "loadBalancerSourceRanges": ["198.51.100.0/24", "2001:db8:1::/48"],
                    "ports": [
                        {"name": "web", "port": 80, "protocol": "TCP", "nodePort": 30066},
                        {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30067},
                    ],
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.66", "ipMode": "VIP"}]}},
            }),
        ),
        (
            "slice",
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "victim-x1", "namespace": "shop",
                    "labels": {"kubernetes.io/service-name": "victim"},
                },
                "addressType": "IPv4",
                "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
                "endpoints": [
                    {
                        "addresses": ["10.0.66.1"],
                        "conditions": {"ready": true, "serving": true, "terminating": false},
                        "nodeName": NODE,
                        "hints": {"forZones": [{"name": "zone-1"}], "forNodes": [{"name": NODE}]},
                    },
                    {"addresses": ["10.0.66.2"], "conditions": {"ready": true}, "nodeName": "node-b"},
                ],
            }),
        ),
        (
            "pod",
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "victim-0", "namespace": "shop", "uid": "6f1f7a52-0000-4000-8000-000000000066",
                    "creationTimestamp": "2026-01-02T03:04:05Z",
                },
                "spec": {
                    "nodeName": NODE,
                    "hostNetwork": false,
                    "containers": [{
                        "name": "main",
                        "ports": [{
                            "name": "web", "containerPort": 8080, "hostPort": 18066, "hostIP": "192.0.2.67",
                            "protocol": "TCP",
                        }],
                    }],
                },
                "status": {"phase": "Running", "podIP": "10.0.66.9", "podIPs": [{"ip": "10.0.66.9"}]},
            }),
        ),
        (
            "node",
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "victim-node", "labels": {"topology.kubernetes.io/zone": "zone-2"}},
            }),
        ),
    ];
    victims.extend(of_one_address());
    victims
}

/// Their rows must stay as they are whatever the victims hold.
pub(crate) fn neighbours() -> Vec<Value> {
    let slice = |name: &str, family: &str, addresses: [&str; 2]| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "healthy"},
            },
            "addressType": family,
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [addresses[0]], "nodeName": NODE, "conditions": {"ready": true},
                    "hints": {"forZones": [{"name": "zone-1"}]},
                },
                {
                    "addresses": [addresses[1]], "nodeName": "node-b", "conditions": {"ready": true},
                    "hints": {"forZones": [{"name": "zone-2"}]},
                },
            ],
        })
    };
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "healthy", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "type": "NodePort",
                "clusterIP": "10.96.0.1",
                "clusterIPs": ["10.96.0.1", "fd00:96::1"],
                "externalIPs": ["192.0.2.1"],
                "ports": [{"name": "web", "port": 80, "nodePort": 30001}],
            },
        }),
        slice("healthy-v4", "IPv4", ["10.0.0.1", "10.0.0.2"]),
        slice("healthy-v6", "IPv6", ["fd00::1", "fd00::2"]),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "healthy-0", "namespace": "shop", "uid": "6f1f7a52-0000-4000-8000-000000000001",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "ports": [{"containerPort": 9000, "hostPort": 19000}]}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.9"}, {"ip": "fd00::9"}]},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "zone-1"}},
        }),
    ]
}
