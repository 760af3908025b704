//! Addresses for this node's pods, from the prefixes that the cluster gave the node.
//!
//! Nothing here is written down: what is in use is what endpoints have, and a start takes it from them.

mod pool;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pool::{Pool, is_rested};
use portway_datapath::{Addr, Family};
use portway_model::node::Prefix;

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// Every prefix is used up.
    #[error("no {family} address is free for a pod: {prefixes}")]
    Exhausted { family: &'static str, prefixes: String },
    #[error("this node has no prefix for pods yet")]
    NoPrefix,
}

/// How much of a prefix is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    pub prefix: Prefix,
    /// Addresses that pods may have.
    pub size: u128,
    pub used: usize,
    /// Freed a short while ago: given again only when nothing else is left.
    pub resting: usize,
    /// No longer the node's: it goes when its last pod has.
    pub is_retired: bool,
}

/// Every address that a pod of this node has or may get.
#[derive(Debug, Default)]
pub struct Ipam {
    /// In the order in which the node has them.
    current: Vec<Prefix>,
    /// Those and retired ones that pods still have addresses of.
    pools: BTreeMap<Prefix, Pool>,
    /// In use and of no prefix: restored before the prefixes were known, or of another plugin.
    outside: BTreeSet<Addr>,
    /// Freed then, and of no prefix yet: a start removes endpoints before it knows the prefixes.
    freed_outside: BTreeMap<Addr, Instant>,
}

impl Ipam {
    /// The node's prefixes from now on. The first one of each family keeps its first address for the health endpoint.
    pub fn set_prefixes(&mut self, prefixes: &[Prefix]) {
        self.current.clear();
        for prefix in prefixes {
            let is_first = self.current.iter().all(|known| known.family() != prefix.family());
            let overlaps = self.current.iter().any(|known| known.overlaps(*prefix));
            if overlaps {
                // Two pools of one address would give it twice; the node's first word counts.
                tracing::warn!(%prefix, "a prefix for pods lies within another one of this node; it is left out");
                continue;
            }
            self.current.push(*prefix);
            let pool = self.pools.entry(*prefix).or_insert_with(|| Pool::new(*prefix));
            pool.reserve_health(is_first);
            let inside: Vec<_> = self.outside.iter().copied().filter(|addr| prefix.contains(*addr)).collect();
            for addr in inside {
                self.outside.remove(&addr);
                pool.take(addr);
            }
            for (addr, since) in self.freed_outside.extract_if(.., |addr, _| prefix.contains(*addr)) {
                pool.rest(addr, since);
            }
        }
        let current = &self.current;
        self.pools.retain(|prefix, pool| current.contains(prefix) || pool.used() > 0);
    }

    /// Whether pods can have addresses of this family.
    pub fn serves(&self, family: Family) -> bool {
        self.current.iter().any(|prefix| prefix.family() == family)
    }

    /// The node has prefixes.
    pub fn is_known(&self) -> bool {
        !self.current.is_empty()
    }

    /// An address that nobody has, and that nobody had a moment ago unless nothing else is left.
    ///
    /// # Errors
    /// There is none.
    pub fn allocate(&mut self, family: Family, now: Instant) -> Result<Addr, IpamError> {
        if !self.serves(family) {
            return Err(IpamError::NoPrefix);
        }
        let of_family: Vec<_> =
            self.current.iter().copied().filter(|prefix| prefix.family() == family).collect();
        for may_rest in [false, true] {
            for prefix in &of_family {
                let Some(pool) = self.pools.get_mut(prefix) else { continue };
                let outside = &self.outside;
                if let Some(addr) = pool.allocate(now, may_rest, |addr| outside.contains(&addr)) {
                    return Ok(addr);
                }
            }
        }
        let full = of_family.iter().filter_map(|prefix| Some((prefix, self.pools.get(prefix)?)));
        let full = full.map(|(prefix, pool)| format!("{prefix} has {} and all are in use", pool.size()));
        let family = match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        Err(IpamError::Exhausted { family, prefixes: full.collect::<Vec<_>>().join(", ") })
    }

    /// Takes an address that an endpoint has. In the order in which endpoints were made, so that the ones which
    /// ended last before a restart are not given first after it. Returns false where it is taken.
    pub fn restore(&mut self, addr: Addr) -> bool {
        match self.pools.iter_mut().find(|(prefix, _)| prefix.contains(addr)) {
            Some((_, pool)) => pool.take(addr),
            None => self.outside.insert(addr),
        }
    }

    /// Gives an address back. That nobody has it is no error.
    pub fn release(&mut self, addr: Addr, now: Instant) {
        if self.outside.remove(&addr) {
            self.freed_outside.retain(|_, since| !is_rested(*since, now));
            self.freed_outside.insert(addr, now);
        }
        let current = &self.current;
        self.pools.retain(|prefix, pool| {
            if prefix.contains(addr) {
                pool.release(addr, now);
            }
            current.contains(prefix) || pool.used() > 0
        });
    }

    /// Every prefix, the node's own in their order first.
    pub fn usage(&self, now: Instant) -> Vec<PoolUse> {
        let retired = self.pools.keys().filter(|prefix| !self.current.contains(prefix));
        let all = self.current.iter().chain(retired);
        all.filter_map(|prefix| {
            let pool = self.pools.get(prefix)?;
            Some(PoolUse {
                prefix: *prefix,
                size: pool.size(),
                used: pool.used(),
                resting: pool.resting(now),
                is_retired: !self.current.contains(prefix),
            })
        })
        .collect()
    }

    /// Addresses in use that are of no prefix.
    pub fn outside(&self) -> impl Iterator<Item = Addr> {
        self.outside.iter().copied()
    }
}
