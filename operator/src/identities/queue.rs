use std::collections::BTreeSet;

use portway_model::labels::Labels;

use crate::wishes::Urgency;

/// Which label sets go before which; of two alike the smaller labels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) urgency: Urgency,
    /// When its oldest pod was created, seconds since 1970.
    pub(super) since: i64,
}

/// Label sets that wait for their claims to begin.
#[derive(Debug, Default)]
pub(super) struct Queue(BTreeSet<(Rank, Labels)>);

impl Queue {
    pub(super) fn insert(&mut self, rank: Rank, labels: &Labels) {
        self.0.insert((rank, labels.clone()));
    }

    pub(super) fn remove(&mut self, rank: Rank, labels: &Labels) {
        self.0.remove(&(rank, labels.clone()));
    }

    /// The rank of one that waits may have become another one.
    pub(super) fn set_rank(&mut self, before: Rank, rank: Rank, labels: &Labels) {
        if before != rank {
            self.remove(before, labels);
            self.insert(rank, labels);
        }
    }

    pub(super) fn first(&self) -> Option<(Rank, Labels)> {
        self.0.first().cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
