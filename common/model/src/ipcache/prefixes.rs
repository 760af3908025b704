use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use portway_datapath::{Addr, Family};

/// A prefix of `pw_ipcache`: bits as [`Addr`] counts them, so that IPv4 has 96 more.
pub type Key = (Addr, u8);

/// Values by prefix, found by the longest one that covers an address.
#[derive(Clone, Debug)]
pub(super) struct Prefixes<V> {
    by_key: BTreeMap<Key, V>,
    /// How many prefixes have a length: few lengths are in use.
    lengths: BTreeMap<u8, usize>,
}

impl<V> Default for Prefixes<V> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), lengths: BTreeMap::new() }
    }
}

impl<V> Prefixes<V> {
    pub(super) fn insert(&mut self, key: Key, value: V) -> Option<V> {
        let before = self.by_key.insert(key, value);
        if before.is_none() {
            *self.lengths.entry(key.1).or_default() += 1;
        }
        before
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<V> {
        let before = self.by_key.remove(key)?;
        if let Some(number) = self.lengths.get_mut(&key.1) {
            *number -= 1;
            if *number == 0 {
                self.lengths.remove(&key.1);
            }
        }
        Some(before)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.by_key.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        self.by_key.iter()
    }

    /// The values of all prefixes that cover a prefix, itself too, longest first. O(lengths in use).
    pub(super) fn covering(&self, (addr, bits): Key) -> impl Iterator<Item = (Key, &V)> {
        let lengths = self.lengths.range(..=bits).rev();
        // A prefix of IPv6 that is shorter than 96 bits says nothing of IPv4, whose addresses are mapped ones.
        let of_family = move |bits: u8| addr.family() == Family::V6 || bits >= V4_BITS;
        lengths.map(|(bits, _)| *bits).filter(move |bits| of_family(*bits)).filter_map(move |bits| {
            let key = (masked(addr, bits), bits);
            self.by_key.get(&key).map(|value| (key, value))
        })
    }

    /// The prefixes that begin within another one: those inside it, and perhaps one around it.
    pub(super) fn beginning_in(&self, key: Key) -> impl Iterator<Item = (&Key, &V)> {
        self.by_key.range(keys(key))
    }
}

/// The bits that all prefixes of IPv4 have.
pub(super) const V4_BITS: u8 = 96;

/// All keys that begin within a prefix.
pub(super) fn keys(key: Key) -> RangeInclusive<Key> {
    let addresses = addresses(key);
    (*addresses.start(), 0)..=(*addresses.end(), u8::MAX)
}

/// All addresses of a prefix.
pub(super) fn addresses((addr, bits): Key) -> RangeInclusive<Addr> {
    let first = u128::from_be_bytes(masked(addr, bits).octets());
    let last = first | !mask(bits);
    Addr::v6(first.to_be_bytes())..=Addr::v6(last.to_be_bytes())
}

fn masked(addr: Addr, bits: u8) -> Addr {
    Addr::v6((u128::from_be_bytes(addr.octets()) & mask(bits)).to_be_bytes())
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Prefix;

    fn key(text: &str) -> Key {
        let prefix = Prefix::parse(text).unwrap();
        (prefix.addr(), prefix.bits())
    }

    #[test]
    fn the_longest_prefix_comes_first_and_those_of_the_other_family_never() {
        let mut prefixes = Prefixes::default();
        for text in
            ["::/0", "0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "fd00::/8", "10.2.0.0/16"]
        {
            prefixes.insert(key(text), text);
        }
        let covering = |text| prefixes.covering(key(text)).map(|(_, text)| *text).collect::<Vec<_>>();
        assert_eq!(covering("10.1.2.3/32"), ["10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0"]);
        assert_eq!(covering("10.1.0.0/16"), ["10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0"]);
        assert_eq!(covering("fd00::1/128"), ["fd00::/8", "::/0"]);
        assert_eq!(prefixes.remove(&key("10.1.0.0/16")), Some("10.1.0.0/16"));
        let covering = |text| prefixes.covering(key(text)).map(|(_, text)| *text).collect::<Vec<_>>();
        assert_eq!(covering("10.1.9.3/32"), ["10.0.0.0/8", "0.0.0.0/0"]);
    }

    #[test]
    fn what_begins_within_a_prefix_is_found() {
        let mut prefixes = Prefixes::default();
        for text in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.255.255/32", "10.2.0.0/16"] {
            prefixes.insert(key(text), text);
        }
        let inside: Vec<_> = prefixes.beginning_in(key("10.1.0.0/16")).map(|(_, text)| *text).collect();
        assert_eq!(inside, ["10.1.0.0/16", "10.1.2.0/24", "10.1.255.255/32"]);
        assert_eq!(prefixes.beginning_in(key("0.0.0.0/0")).count(), 5);
    }
}
