//! Labels of identities: what a policy selects by, and what two pods must share to be the same to it.
//!
//! A pod's are its own labels, its namespace, the namespace's labels, its service account and the cluster's name, each
//! from the source `k8s`, as far as a [`LabelFilter`] lets them through. Names, filter and forms are Cilium's
//! (reference/identity-and-operator.md 3.2), so that both give a pod the same labels.

mod filter;

use std::fmt;
use std::sync::Arc;

use portway_datapath::NumericIdentity;

pub use filter::{LabelFilter, LabelFilterError};

/// Where labels of objects of the API server are from.
pub const SOURCE_K8S: &str = "k8s";
/// Of what is no pod: host, world and the like.
pub const SOURCE_RESERVED: &str = "reserved";
/// Of prefixes of addresses outside the cluster.
pub const SOURCE_CIDR: &str = "cidr";
/// Of a label that was written without a source.
pub const SOURCE_UNSPECIFIED: &str = "unspec";
/// Stands for every source, in a filter or a selector.
pub const SOURCE_ANY: &str = "any";

/// Every source.
pub const SOURCES: [&str; 10] = [
    SOURCE_ANY,
    SOURCE_CIDR,
    "cidrgroup",
    "cni",
    "container",
    "fqdn",
    SOURCE_K8S,
    "node",
    SOURCE_RESERVED,
    SOURCE_UNSPECIFIED,
];

/// The label that says a pod's namespace.
pub const NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Labels of the namespace have this and a point before their key.
pub const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels";
/// The label that says a pod's service account.
pub const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";
/// The label that says which cluster a pod is of.
pub const CLUSTER: &str = "io.cilium.k8s.policy.cluster";
/// What begins so is for the agents to say: a pod that says it itself is not heard.
const AGENTS_OWN: &str = "io.cilium.k8s";

/// Keys and values as an object has them, in the order of the keys.
pub type ObjectLabels = [(Arc<str>, Arc<str>)];

/// One label. Ordered by source, key and value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    pub source: Arc<str>,
    pub key: Arc<str>,
    /// "" for a label without one.
    pub value: Arc<str>,
}

impl Label {
    pub fn new(source: impl Into<Arc<str>>, key: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        Self { source: source.into(), key: key.into(), value: value.into() }
    }

    /// From an entry of a CiliumIdentity's `security-labels`: the key is `source:key`.
    pub fn from_entry(entry: &str, value: &str) -> Self {
        let (source, key) = split_source(entry);
        Self::new(source, key, value)
    }

    /// From `source:key=value`, `source:key`, `key=value` or `key`; without a source it is [`SOURCE_UNSPECIFIED`]. `None`
    /// if there is no key.
    pub fn parse(text: &str) -> Option<Self> {
        let (entry, value) = text.split_once('=').unwrap_or((text, ""));
        let label = Self::from_entry(entry, value);
        (!label.key.is_empty()).then_some(label)
    }

    /// `source:key`, as in `security-labels`.
    pub fn entry(&self) -> String {
        format!("{}:{}", self.source, self.key)
    }

    /// Whether a label that somebody asks for means this one: [`SOURCE_ANY`] and [`SOURCE_UNSPECIFIED`] are every source.
    pub fn answers(&self, asked: &Self) -> bool {
        let any = matches!(&*asked.source, SOURCE_ANY | SOURCE_UNSPECIFIED);
        (any || asked.source == self.source) && asked.key == self.key && asked.value == self.value
    }
}

/// What is before the first colon, and the rest.
fn split_source(entry: &str) -> (&str, &str) {
    match entry.split_once(':') {
        Some((source, key)) if !source.is_empty() => (source, key),
        Some((_, key)) => (SOURCE_UNSPECIFIED, key),
        None => (SOURCE_UNSPECIFIED, entry),
    }
}

/// `k8s:app=x`; `reserved:host` where the value is empty.
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, key, value } = self;
        write!(f, "{source}:{key}")?;
        if value.is_empty() { Ok(()) } else { write!(f, "={value}") }
    }
}

/// The labels of an identity: sorted, one of each source and key. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<[Label]>);

impl Labels {
    /// Of labels with the same source and key the last one counts.
    pub fn new(labels: impl IntoIterator<Item = Label>) -> Self {
        let mut labels: Vec<_> = labels.into_iter().collect();
        labels.sort_by(|a, b| (&a.source, &a.key).cmp(&(&b.source, &b.key)));
        // The sort is stable, so the last one is the last of its equals, and the first for `dedup_by` in reverse.
        labels.reverse();
        labels.dedup_by(|a, b| a.source == b.source && a.key == b.key);
        labels.reverse();
        Self(labels.into())
    }

    /// Those of a reserved number; `None` for other numbers.
    pub fn of_reserved(identity: NumericIdentity) -> Option<Self> {
        let name = identity.reserved_name()?;
        let mut labels = vec![Label::new(SOURCE_RESERVED, name, "")];
        if identity == NumericIdentity::KUBE_APISERVER {
            labels.extend(
                NumericIdentity::REMOTE_NODE.reserved_name().map(|n| Label::new(SOURCE_RESERVED, n, "")),
            );
        }
        Some(Self::new(labels))
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of the label, if there is one.
    pub fn get(&self, source: &str, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|label| (&*label.source, &*label.key).cmp(&(source, key))).ok()?;
        self.0.get(at).map(|label| &label.value)
    }

    /// Whether every label that is asked for is here.
    pub fn answer(&self, asked: &[Label]) -> bool {
        asked.iter().all(|asked| self.iter().any(|label| label.answers(asked)))
    }

    /// The pod's namespace, where they are of a pod.
    pub fn namespace(&self) -> Option<&Arc<str>> {
        self.get(SOURCE_K8S, NAMESPACE)
    }
}

impl<'l> IntoIterator for &'l Labels {
    type Item = &'l Label;
    type IntoIter = std::slice::Iter<'l, Label>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<T: IntoIterator<Item = Label>>(labels: T) -> Self {
        Self::new(labels)
    }
}

/// The labels with commas between them, sorted.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, label) in self.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            write!(f, "{label}")?;
        }
        Ok(())
    }
}

/// The labels of a pod's identity. `service_account` may be "": a pod that has none. What a pod says in the agents' own
/// names is not heard, nor that it were of another namespace.
///
/// O(labels × rules of the filter).
pub fn security_labels(
    filter: &LabelFilter,
    pod_labels: &ObjectLabels,
    namespace: &str,
    namespace_labels: &ObjectLabels,
    service_account: &str,
    cluster_name: &str,
) -> Labels {
    let source: Arc<str> = Arc::from(SOURCE_K8S);
    let label = |key: Arc<str>, value: Arc<str>| Label { source: Arc::clone(&source), key, value };
    let said = pod_labels.iter().filter(|(key, _)| !key.starts_with(AGENTS_OWN));
    let said = said.map(|(key, value)| label(Arc::clone(key), Arc::clone(value)));
    let of_namespace = namespace_labels
        .iter()
        .map(|(key, value)| label(Arc::from(format!("{NAMESPACE_LABELS}.{key}")), Arc::clone(value)));
    let own = [(NAMESPACE, namespace), (SERVICE_ACCOUNT, service_account), (CLUSTER, cluster_name)];
    let own = own.into_iter().filter(|(key, value)| *key != SERVICE_ACCOUNT || !value.is_empty());
    let own = own.map(|(key, value)| label(Arc::from(key), Arc::from(value)));
    let all = said.chain(of_namespace).chain(own);
    all.filter(|label| filter.lets_through(&label.source, &label.key)).collect()
}

#[cfg(test)]
mod tests;
