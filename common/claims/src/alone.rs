use portway_datapath::NumericIdentity;
use portway_model::identity::{Identities, Numbering};
use portway_model::k8s::{Event, Object, ObjectKind};
use portway_model::labels::Labels;

use crate::{Allocator, Change, News, Place, Source, holding};

/// Numbers without an API server. An identity that somebody wrote into the directory goes before what this node gave.
pub(super) struct Alone {
    numbers: Numbering,
}

impl Alone {
    pub(super) fn new(cluster_id: u16) -> Self {
        Self { numbers: Numbering::of_cluster(cluster_id) }
    }

    pub(super) fn hold(
        &mut self,
        labels: &Labels,
        before: Option<NumericIdentity>,
        observed: &Identities,
    ) -> Option<NumericIdentity> {
        let given = self.numbers.hold(labels, before);
        observed.number_of(labels).or(given)
    }

    pub(super) fn release(&mut self, labels: &Labels) {
        self.numbers.release(labels);
    }

    /// The number of a label set that is held. One that found no free number takes one as soon as there is one.
    pub(super) fn place(&mut self, labels: &Labels, observed: &Identities) -> Option<NumericIdentity> {
        let given = self.numbers.get(labels).or_else(|| self.numbers.hold(labels, None));
        observed.number_of(labels).or(given)
    }

    /// Takes note of an identity of the directory that `observed` knows already. Gives the label sets that may have another
    /// number now.
    pub(super) fn observe(&mut self, event: &Event, observed: &Identities) -> Vec<Labels> {
        match event {
            Event::Apply(Object::CiliumIdentity(identity)) => {
                let number = identity.number;
                let mut changed = vec![identity.labels.clone()];
                self.numbers.set_foreign(number, true);
                if let Some(labels) = self.numbers.labels_of(number).cloned()
                    && labels != identity.labels
                {
                    if self.numbers.renumber(&labels).is_none() {
                        self.numbers.release(&labels);
                    }
                    changed.push(labels);
                }
                changed
            }
            Event::Delete(key) if key.kind == ObjectKind::CiliumIdentity => {
                if let Some(number) = key.name.parse().ok().map(NumericIdentity::new) {
                    self.numbers.set_foreign(number, observed.is_taken(number));
                }
                self.numbers.iter().map(|(_, labels)| labels.clone()).collect()
            }
            Event::Apply(_) | Event::Delete(_) => Vec::new(),
        }
    }
}

impl Allocator {
    pub(crate) fn place_alone(&mut self, labels: &Labels) {
        let Source::Alone(alone) = &mut self.source else { return };
        let Some(holding) = self.held.get_mut(labels) else { return };
        let before = holding.place();
        let number = alone.place(labels, &self.observed);
        if !holding.give(number) {
            return;
        }
        let news = match (number, before) {
            (Some(number), _) => vec![News::Held(number)],
            // It is used until there is another one, unless it is another label set's.
            (None, Place::Held(before)) if self.observed.is_taken(before) => {
                vec![News::Lost(before), News::Obstacle(holding::exhausted(self.room.range(), 0))]
            }
            (None, _) => vec![News::Obstacle(holding::exhausted(self.room.range(), 0))],
        };
        self.changes.extend(news.into_iter().map(|news| Change { labels: labels.clone(), news }));
    }

    /// Without an API server: a number is free again.
    pub(crate) fn place_pending(&mut self) {
        let pending = self.held.iter().filter(|(_, holding)| holding.place() == Place::Pending);
        let pending: Vec<_> = pending.map(|(labels, _)| labels.clone()).collect();
        pending.iter().for_each(|labels| self.place_alone(labels));
    }
}
