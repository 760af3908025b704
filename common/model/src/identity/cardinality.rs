//! Which labels make identities many, and whose they are.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::Arc;

use crate::labels::Labels;

/// What makes identities many.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cardinality {
    /// The one first without which there would be the fewest identities.
    pub keys: Vec<Key>,
    /// How many identities each namespace has, the largest first.
    pub namespaces: Vec<(Arc<str>, usize)>,
}

/// A label key of identities.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Key {
    /// `source:key`.
    pub label: String,
    /// How many different values it has.
    pub values: usize,
    /// How many label sets have it.
    pub identities: usize,
    /// How many label sets there would be if it did not count.
    pub without: usize,
}

impl Cardinality {
    /// Of the label sets of identities; of keys, so many with the most values. O(labels × keys).
    pub fn of<'l>(sets: impl Iterator<Item = &'l Labels> + Clone, keys: usize) -> Self {
        let mut values: HashMap<(&str, &str), (usize, HashSet<&str>)> = HashMap::new();
        let mut namespaces: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for labels in sets.clone() {
            for label in labels {
                let (identities, values) = values.entry((&label.source, &label.key)).or_default();
                *identities += 1;
                values.insert(&label.value);
            }
            if let Some(namespace) = labels.namespace() {
                *namespaces.entry(namespace).or_default() += 1;
            }
        }
        let mut counts: Vec<_> =
            values.into_iter().map(|(key, (identities, values))| (values.len(), key, identities)).collect();
        counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let hasher = RandomState::new();
        let mut keys: Vec<_> = counts
            .into_iter()
            .take(keys)
            .map(|(values, (source, key), identities)| {
                let without: HashSet<u64> = sets
                    .clone()
                    .map(|labels| {
                        let mut state = hasher.build_hasher();
                        for label in
                            labels.iter().filter(|label| (&*label.source, &*label.key) != (source, key))
                        {
                            label.hash(&mut state);
                        }
                        state.finish()
                    })
                    .collect();
                Key { label: format!("{source}:{key}"), values, identities, without: without.len() }
            })
            .collect();
        keys.sort_by(|a, b| (a.without, &a.label).cmp(&(b.without, &b.label)));
        let mut namespaces: Vec<_> =
            namespaces.into_iter().map(|(namespace, count)| (Arc::clone(namespace), count)).collect();
        namespaces.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        Self { keys, namespaces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Label;

    fn labels(namespace: &str, app: &str, job: Option<usize>) -> Labels {
        let of_job = job.map(|job| Label::new("k8s", "job-id", job.to_string()));
        let own = [
            Label::new("k8s", "app", app),
            Label::new("k8s", "io.kubernetes.pod.namespace", namespace),
            Label::new("k8s", "io.cilium.k8s.policy.cluster", "default"),
        ];
        own.into_iter().chain(of_job).collect()
    }

    #[test]
    fn the_label_that_makes_identities_many_is_the_one_without_which_they_are_few() {
        let jobs = (0..90).map(|n| labels("batch", ["a", "b"][n % 2], Some(n)));
        let apps = (0..10).map(|n| labels("shop", &format!("app-{n}"), None));
        let sets: Vec<_> = jobs.chain(apps).collect();
        let cardinality = Cardinality::of(sets.iter(), 2);
        let key = |label: &str, values, identities, without| Key {
            label: label.to_owned(),
            values,
            identities,
            without,
        };
        let keys = [key("k8s:job-id", 90, 90, 12), key("k8s:app", 12, 100, 91)];
        assert_eq!(cardinality.keys, keys);
        assert_eq!(cardinality.namespaces, [("batch".into(), 90), ("shop".into(), 10)]);
    }
}
