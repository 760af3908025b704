//! The pod network: a thread of its own that gives pods their links and addresses and carries their traffic.
//!
//! ```text
//! owner ── ClusterView, "serves" ──► network ─► pw_ipcache, pw_devices, pw_network, routes, the tunnel device
//!                                       │
//!                                       ├─ endpoints, IPAM, CNI server ─► links of pods, pw_endpoints
//!                                       └─ probes between nodes
//! ```

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Context as _;
use portway_model::node::ClusterView;
use portway_runtime::shutdown::Drain;
use tokio::sync::{oneshot, watch};

use crate::cni::Pods;
use crate::config::{Config, PodNetwork};
use crate::endpoints::Endpoints;
use crate::maps::{PodOpening, PodTables};
use crate::programs::InterfacePrograms;

/// What the owner of services tells.
pub(crate) struct FromOwner {
    /// The cluster as it is known; empty at first.
    pub(crate) cluster: watch::Receiver<Arc<ClusterView>>,
    /// The services' programs are in place.
    pub(crate) serves: watch::Receiver<bool>,
    /// The maps of the pod network, as soon as they are there.
    pub(crate) tables: oneshot::Receiver<(PodTables, PodOpening)>,
}

/// What the thread is given.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) network: PodNetwork,
    pub(crate) owner: FromOwner,
    /// Where the API finds the endpoints, as soon as they are known.
    pub(crate) endpoints: Arc<OnceLock<Endpoints>>,
    pub(crate) drain: Drain,
}

/// Starts the thread. Its result comes by the channel.
///
/// # Errors
/// There can be no thread.
pub(crate) fn spawn(inputs: Inputs) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
    let (ended, result) = oneshot::channel();
    let body = move || {
        // The receiver is gone only where the process ends anyway.
        drop(ended.send(run(inputs)));
    };
    std::thread::Builder::new().name("network".to_owned()).spawn(body).context("cannot start a thread")?;
    Ok(result)
}

fn run(inputs: Inputs) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    let Inputs { config, network, owner, endpoints, mut drain } = inputs;
    runtime.block_on(async {
        tokio::select! {
            result = follow(&config, &network, owner, &endpoints) => result,
            () = drain.begun() => Ok(()),
        }
    })
}

/// Until an error that no retry mends.
async fn follow(
    config: &Config,
    network: &PodNetwork,
    owner: FromOwner,
    endpoints: &OnceLock<Endpoints>,
) -> anyhow::Result<()> {
    let Ok((tables, opening)) = owner.tables.await else {
        // The owner ended, and with it the agent.
        return std::future::pending().await;
    };
    // While the services' first sync is under way; attached after it.
    let programs = Arc::new(Mutex::new(InterfacePrograms::load(&config.bpf_root)?));
    let pods = Pods::start(config, network, tables, Arc::clone(&programs)).await?;
    endpoints.get_or_init(|| pods.endpoints().clone());
    let pods = pods.run(owner.cluster.clone(), owner.serves.clone());
    tokio::select! {
        ended = pods => ended,
        ended = follow_cluster(config, network, owner.cluster, owner.serves, &opening, &programs) => ended,
    }
}

/// Once services are served: whatever of the node follows the cluster.
async fn follow_cluster(
    config: &Config,
    network: &PodNetwork,
    mut cluster: watch::Receiver<Arc<ClusterView>>,
    mut serves: watch::Receiver<bool>,
    opening: &PodOpening,
    programs: &Mutex<InterfacePrograms>,
) -> anyhow::Result<()> {
    if serves.wait_for(|serves| *serves).await.is_err() {
        return std::future::pending().await;
    }
    let loaded = programs.lock().unwrap_or_else(PoisonError::into_inner).loaded().len();
    tracing::info!(
        node = config.node_name,
        ipam = ?network.ipam,
        routing = ?network.routing,
        maps = opening.origins.len(),
        programs = loaded,
        "the pod network is on"
    );
    loop {
        let view = Arc::clone(&cluster.borrow_and_update());
        tracing::debug!(
            remote_nodes = view.remote.len(),
            pods = view.pods.len(),
            knows_nodes = view.knows_nodes,
            knows_pods = view.knows_pods,
            "the cluster"
        );
        if cluster.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
