use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::Arc;

use portway_model::labels::Labels;

/// So many keys are looked at closely.
const SUSPECTS: usize = 5;

/// What makes identities many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cardinality {
    /// Those with most values, the one first without which there would be the fewest identities.
    pub keys: Vec<Key>,
    /// How many identities each namespace has, the largest first.
    pub namespaces: Vec<(Arc<str>, usize)>,
}

/// A label key of identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// `source:key`.
    pub label: String,
    /// How many different ones it has.
    pub values: usize,
    /// How many label sets there would be if it did not count.
    pub without: usize,
}

impl Cardinality {
    /// Of the label sets of identities. O(labels).
    pub fn of<'l>(sets: impl Iterator<Item = &'l Labels> + Clone) -> Self {
        let mut values: HashMap<(&str, &str), HashSet<&str>> = HashMap::new();
        let mut namespaces: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for labels in sets.clone() {
            for label in labels {
                values.entry((&label.source, &label.key)).or_default().insert(&label.value);
            }
            if let Some(namespace) = labels.namespace() {
                *namespaces.entry(namespace).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = values.into_iter().map(|(key, values)| (values.len(), key)).collect();
        counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        // One that has the same value everywhere makes nothing.
        let suspects = counts.into_iter().filter(|(count, _)| *count > 1).take(SUSPECTS);
        let hasher = RandomState::new();
        let mut keys: Vec<_> = suspects
            .map(|(count, (source, key))| {
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
                Key { label: format!("{source}:{key}"), values: count, without: without.len() }
            })
            .collect();
        keys.sort_by(|a, b| (a.without, &a.label).cmp(&(b.without, &b.label)));
        let mut namespaces: Vec<_> =
            namespaces.into_iter().map(|(namespace, count)| (Arc::clone(namespace), count)).collect();
        namespaces.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        Self { keys, namespaces }
    }
}
