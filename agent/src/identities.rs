//! Who the pods are, and who every address of the cluster is: a thread of its own.
//!
//! ```text
//! owner ── pods, namespaces, nodes, CiliumIdentities, CiliumEndpoints ──► identities
//!                                                                            │ follow   whose labels are which
//! endpoints ── which pods have which addresses ─────────────────────────────►│
//!            ◄── who they are: ADD goes on ─────────────────────────────────┤
//! ```
//!
//! endpoint_objects, node_object   what this node's objects say at the API server; objects how they are written
//! told    what the owner tells, and when
//! follow  from pods and namespaces to labels
//! pods    from labels to numbers, to the ipcache, to the endpoints
//! writes  what other nodes are told
//! show    what people are shown
//! thread  the loop

mod census;
pub mod endpoint_objects;
mod follow;
pub mod node_object;
mod objects;
mod pods;
mod show;
mod thread;
mod told;
mod writes;

use std::sync::Arc;

use portway_model::node::ClusterView;
use portway_runtime::kubernetes::EventRecorder;
use portway_runtime::shutdown::Drain;
use tokio::sync::{mpsc, watch};

use crate::config::{Config, PodNetwork};
use crate::endpoints::Endpoints;
use crate::ipcache::Ipcache;
use crate::thread::Ended;
pub(crate) use census::{Census, Tally};
pub(crate) use portway_claims::Counts;
pub(crate) use show::{Question, questions};
pub(crate) use told::{Synced, Told, is_of_matter};

/// What the owner's side gives the thread.
pub(crate) struct FromOwner {
    /// What people ask.
    pub(crate) questions: mpsc::Receiver<Question>,
    pub(crate) told: mpsc::Receiver<Told>,
    /// For the metrics.
    pub(crate) census: Census,
    /// Where there is an API server.
    pub(crate) recorder: Option<EventRecorder>,
}

/// What the thread is given.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) network: PodNetwork,
    pub(crate) owner: FromOwner,
    pub(crate) cluster: watch::Receiver<Arc<ClusterView>>,
    /// Restored.
    pub(crate) endpoints: Endpoints,
    /// On its maps.
    pub(crate) ipcache: Ipcache,
    pub(crate) drain: Drain,
}

/// Starts the thread, which ends when draining begins.
///
/// # Errors
/// There can be no thread.
pub(crate) fn spawn(inputs: Inputs) -> anyhow::Result<Ended> {
    let mut drain = inputs.drain.clone();
    crate::thread::spawn("identities", || async move {
        tokio::select! {
            result = thread::follow(inputs) => result,
            () = drain.begun() => Ok(()),
        }
    })
}
