//! Small builders of the manifests that tests put into the agent's directory.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// Kubernetes' own names of protocols.
pub const TCP: &str = "TCP";
pub const UDP: &str = "UDP";
/// The port that the pods of tests serve on: never that of the service, so that its translation is seen too.
pub const TARGET: u16 = 8080;

/// A directory of manifests that an agent follows. Files appear, change and go whole, by a rename.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    /// On the same file system, not followed.
    staging: PathBuf,
}

impl Directory {
    /// Makes `inside`/manifests.
    pub fn new(inside: &Path) -> Result<Self> {
        let (path, staging) = (inside.join("manifests"), inside.join("staging"));
        for dir in [&path, &staging] {
            std::fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        Ok(Self { path, staging })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file `name` with these objects, as one `kind: List`.
    pub fn put<T: Into<Value>>(&self, name: &str, objects: impl IntoIterator<Item = T>) -> Result<()> {
        let items: Vec<Value> = objects.into_iter().map(Into::into).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.put_text(&format!("{name}.json"), &list.to_string())
    }

    /// Writes the file `name`, its extension included.
    pub fn put_text(&self, name: &str, text: &str) -> Result<()> {
        self.stage(name, text)?.publish()
    }

    /// Writes the file `name` where nobody follows it, to be renamed into place later.
    pub fn stage(&self, name: &str, text: &str) -> Result<Staged> {
        let from = self.staging.join(name);
        std::fs::write(&from, text).with_context(|| format!("write {}", from.display()))?;
        Ok(Staged { from, to: self.path.join(name) })
    }

    /// Removes what [`Self::put`] has written.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(format!("{name}.json"));
        std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
    }
}

/// A file that is written and not in place.
#[derive(Debug)]
pub struct Staged {
    from: PathBuf,
    to: PathBuf,
}

impl Staged {
    /// One rename.
    pub fn publish(self) -> Result<()> {
        std::fs::rename(&self.from, &self.to)
            .with_context(|| format!("rename {} into place", self.to.display()))
    }
}

/// A Service in the namespace `default`.
#[derive(Clone, Debug)]
pub struct Service {
    metadata: Map<String, Value>,
    spec: Map<String, Value>,
    status: Value,
    ports: Vec<Value>,
}

impl Service {
    /// A `ClusterIP` service with these addresses, without ports.
    pub fn new(name: &str, cluster_ips: &[&str]) -> Self {
        let mut metadata = Map::new();
        metadata.insert("name".into(), name.into());
        metadata.insert("namespace".into(), "default".into());
        metadata.insert("uid".into(), format!("service-{name}").into());
        let spec = Map::new();
        let service = Self { metadata, spec, status: Value::Null, ports: Vec::new() };
        let families: Vec<&str> = cluster_ips.iter().map(|ip| family(ip)).collect();
        service
            .with("type", "ClusterIP")
            .with("clusterIP", cluster_ips.first().copied().unwrap_or("None"))
            .with("clusterIPs", cluster_ips.to_vec())
            .with("ipFamilies", families)
            .with("ipFamilyPolicy", if cluster_ips.len() > 1 { "RequireDualStack" } else { "SingleStack" })
    }

    /// Any field of the spec.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.spec.insert(field.into(), value.into());
        self
    }

    #[must_use]
    pub fn annotated(mut self, name: &str, value: &str) -> Self {
        self.metadata.insert("annotations".into(), json!({name: value}));
        self
    }

    /// RFC 3339; what settles clashes.
    #[must_use]
    pub fn created(mut self, at: &str) -> Self {
        self.metadata.insert("creationTimestamp".into(), at.into());
        self
    }

    /// A port to [`TARGET`] on the pods.
    #[must_use]
    pub fn port(mut self, name: &str, protocol: &str, port: u16) -> Self {
        self.ports.push(json!({"name": name, "protocol": protocol, "port": port, "targetPort": TARGET}));
        self
    }

    /// A port to another one on the pods than [`TARGET`].
    #[must_use]
    pub fn port_to(mut self, name: &str, protocol: &str, port: u16, target: u16) -> Self {
        self.ports.push(json!({"name": name, "protocol": protocol, "port": port, "targetPort": target}));
        self
    }

    /// As [`Self::port`], with a NodePort; the service's type becomes `NodePort`.
    #[must_use]
    pub fn node_port(mut self, name: &str, protocol: &str, port: u16, node_port: u16) -> Self {
        self.ports.push(json!({
            "name": name, "protocol": protocol, "port": port, "targetPort": TARGET, "nodePort": node_port
        }));
        self.with("type", "NodePort")
    }

    #[must_use]
    pub fn external_ips(self, ips: &[&str]) -> Self {
        self.with("externalIPs", ips.to_vec())
    }

    /// Addresses that a load balancer has given; the service's type becomes `LoadBalancer`.
    #[must_use]
    pub fn load_balancer(mut self, ips: &[&str]) -> Self {
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        self.status = json!({"loadBalancer": {"ingress": ingress}});
        self.with("type", "LoadBalancer").with("allocateLoadBalancerNodePorts", false)
    }

    /// `sessionAffinity: ClientIP`.
    #[must_use]
    pub fn affinity(self, seconds: u32) -> Self {
        self.with("sessionAffinity", "ClientIP")
            .with("sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": seconds}}))
    }
}

impl Service {
    pub fn name(&self) -> &str {
        self.metadata.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// The service and a slice of each family with these endpoints.
    pub fn with_endpoints(self, endpoints: impl IntoIterator<Item = Endpoint>) -> Vec<Value> {
        let (v4, v6): (Vec<_>, Vec<_>) = endpoints.into_iter().partition(|endpoint| endpoint.addr.is_ipv4());
        let mut objects = Vec::new();
        for (suffix, endpoints) in [("v4", v4), ("v6", v6)] {
            let mut slice = Slice::new(self.name(), suffix);
            for port in &self.ports {
                let text = |field: &str| port.get(field).and_then(Value::as_str).unwrap_or_default();
                let target = port.get("targetPort").and_then(Value::as_u64);
                let target = target.and_then(|target| u16::try_from(target).ok()).unwrap_or(TARGET);
                slice = slice.port(text("name"), text("protocol"), target);
            }
            let empty = endpoints.is_empty();
            let slice = endpoints.into_iter().fold(slice, Slice::endpoint);
            if !empty {
                objects.push(slice.into());
            }
        }
        objects.push(self.into());
        objects
    }
}

impl From<Service> for Value {
    fn from(service: Service) -> Self {
        let Service { metadata, mut spec, status, ports } = service;
        spec.insert("ports".into(), ports.into());
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec, "status": status})
    }
}

/// An EndpointSlice of a service in the namespace `default`.
#[derive(Clone, Debug)]
pub struct Slice {
    service: String,
    suffix: String,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
    family: &'static str,
}

impl Slice {
    /// The slice `<service>-<suffix>`.
    pub fn new(service: &str, suffix: &str) -> Self {
        Self {
            service: service.into(),
            suffix: suffix.into(),
            ports: Vec::new(),
            endpoints: Vec::new(),
            family: "IPv4",
        }
    }

    #[must_use]
    pub fn port(mut self, name: &str, protocol: &str, port: u16) -> Self {
        self.ports.push(json!({"name": name, "protocol": protocol, "port": port}));
        self
    }

    /// The family of the slice is that of its endpoints.
    #[must_use]
    pub fn endpoint(mut self, endpoint: Endpoint) -> Self {
        self.family = family(&endpoint.addr.to_string());
        self.endpoints.push(endpoint.value());
        self
    }
}

impl From<Slice> for Value {
    fn from(slice: Slice) -> Self {
        let Slice { service, suffix, ports, endpoints, family } = slice;
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{suffix}"),
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family,
            "ports": ports,
            "endpoints": endpoints,
        })
    }
}

/// An endpoint, ready unless told otherwise.
#[derive(Clone, Debug)]
pub struct Endpoint {
    addr: IpAddr,
    node: Option<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
    zones: Option<Vec<String>>,
}

impl Endpoint {
    pub fn new(addr: impl Into<IpAddr>) -> Self {
        Self { addr: addr.into(), node: None, ready: true, serving: true, terminating: false, zones: None }
    }

    #[must_use]
    pub fn on(mut self, node: &str) -> Self {
        self.node = Some(node.into());
        self
    }

    #[must_use]
    pub fn not_ready(mut self) -> Self {
        (self.ready, self.serving) = (false, false);
        self
    }

    /// On its way out, still serving.
    #[must_use]
    pub fn terminating(mut self) -> Self {
        (self.ready, self.terminating) = (false, true);
        self
    }

    /// Meant for clients in these zones.
    #[must_use]
    pub fn for_zones(mut self, zones: &[&str]) -> Self {
        self.zones = Some(zones.iter().map(|&zone| zone.into()).collect());
        self
    }

    fn value(self) -> Value {
        let Self { addr, node, ready, serving, terminating, zones } = self;
        let mut value = json!({
            "addresses": [addr.to_string()],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        });
        if let Some(node) = node {
            value["nodeName"] = node.into();
        }
        if let Some(zones) = zones {
            let zones: Vec<Value> = zones.into_iter().map(|zone| json!({"name": zone})).collect();
            value["hints"] = json!({"forZones": zones});
        }
        value
    }
}

/// A running pod with host ports on `node`.
#[derive(Clone, Debug)]
pub struct HostPortPod {
    name: String,
    uid: String,
    node: String,
    addr: IpAddr,
    created: String,
    phase: &'static str,
    ports: Vec<Value>,
}

impl HostPortPod {
    pub fn new(name: &str, uid: &str, node: &str, addr: impl Into<IpAddr>) -> Self {
        let created = "2026-01-01T00:00:00Z".into();
        let (name, uid, node) = (name.into(), uid.into(), node.into());
        Self { name, uid, node, addr: addr.into(), created, phase: "Running", ports: Vec::new() }
    }

    #[must_use]
    pub fn created(mut self, at: &str) -> Self {
        self.created = at.into();
        self
    }

    #[must_use]
    pub fn port(mut self, protocol: &str, host_port: u16, container_port: u16) -> Self {
        self.ports
            .push(json!({"protocol": protocol, "hostPort": host_port, "containerPort": container_port}));
        self
    }

    /// A host port on one address of the node alone.
    #[must_use]
    pub fn port_on(
        mut self,
        host_ip: impl Into<IpAddr>,
        protocol: &str,
        host_port: u16,
        container_port: u16,
    ) -> Self {
        self.ports.push(json!({
            "hostIP": host_ip.into().to_string(),
            "protocol": protocol,
            "hostPort": host_port,
            "containerPort": container_port,
        }));
        self
    }

    /// Ended: its host ports are free.
    #[must_use]
    pub fn succeeded(mut self) -> Self {
        self.phase = "Succeeded";
        self
    }
}

impl From<HostPortPod> for Value {
    fn from(pod: HostPortPod) -> Self {
        let HostPortPod { name, uid, node, addr, created, phase, ports } = pod;
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": uid, "creationTimestamp": created},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none", "ports": ports}]},
            "status": {
                "phase": phase,
                "podIP": addr.to_string(),
                "podIPs": [{"ip": addr.to_string()}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }
}

/// A Node in a zone.
pub fn node(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone},
        },
    })
}

/// Pods as endpoints, each in both families.
pub fn endpoints(pods: &[&super::Pod]) -> Vec<Endpoint> {
    pods.iter().flat_map(|pod| [pod.endpoint(), pod.endpoint_v6()]).collect()
}

fn family(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}
