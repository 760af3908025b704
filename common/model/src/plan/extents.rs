use std::collections::{BTreeMap, BTreeSet};

/// Neighbouring elements of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Extent {
    pub(super) const EMPTY: Self = Self { start: 0, len: 0 };

    /// The first element after it.
    pub(super) const fn end(self) -> u32 {
        self.start + self.len
    }

    const fn between(start: u32, end: u32) -> Self {
        Self { start, len: end.saturating_sub(start) }
    }
}

/// Which elements of an array are free: the smallest free extent that is long enough is taken, the lowest of equal
/// ones, and neighbours that come free become one. Everything costs the logarithm of the number of free extents.
#[derive(Debug)]
pub(super) struct Extents {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    first: u32,
    end: u32,
    free: u32,
    /// Extents in use that overlapped when they were found: none of them says alone what is free.
    overlapping: Vec<Extent>,
}

impl Extents {
    /// Elements from `first` up to and without `end`, all free.
    pub(super) fn new(first: u32, end: u32) -> Self {
        let mut extents = Self {
            by_start: BTreeMap::new(),
            by_len: BTreeSet::new(),
            first,
            end,
            free: 0,
            overlapping: Vec::new(),
        };
        extents.release(Extent::between(first, end));
        extents
    }

    /// As [`Self::new`] but for `used`. Also: which of `used` overlap another one.
    pub(super) fn restored(first: u32, end: u32, used: &[Extent]) -> (Self, Vec<bool>) {
        let mut order: Vec<usize> = (0..used.len()).filter(|i| used[*i].len != 0).collect();
        order.sort_by_key(|i| used[*i]);
        let mut extents = Self::new(first, first);
        extents.end = end;
        let mut overlaps = vec![false; used.len()];
        let mut free_from = first;
        let mut longest: Option<usize> = None;
        for i in order {
            let extent = used[i];
            if let Some(before) = longest
                && used[before].end() > extent.start
            {
                overlaps[before] = true;
                overlaps[i] = true;
            }
            if longest.is_none_or(|before| used[before].end() < extent.end()) {
                longest = Some(i);
            }
            extents.release(Extent::between(free_from, extent.start.min(end)));
            free_from = free_from.max(extent.end());
        }
        extents.release(Extent::between(free_from, end));
        extents.overlapping =
            used.iter().zip(&overlaps).filter(|(_, o)| **o).map(|(extent, _)| *extent).collect();
        (extents, overlaps)
    }

    /// `None` where no free extent is that long.
    pub(super) fn take(&mut self, len: u32) -> Option<Extent> {
        if len == 0 {
            return Some(Extent::EMPTY);
        }
        let (found, start) = *self.by_len.range((len, 0)..).next()?;
        self.forget(start, found);
        self.remember(start + len, found - len);
        self.free -= len;
        Some(Extent { start, len })
    }

    pub(super) fn fits(&self, len: u32) -> bool {
        self.by_len.last().is_some_and(|(longest, _)| *longest >= len)
    }

    /// What nobody else uses of an extent that its user gives up.
    pub(super) fn parts_of_one_user(&mut self, extent: Extent) -> Vec<Extent> {
        let Some(at) = self.overlapping.iter().position(|other| *other == extent) else {
            return vec![extent];
        };
        self.overlapping.swap_remove(at);
        let mut parts = vec![extent];
        for other in &self.overlapping {
            parts = parts
                .into_iter()
                .flat_map(|part| {
                    let before = Extent::between(part.start, part.end().min(other.start));
                    let after = Extent::between(part.start.max(other.end()), part.end());
                    [before, after]
                })
                .filter(|part| part.len != 0)
                .collect();
        }
        parts
    }

    /// Makes an extent free that [`Self::take`] gave or that was used from the start.
    pub(super) fn release(&mut self, extent: Extent) {
        if extent.len == 0 {
            return;
        }
        self.free += extent.len;
        let (mut start, mut len) = (extent.start, extent.len);
        if let Some((before, before_len)) = self.by_start.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + before_len == start
        {
            self.forget(before, before_len);
            (start, len) = (before, before_len + len);
        }
        if let Some(after_len) = self.by_start.get(&extent.end()).copied() {
            self.forget(extent.end(), after_len);
            len += after_len;
        }
        self.remember(start, len);
    }

    pub(super) const fn free(&self) -> u32 {
        self.free
    }

    pub(super) const fn used(&self) -> u32 {
        self.end.saturating_sub(self.first).saturating_sub(self.free)
    }

    fn remember(&mut self, start: u32, len: u32) {
        if len != 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn forget(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}
