use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use portway_datapath::NumericIdentity;

use super::seen::{Seen, Standing, Version};
use crate::k8s::CiliumIdentity;
use crate::labels::Labels;

/// The CiliumIdentities of a cluster, as a watch or a directory shows them.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    by_number: BTreeMap<NumericIdentity, Arc<CiliumIdentity>>,
    by_labels: HashMap<Labels, BTreeSet<NumericIdentity>>,
}

impl Identities {
    /// Takes an identity as it is. Gives the label sets of which something changed: its own, and what the number meant before.
    pub fn apply(&mut self, identity: Arc<CiliumIdentity>) -> Vec<Labels> {
        let mut changed = vec![identity.labels.clone()];
        let (number, labels) = (identity.number, identity.labels.clone());
        if let Some(before) = self.by_number.insert(number, identity)
            && before.labels != labels
        {
            self.unlink(&before.labels, number);
            changed.push(before.labels.clone());
        }
        self.by_labels.entry(labels).or_default().insert(number);
        changed
    }

    /// An identity is gone. Gives its label set.
    pub fn remove(&mut self, number: NumericIdentity) -> Option<Labels> {
        let identity = self.by_number.remove(&number)?;
        self.unlink(&identity.labels, number);
        Some(identity.labels.clone())
    }

    pub fn get(&self, number: NumericIdentity) -> Option<&Arc<CiliumIdentity>> {
        self.by_number.get(&number)
    }

    pub fn is_taken(&self, number: NumericIdentity) -> bool {
        self.by_number.contains_key(&number)
    }

    /// Those of a label set, the one that counts first.
    pub fn seen(&self, labels: &Labels) -> Vec<Seen> {
        let numbers = self.by_labels.get(labels).into_iter().flatten();
        let mut seen: Vec<_> =
            numbers.filter_map(|number| self.by_number.get(number)).map(|identity| seen(identity)).collect();
        seen.sort_by_key(Seen::rank);
        seen
    }

    /// The number that counts of a label set, if one is confirmed.
    pub fn number_of(&self, labels: &Labels) -> Option<NumericIdentity> {
        let best = self.seen(labels).into_iter().next()?;
        (best.standing == Standing::Confirmed).then_some(best.number)
    }

    /// By number.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CiliumIdentity>> {
        self.by_number.values()
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Label sets with several confirmed numbers, which somebody else made; by labels, the number that counts first.
    pub fn duplicates(&self) -> BTreeMap<&Labels, Vec<NumericIdentity>> {
        let several = self.by_labels.iter().filter(|(_, numbers)| numbers.len() > 1);
        let confirmed = several.map(|(labels, _)| {
            let seen = self.seen(labels).into_iter();
            let confirmed = seen.filter(|seen| seen.standing == Standing::Confirmed);
            (labels, confirmed.map(|seen| seen.number).collect::<Vec<_>>())
        });
        confirmed.filter(|(_, numbers)| numbers.len() > 1).collect()
    }

    fn unlink(&mut self, labels: &Labels, number: NumericIdentity) {
        if let Some(numbers) = self.by_labels.get_mut(labels) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_labels.remove(labels);
            }
        }
    }
}

/// What the protocol needs to know of an identity.
pub(super) fn seen(identity: &CiliumIdentity) -> Seen {
    Seen {
        number: identity.number,
        version: version_of(identity),
        standing: Standing::read(identity.claim.as_deref()),
        is_marked: identity.heartbeat.is_some(),
        created: identity.created.unwrap_or(0),
    }
}

impl From<&CiliumIdentity> for Seen {
    fn from(identity: &CiliumIdentity) -> Self {
        seen(identity)
    }
}

pub(super) fn version_of(identity: &CiliumIdentity) -> Version {
    Version { uid: identity.uid, resource_version: identity.version }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::Uid;
    use crate::labels::Label;

    fn labels(app: &str) -> Labels {
        Labels::new([Label::new("k8s", "app", app)])
    }

    fn identity(number: u32, app: &str, created: i64) -> CiliumIdentity {
        CiliumIdentity {
            name: Arc::from(number.to_string()),
            number: NumericIdentity::new(number),
            uid: Uid::NONE,
            version: 1,
            created: Some(created),
            labels: labels(app),
            heartbeat: None,
            claim: None,
        }
    }

    fn numbers(seen: &[Seen]) -> Vec<u32> {
        seen.iter().map(|seen| seen.number.get()).collect()
    }

    #[test]
    fn the_oldest_confirmed_identity_of_a_label_set_counts() {
        let mut identities = Identities::default();
        identities.apply(identity(300, "web", 5).into());
        identities.apply(identity(400, "web", 4).into());
        identities.apply(CiliumIdentity { claim: Some("new".into()), ..identity(256, "web", 1) }.into());
        assert_eq!(numbers(&identities.seen(&labels("web"))), [400, 300, 256]);
        assert_eq!(identities.number_of(&labels("web")).map(NumericIdentity::get), Some(400));
        let duplicates = identities.duplicates();
        assert_eq!(duplicates.values().flatten().map(|n| n.get()).collect::<Vec<_>>(), [400, 300]);
        identities.remove(NumericIdentity::new(400));
        identities.remove(NumericIdentity::new(300));
        assert_eq!(identities.number_of(&labels("web")), None, "a tentative one is not used");
        assert!(identities.duplicates().is_empty());
    }

    #[test]
    fn a_number_that_means_other_labels_is_news_for_both_label_sets() {
        let mut identities = Identities::default();
        assert_eq!(identities.apply(identity(300, "web", 5).into()), [labels("web")]);
        assert_eq!(identities.apply(identity(300, "db", 6).into()), [labels("db"), labels("web")]);
        assert!(identities.seen(&labels("web")).is_empty());
        assert_eq!(identities.remove(NumericIdentity::new(300)), Some(labels("db")));
        assert!(identities.is_empty() && identities.by_labels.is_empty());
    }
}
