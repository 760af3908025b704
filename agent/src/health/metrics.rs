//! Node health for Prometheus, in Cilium's names and labels.

use std::time::Duration;

use portway_runtime::metrics::register;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::record::{Board, Path, State, Subject};

/// From a twentieth of a millisecond, two nodes on one switch, to what is no answer any more.
const LATENCY_BUCKETS: [f64; 11] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 3.0];

/// Latencies of the probes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Latencies(HistogramVec);

/// How many nodes answer, read at each scrape.
struct StateCollector {
    board: Board,
    status: IntGaugeVec,
    unreachable_nodes: IntGauge,
    unreachable_endpoints: IntGauge,
}

impl Latencies {
    /// Registers the latencies, and the states on `board`.
    ///
    /// # Errors
    /// A metric of that name is there already.
    pub(super) fn new(registry: &Registry, board: Board, cluster: &str, node: &str) -> anyhow::Result<Self> {
        let named = |name, help| {
            Opts::new(name, help).const_label("source_cluster", cluster).const_label("source_node_name", node)
        };
        let status = named(
            "cilium_node_health_connectivity_status",
            "Nodes and health endpoints by how they answer this node's probes",
        );
        let nodes = named("cilium_unreachable_nodes", "Nodes that do not answer this node's probes");
        let endpoints = named(
            "cilium_unreachable_health_endpoints",
            "Health endpoints of nodes that do not answer this node's probes",
        );
        registry.register(Box::new(StateCollector {
            board,
            status: IntGaugeVec::new(status, &["type", "status"])?,
            unreachable_nodes: IntGauge::with_opts(nodes)?,
            unreachable_endpoints: IntGauge::with_opts(endpoints)?,
        }))?;
        let latency = named(
            "cilium_node_health_connectivity_latency_seconds",
            "Seconds until a node or its health endpoint answered a probe",
        );
        let latency = HistogramOpts::from(latency).buckets(LATENCY_BUCKETS.to_vec());
        Ok(Self(register(registry, HistogramVec::new(latency, &["type", "protocol", "address_type"])?)?))
    }

    pub(super) fn observe(&self, path: &Path, took: Duration) {
        // The one address of its family: Cilium probes a node's further ones too and calls those secondary.
        let labels = [path.subject.name(), path.protocol.name(), "primary"];
        self.0.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

impl Collector for StateCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.status.desc(), self.unreachable_nodes.desc(), self.unreachable_endpoints.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let states = self.board.states();
        let count = |subject, state| {
            let number = states.iter().filter(|found| **found == (subject, state)).count();
            i64::try_from(number).unwrap_or(i64::MAX)
        };
        for subject in [Subject::Node, Subject::Endpoint] {
            for state in [State::Reachable, State::Unreachable, State::Unknown] {
                self.status.with_label_values(&[subject.name(), state.name()]).set(count(subject, state));
            }
        }
        self.unreachable_nodes.set(count(Subject::Node, State::Unreachable));
        self.unreachable_endpoints.set(count(Subject::Endpoint, State::Unreachable));
        [self.status.collect(), self.unreachable_nodes.collect(), self.unreachable_endpoints.collect()]
            .concat()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Instant;

    use super::super::record::{NodeName, Target};
    use super::*;

    #[test]
    fn states_and_latencies_are_told_in_ciliums_words() {
        let (registry, board) = (Registry::new(), Board::default());
        let latencies = Latencies::new(&registry, board.clone(), "default", "me").unwrap();
        let target = Target {
            is_this_node: false,
            node: vec!["192.0.2.1".parse().unwrap()],
            endpoint: vec!["10.0.1.1".parse().unwrap()],
        };
        let name = NodeName::from("a");
        board.set_nodes(&BTreeMap::from([(std::sync::Arc::clone(&name), target.clone())]));
        for path in target.paths() {
            let outcome = match path.subject {
                Subject::Node => Ok(Duration::from_millis(2)),
                Subject::Endpoint => Err("no answer".to_owned()),
            };
            if let Ok(took) = outcome {
                latencies.observe(&path, took);
            }
            board.record(&name, path, outcome, Instant::now());
        }
        let text = portway_runtime::metrics::render(&registry).unwrap();
        let source = r#"source_cluster="default",source_node_name="me""#;
        for line in [
            format!(r#"cilium_node_health_connectivity_status{{{source},status="reachable",type="node"}} 1"#),
            format!(
                r#"cilium_node_health_connectivity_status{{{source},status="unreachable",type="endpoint"}} 1"#
            ),
            format!(r#"cilium_node_health_connectivity_status{{{source},status="unknown",type="node"}} 0"#),
            format!("cilium_unreachable_nodes{{{source}}} 0"),
            format!("cilium_unreachable_health_endpoints{{{source}}} 1"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let latency = text.lines().filter(|line| line.contains("latency_seconds_count")).collect::<Vec<_>>();
        assert_eq!(latency.len(), 2, "{text}");
        assert!(latency.iter().all(|line| line.contains(r#"type="node""#)), "{latency:?}");
    }
}
