use std::collections::BTreeMap;
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
        // The first address is the network's (of IPv6 the routers' anycast one), IPv4's last is the broadcast.
        let last = match prefix.family() {
            Family::V4 => largest.saturating_sub(1),
            Family::V6 => largest,
        };
        Self { prefix, first: 1, last, taken: BTreeMap::new(), used: 0, next: 1 }
    }

    /// Whether the first address for pods is the node's health endpoint's.
    pub(super) fn reserve_health(&mut self, reserved: bool) {
        self.first = if reserved { 2 } else { 1 };
        self.next = self.next.max(self.first);
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

    /// The next free address; with `may_rest` the one that has rested longest if there is no other. `is_foreign`:
    /// somebody has it who did not get it here.
    pub(super) fn allocate(
        &mut self,
        now: Instant,
        may_rest: bool,
        is_foreign: impl Fn(Addr) -> bool,
    ) -> Option<Addr> {
        self.taken.retain(|_, taken| !matches!(taken, Taken::Resting(since) if is_rested(*since, now)));
        let free = if may_rest { self.longest_rested() } else { self.free() }?;
        let addr = self.prefix.nth(free).filter(|addr| !is_foreign(*addr));
        self.take_offset(free);
        match addr {
            Some(addr) => Some(addr),
            None => self.allocate(now, may_rest, is_foreign),
        }
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

    /// The first offset from `next` on, and then from the beginning, that is not taken.
    fn free(&self) -> Option<u128> {
        let next = self.next.max(self.first);
        self.free_between(next, self.last).or_else(|| self.free_between(self.first, next.checked_sub(1)?))
    }

    fn free_between(&self, first: u128, last: u128) -> Option<u128> {
        if first > last {
            return None;
        }
        let mut free = first;
        for offset in self.taken.range(first..=last).map(|(offset, _)| *offset) {
            if offset != free {
                break;
            }
            free = offset.checked_add(1)?;
        }
        (free <= last).then_some(free)
    }

    fn longest_rested(&self) -> Option<u128> {
        let resting = self.taken.range(self.first..=self.last.max(self.first)).filter_map(
            |(offset, taken)| match taken {
                Taken::Resting(since) => Some((*since, *offset)),
                Taken::Used => None,
            },
        );
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
