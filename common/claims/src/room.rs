//! Which numbers are free.

use std::collections::BTreeMap;

use portway_datapath::NumericIdentity;
use portway_model::identity::NumberRange;

const WORD: usize = 64;

/// The numbers of a range that nobody has, as far as watches tell, and nobody here is about to take: claims that are under
/// way together do not fight for one. O(1) but for [`Self::attempt`].
pub(crate) struct Room {
    range: NumberRange,
    /// A bit for each number of the range.
    taken: Box<[u64]>,
    free: usize,
    /// Numbers that are being made, and whose claims do it. No watch has told of them yet.
    attempts: BTreeMap<NumericIdentity, u64>,
}

impl Room {
    pub(crate) fn new(range: NumberRange) -> Self {
        let count = range.count() as usize;
        let taken = vec![0; count.div_ceil(WORD)].into();
        Self { range, taken, free: count, attempts: BTreeMap::new() }
    }

    /// A watch tells that somebody has, or has no longer, a number.
    pub(crate) fn set_taken(&mut self, number: NumericIdentity, is_taken: bool) {
        self.give_up(number);
        if let Some((word, bit)) = self.place(number)
            && let Some(word) = self.taken.get_mut(word)
            && (*word & bit != 0) != is_taken
        {
            *word ^= bit;
            self.free = if is_taken { self.free.saturating_sub(1) } else { self.free + 1 };
        }
    }

    /// Whether a claim must look for another number.
    pub(crate) fn is_taken_for(&self, number: NumericIdentity, claim: u64) -> bool {
        self.is_taken(number) || self.attempts.get(&number).is_some_and(|other| *other != claim)
    }

    /// A claim makes an identity of this number, and of no other. O(numbers that are being made).
    pub(crate) fn attempt(&mut self, number: NumericIdentity, claim: u64) {
        self.end(claim);
        if self.range.contains(number)
            && !self.is_taken(number)
            && self.attempts.insert(number, claim).is_none()
        {
            self.free = self.free.saturating_sub(1);
        }
    }

    /// A claim makes nothing any more. O(numbers that are being made).
    pub(crate) fn end(&mut self, claim: u64) {
        self.retain(|_, other| other != claim);
    }

    /// A claim has come to a number: what it made is this one, which a watch will tell of, or is not there.
    pub(crate) fn end_but(&mut self, number: NumericIdentity, claim: u64) {
        self.retain(|of, other| of == number || other != claim);
    }

    /// Whether there are more than `kept` for a claim, its own attempt among them. O(numbers that are being made).
    pub(crate) fn has_more_for(&self, claim: u64, kept: usize) -> bool {
        let own = self.attempts.values().filter(|other| **other == claim).count();
        self.free + own > kept
    }

    /// How many are free.
    pub(crate) const fn free(&self) -> usize {
        self.free
    }

    pub(crate) const fn range(&self) -> NumberRange {
        self.range
    }

    fn retain(&mut self, stays: impl Fn(NumericIdentity, u64) -> bool) {
        let before = self.attempts.len();
        self.attempts.retain(|number, claim| stays(*number, *claim));
        self.free += before - self.attempts.len();
    }

    fn give_up(&mut self, number: NumericIdentity) {
        if self.attempts.remove(&number).is_some() {
            self.free += 1;
        }
    }

    fn is_taken(&self, number: NumericIdentity) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| self.taken.get(word).is_some_and(|taken| taken & bit != 0))
    }

    /// `None`: it is none of the range.
    fn place(&self, number: NumericIdentity) -> Option<(usize, u64)> {
        if !self.range.contains(number) {
            return None;
        }
        let place = (number.get() - self.range.first().get()) as usize;
        Some((place / WORD, 1 << (place % WORD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: u64 = 1;
    const OTHERS: u64 = 2;

    fn number(number: u32) -> NumericIdentity {
        NumericIdentity::new(number)
    }

    #[test]
    fn what_is_free_is_counted_through_all_changes() {
        let mut room = Room::new(NumberRange::narrowed(0, 300, 399).unwrap());
        assert_eq!(room.free(), 100);
        for taken in [300, 399, 399, 299, 400, 70_000] {
            room.set_taken(number(taken), true);
        }
        assert_eq!(room.free(), 98, "a number is taken once, and those of others do not count");
        assert!(room.is_taken_for(number(399), MINE) && !room.is_taken_for(number(398), MINE));
        room.set_taken(number(399), false);
        room.set_taken(number(399), false);
        assert_eq!(room.free(), 99);
    }

    #[test]
    fn a_number_that_is_being_made_is_others_no_more() {
        let mut room = Room::new(NumberRange::narrowed(0, 300, 399).unwrap());
        room.attempt(number(310), MINE);
        assert!(!room.is_taken_for(number(310), MINE) && room.is_taken_for(number(310), OTHERS));
        assert_eq!(room.free(), 99);
        room.attempt(number(311), MINE);
        assert!(!room.is_taken_for(number(310), OTHERS), "a claim makes one");
        assert_eq!(room.free(), 99);
        room.set_taken(number(311), true);
        assert_eq!(room.free(), 99, "it is the same one");
        room.end(MINE);
        assert_eq!(room.free(), 99);
        room.attempt(number(312), OTHERS);
        room.end_but(number(312), OTHERS);
        assert_eq!(room.free(), 98, "its watch will tell of it");
        room.end_but(number(313), OTHERS);
        assert_eq!(room.free(), 99);
        room.attempt(number(312), OTHERS);
        room.end(OTHERS);
        assert_eq!(room.free(), 99);
    }
}
