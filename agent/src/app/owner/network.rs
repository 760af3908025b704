//! What the pod network is told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portway_model::cluster::{Cluster, PodCidrs};
use portway_model::k8s::Event;
use portway_model::node::ClusterView;
use tokio::sync::{oneshot, watch};

use crate::config::{Config, Ipam, PodNetwork};
use crate::maps::{PodOpening, PodTables};
use crate::network::{FromOwner, Troubles};

/// The owner's ends of the channels to the thread of the pod network.
pub(in crate::app) struct ToNetwork {
    cluster: Cluster,
    view: watch::Sender<Arc<ClusterView>>,
    serves: watch::Sender<bool>,
    tables: Option<oneshot::Sender<(PodTables, PodOpening)>>,
    troubles: Arc<Mutex<Troubles>>,
}

impl ToNetwork {
    pub(in crate::app) fn new(config: &Config, network: &PodNetwork) -> (Self, FromOwner) {
        let from = match network.ipam {
            Ipam::Kubernetes => PodCidrs::Node,
            Ipam::ClusterPool => PodCidrs::CiliumNode,
        };
        let (view, cluster) = watch::channel(Arc::default());
        let (serves, owner_serves) = watch::channel(false);
        let (to, tables) = oneshot::channel();
        let owner = Self {
            cluster: Cluster::new(config.node_name.as_str().into(), from),
            view,
            serves,
            tables: Some(to),
            troubles: Arc::default(),
        };
        let troubles = Arc::clone(&owner.troubles);
        (owner, FromOwner { cluster, serves: owner_serves, tables, troubles })
    }

    /// The maps of the pod network are there.
    pub(super) fn opened(&mut self, tables: PodTables, opening: PodOpening) {
        if let Some(to) = self.tables.take() {
            // Nobody takes them where the agent ends.
            drop(to.send((tables, opening)));
        }
    }

    /// Publishes what changed. O(nodes and pods of this node) where something did.
    pub(super) fn apply(&mut self, applied: &[Event], (knows_nodes, knows_pods): (bool, bool)) {
        let mut changed = self.cluster.knows(knows_nodes, knows_pods);
        for event in applied {
            changed |= self.cluster.apply(event);
        }
        if changed {
            self.view.send_replace(Arc::new(self.cluster.view().clone()));
        }
    }

    /// What the thread found wrong.
    pub(super) fn troubles(&self) -> MutexGuard<'_, Troubles> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The services' programs are in place.
    pub(super) fn serves(&self) {
        self.serves.send_if_modified(|serves| !std::mem::replace(serves, true));
    }
}
