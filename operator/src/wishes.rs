//! Which label sets the pods of the cluster have now, and whose go first.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use portway_claims::SYSTEM_NAMESPACE;
use portway_model::labels::{LabelFilter, Labels, security_labels};

use crate::observed::{Namespace, Observed, Pod};

/// What makes label sets of pods; the same as the agents'.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Which labels make an identity.
    pub filter: LabelFilter,
    /// One of each identity's labels.
    pub cluster_name: String,
    /// The operator's own namespace.
    pub namespace: String,
}

/// Whose pods go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// What the cluster itself needs: `kube-system` and the operator's own namespace.
    System,
    /// Namespaces with the annotation that says so.
    Priority,
    Ordinary,
}

/// A label set that pods have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    pub urgency: Urgency,
    /// When the oldest of them was created, seconds since 1970.
    pub since: i64,
    pub pods: u32,
}

/// The label sets of all pods that have, or will have, an endpoint.
#[derive(Debug)]
pub struct Wishes {
    rules: Rules,
    /// The versions of pods and namespaces that this is made of.
    seen: Option<(u64, u64)>,
    /// By the UID.
    by_pod: HashMap<Arc<str>, Known>,
    by_labels: HashMap<Labels, Wish>,
}

/// A pod's labels and what they were made of.
#[derive(Debug)]
struct Known {
    pod: Arc<Pod>,
    namespace: Arc<Namespace>,
    labels: Labels,
}

impl Known {
    fn is_still(&self, pod: &Arc<Pod>, namespace: &Arc<Namespace>) -> bool {
        let is_same_pod = Arc::ptr_eq(&self.pod, pod)
            || self.pod.labels == pod.labels && self.pod.service_account == pod.service_account;
        is_same_pod && (Arc::ptr_eq(&self.namespace, namespace) || self.namespace.labels == namespace.labels)
    }
}

impl Wishes {
    pub fn new(rules: Rules) -> Self {
        Self { rules, seen: None, by_pod: HashMap::new(), by_labels: HashMap::new() }
    }

    /// What is not known yet of what is observed.
    pub fn is_behind(&self, observed: &Observed) -> bool {
        self.seen != Some((observed.pods.version(), observed.namespaces.version()))
    }

    /// Looks at pods and namespaces if they changed. A pod whose namespace nobody told of yet has no labels. O(pods), and
    /// O(labels × rules of the filter) for each that is new.
    pub fn update(&mut self, observed: &Observed) {
        if !self.is_behind(observed) {
            return;
        }
        self.seen = Some((observed.pods.version(), observed.namespaces.version()));
        let mut before = std::mem::take(&mut self.by_pod);
        let known_labels = std::mem::take(&mut self.by_labels);
        for pod in observed.pods.iter().filter(|pod| has_endpoint(pod)) {
            let Some(namespace) = observed.namespaces.get(&pod.meta.namespace) else { continue };
            let known = before.remove(&pod.meta.uid).filter(|known| known.is_still(pod, namespace));
            let labels = match known {
                Some(known) => known.labels,
                None => self.labels(pod, namespace),
            };
            // One copy, whoever has it.
            let held = self.by_labels.get_key_value(&labels).map(|(labels, _)| labels);
            let held = held.or_else(|| known_labels.get_key_value(&labels).map(|(labels, _)| labels));
            let labels = held.cloned().unwrap_or(labels);
            let wish = self.by_labels.entry(labels.clone()).or_insert_with(|| Wish {
                urgency: self.rules.urgency(namespace),
                since: pod.meta.created,
                pods: 0,
            });
            wish.pods += 1;
            wish.since = wish.since.min(pod.meta.created);
            let known = Known { pod: Arc::clone(pod), namespace: Arc::clone(namespace), labels };
            self.by_pod.insert(Arc::clone(&pod.meta.uid), known);
        }
    }

    pub fn get(&self, labels: &Labels) -> Option<&Wish> {
        self.by_labels.get(labels)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Labels, &Wish)> {
        self.by_labels.iter()
    }

    pub fn len(&self) -> usize {
        self.by_labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_labels.is_empty()
    }

    fn labels(&self, pod: &Pod, namespace: &Namespace) -> Labels {
        let Rules { filter, cluster_name, .. } = &self.rules;
        let Pod { labels, service_account, .. } = pod;
        security_labels(
            filter,
            labels,
            &namespace.meta.name,
            &namespace.labels,
            service_account,
            cluster_name,
        )
    }
}

impl Rules {
    fn urgency(&self, namespace: &Namespace) -> Urgency {
        match &*namespace.meta.name {
            SYSTEM_NAMESPACE => Urgency::System,
            name if *name == *self.namespace => Urgency::System,
            _ if namespace.has_priority => Urgency::Priority,
            _ => Urgency::Ordinary,
        }
    }
}

/// One in the host's network is the host, and one that is over has none any more.
fn has_endpoint(pod: &Pod) -> bool {
    !pod.is_host_network && !pod.phase.is_over()
}
