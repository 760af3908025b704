//! Who the pods are, and who every address of the cluster is: a thread of its own.
//!
//! ```text
//! owner ── pods, namespaces, nodes, CiliumIdentities, CiliumEndpoints ──► identities
//!                                                                            │ follow   whose labels are which
//! endpoints ── which pods have which addresses ─────────────────────────────►│
//!            ◄── who they are: ADD goes on ─────────────────────────────────┤
//! ```
//!
//! told    what the owner tells, and when
//! thread  the loop

pub mod allocate;
mod thread;
mod told;

use std::sync::Arc;

use anyhow::Context as _;
use portway_runtime::kubernetes::EventRecorder;
use portway_runtime::shutdown::Drain;
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, PodNetwork};
use crate::endpoints::Endpoints;
pub(crate) use told::{Synced, Told, is_of_matter};

/// What the owner's side gives the thread.
pub(crate) struct FromOwner {
    pub(crate) told: mpsc::Receiver<Told>,
    /// Where there is an API server.
    pub(crate) recorder: Option<EventRecorder>,
}

/// What the thread is given.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) network: PodNetwork,
    pub(crate) owner: FromOwner,
    /// Restored.
    pub(crate) endpoints: Endpoints,
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
    std::thread::Builder::new().name("identities".to_owned()).spawn(body).context("cannot start a thread")?;
    Ok(result)
}

fn run(inputs: Inputs) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    let Inputs { config, network, owner, endpoints, mut drain } = inputs;
    runtime.block_on(async {
        tokio::select! {
            result = thread::follow(&config, &network, owner, endpoints) => result,
            () = drain.begun() => Ok(()),
        }
    })
}
