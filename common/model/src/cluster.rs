//! From objects to [`ClusterView`]: who the nodes are, and which pods are this one's.

use std::collections::BTreeMap;
use std::sync::Arc;

use portway_datapath::{Addr, Family};

use crate::k8s::{CiliumNode, Event, Node, NodeAddress, Object, ObjectKey, ObjectKind, Pod};
use crate::node::{ClusterNode, ClusterPod, ClusterView};

/// Which object says where the addresses of a node's pods are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCidrs {
    /// `Node.spec.podCIDRs`; CiliumNodes say nothing.
    Node,
    /// `CiliumNode.spec.ipam.podCIDRs`; addresses of a node are the CiliumNode's, where it has any.
    CiliumNode,
}

/// Follows nodes and this node's pods.
#[derive(Debug)]
pub struct Cluster {
    this: Arc<str>,
    from: PodCidrs,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    cilium_nodes: BTreeMap<Arc<str>, Arc<CiliumNode>>,
    /// By `namespace/name`.
    pods: BTreeMap<Arc<str>, Arc<Pod>>,
    view: ClusterView,
}

impl Cluster {
    /// `this` is the node's name.
    pub fn new(this: Arc<str>, from: PodCidrs) -> Self {
        let (nodes, cilium_nodes, pods) = Default::default();
        Self { this, from, nodes, cilium_nodes, pods, view: ClusterView::default() }
    }

    /// A change of one object. O(log objects). Returns whether the view became another one.
    pub fn apply(&mut self, event: &Event) -> bool {
        match event {
            Event::Apply(Object::Node(node)) => {
                self.nodes.insert(Arc::clone(&node.name), Arc::clone(node));
                self.renew(&node.name)
            }
            Event::Apply(Object::CiliumNode(node)) => {
                self.cilium_nodes.insert(Arc::clone(&node.name), Arc::clone(node));
                self.renew(&node.name)
            }
            Event::Apply(Object::Pod(pod)) => self.set_pod(pod),
            Event::Apply(
                Object::Service(_)
                | Object::EndpointSlice(_)
                | Object::Namespace(_)
                | Object::CiliumIdentity(_)
                | Object::CiliumEndpoint(_)
                | Object::CiliumEndpointSlice(_),
            ) => false,
            Event::Delete(ObjectKey { kind, name, uid }) => match kind {
                ObjectKind::Node => {
                    self.nodes.remove(name);
                    self.renew(name)
                }
                ObjectKind::CiliumNode => {
                    self.cilium_nodes.remove(name);
                    self.renew(name)
                }
                ObjectKind::Pod => self.remove_pod(name, uid),
                ObjectKind::Service
                | ObjectKind::EndpointSlice
                | ObjectKind::Namespace
                | ObjectKind::CiliumIdentity
                | ObjectKind::CiliumEndpoint
                | ObjectKind::CiliumEndpointSlice => false,
            },
        }
    }

    /// Notes what the sources have told everything of. Returns whether that is news.
    pub fn knows(&mut self, nodes: bool, pods: bool) -> bool {
        let news = (self.view.knows_nodes, self.view.knows_pods) != (nodes, pods);
        (self.view.knows_nodes, self.view.knows_pods) = (nodes, pods);
        news
    }

    pub const fn view(&self) -> &ClusterView {
        &self.view
    }

    /// Brings a node into the view as its objects say.
    fn renew(&mut self, name: &Arc<str>) -> bool {
        let node = self.node(name).map(Arc::new);
        if *name == self.this {
            // A Node that is deleted while its agent runs is made anew; its pods go on meanwhile.
            let Some(node) = node.filter(|node| self.view.this.as_ref() != Some(node)) else { return false };
            self.view.this = Some(node);
            return true;
        }
        if self.view.remote.get(name) == node.as_ref() {
            return false;
        }
        match node {
            Some(node) => self.view.remote.insert(Arc::clone(name), node),
            None => self.view.remote.remove(name),
        };
        true
    }

    fn node(&self, name: &Arc<str>) -> Option<ClusterNode> {
        let node = self.nodes.get(name);
        let cilium = self.cilium_nodes.get(name).filter(|_| self.from == PodCidrs::CiliumNode);
        if node.is_none() && cilium.is_none() {
            return None;
        }
        let addresses = cilium.map(|cilium| &cilium.addresses).filter(|addresses| !addresses.is_empty());
        let addresses = addresses.or(node.map(|node| &node.addresses)).map_or(&[][..], |all| all);
        let pod_cidrs = match self.from {
            PodCidrs::Node => node.map(|node| node.pod_cidrs.clone()),
            PodCidrs::CiliumNode => cilium.map(|cilium| cilium.pod_cidrs.clone()),
        };
        let (reached, others) = reached_at(addresses);
        Some(ClusterNode {
            name: Arc::clone(name),
            created: node.and_then(|node| node.created).or(cilium.and_then(|cilium| cilium.created)),
            addresses: reached,
            other_addresses: others,
            pod_cidrs: pod_cidrs.unwrap_or_default(),
            health: cilium.map(|cilium| cilium.health.clone()).unwrap_or_default(),
        })
    }

    fn set_pod(&mut self, pod: &Arc<Pod>) -> bool {
        // A file may have other nodes' pods, too.
        if pod.node.as_ref() != Some(&self.this) || pod.uid.is_empty() {
            return self.remove_pod(&pod.name, "");
        }
        let before = self.pods.insert(Arc::clone(&pod.name), Arc::clone(pod));
        let mut news = false;
        if let Some(before) = before.filter(|before| before.uid != pod.uid) {
            news = self.view.pods.remove(&before.uid).is_some();
        }
        let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
        let annotations = pod.annotations.iter().map(|(key, value)| (Arc::from(*key), Arc::clone(value)));
        let seen = ClusterPod {
            uid: Arc::clone(&pod.uid),
            namespace: namespace.into(),
            name: name.into(),
            annotations: annotations.collect(),
        };
        if self.view.pods.get(&pod.uid).is_some_and(|known| **known == seen) {
            return news;
        }
        self.view.pods.insert(Arc::clone(&pod.uid), Arc::new(seen));
        true
    }

    /// `uid` that is not empty must be that of the pod of this name.
    fn remove_pod(&mut self, name: &Arc<str>, uid: &str) -> bool {
        if self.pods.get(name).is_some_and(|pod| !uid.is_empty() && *pod.uid != *uid) {
            return false;
        }
        self.pods.remove(name).is_some_and(|pod| self.view.pods.remove(&pod.uid).is_some())
    }
}

/// Of each family the internal addresses, or where there are none the external ones; and the rest.
fn reached_at(addresses: &[NodeAddress]) -> (Box<[Addr]>, Box<[Addr]>) {
    let of = |family: Family, external: bool| {
        let of_kind =
            move |address: &&NodeAddress| address.external == external && address.addr.family() == family;
        addresses.iter().filter(of_kind).map(|address| address.addr)
    };
    let mut reached = Vec::with_capacity(addresses.len());
    let mut others = Vec::new();
    for family in [Family::V4, Family::V6] {
        let before = reached.len();
        reached.extend(of(family, false));
        let external = of(family, true);
        if reached.len() == before { reached.extend(external) } else { others.extend(external) }
    }
    others.retain(|addr| !reached.contains(addr));
    (reached.into(), others.into())
}

#[cfg(test)]
mod tests;
