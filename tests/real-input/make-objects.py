#!/usr/bin/env python3
"""Prints the objects of the sample cluster as one JSON List: what make.sh creates on the API server.

Statuses travel in the annotation portway.test/status, which make.sh applies to the status subresource and removes.
Addresses, node ports and slices are left to the API server and the controllers wherever they give them.
"""
import json

NODES = {"node-a": "zone-1", "node-b": "zone-1", "node-c": "zone-2"}
items = []


def add(api, kind, name, namespace=None, labels=None, annotations=None, status=None, **rest):
    meta = {"name": name}
    if namespace:
        meta["namespace"] = namespace
    if labels:
        meta["labels"] = labels
    notes = dict(annotations or {})
    if status:
        notes["portway.test/status"] = json.dumps(status)
    if notes:
        meta["annotations"] = notes
    items.append({"apiVersion": api, "kind": kind, "metadata": meta, **rest})


for number, (node, zone) in enumerate(NODES.items(), 1):
    add("v1", "Node", node, labels={"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": node},
        spec={"podCIDRs": [f"10.244.{number}.0/24", f"fd00:10:244:{number}::/64"]},
        status={"addresses": [{"type": "InternalIP", "address": f"10.77.0.{10 + number}"},
                              {"type": "InternalIP", "address": f"fd00:77::{10 + number}"},
                              {"type": "Hostname", "address": node}],
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                                "lastHeartbeatTime": "2026-11-30T00:00:00Z",
                                "lastTransitionTime": "2026-11-30T00:00:00Z"}]})

for namespace in ("shop", "media", "infra", "batch"):
    add("v1", "Namespace", namespace)

pod_number = 0


def pod(name, namespace, app, node, ports, ready=True, host_ports=(), host_network=False, phase="Running", families=2):
    """A pod as its kubelet would report it."""
    global pod_number
    pod_number += 1
    n = list(NODES).index(node) + 1
    if host_network:
        ips = [f"10.77.0.{10 + n}", f"fd00:77::{10 + n}"]
    else:
        ips = [f"10.244.{n}.{pod_number + 1}", f"fd00:10:244:{n}::{pod_number + 1:x}"]
    ips = ips[:families]
    container_ports = [{"name": n_, "containerPort": p, "protocol": proto} for n_, p, proto in ports]
    for host_port in host_ports:
        container_ports.append(host_port)
    state = "True" if ready else "False"
    status = {"phase": phase, "podIP": ips[0], "podIPs": [{"ip": i} for i in ips], "hostIP": f"10.77.0.{10 + n}",
              "conditions": [{"type": t, "status": state if t != "PodScheduled" else "True",
                              "lastTransitionTime": "2026-11-30T00:00:00Z"}
                             for t in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]}
    spec = {"nodeName": node, "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "example.invalid/app:1", "ports": container_ports}]}
    if host_network:
        spec["hostNetwork"] = True
    add("v1", "Pod", name, namespace, labels={"app": app}, spec=spec, status=status)


def service(name, namespace, ports, app=None, status=None, annotations=None, labels=None, **spec):
    body = {"ports": ports, **spec}
    if app:
        body["selector"] = {"app": app}
    add("v1", "Service", name, namespace, labels=labels, annotations=annotations, status=status, spec=body)


HTTP = [("http", 8080, "TCP")]
WEB = [{"name": "http", "port": 80, "targetPort": "http"}]
DUAL = {"ipFamilyPolicy": "PreferDualStack"}

# kube-system: DNS on two nodes.
for node in ("node-a", "node-c"):
    pod(f"coredns-{node}", "kube-system", "kube-dns", node,
        [("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"), ("metrics", 9153, "TCP")])
service("kube-dns", "kube-system",
        [{"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
         {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": "dns-tcp"},
         {"name": "metrics", "port": 9153, "targetPort": "metrics"}],
        app="kube-dns", labels={"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}, **DUAL)

# Two dozen plain web services, one in three dual stack, one in five IPv6 first.
nodes = list(NODES)
for i in range(24):
    app, namespace = f"web-{i:02}", ("shop", "media", "infra", "batch")[i % 4]
    for replica in range(1 + i % 3):
        pod(f"{app}-{replica}", namespace, app, nodes[(i + replica) % 3], HTTP, ready=not (i % 7 == 6 and replica))
    extra = dict(DUAL) if i % 3 == 0 else {}
    if i % 5 == 4:
        extra = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    service(app, namespace, WEB, app=app, **extra)

# NodePorts: several ports, local policies, affinity.
for name, extra in {
    "np-plain": {}, "np-dual": DUAL, "np-local": {"externalTrafficPolicy": "Local", **DUAL},
    "np-itp-local": {"internalTrafficPolicy": "Local"},
    "np-sticky": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}},
}.items():
    for node in nodes:
        pod(f"{name}-{node}", "shop", name, node, HTTP + [("admin", 9000, "TCP"), ("udp-dns", 5353, "UDP")])
    service(name, "shop", WEB + [{"name": "admin", "port": 9000, "targetPort": 9000},
                                 {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "udp-dns"}],
            app=name, type="NodePort", **extra)

# Load balancers: source ranges, without node ports, ipMode, hostname only, external IPs, a health-check port.
LB = lambda *ingress: {"loadBalancer": {"ingress": list(ingress)}}
for name, status, extra in (
    ("lb-plain", LB({"ip": "203.0.113.10"}), {}),
    ("lb-dual", LB({"ip": "203.0.113.11"}, {"ip": "2001:db8:113::11"}), DUAL),
    ("lb-ranges", LB({"ip": "203.0.113.12"}), {"loadBalancerSourceRanges": ["192.0.2.0/24", "198.51.100.7/32"]}),
    ("lb-no-node-port", LB({"ip": "203.0.113.13"}), {"allocateLoadBalancerNodePorts": False}),
    ("lb-proxy-mode", LB({"ip": "203.0.113.14", "ipMode": "Proxy"}), {}),
    ("lb-vip-mode", LB({"ip": "203.0.113.15", "ipMode": "VIP"}), {}),
    ("lb-hostname", LB({"hostname": "lb.example.invalid"}), {}),
    ("lb-local", LB({"ip": "203.0.113.16"}), {"externalTrafficPolicy": "Local"}),
    ("lb-pending", None, {}),
    ("lb-class", LB({"ip": "203.0.113.17"}), {"loadBalancerClass": "example.invalid/other"}),
    ("ext-node", None, {"type": "ClusterIP", "externalIPs": ["10.77.0.11"]}),
    ("ext-foreign", None, {"type": "ClusterIP", "externalIPs": ["198.51.100.99"]}),
):
    for node in nodes[:2]:
        pod(f"{name}-{node}", "infra", name, node, HTTP)
    service(name, "infra", WEB, app=name, status=status, **{"type": "LoadBalancer", **extra})

# Traffic distribution: the controller writes the hints.
for name, distribution in (("near", "PreferSameZone"), ("same-node", "PreferSameNode"), ("close", "PreferClose")):
    for node in nodes:
        pod(f"{name}-{node}", "media", name, node, HTTP)
    service(name, "media", WEB, app=name, trafficDistribution=distribution)

# Headless, ExternalName, another proxy's, no endpoints, SCTP, without a selector.
pod("db-0", "batch", "db", "node-b", [("sql", 5432, "TCP")])
service("db", "batch", [{"name": "sql", "port": 5432}], app="db", clusterIP="None")
add("v1", "Service", "outside", "batch", spec={"type": "ExternalName", "externalName": "db.example.invalid"})
service("other-proxy", "batch", WEB, app="web-00", labels={"service.kubernetes.io/service-proxy-name": "other"})
service("nobody", "batch", WEB, app="nobody")
service("sctp", "batch", [{"name": "assoc", "port": 7777, "protocol": "SCTP"}], app="db")
service("by-hand", "batch", [{"name": "http", "port": 80}])
add("discovery.k8s.io/v1", "EndpointSlice", "by-hand-1", "batch",
    labels={"kubernetes.io/service-name": "by-hand", "endpointslice.kubernetes.io/managed-by": "people"},
    addressType="IPv4", ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    endpoints=[{"addresses": ["10.244.9.1"]}, {"addresses": ["10.244.9.2"], "conditions": {"ready": False}}])
service("by-name", "batch", [{"name": "http", "port": 80}])
add("discovery.k8s.io/v1", "EndpointSlice", "by-name-fqdn", "batch",
    labels={"kubernetes.io/service-name": "by-name", "endpointslice.kubernetes.io/managed-by": "people"},
    addressType="FQDN", ports=[{"name": "http", "port": 80}], endpoints=[{"addresses": ["db.example.invalid"]}])

# Host ports, host network, a finished pod, a terminating one (make.sh deletes it and no kubelet ends it).
pod("edge-a", "infra", "edge", "node-a", HTTP, host_ports=[
    {"name": "edge", "containerPort": 8081, "hostPort": 18081},
    {"name": "edge-udp", "containerPort": 8081, "hostPort": 18081, "protocol": "UDP"},
    {"name": "edge-own", "containerPort": 8082, "hostPort": 18082, "hostIP": "10.77.0.11"}])
pod("edge-b", "infra", "edge", "node-b", HTTP, host_ports=[{"name": "edge", "containerPort": 8081, "hostPort": 18081}])
pod("agent-a", "kube-system", "agent", "node-a", [("metrics", 9100, "TCP")], host_network=True)
service("agent", "kube-system", [{"name": "metrics", "port": 9100, "targetPort": "metrics"}], app="agent")
pod("job-1", "batch", "job", "node-b", HTTP, phase="Succeeded", ready=False)
pod("leaving-0", "shop", "leaving", "node-a", HTTP)
pod("leaving-1", "shop", "leaving", "node-b", HTTP)
service("leaving", "shop", WEB, app="leaving")
pod("last-0", "shop", "last", "node-a", HTTP)
service("last", "shop", WEB, app="last")

print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
