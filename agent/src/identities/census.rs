//! How many identities there are, kept up as they come and go: a scrape must not look at tens of thousands of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portway_claims::Counts;
use portway_datapath::NumericIdentity;
use portway_model::k8s::{Event, Object, ObjectKind};
use portway_model::labels::{Labels, SOURCES};

/// The counts. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Census(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    observed: BTreeMap<NumericIdentity, LabelSources>,
    by_source: [u64; SOURCES.len()],
    /// What this node gave or claimed and has not seen yet.
    given: BTreeMap<NumericIdentity, LabelSources>,
    allocation: Counts,
}

/// What a scrape shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Identities of the cluster.
    pub(crate) cluster: u64,
    /// By source, how many of them have a label of it.
    pub(crate) by_source: BTreeMap<&'static str, u64>,
    pub(crate) allocation: Counts,
}

/// Which sources labels are from: a bit for each of [`SOURCES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LabelSources(u16);

impl LabelSources {
    fn of(labels: &Labels) -> Self {
        let at = |source: &str| SOURCES.iter().position(|known| *known == source);
        Self(labels.iter().filter_map(|label| at(&label.source)).fold(0, |bits, at| bits | 1 << at))
    }

    fn count_into(self, counts: &mut [u64; SOURCES.len()], count: impl Fn(u64) -> u64) {
        let mut counts = counts.iter_mut().enumerate();
        counts.by_ref().filter(|(at, _)| self.0 & 1 << at != 0).for_each(|(_, n)| *n = count(*n));
    }
}

impl Census {
    /// Takes note of a change of a CiliumIdentity; other kinds are passed over. O(labels).
    pub(crate) fn observe(&self, event: &Event) {
        let (number, sources) = match event {
            Event::Apply(Object::CiliumIdentity(identity)) => {
                (identity.number, Some(LabelSources::of(&identity.labels)))
            }
            Event::Delete(key) if key.kind == ObjectKind::CiliumIdentity => {
                let Ok(number) = key.name.parse() else { return };
                (NumericIdentity::new(number), None)
            }
            Event::Apply(_) | Event::Delete(_) => return,
        };
        let state = &mut *self.lock();
        let before = match sources {
            Some(sources) => state.observed.insert(number, sources),
            None => state.observed.remove(&number),
        };
        before.unwrap_or_default().count_into(&mut state.by_source, |n| n.saturating_sub(1));
        sources.unwrap_or_default().count_into(&mut state.by_source, |n| n + 1);
    }

    /// Numbers that the node's pods have, and what allocation has done. O(numbers of this node).
    pub(super) fn set_node(
        &self,
        given: impl Iterator<Item = (NumericIdentity, Labels)>,
        allocation: Counts,
    ) {
        let given: BTreeMap<_, _> =
            given.map(|(number, labels)| (number, LabelSources::of(&labels))).collect();
        let state = &mut *self.lock();
        (state.given, state.allocation) = (given, allocation);
    }

    pub(crate) fn tally(&self) -> Tally {
        let state = &*self.lock();
        let unseen = || state.given.iter().filter(|(number, _)| !state.observed.contains_key(number));
        let mut by_source = state.by_source;
        unseen().for_each(|(_, sources)| sources.count_into(&mut by_source, |n| n + 1));
        Tally {
            cluster: (state.observed.len() + unseen().count()) as u64,
            by_source: SOURCES.into_iter().zip(by_source).filter(|(_, n)| *n > 0).collect(),
            allocation: state.allocation,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of it is one assignment, so nobody left it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portway_model::k8s::{Format, Names, ObjectKey, decode};
    use portway_model::labels::Label;

    use super::*;

    fn identity(number: u32, labels: &str) -> Event {
        let text = format!(
            r#"{{"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {{"name": "{number}"}},
                "security-labels": {labels}}}"#
        );
        let mut decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        Event::Apply(decoded.objects.remove(0))
    }

    fn gone(number: u32) -> Event {
        let (kind, name) = (ObjectKind::CiliumIdentity, Arc::from(number.to_string()));
        Event::Delete(ObjectKey { kind, name, uid: "".into() })
    }

    fn counts(census: &Census) -> (u64, Vec<(&'static str, u64)>) {
        let Tally { cluster, by_source, allocation: _ } = census.tally();
        (cluster, by_source.into_iter().collect())
    }

    #[test]
    fn identities_are_counted_as_they_come_change_and_go() {
        let census = Census::default();
        census.observe(&identity(300, r#"{"k8s:app": "a", "k8s:b": ""}"#));
        census.observe(&identity(301, r#"{"k8s:app": "b", "container:x": "y"}"#));
        assert_eq!(counts(&census), (2, vec![("container", 1), ("k8s", 2)]));
        census.observe(&identity(301, r#"{"k8s:app": "b"}"#));
        census.observe(&identity(301, r#"{"k8s:app": "b"}"#));
        assert_eq!(counts(&census), (2, vec![("k8s", 2)]));
        census.observe(&gone(300));
        census.observe(&gone(300));
        census.observe(&gone(999));
        assert_eq!(counts(&census), (1, vec![("k8s", 1)]));
    }

    #[test]
    fn a_number_that_this_node_gave_counts_once_whether_it_was_seen_or_not() {
        let census = Census::default();
        let labels = Labels::new([Label::new("k8s", "app", "a")]);
        let given = [(NumericIdentity::new(300), labels)];
        let allocation = Counts { allocated: 1, seconds: 0.5, retries: 2 };
        census.set_node(given.clone().into_iter(), allocation);
        assert_eq!(counts(&census), (1, vec![("k8s", 1)]));
        census.observe(&identity(300, r#"{"k8s:app": "a"}"#));
        assert_eq!(counts(&census), (1, vec![("k8s", 1)]));
        assert_eq!(census.tally().allocation, allocation);
        census.set_node(std::iter::empty(), allocation);
        census.observe(&gone(300));
        assert_eq!(counts(&census), (0, vec![]));
    }
}
