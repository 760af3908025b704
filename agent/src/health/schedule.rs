//! When which node is probed. Knows no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::record::NodeName;

/// A cluster of one or two nodes is probed about this often.
const BASE: Duration = Duration::from_secs(60);
/// A node that did not answer is looked at again after this time, then after twice of it, and so on.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// The same of a node that never answered: it starts, or this one does.
const FIRST_RETRY_OF_NEW: Duration = Duration::from_secs(1);
/// Failures in a row that a person is told of. The first one may be of a node whose endpoint is made anew.
const TOLD: u32 = 2;
/// The same of a node that never answered: 7 s after the first.
const TOLD_OF_NEW: u32 = 4;

/// How often each node is probed in a cluster of `nodes`: as Cilium, 60 s × ln(1 + nodes), so that all nodes together
/// do not flood the network as the cluster grows.
pub(super) fn interval(nodes: usize) -> Duration {
    if nodes == 0 { BASE } else { BASE.mul_f64((nodes as f64).ln_1p()) }
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    nodes: BTreeMap<NodeName, Entry>,
    /// The same by time; without those that are probed at the moment.
    by_time: BTreeSet<(Instant, NodeName)>,
}

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It did not answer a few times.
    Silent,
    /// It does again.
    Answers,
}

#[derive(Debug)]
struct Entry {
    /// `None` while the node is probed.
    due: Option<Instant>,
    /// Probes in a row after which something had not answered.
    failures: u32,
    /// Everything answered once.
    has_answered: bool,
    /// Came while the node was probed.
    wanted_again: bool,
}

impl Schedule {
    /// Probes `node` as soon as possible: it is new, its addresses are, or a person asks.
    pub(super) fn now(&mut self, node: &NodeName, now: Instant) {
        let Some(entry) = self.nodes.get_mut(node) else {
            let entry = Entry { due: Some(now), failures: 0, has_answered: false, wanted_again: false };
            self.nodes.insert(Arc::clone(node), entry);
            self.by_time.insert((now, Arc::clone(node)));
            return;
        };
        match entry.due {
            None => entry.wanted_again = true,
            Some(due) if due > now => {
                self.by_time.remove(&(due, Arc::clone(node)));
                entry.due = Some(now);
                self.by_time.insert((now, Arc::clone(node)));
            }
            Some(_) => {}
        }
    }

    pub(super) fn remove(&mut self, node: &NodeName) {
        if let Some(Entry { due: Some(due), .. }) = self.nodes.remove(node) {
            self.by_time.remove(&(due, Arc::clone(node)));
        }
    }

    /// Takes the node that waits for its probe longest; [`Self::done`] puts it back.
    pub(super) fn take(&mut self, now: Instant) -> Option<NodeName> {
        self.by_time.first().filter(|(due, _)| *due <= now)?;
        let (_, node) = self.by_time.pop_first()?;
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.due = None;
        }
        Some(node)
    }

    /// When [`Self::take`] next has something to give.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// `node` was probed. `random` from 0 to 1 spreads the nodes over the interval's last tenth and the next one's first.
    /// Whether a person is to be told.
    pub(super) fn done(
        &mut self,
        node: &NodeName,
        answered: bool,
        random: f64,
        now: Instant,
    ) -> Option<Turn> {
        let usual = interval(self.nodes.len());
        let entry = self.nodes.get_mut(node)?;
        let before = entry.failures;
        let (retry, told) =
            if entry.has_answered { (FIRST_RETRY, TOLD) } else { (FIRST_RETRY_OF_NEW, TOLD_OF_NEW) };
        entry.failures = if answered { 0 } else { entry.failures.saturating_add(1) };
        entry.has_answered |= answered;
        let pause = match entry.failures {
            0 => usual,
            failures => retry.saturating_mul(1 << (failures - 1).min(16)).min(usual),
        };
        let pause = if std::mem::take(&mut entry.wanted_again) {
            Duration::ZERO
        } else {
            pause.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
        };
        entry.due = Some(now + pause);
        self.by_time.insert((now + pause, Arc::clone(node)));
        match entry.failures {
            0 if before >= told => Some(Turn::Answers),
            failures if failures == told => Some(Turn::Silent),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> NodeName {
        NodeName::from(name)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_interval_grows_with_the_cluster_as_ciliums() {
        // pkg/backoff of cilium/cilium, the table of ClusterSizeDependantInterval.
        for (nodes, seconds) in
            [(0, 60.0), (1, 41.588_830), (2, 65.916_737), (16, 169.992_800), (1024, 415.946)]
        {
            let took = interval(nodes).as_secs_f64();
            assert!((took - seconds).abs() < 0.01, "{nodes} nodes: {took}");
        }
    }

    #[test]
    fn a_new_node_is_probed_at_once_and_then_once_an_interval() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for node in ["a", "b"] {
            schedule.now(&name(node), now);
        }
        assert_eq!((schedule.take(now), schedule.take(now)), (Some(name("a")), Some(name("b"))));
        // Nothing is probed twice at a time.
        assert_eq!((schedule.take(now + 600 * SECOND), schedule.next()), (None, None));
        schedule.done(&name("a"), true, 0.0, now);
        schedule.done(&name("b"), true, 1.0, now);
        let due = |factor| now + interval(2).mul_f64(factor);
        assert_eq!(schedule.next(), Some(due(0.9)));
        assert_eq!(schedule.take(due(0.9)), Some(name("a")));
        assert_eq!((schedule.take(due(0.9)), schedule.next()), (None, Some(due(1.1))));
    }

    #[test]
    fn a_node_that_does_not_answer_is_tried_soon_and_then_ever_less_often() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.now(&name("a"), now);
        let mut pause = |answered| {
            let due = schedule.next().unwrap();
            let node = schedule.take(due).unwrap();
            schedule.done(&node, answered, 0.5, due);
            (schedule.next().unwrap() - due).as_secs()
        };
        // It starts, maybe.
        assert_eq!([false; 8].map(&mut pause), [1, 2, 4, 8, 16, 32, 41, 41]);
        // It answers: as any other, and a later failure begins anew.
        assert_eq!(pause(true), 41);
        assert_eq!([false; 6].map(&mut pause), [5, 10, 20, 40, 41, 41]);
    }

    #[test]
    fn a_node_that_did_not_answer_twice_is_told_of_once_and_its_return_too() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.now(&name("a"), now);
        let mut tell = |answered| {
            let due = schedule.next().unwrap();
            let node = schedule.take(due).unwrap();
            schedule.done(&node, answered, 0.5, due)
        };
        let told = [true, false, true, false, false, false, true, true].map(&mut tell);
        assert_eq!(told, [None, None, None, None, Some(Turn::Silent), None, Some(Turn::Answers), None]);
    }

    #[test]
    fn a_node_that_starts_has_time_to() {
        for answers_at in 1..7u32 {
            let (mut schedule, now) = (Schedule::default(), Instant::now());
            schedule.now(&name("a"), now);
            let told: Vec<_> = (1..=answers_at)
                .filter_map(|n| {
                    let due = schedule.next().unwrap();
                    let node = schedule.take(due).unwrap();
                    schedule.done(&node, n == answers_at, 0.5, due)
                })
                .collect();
            let expected: &[Turn] = if answers_at > 4 { &[Turn::Silent, Turn::Answers] } else { &[] };
            assert_eq!(told, expected, "it answers the probe {answers_at}");
        }
    }

    #[test]
    fn a_node_that_is_gone_is_not_probed_and_its_late_result_counts_for_nothing() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for node in ["a", "b"] {
            schedule.now(&name(node), now);
        }
        assert_eq!(schedule.take(now), Some(name("a")));
        schedule.remove(&name("a"));
        schedule.remove(&name("b"));
        schedule.done(&name("a"), true, 0.0, now);
        assert_eq!((schedule.take(now), schedule.next()), (None, None));
    }

    #[test]
    fn who_asks_while_a_node_is_probed_gets_another_probe() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        schedule.now(&name("a"), now);
        assert_eq!(schedule.take(now), Some(name("a")));
        schedule.now(&name("a"), now);
        assert_eq!(schedule.take(now), None);
        schedule.done(&name("a"), true, 0.5, now);
        assert_eq!(schedule.take(now), Some(name("a")));
        schedule.done(&name("a"), true, 0.5, now);
        // A person asks long before it is due.
        schedule.now(&name("a"), now + SECOND);
        assert_eq!((schedule.take(now), schedule.take(now + SECOND)), (None, Some(name("a"))));
    }
}
