use std::collections::{BTreeMap, BTreeSet, HashMap};

use portway_datapath::NumericIdentity;

use super::home::{home_of, numbers_from};
use crate::labels::Labels;

/// A cluster's numbers, given by this node without asking anybody: where no API server is configured. A number is given
/// again only after all who held it have let it go.
#[derive(Clone, Debug)]
pub struct Numbering {
    cluster_id: u16,
    by_labels: HashMap<Labels, Given>,
    by_number: BTreeMap<NumericIdentity, Labels>,
    /// Of somebody else.
    foreign: BTreeSet<NumericIdentity>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    number: NumericIdentity,
    holders: u32,
}

impl Numbering {
    /// A label set's number is the home of the labels, or the next that is free.
    pub fn of_cluster(cluster_id: u16) -> Self {
        Self { cluster_id, by_labels: HashMap::new(), by_number: BTreeMap::new(), foreign: BTreeSet::new() }
    }

    /// One more holder of the label set's number. `before` is the number that it had before a restart, which it keeps where
    /// nobody else has it. `None`: no number is free.
    pub fn hold(&mut self, labels: &Labels, before: Option<NumericIdentity>) -> Option<NumericIdentity> {
        if let Some(given) = self.by_labels.get_mut(labels) {
            given.holders += 1;
            return Some(given.number);
        }
        let kept = before.filter(|number| self.is_in_range(*number) && self.is_free(*number));
        let number = match kept {
            Some(number) => number,
            None => self.free_number(labels)?,
        };
        self.by_labels.insert(labels.clone(), Given { number, holders: 1 });
        self.by_number.insert(number, labels.clone());
        Some(number)
    }

    /// One holder less; true if it was the last.
    pub fn release(&mut self, labels: &Labels) -> bool {
        let Some(given) = self.by_labels.get_mut(labels) else { return false };
        given.holders = given.holders.saturating_sub(1);
        if given.holders > 0 {
            return false;
        }
        self.by_number.remove(&given.number);
        self.by_labels.remove(labels).is_some()
    }

    /// Gives the label set another number, for somebody else has its own. `None`: it has none, or no other is free, and it
    /// keeps it.
    pub fn renumber(&mut self, labels: &Labels) -> Option<NumericIdentity> {
        let before = self.get(labels)?;
        let number = self.free_number(labels)?;
        self.by_number.remove(&before);
        self.by_number.insert(number, labels.clone());
        if let Some(given) = self.by_labels.get_mut(labels) {
            given.number = number;
        }
        Some(number)
    }

    /// Somebody else has, or has no longer, a number: it is not given meanwhile. What was given before stays.
    pub fn set_foreign(&mut self, number: NumericIdentity, is_foreign: bool) {
        if is_foreign {
            self.foreign.insert(number);
        } else {
            self.foreign.remove(&number);
        }
    }

    pub fn get(&self, labels: &Labels) -> Option<NumericIdentity> {
        self.by_labels.get(labels).map(|given| given.number)
    }

    pub fn labels_of(&self, number: NumericIdentity) -> Option<&Labels> {
        self.by_number.get(&number)
    }

    /// By number.
    pub fn iter(&self) -> impl Iterator<Item = (NumericIdentity, &Labels)> {
        self.by_number.iter().map(|(number, labels)| (*number, labels))
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    fn is_free(&self, number: NumericIdentity) -> bool {
        !self.by_number.contains_key(&number) && !self.foreign.contains(&number)
    }

    fn is_in_range(&self, number: NumericIdentity) -> bool {
        let (first, last) = NumericIdentity::of_cluster(self.cluster_id);
        (first..=last).contains(&number)
    }

    fn free_number(&self, labels: &Labels) -> Option<NumericIdentity> {
        numbers_from(home_of(labels, self.cluster_id)).find(|number| self.is_free(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Label;

    fn labels(app: &str) -> Labels {
        Labels::new([Label::new("k8s", "app", app)])
    }

    #[test]
    fn a_label_set_has_one_number_until_its_last_holder_goes() {
        let mut numbers = Numbering::of_cluster(0);
        let web = numbers.hold(&labels("web"), None).unwrap();
        assert_eq!(numbers.hold(&labels("web"), None), Some(web));
        assert!(!numbers.release(&labels("web")));
        assert_eq!(numbers.get(&labels("web")), Some(web));
        assert!(numbers.release(&labels("web")));
        assert_eq!((numbers.get(&labels("web")), numbers.labels_of(web)), (None, None));
    }

    #[test]
    fn numbers_stay_over_a_restart() {
        let mut numbers = Numbering::of_cluster(0);
        let before = NumericIdentity::new(4711);
        assert_eq!(numbers.hold(&labels("web"), Some(before)), Some(before));
        assert_ne!(numbers.hold(&labels("db"), Some(before)), Some(before), "it is given");
        let of_others = NumericIdentity::new(NumericIdentity::LOCAL_FIRST);
        assert_ne!(numbers.hold(&labels("dns"), Some(of_others)), Some(of_others), "of another scope");
    }

    #[test]
    fn without_an_api_server_the_home_is_taken_and_what_others_have_is_stepped_over() {
        let mut numbers = Numbering::of_cluster(2);
        let home = home_of(&labels("web"), 2);
        numbers.set_foreign(home, true);
        let given = numbers.hold(&labels("web"), None);
        assert_eq!(given, numbers_from(home).nth(1));
        numbers.set_foreign(home, false);
        assert_eq!(numbers.hold(&labels("web"), None), given, "it stays");
        numbers.release(&labels("web"));
        numbers.release(&labels("web"));
        assert_eq!(numbers.hold(&labels("web"), None), Some(home));
    }

    #[test]
    fn a_number_that_somebody_else_has_too_is_given_up_for_another() {
        let mut numbers = Numbering::of_cluster(0);
        let home = home_of(&labels("web"), 0);
        numbers.hold(&labels("web"), None);
        numbers.hold(&labels("web"), None);
        numbers.set_foreign(home, true);
        let next = numbers_from(home).nth(1);
        assert_eq!(numbers.renumber(&labels("web")), next);
        assert_eq!((numbers.get(&labels("web")), numbers.labels_of(home)), (next, None));
        assert!(!numbers.release(&labels("web")), "its holders stay");
    }

    #[test]
    fn when_all_numbers_are_given_there_is_none() {
        let mut numbers = Numbering::of_cluster(0);
        numbers_from(NumericIdentity::new(256)).for_each(|number| numbers.set_foreign(number, true));
        assert_eq!(numbers.hold(&labels("web"), None), None);
        numbers.set_foreign(NumericIdentity::new(4711), false);
        assert_eq!(numbers.hold(&labels("web"), None).map(NumericIdentity::get), Some(4711));
    }
}
