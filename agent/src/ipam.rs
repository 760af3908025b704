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
    /// Freed then, and of no prefix: a start removes endpoints before it knows the prefixes, and a prefix may come back.
    freed_outside: BTreeMap<Addr, Instant>,
    /// What the health endpoint has. It keeps those of earlier prefixes until it is made anew.
    reserved: BTreeSet<Addr>,
}

impl Ipam {
    /// The node's prefixes from now on. Each keeps its first address for the health endpoint: whichever is the first of
    /// its family when the cluster changes its mind, no pod has that.
    pub fn set_prefixes(&mut self, prefixes: &[Prefix]) {
        self.current.clear();
        for prefix in prefixes {
            let overlaps = self.current.iter().any(|known| known.overlaps(*prefix));
            if overlaps {
                // Two pools of one address would give it twice; the node's first word counts.
                tracing::warn!(%prefix, "a prefix for pods lies within another one of this node; it is left out");
                continue;
            }
            self.current.push(*prefix);
        }
        for prefix in &self.current {
            // Only retired pools overlap it, and what they know of its addresses is its own from now on.
            let mut pool = self.pools.remove(prefix).unwrap_or_else(|| Pool::new(*prefix));
            for (_, retired) in self.pools.iter_mut().filter(|(other, _)| other.overlaps(*prefix)) {
                pool.take_over(retired);
            }
            let inside: Vec<_> = self.outside.iter().copied().filter(|addr| prefix.contains(*addr)).collect();
            for addr in inside {
                self.outside.remove(&addr);
                pool.take(addr);
            }
            for (addr, since) in self.freed_outside.extract_if(.., |addr, _| prefix.contains(*addr)) {
                pool.rest(addr, since);
            }
            self.pools.insert(*prefix, pool);
        }
        self.forget_empty();
    }

    /// The health endpoint has these from now on, and no others.
    ///
    /// # Errors
    /// One that a pod has, which it got from an earlier prefix. Nothing is changed.
    pub fn reserve(&mut self, addresses: &[Addr]) -> Result<(), Addr> {
        if let Some(addr) = addresses.iter().find(|addr| self.is_used(**addr)) {
            return Err(*addr);
        }
        self.reserved = addresses.iter().copied().collect();
        Ok(())
    }

    /// Whether pods can have addresses of this family.
    pub fn serves(&self, family: Family) -> bool {
        self.current.iter().any(|prefix| prefix.family() == family)
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
                if let Some(addr) = pool.allocate(now, may_rest, &self.reserved) {
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
        if self.is_used(addr) || self.reserved.contains(&addr) {
            return false;
        }
        // A retired prefix may lie around a current one.
        let current = self.current.iter().find(|prefix| prefix.contains(addr));
        match current.and_then(|prefix| self.pools.get_mut(prefix)) {
            Some(pool) => pool.take(addr),
            None => self.outside.insert(addr),
        }
    }

    /// Gives an address back. That nobody has it is no error.
    pub fn release(&mut self, addr: Addr, now: Instant) {
        if self.outside.remove(&addr) {
            self.freed_outside.retain(|_, since| !is_rested(*since, now));
            self.freed_outside.insert(addr, now);
        }
        // At most one of those that overlap has it.
        for (_, pool) in self.pools.iter_mut().filter(|(prefix, _)| prefix.contains(addr)) {
            pool.release(addr, now);
        }
        self.forget_empty();
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

    fn is_used(&self, addr: Addr) -> bool {
        self.outside.contains(&addr) || self.pools.values().any(|pool| pool.is_used(addr))
    }

    /// Lets retired pools go that no pod has an address of. What rests of them still rests, should its prefix come back.
    fn forget_empty(&mut self) {
        let current = &self.current;
        let gone = self.pools.extract_if(.., |prefix, pool| !current.contains(prefix) && pool.used() == 0);
        self.freed_outside.extend(gone.flat_map(|(_, pool)| pool.into_resting()));
    }
}
