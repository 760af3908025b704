//! One pod of this node: its labels, its number, and what was said of both.

use std::sync::Arc;

use portway_claims::Allocator;
use portway_datapath::{Addr, NumericIdentity, Scope};
use portway_model::ipcache::EndpointAddress;
use portway_model::k8s::{Pod, Uid};
use portway_model::labels::Labels;

use crate::endpoints::{Endpoint, EndpointIdentity, State};
use crate::identities::endpoint_objects;

/// One pod.
pub(super) struct PodIdentity {
    pub(super) endpoint: Endpoint,
    pub(super) pod: Option<Arc<Pod>>,
    /// The Pod was deleted, and the runtime has not ended its sandbox yet.
    pub(super) pod_is_gone: bool,
    /// What its labels are; held.
    pub(super) wanted: Option<Labels>,
    /// The labels whose number is published; held.
    pub(super) used: Option<Labels>,
    pub(super) published: Option<Published>,
    /// What its CiliumEndpoint is to say.
    pub(super) written: Option<endpoint_objects::Wanted>,
    /// The number that the allocator knows to be in the object.
    pub(super) referred: Option<NumericIdentity>,
    /// It has come since this agent began.
    pub(super) is_new: bool,
    /// What was said of it last.
    pub(super) obstacle: Option<String>,
    /// The kernel or the state directory did not take its identity, the last time.
    pub(super) is_behind: bool,
}

/// What other programs of this node see of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Published {
    pub(super) identity: EndpointIdentity,
    pub(super) addresses: Vec<EndpointAddress>,
}

impl PodIdentity {
    /// An endpoint that is new here. What an earlier agent gave it is held from the first moment on.
    pub(super) fn restored(endpoint: &Endpoint, allocator: &mut Allocator) -> Self {
        let of_labels = |identity: &&EndpointIdentity| identity.number().scope() == Scope::Cluster;
        let before = endpoint.identity.as_ref().filter(of_labels);
        let labels = before.map(|before| {
            let labels = before.labels();
            allocator.hold(&labels, Some(before.number()));
            labels
        });
        Self {
            endpoint: endpoint.clone(),
            pod: None,
            pod_is_gone: false,
            wanted: labels.clone(),
            used: labels,
            published: None,
            written: None,
            referred: None,
            is_new: endpoint.identity.is_none() && !matches!(endpoint.state, State::Restoring | State::Ready),
            obstacle: None,
            is_behind: false,
        }
    }

    /// Its labels are these; what was wanted before and is not used is let go.
    pub(super) fn want(&mut self, labels: &Labels, allocator: &mut Allocator) {
        if self.wanted.as_ref() == Some(labels) {
            return;
        }
        let before = self.wanted.replace(labels.clone());
        if self.used.as_ref() != Some(labels) {
            allocator.hold(labels, None);
        }
        if let Some(before) = before.filter(|before| self.used.as_ref() != Some(before)) {
            allocator.release(&before);
        }
    }

    pub(super) fn held(&self) -> impl Iterator<Item = &Labels> {
        let wanted = self.wanted.as_ref().filter(|wanted| self.used.as_ref() != Some(wanted));
        self.used.iter().chain(wanted)
    }

    pub(super) fn addresses(&self, identity: NumericIdentity) -> Vec<EndpointAddress> {
        let Endpoint { attachment, pod, created, addresses, .. } = &self.endpoint;
        let of_pod = self.pod.as_ref().map(|pod| &*pod.uid).filter(|uid| !uid.is_empty());
        let of_runtime = Some(pod.uid.as_str()).filter(|uid| !uid.is_empty());
        let uid = Uid::new(of_pod.or(of_runtime).unwrap_or(&attachment.container));
        let of_object = self.pod.as_ref().and_then(|pod| pod.created);
        let created = of_object.or_else(|| i64::try_from(created / 1000).ok());
        let told = |addr: &std::net::IpAddr| EndpointAddress {
            addr: Addr::from(*addr),
            identity,
            node: None,
            uid,
            created,
        };
        addresses.iter().map(told).collect()
    }
}

/// A pod of which nobody knows more.
pub(super) fn init() -> EndpointIdentity {
    let labels = Labels::of_reserved(NumericIdentity::INIT).unwrap_or_default();
    EndpointIdentity::new(NumericIdentity::INIT, &labels)
}
