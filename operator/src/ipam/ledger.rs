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

/// Two holdings that overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clash<'a> {
    pub(super) keeps: Holding<'a>,
    pub(super) loses: Holding<'a>,
}

/// All that overlap, but addresses of machines among each other and what one node has twice. Sorts the holdings.
/// O(n log n + clashes).
pub(super) fn clashes<'a>(holdings: &mut [Holding<'a>]) -> Vec<Clash<'a>> {
    holdings.sort_unstable_by(|a, b| (a.cidr, a.title, a.node).cmp(&(b.cidr, b.title, b.node)));
    let mut found = Vec::new();
    // Prefixes overlap only where one contains the other: those that contain the one that is looked at.
    let mut around: Vec<Holding<'a>> = Vec::new();
    for holding in holdings.iter() {
        while around.last().is_some_and(|outer| !outer.cidr.contains(holding.cidr.addr())) {
            around.pop();
        }
        let clashing = around.iter().filter(|outer| {
            let addresses =
                [outer.title, holding.title].iter().filter(|title| **title == Title::Address).count();
            addresses == 1 || (addresses == 0 && outer.node != holding.node)
        });
        found.extend(clashing.map(|outer| {
            let (keeps, loses) =
                if outer.rank() <= holding.rank() { (*outer, *holding) } else { (*holding, *outer) };
            Clash { keeps, loses }
        }));
        around.push(*holding);
    }
    found
}

impl<'a> Holding<'a> {
    fn rank(&self) -> (Title, i64, &'a str) {
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

    /// The CIDRs of a pool of which nobody has an address, the lowest first, range by range. O(log n) each.
    pub(super) fn free<'a>(&'a self, pool: &'a Pool) -> Free<'a> {
        Free { taken: self, pool, range: 0, from: 0 }
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
        let size = 1_u128 << (128 - self.pool.bits());
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

fn range(cidr: Prefix) -> (u128, u128) {
    let first = u128::from_be_bytes(cidr.addr().octets());
    (first, first | u128::MAX.checked_shr(u32::from(cidr.bits())).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use portway_datapath::Family;

    use super::*;

    fn holding<'a>(node: &'a str, cidr: &str, title: Title, created: i64) -> Holding<'a> {
        Holding { cidr: Prefix::parse(cidr).unwrap(), node, title, created }
    }

    fn free(pool: &Pool, taken: &[&str]) -> Vec<String> {
        let mut holdings: Vec<_> = taken.iter().map(|cidr| holding("a", cidr, Title::Written, 0)).collect();
        clashes(&mut holdings);
        Taken::of(&holdings).free(pool).map(|cidr| cidr.to_string()).collect()
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
    fn the_better_title_keeps_and_then_the_older() {
        let mut holdings = [
            holding("young", "10.0.1.0/24", Title::Written, 9),
            holding("old", "10.0.0.0/16", Title::Written, 5),
            holding("claims", "10.0.1.0/24", Title::Claimed, 1),
            holding("apart", "10.1.0.0/24", Title::Written, 1),
            holding("old", "10.0.1.7/32", Title::Address, 0),
            holding("old", "10.0.1.8/32", Title::Address, 0),
        ];
        let found = clashes(&mut holdings);
        let mut found: Vec<_> =
            found.iter().map(|clash| (clash.keeps.node, clash.loses.node, clash.keeps.title)).collect();
        found.sort_unstable();
        let (address, written) = (Title::Address, Title::Written);
        let expected = [
            ("old", "claims", address),
            ("old", "claims", address),
            ("old", "claims", written),
            ("old", "old", address),
            ("old", "old", address),
            ("old", "young", address),
            ("old", "young", address),
            ("old", "young", written),
            ("young", "claims", written),
        ];
        assert_eq!(found, expected);
    }
}
