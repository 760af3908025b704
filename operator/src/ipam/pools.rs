//! The ranges that nodes get CIDRs from, as the configuration has them.

use portway_datapath::Family;
use portway_model::node::Prefix;

/// A range of one family and how large a node's part of it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    family: Family,
    /// In the order in which they are used.
    cidrs: Vec<Prefix>,
    /// Of a node's CIDR, as [`Prefix::bits`] counts them.
    bits: u8,
}

/// Why ranges cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("{0:?} is no {1} range such as {2}")]
    NotACidr(String, &'static str, &'static str),
    #[error("{0} holds addresses that no pod can have")]
    NotForPods(Prefix),
    #[error("{0} overlaps {1}")]
    Overlap(Prefix, Prefix),
    #[error("{0} is smaller than a node's part of it, a /{1}")]
    TooSmall(Prefix, u8),
    #[error("a /{0} has no addresses for pods")]
    NoAddresses(u8),
    #[error("there is no range")]
    Empty,
}

impl Pool {
    /// Of ranges with spaces or commas between them; a node gets a `/mask` of one.
    ///
    /// # Errors
    /// One of them is none of the family, they overlap, or a node's part does not fit.
    pub fn parse(family: Family, text: &str, mask: u8) -> Result<Self, PoolError> {
        let (name, example, most, extra) = match family {
            // Of four addresses two are left: the first is the health endpoint's.
            Family::V4 => ("IPv4", "10.0.0.0/8", 30, 96),
            Family::V6 => ("IPv6", "fd00::/104", 126, 0),
        };
        if mask == 0 || mask > most {
            return Err(PoolError::NoAddresses(mask));
        }
        let mut cidrs: Vec<Prefix> = Vec::new();
        for part in text.split([',', ' ', '\n', '\t']).filter(|part| !part.is_empty()) {
            let cidr = Prefix::parse(part).filter(|cidr| cidr.family() == family);
            let cidr = cidr.ok_or_else(|| PoolError::NotACidr(part.to_owned(), name, example))?;
            if !is_for_pods(cidr) {
                return Err(PoolError::NotForPods(cidr));
            }
            if cidr.family_bits() > mask {
                return Err(PoolError::TooSmall(cidr, mask));
            }
            if let Some(other) = cidrs.iter().find(|other| other.overlaps(cidr)) {
                return Err(PoolError::Overlap(cidr, *other));
            }
            cidrs.push(cidr);
        }
        if cidrs.is_empty() {
            return Err(PoolError::Empty);
        }
        Ok(Self { family, cidrs, bits: mask + extra })
    }

    pub const fn family(&self) -> Family {
        self.family
    }

    /// In the order in which they are used.
    pub fn cidrs(&self) -> &[Prefix] {
        &self.cidrs
    }

    /// Of a node's CIDR, as [`Prefix::bits`] counts them.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// The key of the configuration that has the ranges.
    pub const fn key(&self) -> &'static str {
        match self.family {
            Family::V4 => "cluster-pool-ipv4-cidr",
            Family::V6 => "cluster-pool-ipv6-cidr",
        }
    }

    /// Whether it is a CIDR that a node may be given.
    pub fn offers(&self, cidr: Prefix) -> bool {
        cidr.bits() == self.bits && self.cidrs.iter().any(|range| range.contains(cidr.addr()))
    }

    /// How many CIDRs there are, given or not.
    pub fn size(&self) -> f64 {
        self.cidrs.iter().map(|cidr| f64::from(self.bits - cidr.bits()).exp2()).sum()
    }

    /// How many addresses a node's CIDR has.
    pub fn addresses(&self) -> f64 {
        f64::from(128 - self.bits).exp2()
    }
}

/// Whether pods can have its addresses, as the agent sees it.
pub(super) fn is_for_pods(cidr: Prefix) -> bool {
    let first = std::net::IpAddr::from(cidr.addr());
    cidr.family_bits() > 0 && !cidr.addr().is_loopback() && !first.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_listed_with_commas_or_spaces() {
        let pool = Pool::parse(Family::V4, " 10.1.0.0/16, 10.3.0.0/16 10.2.0.0/24", 24).unwrap();
        let cidrs: Vec<_> = pool.cidrs().iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.1.0.0/16", "10.3.0.0/16", "10.2.0.0/24"]);
        assert_eq!((pool.size(), pool.addresses()), (513.0, 256.0));
        assert!(pool.offers(Prefix::parse("10.3.9.0/24").unwrap()));
        assert!(!pool.offers(Prefix::parse("10.3.9.0/25").unwrap()));
        assert!(!pool.offers(Prefix::parse("10.2.1.0/24").unwrap()));
        let pool = Pool::parse(Family::V6, "fd00::/104", 112).unwrap();
        assert_eq!((pool.size(), pool.addresses()), (256.0, 65536.0));
    }

    #[test]
    fn ranges_that_cannot_be_used_are_refused_with_the_reason() {
        let error = |family, text, mask| Pool::parse(family, text, mask).unwrap_err().to_string();
        assert_eq!(
            error(Family::V4, "10.0.0.0/8,fd00::/104", 24),
            "\"fd00::/104\" is no IPv4 range such as 10.0.0.0/8"
        );
        assert_eq!(error(Family::V4, "10.0.0.0/8 10.9.0.0/16", 24), "10.9.0.0/16 overlaps 10.0.0.0/8");
        assert_eq!(
            error(Family::V4, "10.0.0.0/25", 24),
            "10.0.0.0/25 is smaller than a node's part of it, a /24"
        );
        assert_eq!(error(Family::V4, "10.0.0.0/8", 31), "a /31 has no addresses for pods");
        assert_eq!(error(Family::V4, "", 24), "there is no range");
        assert_eq!(error(Family::V4, "127.0.0.0/8", 24), "127.0.0.0/8 holds addresses that no pod can have");
        assert_eq!(error(Family::V6, "ff00::/8", 112), "ff00::/8 holds addresses that no pod can have");
    }
}
