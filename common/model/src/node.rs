//! The nodes of the cluster and the pods of this one, as the pod network sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use portway_datapath::{Addr, Family};

/// A prefix of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    addr: Addr,
    bits: u8,
}

impl Prefix {
    /// The prefix of `bits` (as [`Addr`] counts them: IPv4 has 96 more) that covers an address.
    ///
    /// `None` past 128 bits, and for one that would cover addresses of both families.
    pub fn new(addr: Addr, bits: u8) -> Option<Self> {
        if bits > 128 || (addr.family() == Family::V4 && bits < 96) {
            return None;
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        let masked = Addr::v6((u128::from_be_bytes(addr.octets()) & mask).to_be_bytes());
        // `::/8` is an IPv6 prefix that covers every mapped address.
        let covers_v4 = addr.family() == Family::V6 && {
            let mapped = u128::from_be_bytes(Addr::ANY_V4.octets());
            mapped & mask == u128::from_be_bytes(masked.octets()) && bits > 0
        };
        (!covers_v4).then_some(Self { addr: masked, bits })
    }

    /// One address.
    pub const fn host(addr: Addr) -> Self {
        Self { addr, bits: 128 }
    }

    /// `10.0.0.0/8` or `fd00::/48`; `None` for anything else. Bits past the prefix are dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, bits) = text.split_once('/')?;
        if bits.is_empty() || bits.len() > 3 || !bits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let (ip, bits): (IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
        match ip {
            IpAddr::V4(_) if bits <= 32 => Self::new(Addr::from(ip), bits + 96),
            IpAddr::V6(_) if bits <= 128 && Addr::from(ip).family() == Family::V6 => {
                Self::new(Addr::from(ip), bits)
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }

    /// The first address.
    pub const fn addr(self) -> Addr {
        self.addr
    }

    /// As [`Addr`] counts them: IPv4 has 96 more.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// As the family counts them: 24 for `10.0.0.0/24`.
    pub const fn family_bits(self) -> u8 {
        match self.family() {
            Family::V4 => self.bits - 96,
            Family::V6 => self.bits,
        }
    }

    pub const fn family(self) -> Family {
        self.addr.family()
    }

    pub fn contains(self, addr: Addr) -> bool {
        addr.family() == self.family() && Self::new(addr, self.bits).is_some_and(|of| of == self)
    }

    pub fn overlaps(self, other: Self) -> bool {
        if self.bits <= other.bits { self.contains(other.addr) } else { other.contains(self.addr) }
    }

    /// The address at `offset` from the first one; `None` past the last.
    pub fn nth(self, offset: u128) -> Option<Addr> {
        let addr = u128::from_be_bytes(self.addr.octets()).checked_add(offset)?;
        let addr = Addr::v6(addr.to_be_bytes());
        self.contains(addr).then_some(addr)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", IpAddr::from(self.addr), self.family_bits())
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Prefix {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.addr.octets(), self.bits).cmp(&(other.addr.octets(), other.bits))
    }
}

/// What the pod network knows of the cluster at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// This node; `None` while nobody has told of it.
    pub this: Option<Arc<ClusterNode>>,
    /// The others, by name.
    pub remote: BTreeMap<Arc<str>, Arc<ClusterNode>>,
    /// The pods of this node that are there, by UID; those without one are left out.
    pub pods: BTreeMap<Arc<str>, Arc<ClusterPod>>,
    /// Every source has told of all nodes: one that is missing is gone.
    pub knows_nodes: bool,
    /// Every source has told of all pods of this node: one that is missing is gone.
    pub knows_pods: bool,
}

/// A node, whoever tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    pub name: Arc<str>,
    /// Seconds since 1970; `None` where it is not known.
    pub created: Option<i64>,
    /// Of other nodes those that this one reaches it at: its InternalIPs, or where it has none its ExternalIPs. At least
    /// the first of each family is an address of the node.
    pub addresses: Box<[Addr]>,
    /// It is at these, too, but is not reached there: ExternalIPs beside InternalIPs.
    pub other_addresses: Box<[Addr]>,
    /// Where the addresses of its pods are from.
    pub pod_cidrs: Box<[Prefix]>,
    /// Addresses of its health endpoint, where it is told of; else it is the first address of `pod_cidrs`.
    pub health: Box<[Addr]>,
}

impl ClusterNode {
    /// The first address of a family.
    pub fn address(&self, family: Family) -> Option<Addr> {
        self.addresses.iter().copied().find(|addr| addr.family() == family)
    }

    /// The addresses of its health endpoint, one for each family that its pods have.
    pub fn health_addresses(&self) -> impl Iterator<Item = Addr> {
        [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let told = self.health.iter().copied().find(|addr| addr.family() == family);
            let cidr = self.pod_cidrs.iter().find(|cidr| cidr.family() == family);
            told.or_else(|| cidr.and_then(|cidr| cidr.nth(1)))
        })
    }
}

/// A pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPod {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Those of `portway.io/`, with that prefix.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        Prefix::parse(text).unwrap()
    }

    fn addr(text: &str) -> Addr {
        Addr::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn a_prefix_is_of_one_family_and_has_no_bits_past_its_end() {
        assert_eq!(prefix("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert_eq!(prefix("10.1.2.3/8").bits(), 104);
        assert_eq!(prefix("fd00::1/64").to_string(), "fd00::/64");
        assert_eq!(prefix("0.0.0.0/0").family_bits(), 0);
        for text in [
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "fd00::/129",
            "a/8",
            "10.0.0.0/+8",
            "::ffff:10.0.0.0/104",
            "::/80",
        ] {
            assert_eq!(Prefix::parse(text), None, "{text}");
        }
    }

    #[test]
    fn prefixes_overlap_where_one_contains_the_other() {
        assert!(prefix("10.0.0.0/8").overlaps(prefix("10.1.0.0/16")));
        assert!(prefix("10.1.0.0/16").overlaps(prefix("10.0.0.0/8")));
        assert!(!prefix("10.0.0.0/16").overlaps(prefix("10.1.0.0/16")));
        assert!(!prefix("0.0.0.0/0").overlaps(prefix("fd00::/8")));
        assert!(prefix("10.0.0.0/24").contains(addr("10.0.0.255")));
        assert!(!prefix("10.0.0.0/24").contains(addr("10.0.1.0")));
    }

    #[test]
    fn addresses_of_a_prefix_are_counted_from_its_first() {
        assert_eq!(prefix("10.0.0.0/30").nth(3), Some(addr("10.0.0.3")));
        assert_eq!(prefix("10.0.0.0/30").nth(4), None);
        assert_eq!(prefix("fd00::/112").nth(0xffff), Some(addr("fd00::ffff")));
    }

    #[test]
    fn the_health_endpoint_is_the_one_told_of_or_the_first_address_of_the_pods() {
        let node = ClusterNode {
            name: "a".into(),
            created: None,
            addresses: [addr("192.0.2.1")].into(),
            other_addresses: Box::default(),
            pod_cidrs: [prefix("10.0.1.0/24"), prefix("10.0.2.0/24"), prefix("fd00:1::/112")].into(),
            health: [addr("fd00:1::7")].into(),
        };
        let health: Vec<_> = node.health_addresses().collect();
        assert_eq!(health, [addr("10.0.1.1"), addr("fd00:1::7")]);
    }
}
