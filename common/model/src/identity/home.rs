//! Home numbers: where a label set's number is looked for first, the same in every agent and in the operator.

use portway_datapath::NumericIdentity;

use crate::labels::Labels;

/// The numbers that a cluster gives to labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberRange {
    first: u32,
    /// At least one.
    count: u32,
}

impl NumberRange {
    /// All that there are: 65,280.
    pub const fn of_cluster(cluster_id: u16) -> Self {
        let (first, last) = NumericIdentity::of_cluster(cluster_id);
        Self { first: first.get(), count: last.get() - first.get() + 1 }
    }

    /// A part of them, by the low 16 bits: a cluster that is soon full, for tests. `None` where that is no part.
    pub const fn narrowed(cluster_id: u16, first: u32, last: u32) -> Option<Self> {
        let (all, _) = NumericIdentity::of_cluster(cluster_id);
        let is_part =
            NumericIdentity::CLUSTER_FIRST <= first && first <= last && last <= NumericIdentity::CLUSTER_LAST;
        if !is_part {
            return None;
        }
        Some(Self { first: all.get() - NumericIdentity::CLUSTER_FIRST + first, count: last - first + 1 })
    }

    /// How many there are.
    pub const fn count(self) -> u32 {
        self.count
    }

    pub const fn first(self) -> NumericIdentity {
        NumericIdentity::new(self.first)
    }

    pub const fn contains(self, number: NumericIdentity) -> bool {
        number.get() >= self.first && number.get() - self.first < self.count
    }

    /// The home of a label set. The outcome must never change: agents of two versions would look in two places.
    pub fn home_of(self, labels: &Labels) -> NumericIdentity {
        let place = hash(labels) % u64::from(self.count);
        NumericIdentity::new(self.first + u32::try_from(place).unwrap_or(0))
    }

    /// All numbers, the home first and then upwards; after the last comes the first.
    pub fn numbers_from(self, home: NumericIdentity) -> impl Iterator<Item = NumericIdentity> {
        let place = home.get().saturating_sub(self.first);
        (0..self.count).map(move |step| NumericIdentity::new(self.first + (place + step) % self.count))
    }
}

/// The home of a label set among all numbers of a cluster.
pub fn home_of(labels: &Labels, cluster_id: u16) -> NumericIdentity {
    NumberRange::of_cluster(cluster_id).home_of(labels)
}

/// All numbers of the home's cluster, the home first and then upwards; after the last comes the first.
pub fn numbers_from(home: NumericIdentity) -> impl Iterator<Item = NumericIdentity> {
    NumberRange::of_cluster((home.get() >> 16) as u16).numbers_from(home)
}

/// FNV-1a of 64 bits (draft-eastlake-fnv) over source, key and value of each label in their order, a zero byte after each,
/// and the mixing of MurmurHash3's end: the remainder of a division depends on all bits then.
fn hash(labels: &Labels) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for label in labels {
        let parts = [&label.source, &label.key, &label.value];
        for byte in parts.into_iter().flat_map(|part| part.bytes().chain([0])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::labels::Label;

    fn labels(labels: &[(&str, &str)]) -> Labels {
        labels.iter().map(|(key, value)| Label::new("k8s", *key, *value)).collect()
    }

    /// Worked out by a program of another language.
    #[test]
    fn a_home_never_changes() {
        let web = [("io.kubernetes.pod.namespace", "default"), ("app", "web")];
        let home = |of: &[(&str, &str)], cluster| home_of(&labels(of), cluster).get();
        assert_eq!(home(&[], 0), 48_678);
        assert_eq!(home(&web, 0), 64_162);
        assert_eq!(home(&web, 3), 260_770);
        assert_eq!(home(&[("app", "webio.kubernetes.pod.namespace"), ("default", "")], 0), 12_182);
    }

    #[test]
    fn all_numbers_of_the_cluster_follow_the_home_once() {
        let home = NumericIdentity::new((7 << 16) | 65_534);
        let numbers: Vec<u32> = numbers_from(home).map(NumericIdentity::get).collect();
        let low = |number: &u32| number & 0xffff;
        assert_eq!(numbers[..4].iter().map(low).collect::<Vec<_>>(), [65_534, 65_535, 256, 257]);
        assert!(numbers.iter().all(|number| number >> 16 == 7 && low(number) >= 256));
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 65_280);
    }

    #[test]
    fn a_narrowed_range_has_its_own_homes_and_no_others() {
        assert_eq!(NumberRange::narrowed(0, 255, 300), None);
        assert_eq!(NumberRange::narrowed(0, 301, 300), None);
        assert_eq!(NumberRange::narrowed(0, 65_535, 65_536), None);
        assert_eq!(NumberRange::narrowed(7, 256, 65_535), Some(NumberRange::of_cluster(7)));
        let range = NumberRange::narrowed(1, 256, 1279).unwrap();
        assert_eq!((range.count(), range.first().get()), (1024, 65_792));
        let home = range.home_of(&labels(&[("app", "web")]));
        let numbers: BTreeSet<_> = range.numbers_from(home).collect();
        assert_eq!((numbers.len(), range.numbers_from(home).next()), (1024, Some(home)));
        assert!(numbers.iter().all(|number| range.contains(*number)));
        assert!(
            !range.contains(NumericIdentity::new(65_791)) && !range.contains(NumericIdentity::new(66_816))
        );
    }

    #[test]
    fn homes_are_spread_evenly() {
        let homes: BTreeSet<_> =
            (0..10_000).map(|n| home_of(&labels(&[("app", &format!("web-{n}"))]), 0)).collect();
        // With even chances 10,000 of 65,280 places fall on 9,274 different ones.
        assert!((9_174..9_374).contains(&homes.len()), "{}", homes.len());
    }
}
