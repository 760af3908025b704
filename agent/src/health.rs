//! Whether the nodes of the cluster reach each other: for people and metrics alone. Nothing here changes what is
//! forwarded, the agent's own liveness or what load balancers are told.
//!
//! Each agent answers `GET /hello` on `cluster-health-port`, on its node and inside its *health endpoint*: a network
//! namespace with an address of the node's pod prefix, behind a link as pods have, so that the way to it is the way to
//! pods. Each probes all of them, itself too, by that and by an ICMP echo.

mod endpoint;
mod hello;
mod icmp;
mod listen;
mod metrics;
mod namespace;
mod prober;
mod record;
mod schedule;
mod targets;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::Latencies;
use portway_model::node::ClusterView;
use portway_runtime::shutdown::Drain;
use prometheus::Registry;
use tokio::sync::{mpsc, oneshot, watch};

pub use endpoint::{Connect, ConnectError};
use prober::{Asked, Prober};
pub(crate) use record::Board;
pub use targets::Probed;
pub(crate) use targets::endpoint_addresses;

use crate::api;

/// Questions for a probe that wait for the prober.
const QUESTIONS: usize = 16;

/// Why a path did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("no answer within {} s", within.as_secs())]
    NoAnswer { within: Duration },
    #[error("{0}")]
    Socket(io::Error),
    #[error("not the answer of a node: {line:?}")]
    Answer { line: String },
}

/// What is probed and answered.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For labels of metrics.
    pub cluster_name: String,
    pub node_name: String,
    /// TCP, in host order.
    pub port: u16,
    pub probed: Probed,
}

/// The probes of this node, on a thread of their own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    board: Board,
    asking: mpsc::Sender<Asked>,
}

impl Health {
    /// Answers and probes until the drain begins.
    ///
    /// # Errors
    /// There is no thread for it, or no runtime, or its metrics are taken.
    pub fn start(
        settings: Settings,
        cluster: watch::Receiver<Arc<ClusterView>>,
        connect: Connect,
        registry: &Registry,
        mut drain: Drain,
    ) -> anyhow::Result<Self> {
        let Settings { cluster_name, node_name, port, probed } = settings;
        let (asking, asked) = mpsc::channel(QUESTIONS);
        let board = Board::default();
        let health = Self { board: board.clone(), asking };
        let latencies = Latencies::new(registry, board.clone(), &cluster_name, &node_name)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let body = move || {
            runtime.block_on(async {
                for address in listen::wildcards(port) {
                    if if address.is_ipv4() { probed.ipv4 } else { probed.ipv6 } {
                        tokio::spawn(listen::answer_on(address, board.clone()));
                    }
                }
                if probed.endpoint {
                    tokio::spawn(endpoint::keep(port, probed, cluster.clone(), connect, board.clone()));
                }
                tokio::select! {
                    () = Prober::new(port, probed, board, latencies).run(cluster, asked) => {}
                    () = drain.begun() => {}
                }
            });
        };
        std::thread::Builder::new().name("health".to_owned()).spawn(body)?;
        Ok(health)
    }

    /// Probes every node now; returns when all are through, or the agent ends.
    pub async fn probe_all(&self) {
        let (to, told) = oneshot::channel();
        if self.asking.send(to).await.is_ok() {
            // Dropped where the agent ends.
            let _ = told.await;
        }
    }

    /// `reachable`, `unreachable` or `unknown`.
    pub fn state(&self, node: &str) -> &'static str {
        self.board.state(node).name()
    }

    /// What is known now.
    pub fn show(&self) -> api::ClusterHealth {
        self.board.show(Instant::now())
    }
}
