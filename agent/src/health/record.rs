//! What is known of each node, by the paths to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::schedule::interval;
use crate::api;

pub(super) type NodeName = Arc<str>;

/// A node and where it should answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Whether the agent runs on it.
    pub(super) is_this_node: bool,
    /// One of each family, in the order of the Node object.
    pub(super) node: Vec<IpAddr>,
    /// Of its health endpoint; none where it has none.
    pub(super) endpoint: Vec<IpAddr>,
}

/// What is probed at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    Node,
    Endpoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Protocol {
    Icmp,
    Http,
}

/// One way to see that a node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Path {
    pub(super) subject: Subject,
    pub(super) address: IpAddr,
    pub(super) protocol: Protocol,
}

/// What became of the probes of one path.
#[derive(Clone, Debug)]
struct Record {
    /// When the last one ended.
    probed: Instant,
    /// Of the last one.
    outcome: Result<Duration, String>,
    succeeded: Option<Instant>,
}

/// What the prober writes and everybody may read. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    nodes: BTreeMap<NodeName, Node>,
    problems: BTreeMap<Problem, String>,
}

/// What keeps this node from being probed as it should, by what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    ListenV4,
    ListenV6,
    Endpoint,
}

#[derive(Debug)]
struct Node {
    target: Target,
    paths: BTreeMap<Path, Record>,
}

/// Whether a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// On every path.
    Reachable,
    Unreachable,
    /// A path was not probed yet, or there is none: the node has no address of a family in use.
    Unknown,
}

impl Subject {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Endpoint => "endpoint",
        }
    }
}

impl Protocol {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Icmp => "icmp",
            Self::Http => "http",
        }
    }
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reachable => "reachable",
            Self::Unreachable => "unreachable",
            Self::Unknown => "unknown",
        }
    }

    fn of<'a>(outcomes: impl Iterator<Item = Option<&'a Record>>) -> Self {
        let (mut answers, mut is_complete) = (false, true);
        for record in outcomes {
            match record.map(|record| &record.outcome) {
                Some(Ok(_)) => answers = true,
                Some(Err(_)) => return Self::Unreachable,
                None => is_complete = false,
            }
        }
        if answers && is_complete { Self::Reachable } else { Self::Unknown }
    }
}

impl Target {
    /// All ways to it, node before endpoint.
    pub(super) fn paths(&self) -> impl Iterator<Item = Path> {
        let Self { is_this_node: _, node, endpoint } = self;
        let subjects = [(Subject::Node, node), (Subject::Endpoint, endpoint)];
        subjects.into_iter().flat_map(|(subject, addresses)| {
            addresses.iter().flat_map(move |&address| {
                [Protocol::Icmp, Protocol::Http].map(|protocol| Path { subject, address, protocol })
            })
        })
    }
}

impl Node {
    fn state(&self, is_meant: impl Fn(&Path) -> bool) -> State {
        State::of(self.target.paths().filter(is_meant).map(|path| self.paths.get(&path)))
    }
}

impl Board {
    /// The nodes of the cluster are these; what was known of the others is forgotten, and of paths that are no more.
    pub(super) fn set_nodes(&self, targets: &BTreeMap<NodeName, Target>) {
        let nodes = &mut self.lock().nodes;
        nodes.retain(|name, _| targets.contains_key(name));
        for (name, target) in targets {
            let node = nodes
                .entry(Arc::clone(name))
                .or_insert_with(|| Node { target: target.clone(), paths: BTreeMap::new() });
            if node.target != *target {
                node.target.clone_from(target);
                node.paths.retain(|path, _| target.paths().any(|kept| kept == *path));
            }
        }
    }

    pub(super) fn record(
        &self,
        node: &NodeName,
        path: Path,
        outcome: Result<Duration, String>,
        now: Instant,
    ) {
        let nodes = &mut self.lock().nodes;
        // Its addresses may have changed, or itself be gone, while it was probed.
        let node = nodes.get_mut(node).filter(|node| node.target.paths().any(|known| known == path));
        let Some(node) = node else { return };
        let succeeded = match &outcome {
            Ok(_) => Some(now),
            Err(_) => node.paths.get(&path).and_then(|before| before.succeeded),
        };
        node.paths.insert(path, Record { probed: now, outcome, succeeded });
    }

    /// `None`: it is over. Logged once.
    pub(super) fn set_problem(&self, about: Problem, problem: Option<String>) {
        let problems = &mut self.lock().problems;
        match problem {
            Some(problem) if problems.get(&about) != Some(&problem) => {
                tracing::warn!("{problem}");
                problems.insert(about, problem);
            }
            Some(_) => {}
            None => drop(problems.remove(&about)),
        }
    }

    /// How this node's own endpoint answers it.
    pub(super) fn own_endpoint(&self) -> State {
        let known = self.lock();
        let own = known.nodes.values().find(|node| node.target.is_this_node);
        own.map_or(State::Unknown, |node| node.state(|path| path.subject == Subject::Endpoint))
    }

    pub(crate) fn state(&self, node: &str) -> State {
        self.lock().nodes.get(node).map_or(State::Unknown, |node| node.state(|_| true))
    }

    /// Of each node, and of each node's health endpoint.
    pub(super) fn states(&self) -> Vec<(Subject, State)> {
        let known = self.lock();
        let states = known.nodes.values().flat_map(|node| {
            let endpoint = (!node.target.endpoint.is_empty()).then_some(Subject::Endpoint);
            [Some(Subject::Node), endpoint]
                .into_iter()
                .flatten()
                .map(move |subject| (subject, node.state(|path| path.subject == subject)))
        });
        states.collect()
    }

    /// For people, this node first.
    pub(crate) fn show(&self, now: Instant) -> api::ClusterHealth {
        let Known { nodes, problems } = &*self.lock();
        let mut shown: Vec<_> = nodes.iter().map(|(name, node)| show(name, node, now)).collect();
        shown.sort_by_key(|node| !node.is_this_node);
        api::ClusterHealth {
            total: shown.len() as u64,
            reachable: shown.iter().filter(|node| node.state == State::Reachable.name()).count() as u64,
            interval_seconds: interval(shown.len()).as_secs_f64(),
            nodes: shown,
            warnings: problems.values().cloned().collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Plain values: a panic elsewhere leaves them usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn show(name: &NodeName, node: &Node, now: Instant) -> api::NodeHealth {
    let ago = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
    let paths = node.target.paths().map(|path| {
        let record = node.paths.get(&path);
        let outcome = record.map(|record| &record.outcome);
        api::PathHealth {
            to: path.subject.name().to_owned(),
            address: path.address.to_string(),
            protocol: path.protocol.name().to_owned(),
            state: State::of(std::iter::once(record)).name().to_owned(),
            latency_seconds: outcome.and_then(|outcome| outcome.as_ref().ok()).map(Duration::as_secs_f64),
            last_probe_seconds: record.map(|record| ago(record.probed)),
            last_success_seconds: record.and_then(|record| record.succeeded).map(ago),
            error: outcome.and_then(|outcome| outcome.as_ref().err()).cloned(),
        }
    });
    api::NodeHealth {
        name: name.to_string(),
        is_this_node: node.target.is_this_node,
        state: node.state(|_| true).name().to_owned(),
        paths: paths.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(node: &[&str], endpoint: &[&str]) -> Target {
        let addresses = |all: &[&str]| all.iter().map(|text| text.parse().unwrap()).collect();
        Target { is_this_node: false, node: addresses(node), endpoint: addresses(endpoint) }
    }

    fn board(target: Target) -> (Board, NodeName) {
        let (board, name) = (Board::default(), NodeName::from("a"));
        board.set_nodes(&BTreeMap::from([(Arc::clone(&name), target)]));
        (board, name)
    }

    #[test]
    fn a_node_is_reachable_when_every_path_answers_and_unknown_until_each_was_tried() {
        let target = target(&["192.0.2.1", "2001:db8::1"], &["10.0.1.1"]);
        let paths: Vec<_> = target.paths().collect();
        assert_eq!(paths.len(), 6);
        let (board, name) = board(target);
        let now = Instant::now();
        for (n, path) in paths.iter().enumerate() {
            assert_eq!(board.state("a"), State::Unknown, "{n} probed");
            board.record(&name, *path, Ok(Duration::from_millis(3)), now);
        }
        assert_eq!(board.state("a"), State::Reachable);
        board.record(&name, paths[5], Err("timeout".to_owned()), now + Duration::from_secs(7));
        assert_eq!((board.state("a"), board.state("b")), (State::Unreachable, State::Unknown));
        let shown = board.show(now + Duration::from_secs(10));
        assert_eq!((shown.reachable, shown.total), (0, 1));
        let path = &shown.nodes[0].paths[5];
        assert_eq!((path.to.as_str(), path.protocol.as_str()), ("endpoint", "http"));
        assert_eq!((path.error.as_deref(), path.latency_seconds), (Some("timeout"), None));
        assert_eq!((path.last_probe_seconds, path.last_success_seconds), (Some(3.0), Some(10.0)));
        assert_eq!(shown.nodes[0].paths[0].latency_seconds, Some(0.003));
        assert_eq!(
            board.states(),
            [(Subject::Node, State::Reachable), (Subject::Endpoint, State::Unreachable)]
        );
    }

    #[test]
    fn one_failure_is_unreachable_though_other_paths_were_not_tried_yet() {
        let (board, name) = board(target(&["192.0.2.1"], &["10.0.1.1"]));
        let path = target(&["192.0.2.1"], &[]).paths().next().unwrap();
        board.record(&name, path, Err("refused".to_owned()), Instant::now());
        assert_eq!(board.state("a"), State::Unreachable);
    }

    #[test]
    fn an_address_that_a_node_no_longer_has_says_nothing_of_it() {
        let (board, name) = board(target(&["192.0.2.1"], &[]));
        let old: Vec<_> = target(&["192.0.2.1"], &[]).paths().collect();
        let now = Instant::now();
        for path in &old {
            board.record(&name, *path, Err("timeout".to_owned()), now);
        }
        board.set_nodes(&BTreeMap::from([(Arc::clone(&name), target(&["192.0.2.2"], &[]))]));
        assert_eq!(board.state("a"), State::Unknown);
        // A probe that was under way.
        board.record(&name, old[0], Err("timeout".to_owned()), now);
        assert_eq!(board.state("a"), State::Unknown);
        for path in target(&["192.0.2.2"], &[]).paths() {
            board.record(&name, path, Ok(Duration::ZERO), now);
        }
        assert_eq!(board.state("a"), State::Reachable);
        // It has no address any more that could be tried.
        board.set_nodes(&BTreeMap::from([(Arc::clone(&name), target(&[], &[]))]));
        assert_eq!((board.state("a"), board.show(now).reachable), (State::Unknown, 0));
        board.set_nodes(&BTreeMap::new());
        assert_eq!(board.show(now).total, 0);
    }
}
