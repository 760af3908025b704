//! Probes all nodes, each in its time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use portway_model::node::ClusterView;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::metrics::Latencies;
use super::record::{Board, NodeName, Path, Protocol, Target};
use super::schedule::{Schedule, Turn};
use super::targets::{Probed, targets};
use super::{hello, icmp};

/// Nodes that are probed at a time: ten thousand that do not answer are through in eight minutes.
const AT_ONCE: usize = 64;

/// Asks for a probe of every node; told when all are through.
pub(super) type Asked = oneshot::Sender<()>;

pub(super) struct Prober {
    /// TCP, of every node and health endpoint.
    port: u16,
    probed: Probed,
    board: Board,
    latencies: Latencies,
    view: Arc<ClusterView>,
    targets: BTreeMap<NodeName, Target>,
    schedule: Schedule,
    under_way: JoinSet<Done>,
    waiting: Vec<Waiting>,
}

struct Done {
    node: NodeName,
    began: Instant,
    answered: bool,
}

/// Somebody who wants every node probed anew.
struct Waiting {
    since: Instant,
    missing: BTreeSet<NodeName>,
    to: Asked,
}

impl Prober {
    pub(super) fn new(port: u16, probed: Probed, board: Board, latencies: Latencies) -> Self {
        Self {
            port,
            probed,
            board,
            latencies,
            view: Arc::default(),
            targets: BTreeMap::new(),
            schedule: Schedule::default(),
            under_way: JoinSet::new(),
            waiting: Vec::new(),
        }
    }

    /// Probes until nobody tells of nodes any more.
    pub(super) async fn run(
        mut self,
        mut cluster: watch::Receiver<Arc<ClusterView>>,
        mut asked: mpsc::Receiver<Asked>,
    ) {
        cluster.mark_changed();
        loop {
            self.begin();
            let has_room = self.under_way.len() < AT_ONCE;
            let next = self.schedule.next().filter(|_| has_room);
            tokio::select! {
                changed = cluster.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let view = Arc::clone(&cluster.borrow_and_update());
                    self.see(view);
                }
                Some(done) = self.under_way.join_next() => match done {
                    Ok(done) => self.done(&done),
                    Err(error) => tracing::error!(%error, "a probe of a node ended before its time"),
                },
                Some(to) = asked.recv() => self.probe_all(to),
                () = until(next) => {}
            }
        }
    }

    fn see(&mut self, view: Arc<ClusterView>) {
        let before = std::mem::replace(&mut self.view, view);
        // Pods come and go far more often, and are of the same snapshot.
        if (&before.this, &before.remote) == (&self.view.this, &self.view.remote) {
            return;
        }
        let targets = targets(&self.view, self.probed);
        self.board.set_nodes(&targets);
        let now = Instant::now();
        for (node, target) in &targets {
            if self.targets.get(node) != Some(target) {
                self.schedule.now(node, now);
            }
        }
        for gone in self.targets.keys().filter(|node| !targets.contains_key(*node)) {
            self.schedule.remove(gone);
            for waiting in &mut self.waiting {
                waiting.missing.remove(gone);
            }
        }
        self.targets = targets;
        self.tell();
    }

    fn probe_all(&mut self, to: Asked) {
        let since = Instant::now();
        for node in self.targets.keys() {
            self.schedule.now(node, since);
        }
        let missing = self.targets.keys().cloned().collect();
        self.waiting.push(Waiting { since, missing, to });
        self.tell();
    }

    /// Begins what is due.
    fn begin(&mut self) {
        let now = Instant::now();
        while self.under_way.len() < AT_ONCE
            && let Some(node) = self.schedule.take(now)
        {
            if let Some(target) = self.targets.get(&node) {
                let (board, latencies) = (self.board.clone(), self.latencies.clone());
                self.under_way.spawn(probe(node, target.clone(), self.port, board, latencies));
            }
        }
    }

    fn done(&mut self, done: &Done) {
        let Done { node, began, answered } = done;
        let random = f64::from(RandomState::new().hash_one(node) as u32) / f64::from(u32::MAX);
        match self.schedule.done(node, *answered, random, Instant::now()) {
            Some(Turn::Silent) => {
                tracing::warn!(
                    node = &**node,
                    "a node does not answer on every path; `portway status` says which"
                );
            }
            Some(Turn::Answers) => tracing::info!(node = &**node, "a node answers again"),
            None => {}
        }
        for waiting in &mut self.waiting {
            if *began >= waiting.since {
                waiting.missing.remove(node);
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        for waiting in self.waiting.extract_if(.., |waiting| waiting.missing.is_empty()) {
            // Whoever asked may have gone meanwhile.
            let _ = waiting.to.send(());
        }
    }
}

/// Tries every path to a node at once.
async fn probe(node: NodeName, target: Target, port: u16, board: Board, latencies: Latencies) -> Done {
    let began = Instant::now();
    let answers = target.paths().map(|path| {
        let (node, board, latencies) = (&node, &board, &latencies);
        async move {
            let outcome = try_path(path, port).await;
            if let Ok(took) = outcome {
                latencies.observe(&path, took);
            }
            let answered = outcome.is_ok();
            board.record(node, path, outcome, Instant::now());
            answered
        }
    });
    let answered = join_all(answers).await.into_iter().all(|answered| answered);
    Done { node, began, answered }
}

async fn try_path(path: Path, port: u16) -> Result<Duration, String> {
    let Path { subject: _, address, protocol } = path;
    let outcome = match protocol {
        Protocol::Icmp => icmp::echo(address).await,
        Protocol::Http => hello::ask(SocketAddr::new(address, port)).await,
    };
    outcome.map_err(|error| error.to_string())
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use portway_datapath::Addr;
    use portway_model::node::ClusterNode;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::super::record::State;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    const NODES: Probed = Probed { ipv4: true, ipv6: true, endpoint: false };

    fn cluster(nodes: &[(&str, &str)]) -> Arc<ClusterView> {
        let node = |(name, address): &(&str, &str)| {
            let node = ClusterNode {
                name: (*name).into(),
                created: None,
                addresses: [Addr::from(address.parse::<IpAddr>().unwrap())].into(),
                other_addresses: Box::default(),
                pod_cidrs: Box::default(),
                health: Box::default(),
            };
            (Arc::clone(&node.name), Arc::new(node))
        };
        Arc::new(ClusterView { remote: nodes.iter().map(node).collect(), ..ClusterView::default() })
    }

    async fn probe_all(asking: &mpsc::Sender<Asked>) {
        let (to, told) = oneshot::channel();
        asking.send(to).await.unwrap();
        timeout(LIMIT, told).await.unwrap().unwrap();
    }

    async fn until_state(board: &Board, node: &str, wanted: State) {
        let reached = async {
            while board.state(node) != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(
            timeout(LIMIT, reached).await.is_ok(),
            "{node} is not {wanted:?}: {:?}",
            board.show(Instant::now())
        );
    }

    /// Two nodes on loopback: one that answers, and one of which the address alone does.
    #[tokio::test]
    async fn a_node_is_probed_when_it_appears_and_when_somebody_asks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(hello::answer(listener));
        let board = Board::default();
        let (nodes, told) = watch::channel(cluster(&[("a", "127.0.0.1")]));
        let (asking, asked) = mpsc::channel(1);
        let latencies = Latencies::new(&prometheus::Registry::new(), board.clone(), "", "").unwrap();
        let prober = Prober::new(address.port(), NODES, board.clone(), latencies);
        let running = tokio::spawn(prober.run(told, asked));
        until_state(&board, "a", State::Reachable).await;
        nodes.send_replace(cluster(&[("a", "127.0.0.1"), ("b", "127.0.0.2")]));
        until_state(&board, "b", State::Unreachable).await;
        let shown = board.show(Instant::now());
        assert_eq!((shown.reachable, shown.total), (1, 2));
        let states: Vec<_> =
            shown.nodes[1].paths.iter().map(|path| (path.protocol.as_str(), path.state.as_str())).collect();
        assert_eq!(states, [("icmp", "reachable"), ("http", "unreachable")]);

        // It answers, which the next probe sees.
        let second = TcpListener::bind(("127.0.0.2", address.port())).await.unwrap();
        let second = tokio::spawn(hello::answer(second));
        probe_all(&asking).await;
        assert_eq!(board.state("b"), State::Reachable);
        second.abort();
        assert!(second.await.unwrap_err().is_cancelled());
        probe_all(&asking).await;
        assert_eq!((board.state("a"), board.state("b")), (State::Reachable, State::Unreachable));

        // With an empty cluster nobody is waited for.
        nodes.send_replace(cluster(&[]));
        probe_all(&asking).await;
        drop(nodes);
        assert!(timeout(LIMIT, running).await.is_ok());
        answering.abort();
    }
}
