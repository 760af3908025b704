use portway_datapath::layout::Sizes;
use portway_datapath::{BackendIndex, RunHeader, ServiceIndex};

use super::extents::{Extent, Extents};
use super::numbers::Numbers;
use super::outcome::{Resource, Shortage};

/// What was taken out of use and may be written again after a grace period: to be given to
/// [`super::Planner::reclaim`]. One that is dropped is lost until the next restart.
#[derive(Debug, Default)]
#[must_use = "what it holds stays unusable until it is reclaimed"]
pub struct Retired {
    runs: Vec<Extent>,
    maglev: Vec<Extent>,
    slots: Vec<BackendIndex>,
    services: Vec<ServiceIndex>,
    /// Of the planner's view that it was taken from: [`super::Planner::restore`] begins another.
    epoch: u64,
    /// Programs that began before it are gone once it is reclaimed.
    mark: u64,
}

impl Retired {
    fn counts(&self) -> [usize; 4] {
        let Self { runs, maglev, slots, services, epoch: _, mark: _ } = self;
        [runs.len(), maglev.len(), slots.len(), services.len()]
    }

    /// How many things wait to be free. There may be none: some changes only have to wait for programs that began
    /// before the last one.
    pub fn len(&self) -> usize {
        self.counts().iter().sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is free in the maps, what is about to be, and the numbers that are never given twice.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) sizes: Sizes,
    pub(super) runs: Extents,
    pub(super) maglev: Extents,
    pub(super) slots: Numbers,
    pub(super) services: Numbers,
    /// Entries in use.
    pub(super) source_ranges: u32,
    /// The last that was given; [`BackendIndex`] slots of all services share them.
    pub(super) incarnation: u32,
    pub(super) generation: u32,
    pub(super) epoch: u64,
    retired: Retired,
    /// What [`Retired`] values outside hold: runs, Maglev tables, slots, services.
    lent: [usize; 4],
    /// What happens now is over for every program once a [`Retired`] with this mark is reclaimed.
    mark: u64,
    /// What happened at this mark and before is over.
    quiet: u64,
    /// The latest mark that somebody waits for.
    awaited: u64,
}

impl Room {
    pub(super) fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            // Record 0 is no run, index 0 no service, slot 0 no backend. A Maglev table may begin at 0.
            runs: Extents::new(1, sizes.runs),
            maglev: Extents::new(0, sizes.maglev),
            slots: Numbers::new(sizes.backends),
            services: Numbers::new(service_end(sizes)),
            source_ranges: 0,
            incarnation: 0,
            generation: 0,
            epoch: 0,
            retired: Retired::default(),
            lent: [0; 4],
            mark: 1,
            quiet: 0,
            awaited: 0,
        }
    }

    pub(super) fn retire_run(&mut self, extent: Extent) {
        self.retired.runs.extend(self.runs.parts_of_one_user(extent));
    }

    pub(super) fn retire_maglev(&mut self, extent: Extent) {
        if extent.len != 0 {
            self.retired.maglev.extend(self.maglev.parts_of_one_user(extent));
        }
    }

    pub(super) fn retire_slot(&mut self, slot: BackendIndex) {
        self.retired.slots.push(slot);
    }

    pub(super) fn retire_service(&mut self, index: ServiceIndex) {
        self.retired.services.push(index);
    }

    pub(super) fn take_retired(&mut self) -> Option<Retired> {
        if self.retired.is_empty() && self.awaited < self.mark {
            return None;
        }
        let mut retired = std::mem::take(&mut self.retired);
        retired.epoch = self.epoch;
        retired.mark = self.mark;
        self.mark += 1;
        for (lent, taken) in self.lent.iter_mut().zip(retired.counts()) {
            *lent += taken;
        }
        Some(retired)
    }

    pub(super) fn reclaim(&mut self, retired: Retired) {
        if retired.epoch != self.epoch {
            return;
        }
        for (lent, taken) in self.lent.iter_mut().zip(retired.counts()) {
            *lent = lent.saturating_sub(taken);
        }
        let Retired { runs, maglev, slots, services, epoch: _, mark } = retired;
        self.quiet = self.quiet.max(mark);
        runs.into_iter().for_each(|extent| self.runs.release(extent));
        maglev.into_iter().for_each(|extent| self.maglev.release(extent));
        slots.into_iter().for_each(|slot| self.slots.give_back(slot.get()));
        services.into_iter().for_each(|index| self.services.give_back(index.get()));
    }

    /// Whether a grace period will make more of it free.
    pub(super) fn waits(&self, resource: Resource) -> bool {
        let at = match resource {
            Resource::Runs => 0,
            Resource::Maglev => 1,
            Resource::Backends => 2,
            Resource::Services => 3,
            Resource::Frontends | Resource::SourceRanges | Resource::Incarnations => return false,
        };
        self.lent[at] + self.retired.counts()[at] > 0
    }

    /// For [`Self::is_over`], of what happens now.
    pub(super) const fn mark(&self) -> u64 {
        self.mark
    }

    /// Whether every program that began before `mark` has ended. If not, the next [`Retired`] is asked for.
    pub(super) fn is_over(&mut self, mark: u64) -> bool {
        let is_over = mark <= self.quiet;
        if !is_over {
            self.awaited = self.awaited.max(mark);
        }
        is_over
    }

    pub(super) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    pub(super) fn next_incarnation(&mut self) -> Option<u32> {
        self.incarnation = self.incarnation.checked_add(1)?;
        Some(self.incarnation)
    }

    /// What is missing for `needed` more of it.
    pub(super) fn shortage(&self, resource: Resource, needed: u32) -> Shortage {
        let (entries, used) = match resource {
            Resource::Runs => (self.sizes.runs, self.runs.used()),
            Resource::Maglev => (self.sizes.maglev, self.maglev.used()),
            Resource::Backends => (self.sizes.backends, self.slots.used()),
            Resource::Services => (self.sizes.services, self.services.used()),
            Resource::SourceRanges => (self.sizes.source_ranges, self.source_ranges),
            Resource::Frontends => (self.sizes.frontends, self.sizes.frontends),
            Resource::Incarnations => (u32::MAX, self.incarnation),
        };
        Shortage { resource, entries, used, needed }
    }
}

/// The first index that can't be given.
pub(super) fn service_end(sizes: Sizes) -> u32 {
    sizes.services.min(ServiceIndex::MAX + 1)
}

/// Records of a run with so many backends.
pub(super) const fn run_len(backends: usize) -> u32 {
    RunHeader::RECORDS + backends as u32
}
