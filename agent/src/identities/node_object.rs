//! The CiliumNode of this node: its addresses, where its health is asked, and which prefixes its pods are from.
//!
//! Where the operator gives the prefixes they are its own to write; everything else that Portway does not know is left
//! as it is. Who writes which field is a table in operator/src/nodes.rs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portway_datapath::Addr;
use portway_model::crd::{self, Resource as _};
use portway_model::k8s::{self, Event, Object, ObjectKind};
use portway_model::node::Prefix;
use portway_runtime::kubernetes::Client;
use serde_json::{Value, json};

use super::objects::{Change, Counts, Kept, Objects, Step};

/// What the object shall say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    /// `metadata.uid` of the Node, which owns the object; "" where it is not known yet: it then has no owner.
    pub node_uid: String,
    pub addresses: Vec<NodeAddress>,
    /// Of the endpoint that other nodes probe.
    pub health: Vec<IpAddr>,
    /// `None`: they are the operator's to write.
    pub pod_cidrs: Option<Vec<Prefix>>,
    /// Another one after each boot of the machine.
    pub boot_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    pub is_external: bool,
    pub address: IpAddr,
}

/// Writes the CiliumNode.
pub struct NodeObject {
    objects: Objects<Kind>,
    name: String,
}

impl NodeObject {
    /// `name` is the Node's.
    pub fn new(client: Client, name: &str) -> Self {
        Self { objects: Objects::new(client), name: name.to_owned() }
    }

    pub const fn counts(&self) -> Counts {
        self.objects.counts()
    }

    /// From now on the object shall be so. What is there is read first.
    pub fn set(&mut self, wanted: Wanted) {
        if self.objects.goal(&self.name) != Some(&wanted) {
            self.objects.set(&self.name, wanted, None);
        }
    }

    /// From now on nothing is done to the object.
    pub fn forget(&mut self) {
        self.objects.forget(&self.name);
    }

    /// Takes note of a change of the CiliumNode; others and other kinds are passed over.
    pub fn observe(&mut self, event: &Event) {
        let is_as_wanted = match event {
            Event::Apply(Object::CiliumNode(node)) if *node.name == *self.name => {
                self.objects.goal(&self.name).is_some_and(|wanted| wanted.is_told_by(node))
            }
            Event::Delete(key) if key.kind == ObjectKind::CiliumNode && *key.name == *self.name => false,
            Event::Apply(_) | Event::Delete(_) => return,
        };
        if !is_as_wanted {
            self.objects.doubt(&self.name);
        }
    }

    /// The next change. May be dropped and called again.
    pub async fn next(&mut self) -> Change {
        self.objects.next().await
    }
}

const INTERNAL: &str = "InternalIP";
const EXTERNAL: &str = "ExternalIP";

impl Wanted {
    /// Whether an object, as far as it is decoded for everybody, says the same.
    fn is_told_by(&self, seen: &k8s::CiliumNode) -> bool {
        let seen_addresses =
            seen.addresses.iter().map(|address| (address.external, address.addr.to_string()));
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|a| (a.is_external, Addr::from(a.address).to_string()));
        let health = self.health.iter().map(|address| Addr::from(*address).to_string());
        let cidrs = |cidrs: &[Prefix]| cidrs.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        seen_addresses.collect::<BTreeSet<_>>() == addresses.collect()
            && seen.health.iter().map(ToString::to_string).collect::<BTreeSet<_>>() == health.collect()
            && self.pod_cidrs.as_ref().is_none_or(|wanted| cidrs(wanted) == cidrs(&seen.pod_cidrs))
    }

    fn spec(&self) -> crd::NodeSpec {
        let health = |is_v4: bool| {
            let address = self.health.iter().find(|address| address.is_ipv4() == is_v4);
            address.map(ToString::to_string).unwrap_or_default()
        };
        crd::NodeSpec {
            addresses: self.addresses.iter().map(NodeAddress::written).collect(),
            health: (!self.health.is_empty())
                .then(|| crd::HealthAddresses { ipv4: health(true), ipv6: health(false) }),
            ipam: self
                .pod_cidrs
                .as_ref()
                .map(|cidrs| crd::NodeIpam { pod_cidrs: cidrs.iter().map(ToString::to_string).collect() }),
            bootid: self.boot_id.clone(),
        }
    }

    /// Whether the object says it all. Addresses of other types are not looked at.
    fn is(&self, seen: &crd::CiliumNode) -> bool {
        let wanted = self.spec();
        let ours = |addresses: &[crd::NodeAddress]| -> BTreeSet<crd::NodeAddress> {
            addresses.iter().filter(|address| is_ours(address)).cloned().collect()
        };
        let owner = seen.metadata.owner_references.iter().any(|owner| owner.uid == self.node_uid);
        ours(&seen.spec.addresses) == ours(&wanted.addresses)
            && seen.spec.health == wanted.health
            && (seen.spec.bootid == wanted.bootid || wanted.bootid.is_empty())
            && wanted.ipam.is_none_or(|ipam| seen.spec.ipam.as_ref() == Some(&ipam))
            && (owner || self.node_uid.is_empty())
    }
}

impl NodeAddress {
    fn written(&self) -> crd::NodeAddress {
        let address_type = if self.is_external { EXTERNAL } else { INTERNAL };
        crd::NodeAddress { address_type: address_type.to_owned(), ip: self.address.to_string() }
    }
}

/// Whether an address is one that Portway writes.
fn is_ours(address: &crd::NodeAddress) -> bool {
    address.address_type == INTERNAL || address.address_type == EXTERNAL
}

struct Kind;

impl Kept for Kind {
    type Goal = Wanted;
    type Seen = crd::CiliumNode;

    fn step(goal: &Wanted, seen: Option<&crd::CiliumNode>) -> Step {
        match seen {
            None => Step::Create,
            Some(seen) if goal.is(seen) => Step::Nothing,
            Some(seen) => Step::Patch { uid: seen.metadata.uid.clone() },
        }
    }

    fn collection(_: &str) -> String {
        crd::CiliumNode::DEFINITION.path()
    }

    fn path(name: &str) -> String {
        crd::CiliumNode::DEFINITION.path_of("", name)
    }

    fn body(goal: &Wanted) -> Value {
        let definition = crd::CiliumNode::DEFINITION;
        let metadata = crd::ObjectMeta {
            name: goal.name.clone(),
            owner_references: goal.owners(),
            ..crd::ObjectMeta::default()
        };
        json!(crd::CiliumNode {
            api_version: definition.api_version(),
            kind: definition.kind.to_owned(),
            metadata,
            spec: goal.spec(),
        })
    }

    fn patch(goal: &Wanted, seen: &crd::CiliumNode) -> Value {
        let mut spec = goal.spec();
        // Addresses of other types are somebody else's.
        spec.addresses.extend(seen.spec.addresses.iter().filter(|address| !is_ours(address)).cloned());
        let mut spec = json!(spec);
        if goal.health.is_empty()
            && let Some(fields) = spec.as_object_mut()
        {
            // In a merge patch what is absent stays.
            fields.insert("health".to_owned(), Value::Null);
        }
        let mut patch = json!({"spec": spec});
        if !goal.node_uid.is_empty()
            && let Some(fields) = patch.as_object_mut()
        {
            fields.insert("metadata".to_owned(), json!({"ownerReferences": goal.owners()}));
        }
        patch
    }

    fn read(text: &[u8]) -> Option<crd::CiliumNode> {
        let node: crd::CiliumNode = serde_json::from_slice(text).ok()?;
        (!node.metadata.uid.is_empty()).then_some(node)
    }

    fn is_over(_: &Wanted) -> bool {
        false
    }
}

impl Wanted {
    fn owners(&self) -> Vec<crd::OwnerReference> {
        let is_known = !self.node_uid.is_empty();
        is_known.then(|| crd::OwnerReference::to_node(&self.name, &self.node_uid)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
