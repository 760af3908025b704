//! Pods of a [`super::ClusterNet`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::cni::INTERFACE;
use crate::harness::frame::Mac;
use crate::harness::manifest::{Endpoint, TARGET};
use crate::harness::wire::Wire;
use crate::harness::{Namespace, process};

/// What kubelet knows of a pod before it has a sandbox. Each has an uid and a container id of its own.
#[derive(Clone, Debug)]
pub struct PodSpec {
    pub name: String,
    pub uid: String,
    pub container_id: String,
    /// The Kubernetes namespace.
    pub kube_namespace: String,
    pub(super) labels: Map<String, Value>,
    account: String,
    annotations: Map<String, Value>,
}

impl PodSpec {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let container_id = format!("{:032x}{number:032x}", std::process::id());
        Self {
            name: name.to_owned(),
            uid: format!("uid-{number}"),
            container_id,
            kube_namespace: "default".to_owned(),
            labels: Map::new(),
            account: "default".to_owned(),
            annotations: Map::new(),
        }
    }

    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.kube_namespace = namespace.to_owned();
        self
    }

    #[must_use]
    pub fn labelled(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Its service account, instead of `default`.
    #[must_use]
    pub fn account(mut self, name: &str) -> Self {
        self.account = name.to_owned();
        self
    }

    #[must_use]
    pub fn annotated(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.into(), value.into());
        self
    }

    /// Leaves its sockets alone: services are translated by packets.
    #[must_use]
    pub fn without_socket_lb(self) -> Self {
        self.annotated("portway.io/socket-lb", "false")
    }

    /// The file that its object is in.
    pub(super) fn file(&self) -> String {
        match self.kube_namespace.as_str() {
            "default" => format!("pod-{}", self.name),
            namespace => format!("pod-{namespace}-{}", self.name),
        }
    }

    /// Its Pod on `node`.
    pub fn object(&self, node: &str, addresses: &[IpAddr]) -> Value {
        let ips: Vec<Value> = addresses.iter().map(|addr| json!({"ip": addr.to_string()})).collect();
        let status = match addresses.first() {
            None => json!({"phase": "Pending"}),
            Some(first) => json!({
                "phase": "Running",
                "podIP": first.to_string(),
                "podIPs": ips,
                "conditions": [{"type": "Ready", "status": "True"}],
            }),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.kube_namespace,
                "uid": self.uid,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": self.labels,
                "annotations": self.annotations,
            },
            "spec": {
                "nodeName": node,
                "serviceAccountName": self.account,
                "containers": [{"name": "main", "image": "none"}],
            },
            "status": status,
        })
    }
}

/// A pod with the addresses that the plugin gave it.
#[derive(Clone, Debug)]
pub struct Pod {
    pub spec: PodSpec,
    /// The name of its node.
    pub node: String,
    pub namespace: Namespace,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Pod {
    pub(super) fn new(spec: &PodSpec, node: &str, namespace: Namespace, result: &Value) -> Result<Self> {
        let mut addresses = Vec::new();
        for ip in result["ips"].as_array().into_iter().flatten() {
            let text = ip["address"].as_str().context("an address of the result is no text")?;
            let (addr, _) = text.split_once('/').with_context(|| format!("{text} has no prefix"))?;
            addresses.push(addr.parse::<IpAddr>().with_context(|| format!("{text} is no address"))?);
        }
        let v4 = addresses.iter().find_map(|addr| match addr {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        let v6 = addresses.iter().find_map(|addr| match addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(*v6),
        });
        Ok(Self {
            spec: spec.clone(),
            node: node.to_owned(),
            namespace,
            v4: v4.with_context(|| format!("no IPv4 address in {result}"))?,
            v6: v6.with_context(|| format!("no IPv6 address in {result}"))?,
        })
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its address of a family.
    pub fn address(&self, v6: bool) -> IpAddr {
        if v6 { self.v6.into() } else { self.v4.into() }
    }

    /// Where it answers.
    pub fn socket(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(self.address(v6), TARGET)
    }

    /// The hardware address that it sends everything to: its link's end on the node.
    pub fn gateway_mac(&self) -> Result<Mac> {
        let mut command = self.namespace.command("ip");
        let neighbours = process::output(command.args(["-4", "neigh", "show", "dev", INTERFACE]))?;
        let mac = neighbours.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
        let mac = mac.with_context(|| format!("no neighbour of {} in {neighbours:?}", self.name()))?;
        let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<_>, _>>()?;
        Mac::try_from(bytes).map_err(|bytes| anyhow::anyhow!("{bytes:?} is no hardware address"))
    }

    /// Its end of its link, raw.
    pub fn wire(&self) -> Result<Wire> {
        Wire::open(&self.namespace, INTERFACE)
    }

    /// Its endpoints in slices of both families.
    pub fn endpoints(&self) -> [Endpoint; 2] {
        [Endpoint::new(self.v4).on(&self.node), Endpoint::new(self.v6).on(&self.node)]
    }
}
