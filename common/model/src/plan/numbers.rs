use std::collections::BTreeSet;

/// Which numbers from 1 up to and without an end are free. 0 means none everywhere and is never given.
#[derive(Debug)]
pub(super) struct Numbers {
    /// This one and all after it were never given.
    next: u32,
    end: u32,
    free: Vec<u32>,
}

impl Numbers {
    pub(super) const fn new(end: u32) -> Self {
        Self { next: 1, end, free: Vec::new() }
    }

    pub(super) fn restored(end: u32, used: &BTreeSet<u32>) -> Self {
        let next = used.range(..end).next_back().map_or(1, |last| last + 1).max(1);
        // Reversed, so that the lowest is given first.
        let free = (1..next).rev().filter(|n| !used.contains(n)).collect();
        Self { next, end, free }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.next;
        if number >= self.end {
            return None;
        }
        self.next += 1;
        Some(number)
    }

    /// Also for numbers that a damaged map had and that can't be given: they are dropped.
    pub(super) fn give_back(&mut self, number: u32) {
        if number != 0 && number < self.next {
            self.free.push(number);
        }
    }

    pub(super) fn available(&self) -> u32 {
        self.free.len() as u32 + self.end.saturating_sub(self.next)
    }

    pub(super) fn used(&self) -> u32 {
        self.next - 1 - self.free.len() as u32
    }
}
