use super::Planner;
use super::held::Who;
use super::restore::Read;
use crate::tables::TableDump;

impl Planner {
    /// Adopts what the maps hold where it is not what this planner wrote: somebody else changed a map. Nothing is
    /// written.
    ///
    /// What agrees stays as it is known; the rest is as after [`Self::restore`], but for whose it is. As there,
    /// [`super::Retired`] values from before free nothing, and the caller waits for a grace period before anything is
    /// written. Then [`Self::prune`] with everything of `desired` dirty puts the maps right, in the order that is
    /// right at every step.
    ///
    /// `dump` must be of now: nothing may have been written after it. O(everything).
    pub fn heal(&mut self, dump: &TableDump) {
        let Read { mut planner, overlapping } = Self::read(self.options, self.room.epoch + 1, dump);
        planner.room.incarnation = planner.room.incarnation.max(self.room.incarnation);
        planner.room.generation = planner.room.generation.max(self.room.generation);
        for (index, found) in &mut planner.held {
            let overlaps = overlapping.contains(index);
            let Some(ours) = self.held.remove(index) else {
                found.distrust_unless(!overlaps);
                continue;
            };
            // A wrong name is written anew where the service stays, and goes with it where it goes.
            if matches!(ours.who, Who::Owner(_)) {
                found.named = ours.named && ours.is_named_in(found);
            }
            match (&mut found.version, &ours.version) {
                (Some(found), Some(ours))
                    if found.extent.start == ours.extent.start && found.header == ours.header =>
                {
                    found.is_sound &= ours.is_sound;
                }
                (Some(_), Some(_) | None) => found.distrust_unless(false),
                (None, _) => {}
            }
            found.who = ours.who;
            if self.released.contains(index) {
                planner.released.insert(*index);
            }
            if let Who::Owner(key) = &found.who {
                planner.by_key.insert(key.clone(), *index);
            }
        }
        planner.without_maglev = std::mem::take(&mut self.without_maglev);
        planner.index_restored();
        *self = planner;
    }
}
