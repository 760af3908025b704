//! CiliumEndpoints of this node's pods: by them other nodes know who has an address.
//!
//! An object belongs to the pod that owns it, by UID. One that another pod of the same name has left is deleted and a new
//! one made: an object that were taken over could be hit by the late delete of whoever had it before
//! (cilium/cilium#27123). Only if it is older than the pod: else the pod is the predecessor, of which the watch has not told
//! yet that it is gone, and two agents would delete each other's for as long. One of the same pod, an earlier agent's or Cilium's, is taken over as it is and patched.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use portway_datapath::{Addr, Family};
use portway_model::crd::{self, Resource as _};
use portway_model::k8s::{self, Event, Format, Names, Object, ObjectKind, Uid, decode};
use portway_model::labels::{SERVICE_ACCOUNT, SOURCE_K8S};
use portway_runtime::kubernetes::Client;
use serde_json::{Value, json};

pub use super::objects::{Change, Counts, News};
use super::objects::{Kept, Objects, Step};
use crate::endpoints::EndpointIdentity;

/// What the object of a pod shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub namespace: String,
    pub pod: String,
    /// `metadata.uid` of the pod, as the API server has it.
    pub pod_uid: String,
    /// Its `metadata.creationTimestamp`, seconds since 1970: who is newer of two pods of a name.
    pub pod_created: Option<i64>,
    pub container: String,
    pub endpoint_id: u16,
    pub addresses: Vec<IpAddr>,
    /// Where other nodes reach this one.
    pub node: Option<IpAddr>,
    pub identity: EndpointIdentity,
}

/// Writes the CiliumEndpoints of this node.
pub struct EndpointObjects {
    objects: Objects<Kind>,
    /// CiliumEndpoints are watched.
    is_watched: bool,
    /// They have all been told.
    is_synced: bool,
    /// Those that say that they are on this node, by the pod's `namespace/name`.
    observed: HashMap<Arc<str>, Arc<k8s::CiliumEndpoint>>,
    /// Other nodes' pods are not remembered.
    node: Option<Addr>,
    /// Of an earlier agent's pods, until everything has been told.
    waiting: Vec<Wanted>,
}

impl EndpointObjects {
    /// `is_watched`: [`Self::observe`] is told of CiliumEndpoints.
    pub fn new(client: Client, is_watched: bool) -> Self {
        Self {
            objects: Objects::new(client),
            is_watched,
            is_synced: false,
            observed: HashMap::new(),
            node: None,
            waiting: Vec::new(),
        }
    }

    pub const fn counts(&self) -> Counts {
        self.objects.counts()
    }

    /// The address by which other nodes reach this one. To be said before [`Self::observe`] is told of objects.
    pub fn set_node(&mut self, address: Option<IpAddr>) {
        self.node = address.map(Addr::from);
    }

    /// From now on the pod's object shall be so. `is_new`: the pod has just come, so there should be none; that of a pod
    /// that an earlier agent left is looked for first.
    pub fn set(&mut self, wanted: Wanted, is_new: bool) {
        let name = wanted.name();
        self.waiting.retain(|waiting| waiting.name() != name);
        if self.objects.goal(&name).is_none() && !is_new && self.is_watched && !self.is_synced {
            self.waiting.push(wanted);
            return;
        }
        // A replacement's predecessor is mostly known, too.
        let presumed = match self.observed.get(&*name) {
            Some(seen) => Some(Some(Arc::clone(seen))),
            None if is_new => Some(None),
            None => None,
        };
        self.objects.set(&name, Goal::Object(Box::new(wanted)), presumed);
    }

    /// The pod has no endpoint any more: its object goes. One that another pod of the name has stays.
    pub fn remove(&mut self, namespace: &str, pod: &str, pod_uid: &str) {
        let name = format!("{namespace}/{pod}");
        let uid = Uid::new(pod_uid);
        self.waiting.retain(|waiting| waiting.name() != name || Uid::new(&waiting.pod_uid) != uid);
        let is_its = match self.objects.goal(&name) {
            Some(Goal::Object(wanted)) => Uid::new(&wanted.pod_uid) == uid,
            Some(Goal::Gone { pod_uid }) => *pod_uid == uid,
            None => true,
        };
        if is_its {
            let presumed = self.observed.get(&*name).map(|seen| Some(Arc::clone(seen)));
            self.objects.set(&name, Goal::Gone { pod_uid: uid }, presumed);
        }
    }

    /// Takes note of a change of a CiliumEndpoint; other kinds are passed over.
    pub fn observe(&mut self, event: &Event) {
        match event {
            Event::Apply(Object::CiliumEndpoint(endpoint)) => {
                if endpoint.addresses.node.is_some() && endpoint.addresses.node == self.node {
                    self.observed.insert(Arc::clone(&endpoint.name), Arc::clone(endpoint));
                } else {
                    self.observed.remove(&endpoint.name);
                }
                if self.objects.seen(&endpoint.name).is_none_or(|seen| seen != endpoint) {
                    self.objects.doubt(&endpoint.name);
                }
            }
            Event::Delete(key) if key.kind == ObjectKind::CiliumEndpoint => {
                self.observed.remove(&key.name);
                self.objects.doubt(&key.name);
            }
            Event::Apply(_) | Event::Delete(_) => {}
        }
    }

    /// Those that say that they are on this node, as far as they have been told.
    pub fn observed(&self) -> impl Iterator<Item = &Arc<k8s::CiliumEndpoint>> {
        self.observed.values()
    }

    /// All CiliumEndpoints have been told.
    pub fn set_synced(&mut self) {
        self.is_synced = true;
        for wanted in std::mem::take(&mut self.waiting) {
            self.set(wanted, false);
        }
    }

    /// The next change, named by the pod's `namespace/name`. May be dropped and called again.
    pub async fn next(&mut self) -> Change {
        self.objects.next().await
    }
}

impl Wanted {
    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }

    fn object(&self) -> crd::CiliumEndpoint {
        let Self { namespace, pod, pod_uid, .. } = self;
        let definition = crd::CiliumEndpoint::DEFINITION;
        crd::CiliumEndpoint {
            api_version: definition.api_version(),
            kind: definition.kind.to_owned(),
            metadata: crd::ObjectMeta {
                name: pod.clone(),
                namespace: namespace.clone(),
                owner_references: vec![crd::OwnerReference::to_pod(pod, pod_uid)],
                ..crd::ObjectMeta::default()
            },
            status: self.status(),
        }
    }

    fn status(&self) -> crd::EndpointStatus {
        let Self {
            namespace,
            pod,
            pod_uid: _,
            pod_created: _,
            container,
            endpoint_id,
            addresses: _,
            node,
            identity,
        } = self;
        let address = |family| self.address(family).map(|addr| addr.to_string()).unwrap_or_default();
        let labels = identity.labels();
        let service_account = labels.get(SOURCE_K8S, SERVICE_ACCOUNT).map(ToString::to_string);
        crd::EndpointStatus {
            id: i64::from(*endpoint_id),
            // It is written once the programs know its identity.
            state: "ready".to_owned(),
            identity: Some(crd::EndpointIdentity {
                id: i64::from(identity.id),
                labels: identity.labels.clone(),
            }),
            networking: Some(crd::EndpointNetworking {
                addressing: vec![crd::AddressPair { ipv4: address(Family::V4), ipv6: address(Family::V6) }],
                node: node.map(|node| node.to_string()).unwrap_or_default(),
            }),
            external_identifiers: crd::ExternalIdentifiers {
                container_id: container.clone(),
                k8s_namespace: namespace.clone(),
                k8s_pod_name: pod.clone(),
                pod_name: self.name(),
            },
            encryption: crd::Encryption::default(),
            named_ports: Vec::new(),
            service_account: service_account.unwrap_or_default(),
        }
    }

    /// The first of a family.
    fn address(&self, family: Family) -> Option<Addr> {
        self.addresses.iter().map(|address| Addr::from(*address)).find(|addr| addr.family() == family)
    }

    /// Whether an object says it all. What it does not hold here does not change as long as this does not: labels are a
    /// number's for good, and the names are the pod's.
    fn is(&self, seen: &k8s::CiliumEndpoint) -> bool {
        let addresses = k8s::EndpointAddresses {
            ipv4: self.address(Family::V4),
            ipv6: self.address(Family::V6),
            node: self.node.map(Addr::from),
        };
        seen.is_ready
            && seen.endpoint_id == self.endpoint_id
            && seen.identity == self.identity.number()
            && seen.addresses == addresses
    }
}

/// What shall be of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Object(Box<Wanted>),
    /// None of this pod's.
    Gone {
        pod_uid: Uid,
    },
}

struct Kind;

impl Kept for Kind {
    type Goal = Goal;
    type Seen = Arc<k8s::CiliumEndpoint>;

    fn step(goal: &Goal, seen: Option<&Self::Seen>) -> Step {
        match (goal, seen) {
            (Goal::Object(_), None) => Step::Create,
            (Goal::Object(wanted), Some(seen)) if seen.pod_uid == Uid::new(&wanted.pod_uid) => {
                if wanted.is(seen) { Step::Nothing } else { Step::Patch { uid: seen.uid.to_string() } }
            }
            (Goal::Object(wanted), Some(seen))
                if seen.pod_uid.is_none() || seen.created <= wanted.pod_created =>
            {
                Step::Delete { uid: seen.uid.to_string() }
            }
            (Goal::Object(_), Some(seen)) => Step::Wait {
                reason: format!(
                    "its CiliumEndpoint is of a newer pod of its name, whose UID is {}",
                    seen.pod_uid
                ),
            },
            (Goal::Gone { pod_uid }, Some(seen)) if seen.pod_uid == *pod_uid => {
                Step::Delete { uid: seen.uid.to_string() }
            }
            (Goal::Gone { .. }, Some(_) | None) => Step::Nothing,
        }
    }

    fn collection(name: &str) -> String {
        let (namespace, _) = split(name);
        crd::CiliumEndpoint::DEFINITION.path_in(namespace)
    }

    fn path(name: &str) -> String {
        let (namespace, pod) = split(name);
        crd::CiliumEndpoint::DEFINITION.path_of(namespace, pod)
    }

    fn body(goal: &Goal) -> Value {
        match goal {
            Goal::Object(wanted) => json!(wanted.object()),
            // Nothing is created for it.
            Goal::Gone { .. } => Value::Null,
        }
    }

    fn patch(goal: &Goal, _: &Self::Seen) -> Value {
        match goal {
            Goal::Object(wanted) => json!({"status": wanted.status()}),
            Goal::Gone { .. } => json!({}),
        }
    }

    fn read(text: &[u8]) -> Option<Self::Seen> {
        let decoded = decode(text, Format::Json, &mut Names::default()).ok()?;
        decoded.objects.into_iter().find_map(|object| match object {
            Object::CiliumEndpoint(endpoint) => Some(endpoint),
            Object::Service(_)
            | Object::EndpointSlice(_)
            | Object::Pod(_)
            | Object::Namespace(_)
            | Object::Node(_)
            | Object::CiliumNode(_)
            | Object::CiliumIdentity(_)
            | Object::CiliumEndpointSlice(_) => None,
        })
    }

    fn is_over(goal: &Goal) -> bool {
        matches!(goal, Goal::Gone { .. })
    }
}

/// The namespace and the name.
fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or(("", name))
}

#[cfg(test)]
mod tests;
