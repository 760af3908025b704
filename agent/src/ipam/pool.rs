use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portway_datapath::{Addr, Family};
use portway_model::node::Prefix;

/// How long an address is not given again: what others remember of it (neighbours, flows, names) is old by then.
const REST: Duration = Duration::from_secs(60);

/// The addresses of one prefix, by their offset from its first.
#[derive(Debug)]
pub(super) struct Pool {
    prefix: Prefix,
    /// The offsets that pods may have, inclusive; none where `first` is greater.
    first: u128,
    last: u128,
    taken: BTreeMap<u128, Taken>,
    used: usize,
    /// Where the search begins: offsets are given in turn.
    next: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Used,
    /// Freed then.
    Resting(Instant),
}

impl Pool {
    pub(super) fn new(prefix: Prefix) -> Self {
        let host_bits = u32::from(128 - prefix.bits());
        let largest = u128::MAX.checked_shr(128 - host_bits).unwrap_or(0);
        // The first address is the network's (of IPv6 the routers' anycast one), the second the health endpoint's where this
        // is the node's first prefix; IPv4's last is the broadcast.
        let last = match prefix.family() {
            Family::V4 => largest.saturating_sub(1),
            Family::V6 => largest,
        };
        Self { prefix, first: 2, last, taken: BTreeMap::new(), used: 0, next: 2 }
    }

    /// Addresses that pods may have.
    pub(super) fn size(&self) -> u128 {
        self.last.saturating_add(1).saturating_sub(self.first)
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn resting(&self, now: Instant) -> usize {
        let rests = |taken: &&Taken| matches!(taken, Taken::Resting(since) if !is_rested(*since, now));
        self.taken.values().filter(rests).count()
    }

    /// The next free address; with `may_rest` the one that has rested longest if there is no other. None that is
    /// `reserved`.
    pub(super) fn allocate(
        &mut self,
        now: Instant,
        may_rest: bool,
        reserved: &BTreeSet<Addr>,
    ) -> Option<Addr> {
        self.taken.retain(|_, taken| !matches!(taken, Taken::Resting(since) if is_rested(*since, now)));
        let reserved: BTreeSet<u128> = reserved.iter().filter_map(|addr| self.offset(*addr)).collect();
        let free = if may_rest { self.longest_rested(&reserved) } else { self.free(&reserved) }?;
        self.take_offset(free);
        self.prefix.nth(free)
    }

    pub(super) fn is_used(&self, addr: Addr) -> bool {
        self.offset(addr).is_some_and(|offset| self.taken.get(&offset) == Some(&Taken::Used))
    }

    /// Takes what another pool knows of this one's addresses out of that.
    pub(super) fn take_over(&mut self, other: &mut Self) {
        let (own, others) = (self.prefix, other.prefix);
        let inside = other
            .taken
            .extract_if(.., |offset, _| others.nth(*offset).is_some_and(|addr| own.contains(addr)));
        for (offset, taken) in inside {
            let Some(addr) = others.nth(offset) else { continue };
            match taken {
                Taken::Used => {
                    other.used -= 1;
                    self.take(addr);
                }
                Taken::Resting(since) => self.rest(addr, since),
            }
        }
    }

    /// The addresses that rest, and since when.
    pub(super) fn into_resting(self) -> impl Iterator<Item = (Addr, Instant)> {
        let Self { prefix, taken, .. } = self;
        taken.into_iter().filter_map(move |(offset, taken)| match taken {
            Taken::Resting(since) => Some((prefix.nth(offset)?, since)),
            Taken::Used => None,
        })
    }

    /// Returns false where it is in use already.
    pub(super) fn take(&mut self, addr: Addr) -> bool {
        self.offset(addr).is_some_and(|offset| self.take_offset(offset))
    }

    pub(super) fn release(&mut self, addr: Addr, now: Instant) {
        let Some(taken) = self.offset(addr).and_then(|offset| self.taken.get_mut(&offset)) else { return };
        if *taken == Taken::Used {
            *taken = Taken::Resting(now);
            self.used -= 1;
        }
    }

    /// One that nobody has was freed `since`.
    pub(super) fn rest(&mut self, addr: Addr, since: Instant) {
        if let Some(offset) = self.offset(addr) {
            self.taken.entry(offset).or_insert(Taken::Resting(since));
        }
    }

    fn take_offset(&mut self, offset: u128) -> bool {
        if self.taken.insert(offset, Taken::Used) == Some(Taken::Used) {
            return false;
        }
        self.used += 1;
        self.next = if offset >= self.last { self.first } else { offset + 1 };
        true
    }

    /// The first offset from `next` on, and then from the beginning, that is neither taken nor reserved.
    fn free(&self, reserved: &BTreeSet<u128>) -> Option<u128> {
        let next = self.next.max(self.first);
        let before = || self.free_between(self.first, next.checked_sub(1)?, reserved);
        self.free_between(next, self.last, reserved).or_else(before)
    }

    fn free_between(&self, first: u128, last: u128, reserved: &BTreeSet<u128>) -> Option<u128> {
        if first > last {
            return None;
        }
        let mut free = first;
        let mut taken = self.taken.range(first..=last).map(|(offset, _)| *offset).peekable();
        while taken.next_if_eq(&free).is_some() || reserved.contains(&free) {
            free = free.checked_add(1)?;
        }
        (free <= last).then_some(free)
    }

    fn longest_rested(&self, reserved: &BTreeSet<u128>) -> Option<u128> {
        if self.first > self.last {
            return None;
        }
        let resting = self.taken.range(self.first..=self.last).filter_map(|(offset, taken)| match taken {
            Taken::Resting(since) if !reserved.contains(offset) => Some((*since, *offset)),
            Taken::Resting(_) | Taken::Used => None,
        });
        resting.min().map(|(_, offset)| offset)
    }

    fn offset(&self, addr: Addr) -> Option<u128> {
        let number = |addr: Addr| u128::from_be_bytes(addr.octets());
        self.prefix.contains(addr).then(|| number(addr).wrapping_sub(number(self.prefix.addr())))
    }
}

pub(super) fn is_rested(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= REST
}
