//! Who has which addresses: what overlaps, and what is free.

use portway_model::node::Prefix;

use super::pools::Pool;

/// Addresses that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holding<'a> {
    pub(super) cidr: Prefix,
    /// The name of the node.
    pub(super) node: &'a str,
    pub(super) title: Title,
    /// Seconds since 1970: who is older keeps what two have.
    pub(super) created: i64,
}

/// Why they are somebody's, the better one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Title {
    /// It is the address of a machine.
    Address,
    /// Its CiliumNode says so: pods may have them.
    Written,
    /// The pool object alone says so.
    Claimed,
}

/// A holding that overlaps others, and the best of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clash<'a> {
    pub(super) holding: Holding<'a>,
    pub(super) with: Holding<'a>,
}

/// One for each that overlaps another, but addresses of machines, and what one node has twice. Sorts the holdings.
/// O(n log n).
pub(super) fn clashes<'a>(holdings: &mut [Holding<'a>]) -> Vec<Clash<'a>> {
    holdings.sort_unstable_by(|a, b| (a.cidr, a.title, a.node).cmp(&(b.cidr, b.title, b.node)));
    let holdings = &*holdings;
    // Prefixes overlap only where one contains the other: those that contain the one that is looked at.
    let mut around: Vec<usize> = Vec::new();
    let mut parents = Vec::with_capacity(holdings.len());
    let mut above: Vec<Best<'_, 'a>> = Vec::with_capacity(holdings.len());
    for (number, holding) in holdings.iter().enumerate() {
        while around.last().is_some_and(|outer| !holdings[*outer].cidr.contains(holding.cidr.addr())) {
            around.pop();
        }
        let parent = around.last().copied();
        let best = parent.map_or_else(Best::default, |parent| above[parent].with(&holdings[parent]));
        parents.push(parent);
        above.push(best);
        around.push(number);
    }
    // What each contains comes after it.
    let mut below = vec![Best::default(); holdings.len()];
    let mut found = Vec::new();
    for (number, holding) in holdings.iter().enumerate().rev() {
        if let Some(parent) = parents[number] {
            below[parent] = below[parent].and(below[number]).with(holding);
        }
        let with = above[number].and(below[number]).against(holding);
        found.extend(with.map(|with| Clash { holding: *holding, with: *with }));
    }
    found
}

/// The best of some holdings, one of each of two nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Best<'h, 'a> {
    address: Option<&'h Holding<'a>>,
    first: Option<&'h Holding<'a>>,
    second: Option<&'h Holding<'a>>,
}

impl<'h, 'a> Best<'h, 'a> {
    fn with(mut self, holding: &'h Holding<'a>) -> Self {
        let is_better = |than: Option<&Holding<'a>>| than.is_none_or(|than| holding.rank() < than.rank());
        if holding.title == Title::Address {
            if is_better(self.address) {
                self.address = Some(holding);
            }
        } else if self.first.is_some_and(|first| first.node == holding.node) {
            if is_better(self.first) {
                self.first = Some(holding);
            }
        } else if is_better(self.first) {
            self.second = self.first.replace(holding);
        } else if is_better(self.second) {
            self.second = Some(holding);
        }
        self
    }

    fn and(self, other: Self) -> Self {
        let all = [other.address, other.first, other.second];
        all.into_iter().flatten().fold(self, Self::with)
    }

    /// What overlaps a holding as a holding of these does.
    fn against(&self, holding: &Holding<'a>) -> Option<&'h Holding<'a>> {
        if holding.title == Title::Address {
            return None;
        }
        let others = [self.first, self.second].into_iter().flatten();
        self.address.or_else(|| others.into_iter().find(|other| other.node != holding.node))
    }
}

impl<'a> Holding<'a> {
    /// The lower one keeps what two have.
    pub(super) const fn rank(&self) -> (Title, i64, &'a str) {
        (self.title, self.created, self.node)
    }
}

/// Addresses that somebody has, as ranges with their ends, merged and in order.
#[derive(Debug)]
pub(super) struct Taken(Vec<(u128, u128)>);

impl Taken {
    /// The holdings must be sorted by their CIDRs.
    pub(super) fn of(holdings: &[Holding<'_>]) -> Self {
        let mut ranges: Vec<(u128, u128)> = Vec::new();
        for (first, last) in holdings.iter().map(|holding| range(holding.cidr)) {
            match ranges.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                Some(_) | None => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    /// The CIDRs of a pool of which nobody has an address, in the order of the pool's ranges: from the one after `last`
    /// to the end, and from the beginning to `last`. O(log n) each.
    pub(super) fn free<'a>(
        &'a self,
        pool: &'a Pool,
        last: Option<Prefix>,
    ) -> impl Iterator<Item = Prefix> + 'a {
        let free = |(range, from)| Free { taken: self, pool, range, from };
        let begin = last.filter(|last| pool.offers(*last)).map_or((0, 0), |last| {
            let (number, addr) = place(pool, last);
            (number, addr.saturating_add(size(pool)))
        });
        free(begin).chain(free((0, 0)).take_while(move |cidr| place(pool, *cidr) < begin))
    }

    /// How many CIDRs of a pool somebody has addresses of.
    pub(super) fn used(&self, pool: &Pool) -> f64 {
        let shift = u32::from(128 - pool.bits());
        let mut used = 0_u128;
        for (first, last) in pool.cidrs().iter().map(|cidr| range(*cidr)) {
            let mut counted: Option<u128> = None;
            let begin = self.0.partition_point(|taken| taken.1 < first);
            for taken in self.0.iter().skip(begin).take_while(|taken| taken.0 <= last) {
                let mut from = taken.0.max(first) >> shift;
                let to = taken.1.min(last) >> shift;
                if let Some(counted) = counted {
                    from = from.max(counted + 1);
                }
                used += (to + 1).saturating_sub(from);
                counted = Some(to);
            }
        }
        used as f64
    }
}

/// See [`Taken::free`].
#[derive(Debug)]
pub(super) struct Free<'a> {
    taken: &'a Taken,
    pool: &'a Pool,
    /// Which of the pool's ranges.
    range: usize,
    /// The next address of it that is looked at.
    from: u128,
}

impl Iterator for Free<'_> {
    type Item = Prefix;

    fn next(&mut self) -> Option<Prefix> {
        let size = size(self.pool);
        loop {
            let cidr = self.pool.cidrs().get(self.range)?;
            let (first, last) = range(*cidr);
            let start = self.from.max(first);
            let end = start.checked_add(size - 1).filter(|end| *end <= last);
            let Some(end) = end else {
                (self.range, self.from) = (self.range + 1, 0);
                continue;
            };
            let at = self.taken.0.partition_point(|taken| taken.1 < start);
            let taken = self.taken.0.get(at).filter(|taken| taken.0 <= end);
            let passed = taken.map_or(end, |taken| taken.1 | (size - 1));
            match passed.checked_add(1) {
                Some(from) => self.from = from,
                None => (self.range, self.from) = (self.range + 1, 0),
            }
            if taken.is_none() {
                let addr = cidr.nth(start - first)?;
                return Prefix::new(addr, self.pool.bits());
            }
        }
    }
}

/// Of a CIDR of the pool, in addresses.
fn size(pool: &Pool) -> u128 {
    1 << (128 - pool.bits())
}

/// Which of the pool's ranges a CIDR is of, and where it begins.
fn place(pool: &Pool, cidr: Prefix) -> (usize, u128) {
    let number = pool.cidrs().iter().position(|range| range.contains(cidr.addr()));
    (number.unwrap_or(0), range(cidr).0)
}

fn range(cidr: Prefix) -> (u128, u128) {
    let first = u128::from_be_bytes(cidr.addr().octets());
    (first, first | u128::MAX.checked_shr(u32::from(cidr.bits())).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use portway_datapath::Family;

    use super::*;
    use crate::fake_api::Dice;

    fn holding<'a>(node: &'a str, cidr: &str, title: Title, created: i64) -> Holding<'a> {
        Holding { cidr: Prefix::parse(cidr).unwrap(), node, title, created }
    }

    fn free(pool: &Pool, taken: &[&str]) -> Vec<String> {
        free_after(pool, taken, None)
    }

    fn free_after(pool: &Pool, taken: &[&str], last: Option<&str>) -> Vec<String> {
        let mut holdings: Vec<_> = taken.iter().map(|cidr| holding("a", cidr, Title::Written, 0)).collect();
        clashes(&mut holdings);
        let last = last.map(|text| Prefix::parse(text).unwrap());
        Taken::of(&holdings).free(pool, last).map(|cidr| cidr.to_string()).collect()
    }

    #[test]
    fn the_lowest_free_is_next_whatever_the_size_of_what_is_taken() {
        let pool = Pool::parse(Family::V4, "10.0.0.0/22,10.9.0.0/24", 24).unwrap();
        assert_eq!(
            free(&pool, &[]),
            ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24", "10.9.0.0/24"]
        );
        assert_eq!(free(&pool, &["10.0.1.77/32", "10.0.2.0/23"]), ["10.0.0.0/24", "10.9.0.0/24"]);
        assert_eq!(free(&pool, &["10.0.0.0/8"]), [""; 0]);
        let pool = Pool::parse(Family::V6, "fd00::/110", 112).unwrap();
        assert_eq!(
            free(&pool, &["fd00::1:0/112", "10.0.0.0/8"]),
            ["fd00::/112", "fd00::2:0/112", "fd00::3:0/112"]
        );
        let last = Pool::parse(Family::V6, "feff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", 126);
        assert!(last.is_err());
        let end = Pool::parse(Family::V4, "223.255.255.0/24", 25).unwrap();
        assert_eq!(free(&end, &["223.255.255.0/25"]), ["223.255.255.128/25"]);
    }

    #[test]
    fn used_ones_are_counted_once_and_only_those_of_the_pool() {
        let pool = Pool::parse(Family::V4, "10.0.0.0/22,10.9.0.0/24", 24).unwrap();
        let mut holdings: Vec<_> =
            ["10.0.1.1/32", "10.0.1.9/32", "10.0.2.0/23", "10.9.0.0/16", "10.1.0.0/24"]
                .iter()
                .map(|cidr| holding("a", cidr, Title::Written, 0))
                .collect();
        clashes(&mut holdings);
        assert_eq!(Taken::of(&holdings).used(&pool), 4.0);
    }

    #[test]
    fn what_comes_before_the_last_one_is_free_after_all_others() {
        let pool = Pool::parse(Family::V4, "10.9.0.0/23,10.0.0.0/22", 24).unwrap();
        let all = free(&pool, &[]);
        assert_eq!(all.len(), 6);
        for (number, last) in all.iter().enumerate() {
            let mut turned = all.clone();
            turned.rotate_left(number + 1);
            assert_eq!(free_after(&pool, &[], Some(last)), turned);
        }
        let taken = ["10.9.0.0/24", "10.0.0.0/24", "10.0.2.0/23"];
        assert_eq!(free_after(&pool, &taken, Some("10.0.0.0/24")), ["10.0.1.0/24", "10.9.1.0/24"]);
        assert_eq!(free_after(&pool, &taken, Some("10.0.1.0/25")), free(&pool, &taken), "of another pool");
    }

    /// As [`clashes`], by comparing all with all.
    fn all_clashes<'a>(holdings: &[Holding<'a>]) -> Vec<Clash<'a>> {
        let is_address = |of: &Holding<'_>| of.title == Title::Address;
        let clash = |holding: &Holding<'a>| {
            let overlapping = holdings.iter().filter(|other| {
                other.cidr.overlaps(holding.cidr) && (is_address(other) || other.node != holding.node)
            });
            let with = overlapping.min_by_key(|other| other.rank()).filter(|_| !is_address(holding))?;
            Some(Clash { holding: *holding, with: *with })
        };
        holdings.iter().filter_map(clash).collect()
    }

    #[test]
    fn the_best_of_all_that_overlap_is_told_of_each() {
        let names = ["a", "b", "c", "d"];
        for seed in 0..2000 {
            let mut dice = Dice(seed);
            let mut holdings: Vec<_> = (0..1 + dice.roll(12))
                .map(|_| {
                    let title = [Title::Address, Title::Written, Title::Claimed][dice.roll(3)];
                    let bits = if title == Title::Address { 32 } else { 28 + dice.roll(5) };
                    let low = dice.roll(16) >> (32 - bits) << (32 - bits);
                    let created = i64::try_from(dice.roll(3)).unwrap();
                    holding(names[dice.roll(4)], &format!("10.0.0.{low}/{bits}"), title, created)
                })
                .collect();
            let mut found = clashes(&mut holdings);
            found.reverse();
            let ranks = |clashes: &[Clash<'_>]| -> Vec<_> {
                clashes
                    .iter()
                    .map(|of| (of.holding.cidr, of.holding.node.to_owned(), of.with.title, of.with.created))
                    .collect()
            };
            assert_eq!(ranks(&found), ranks(&all_clashes(&holdings)), "{seed}: {holdings:?}");
        }
    }

    #[test]
    fn as_many_are_told_as_nodes_have_the_same() {
        let names: Vec<_> = (0..20_000).map(|number| format!("n{number}")).collect();
        let mut holdings: Vec<_> =
            names.iter().map(|name| holding(name, "10.0.1.0/24", Title::Written, 7)).collect();
        let found = clashes(&mut holdings);
        assert_eq!(found.len(), 20_000);
        let losers = found.iter().filter(|clash| clash.with.rank() < clash.holding.rank());
        assert!(losers.clone().count() == 19_999 && losers.into_iter().all(|clash| clash.with.node == "n0"));
    }
}
