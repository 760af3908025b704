//! Identities that only this node knows: of prefixes outside the cluster.

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{Addr, Family, NumericIdentity};

use super::prefixes::Key;
use crate::labels::{Label, Labels, SOURCE_CIDR, SOURCE_RESERVED};
use crate::node::Prefix;

/// How far from its home a number may be that an earlier agent gave the same labels. Two homes are hardly ever this near.
const NEAR: u32 = 16;

/// Which number is given to which prefix.
///
/// A number begins at the home of its labels and steps over those that are taken, so that each start of an agent finds the
/// same; where it had stepped the kernel's table tells what it was. A number is never given to other labels while the agent
/// runs: whoever saw it may still act by it.
#[derive(Clone, Debug, Default)]
pub struct LocalIdentities {
    given: BTreeMap<Key, (NumericIdentity, Labels)>,
    taken: BTreeSet<NumericIdentity>,
    /// What an earlier agent gave, by prefix.
    restored: BTreeMap<Key, NumericIdentity>,
}

impl LocalIdentities {
    /// What an earlier agent wrote of a prefix. Other identities than local ones say nothing here.
    pub fn restore(&mut self, key: Key, identity: NumericIdentity) {
        if is_local(identity) {
            self.restored.insert(key, identity);
        }
    }

    /// The number of a prefix with these labels: the same whenever it is asked for. `None` when all are in use.
    pub fn give(&mut self, key: Key, labels: &Labels) -> Option<NumericIdentity> {
        if let Some((number, held)) = self.given.get(&key)
            && held == labels
        {
            return Some(*number);
        }
        let number = self.choose(key, home(labels))?;
        self.taken.insert(number);
        self.given.insert(key, (number, labels.clone()));
        Some(number)
    }

    /// Every number that was given, with its labels.
    pub fn iter(&self) -> impl Iterator<Item = (NumericIdentity, &Labels)> {
        self.given.values().map(|(number, labels)| (*number, labels))
    }

    fn choose(&self, key: Key, home: u32) -> Option<NumericIdentity> {
        let count = NumericIdentity::LOCAL_LAST - NumericIdentity::LOCAL_FIRST + 1;
        let from_home = |number: NumericIdentity| (number.get() + count - home) % count;
        let is_free = |number: &NumericIdentity| !self.taken.contains(number);
        let restored = self.restored.get(&key).filter(|number| from_home(**number) < NEAR && is_free(number));
        if let Some(number) = restored {
            return Some(*number);
        }
        let number = |step| {
            NumericIdentity::new(
                NumericIdentity::LOCAL_FIRST + (home - NumericIdentity::LOCAL_FIRST + step) % count,
            )
        };
        let is_another = |number: &NumericIdentity| self.restored.values().any(|restored| restored == number);
        (0..count).map(number).filter(is_free).find(|number| !is_another(number))
    }
}

/// The labels of an API server outside the cluster.
pub fn api_server_labels(addr: Addr, dual_stack: bool) -> Labels {
    let world = match (dual_stack, addr.family()) {
        (false, _) => NumericIdentity::WORLD,
        (true, Family::V4) => NumericIdentity::WORLD_IPV4,
        (true, Family::V6) => NumericIdentity::WORLD_IPV6,
    };
    let reserved =
        [NumericIdentity::KUBE_APISERVER, world].into_iter().filter_map(NumericIdentity::reserved_name);
    let reserved = reserved.map(|name| Label::new(SOURCE_RESERVED, name, ""));
    reserved.chain([cidr_label(Prefix::host(addr))]).collect()
}

/// `cidr:10.0.0.0/8`; of IPv6 with hyphens for colons, which end a label's source, and a zero at an end that would be one
/// of them.
pub fn cidr_label(prefix: Prefix) -> Label {
    let text = prefix.to_string().replace(':', "-");
    let text = if text.starts_with('-') { format!("0{text}") } else { text };
    let text = text.replace("-/", "-0/");
    Label::new(SOURCE_CIDR, text, "")
}

fn is_local(identity: NumericIdentity) -> bool {
    (NumericIdentity::LOCAL_FIRST..=NumericIdentity::LOCAL_LAST).contains(&identity.get())
}

/// FNV-1a of 64 bits (draft-eastlake-fnv) of the sorted labels, into the range of local numbers.
fn home(labels: &Labels) -> u32 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let count = u64::from(NumericIdentity::LOCAL_LAST - NumericIdentity::LOCAL_FIRST) + 1;
    let text = labels.to_string();
    let hash = text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    // Less than 2^24.
    NumericIdentity::LOCAL_FIRST + (hash % count) as u32
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn key(text: &str) -> Key {
        let prefix = Prefix::parse(text).unwrap();
        (prefix.addr(), prefix.bits())
    }

    fn labels(text: &str) -> Labels {
        Labels::new([cidr_label(Prefix::parse(text).unwrap())])
    }

    #[test]
    fn the_labels_of_an_api_server_outside_say_what_it_is_and_where() {
        let labels = |text: &str, dual| {
            api_server_labels(Addr::from(text.parse::<IpAddr>().unwrap()), dual).to_string()
        };
        assert_eq!(labels("192.0.2.7", false), "cidr:192.0.2.7/32,reserved:kube-apiserver,reserved:world");
        assert_eq!(
            labels("192.0.2.7", true),
            "cidr:192.0.2.7/32,reserved:kube-apiserver,reserved:world-ipv4"
        );
        assert_eq!(
            labels("2001:db8::", true),
            "cidr:2001-db8--0/128,reserved:kube-apiserver,reserved:world-ipv6"
        );
        assert_eq!(labels("::1", false), "cidr:0--1/128,reserved:kube-apiserver,reserved:world");
    }

    #[test]
    fn a_prefix_keeps_its_number_over_a_restart_also_where_it_had_stepped_aside() {
        let mut first = LocalIdentities::default();
        let number = first.give(key("192.0.2.7/32"), &labels("192.0.2.7/32")).unwrap();
        assert!(is_local(number));
        assert_eq!(first.give(key("192.0.2.7/32"), &labels("192.0.2.7/32")), Some(number));
        let mut second = LocalIdentities::default();
        assert_eq!(second.give(key("192.0.2.7/32"), &labels("192.0.2.7/32")), Some(number));
        let stepped = NumericIdentity::new(number.get() + 1);
        let mut third = LocalIdentities::default();
        third.restore(key("192.0.2.7/32"), stepped);
        assert_eq!(third.give(key("192.0.2.7/32"), &labels("192.0.2.7/32")), Some(stepped));
    }

    #[test]
    fn a_number_means_one_set_of_labels_as_long_as_the_agent_runs() {
        let mut identities = LocalIdentities::default();
        let of =
            |identities: &mut LocalIdentities, labels: &Labels| identities.give(key("192.0.2.7/32"), labels);
        let first = of(&mut identities, &labels("192.0.2.7/32")).unwrap();
        let second = of(&mut identities, &labels("10.0.0.0/8")).unwrap();
        assert_ne!(first, second);
        // Somebody whose home is taken, and one whose home an earlier agent gave to another prefix.
        let home_of = |text| home(&labels(text));
        let mut taken = LocalIdentities::default();
        taken.restore(key("198.51.100.1/32"), NumericIdentity::new(home_of("192.0.2.7/32")));
        let number = of(&mut taken, &labels("192.0.2.7/32")).unwrap();
        assert_eq!(number.get(), home_of("192.0.2.7/32") + 1);
        // What was restored with another meaning is not believed.
        let mut other = LocalIdentities::default();
        other.restore(key("192.0.2.7/32"), NumericIdentity::new(home_of("192.0.2.7/32") ^ 0x8000));
        assert_eq!(of(&mut other, &labels("192.0.2.7/32")).unwrap().get(), home_of("192.0.2.7/32"));
    }
}
