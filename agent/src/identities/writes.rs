//! What this agent tells other nodes by way of the API server: its pods' CiliumEndpoints and its CiliumNode.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portway_datapath::Family;
use portway_model::k8s::{CiliumEndpoint, Event, Node, Object, ObjectKind};
use portway_model::node::ClusterView;
use portway_runtime::kubernetes::Client;

use super::endpoint_objects::{self, EndpointObjects, News};
use super::node_object::{self, NodeObject};
use crate::config::{Chaining, Config, Ipam, PodNetwork};
use crate::health;

/// Another one after each boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The writer of this node's objects.
pub(super) struct Writes {
    endpoints: EndpointObjects,
    node: NodeObject,
    node_name: String,
    /// This node, as the API server has it.
    object: Option<Arc<Node>>,
    /// Where other nodes reach this one.
    address: Option<IpAddr>,
    /// Of the endpoint that other nodes probe.
    health: Vec<IpAddr>,
    probed: health::Probed,
    /// The prefixes of pods are the operator's to write.
    has_pool: bool,
    boot_id: String,
    wanted: Option<node_object::Wanted>,
    /// Why objects are not as they should be, by name.
    obstacles: BTreeMap<String, String>,
}

/// An object of a pod is as it should be, or could not be made so.
pub(super) struct Tried {
    /// The pod's `namespace/name`.
    pub(super) pod: String,
    /// Why it is not; it is tried for ever.
    pub(super) obstacle: Option<String>,
}

impl Writes {
    pub(super) fn new(client: &Client, config: &Config, network: &PodNetwork) -> Self {
        let boot_id = std::fs::read_to_string(BOOT_ID).unwrap_or_else(|error| {
            tracing::warn!(%error, "{BOOT_ID} cannot be read: the CiliumNode does not say when the machine was started");
            String::new()
        });
        Self {
            endpoints: EndpointObjects::new(client.clone(), !network.identities.endpoint_slices),
            node: NodeObject::new(client.clone(), &config.node_name),
            node_name: config.node_name.clone(),
            object: None,
            address: None,
            health: Vec::new(),
            probed: health::Probed {
                ipv4: config.ipv4,
                ipv6: config.ipv6,
                endpoint: network.node_health.is_some_and(|health| health.endpoint)
                    && network.chaining == Chaining::None,
            },
            has_pool: network.ipam == Ipam::ClusterPool,
            boot_id: boot_id.trim().to_owned(),
            wanted: None,
            obstacles: BTreeMap::new(),
        }
    }

    /// The cluster is so.
    pub(super) fn follow(&mut self, view: &ClusterView) {
        let Some(this) = &view.this else { return };
        let address = this.address(Family::V4).or_else(|| this.address(Family::V6)).map(IpAddr::from);
        if address != self.address {
            self.address = address;
            self.endpoints.set_node(address);
        }
        self.health = health::endpoint_addresses(this, self.probed).map(IpAddr::from).collect();
        self.keep_node();
    }

    /// Takes note of a change of an object.
    pub(super) fn observe(&mut self, event: &Event) {
        match event {
            Event::Apply(Object::Node(node)) if *node.name == *self.node_name => {
                self.object = Some(Arc::clone(node));
                self.keep_node();
            }
            // With the Node its object goes; made anew it would go again, for ever.
            Event::Delete(key) if key.kind == ObjectKind::Node && *key.name == *self.node_name => {
                (self.object, self.wanted) = (None, None);
                self.obstacles.remove(&format!("CiliumNode {}", self.node_name));
                self.node.forget();
            }
            Event::Apply(_) | Event::Delete(_) => {}
        }
        self.endpoints.observe(event);
        self.node.observe(event);
    }

    /// All CiliumEndpoints have been told.
    pub(super) fn set_synced(&mut self) {
        self.endpoints.set_synced();
    }

    /// Where other nodes reach this one, once that is known.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The object of a pod shall be so.
    pub(super) fn set(&mut self, wanted: endpoint_objects::Wanted, is_new: bool) {
        self.endpoints.set(wanted, is_new);
    }

    /// The object of a pod shall go.
    pub(super) fn remove(&mut self, namespace: &str, pod: &str, pod_uid: &str) {
        self.obstacles.remove(&format!("{namespace}/{pod}"));
        self.endpoints.remove(namespace, pod, pod_uid);
    }

    /// CiliumEndpoints that say that they are on this node.
    pub(super) fn observed(&self) -> impl Iterator<Item = &Arc<CiliumEndpoint>> {
        self.endpoints.observed()
    }

    /// Why objects are not as they should be, for people.
    pub(super) fn obstacles(&self) -> impl Iterator<Item = String> {
        self.obstacles.iter().map(|(name, reason)| format!("{name}: {reason}"))
    }

    /// Requests since the agent started.
    pub(super) fn counts(&self) -> endpoint_objects::Counts {
        let (pods, node) = (self.endpoints.counts(), self.node.counts());
        endpoint_objects::Counts {
            reads: pods.reads + node.reads,
            writes: pods.writes + node.writes,
            retries: pods.retries + node.retries,
        }
    }

    /// The next pod whose object was tried. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Tried {
        loop {
            tokio::select! {
                endpoint_objects::Change { name, news } = self.endpoints.next() => {
                    let obstacle = self.note(name.clone(), news);
                    return Tried { pod: name, obstacle };
                }
                endpoint_objects::Change { name, news } = self.node.next() => {
                    self.note(format!("CiliumNode {name}"), news);
                }
            }
        }
    }

    fn note(&mut self, name: String, news: News) -> Option<String> {
        match news {
            News::Kept => {
                self.obstacles.remove(&name);
                None
            }
            News::Obstacle(reason) => {
                let before = self.obstacles.insert(name.clone(), reason.clone());
                if before.as_ref() != Some(&reason) {
                    tracing::warn!(
                        object = name,
                        reason,
                        "an object is not as it should be; it is tried again"
                    );
                }
                Some(reason)
            }
        }
    }

    /// Writes the CiliumNode where it is to be another one.
    fn keep_node(&mut self) {
        let Some(node) = &self.object else { return };
        let addresses = node
            .addresses
            .iter()
            .map(|at| node_object::NodeAddress { is_external: at.external, address: IpAddr::from(at.addr) });
        let wanted = node_object::Wanted {
            name: self.node_name.clone(),
            node_uid: node.uid.to_string(),
            addresses: addresses.collect(),
            health: self.health.clone(),
            pod_cidrs: (!self.has_pool).then(|| node.pod_cidrs.to_vec()),
            boot_id: self.boot_id.clone(),
        };
        if self.wanted.as_ref() != Some(&wanted) {
            self.wanted = Some(wanted.clone());
            self.node.set(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portway_claims::fake_api::{FakeApi, uid};
    use portway_model::k8s::{Format, Names, ObjectKey, decode};
    use serde_json::json;

    use super::*;
    use crate::config::{Invocation, load};

    const PATH: &str = "/apis/cilium.io/v2/ciliumnodes/node-1";

    /// What is to be done is done.
    async fn settle(writes: &mut Writes) {
        let ended = tokio::time::timeout(Duration::from_millis(300), writes.next()).await;
        assert!(ended.is_err(), "no pod's object was tried");
    }

    #[tokio::test]
    async fn the_cilium_node_is_owned_by_its_node_and_left_alone_once_that_is_gone() {
        let (api, client) = FakeApi::start().await;
        let arguments =
            ["--source-dir=/m", "--cgroup-root=/c", "--enable-pod-network=true", "--node-name=node-1"];
        let invocation = Invocation { arguments: arguments.map(Into::into).into(), ..Invocation::default() };
        let config = load(invocation).unwrap().config;
        let mut writes = Writes::new(&client, &config, config.pod_network.as_ref().unwrap());
        let node = |number| {
            let metadata = json!({"name": "node-1", "uid": uid(number)});
            let text = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}).to_string();
            let mut decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
            Event::Apply(decoded.objects.remove(0))
        };
        let gone = |kind| Event::Delete(ObjectKey { kind, name: "node-1".into(), uid: "".into() });
        let owner = || api.get(PATH).unwrap()["metadata"]["ownerReferences"][0]["uid"].clone();
        writes.observe(&node(1));
        settle(&mut writes).await;
        assert_eq!(owner(), json!(uid(1)));
        writes.observe(&gone(ObjectKind::Node));
        api.take(PATH);
        writes.observe(&gone(ObjectKind::CiliumNode));
        settle(&mut writes).await;
        assert_eq!(api.get(PATH), None);
        writes.observe(&node(2));
        settle(&mut writes).await;
        assert_eq!(owner(), json!(uid(2)));
    }
}
