//! How much of what the sources told may be programmed while some of them have not told everything.
//!
//! Nothing is written before a source has synced. Where all have within [`PATIENCE`], everything is made exactly as
//! they say. Where one has not, what an earlier agent left is served together with what was seen: nothing restored is
//! dropped for a source that is silent, and what a silent source does not speak of is not held back by it. What programs
//! serve from other maps than ours cannot be served together with anything: they stay until services are known.

use std::time::Duration;

use tokio::time::Instant;

use super::source::Synced;

/// How long all sources are waited for, from the first one that has synced; from the start, where an earlier agent left
/// something that can be served.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Nothing is written.
    Waiting,
    /// What was seen, together with what an earlier agent left.
    Union,
    /// What the sources say. There is no way back.
    Exact,
}

pub(super) struct FirstSync {
    stage: Stage,
    has_restored: bool,
    /// What an earlier agent's programs serve is in other maps: it goes when ours are attached.
    serves_elsewhere: bool,
    /// When the patience began.
    since: Option<Instant>,
    /// When it is said that a source takes long; `None` once it was.
    late_at: Option<Instant>,
    is_late: bool,
}

impl FirstSync {
    /// `timeout` is `k8s-sync-timeout`, where there is an API server.
    pub(super) fn new(
        has_restored: bool,
        serves_elsewhere: bool,
        timeout: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            stage: Stage::Waiting,
            has_restored,
            serves_elsewhere,
            since: has_restored.then_some(now),
            late_at: timeout.map(|timeout| now + timeout),
            is_late: false,
        }
    }

    /// Whether what is served is worth something: all that the sources say, or at least all that was served before.
    pub(super) const fn serves_enough(&self) -> bool {
        match self.stage {
            Stage::Waiting => false,
            Stage::Union => self.has_restored,
            Stage::Exact => true,
        }
    }

    /// Goes on to the stage that `synced` allows.
    pub(super) fn advance(&mut self, synced: Synced, now: Instant) -> Stage {
        if self.since.is_none() && synced.any {
            self.since = Some(now);
        }
        let is_over = self.since.is_some_and(|since| now >= since + PATIENCE);
        let allowed = match (synced.all(), is_over, synced.knows_services()) {
            // What is missing then changes no backend for the worse: host ports that were restored stay until the pods
            // are known, and without the node's zone every zone's backends serve.
            (true, ..) | (false, true, true) => Stage::Exact,
            (false, true, false) if !self.serves_elsewhere => Stage::Union,
            (false, ..) => Stage::Waiting,
        };
        self.stage = self.stage.max(allowed);
        self.stage
    }

    /// Whether Services and EndpointSlices of every source are known.
    pub(super) fn knows_services(&self) -> bool {
        self.stage == Stage::Exact
    }

    /// When time alone changes something.
    pub(super) fn due(&self) -> Option<Instant> {
        let patience = self.since.filter(|_| self.stage == Stage::Waiting).map(|since| since + PATIENCE);
        [patience, self.late_at].into_iter().flatten().min()
    }

    /// Whether a source has just been found to take longer than it may.
    pub(super) fn becomes_late(&mut self, synced: Synced, now: Instant) -> bool {
        if synced.all() {
            (self.late_at, self.is_late) = (None, false);
            return false;
        }
        let is_due = self.late_at.is_some_and(|at| at <= now);
        if is_due {
            (self.late_at, self.is_late) = (None, true);
        }
        is_due
    }

    pub(super) const fn is_late(&self) -> bool {
        self.is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Synced =
        Synced { directory: false, services: false, pods: false, node: false, any: false };
    const ALL: Synced = Synced { directory: true, services: true, pods: true, node: true, any: true };
    const DIRECTORY: Synced = Synced { directory: true, any: true, ..NOTHING };
    const WITHOUT_PODS: Synced = Synced { pods: false, ..ALL };

    fn start(has_restored: bool) -> (FirstSync, Instant) {
        let now = Instant::now();
        (FirstSync::new(has_restored, false, Some(Duration::from_secs(180)), now), now)
    }

    #[test]
    fn all_sources_at_once_make_everything_exact() {
        let (mut sync, now) = start(true);
        assert_eq!(sync.advance(NOTHING, now), Stage::Waiting);
        assert_eq!(sync.advance(ALL, now), Stage::Exact);
        // A relist later on does not lead back.
        assert_eq!(sync.advance(NOTHING, now + PATIENCE), Stage::Exact);
        assert!(!sync.becomes_late(ALL, now + PATIENCE) && sync.due().is_none());
    }

    #[test]
    fn a_source_that_is_silent_holds_nobody_back() {
        let (mut sync, now) = start(false);
        assert_eq!((sync.advance(DIRECTORY, now), sync.due()), (Stage::Waiting, Some(now + PATIENCE)));
        assert_eq!(sync.advance(DIRECTORY, now + PATIENCE), Stage::Union);
        assert_eq!(sync.advance(WITHOUT_PODS, now + PATIENCE), Stage::Exact);
    }

    #[test]
    fn pods_and_node_are_waited_for_a_little() {
        let (mut sync, now) = start(false);
        assert_eq!(sync.advance(WITHOUT_PODS, now), Stage::Waiting);
        assert_eq!(sync.advance(WITHOUT_PODS, now + PATIENCE), Stage::Exact);
    }

    #[test]
    fn what_an_earlier_agent_left_is_served_though_no_source_answers() {
        let (mut sync, now) = start(true);
        assert_eq!(sync.due(), Some(now + PATIENCE));
        assert_eq!(sync.advance(NOTHING, now + PATIENCE), Stage::Union);
        let (mut sync, now) = start(false);
        assert_eq!(sync.advance(NOTHING, now + PATIENCE * 1000), Stage::Waiting);
    }

    #[test]
    fn programs_that_serve_from_other_maps_stay_until_services_are_known() {
        let now = Instant::now();
        let mut sync = FirstSync::new(false, true, None, now);
        assert_eq!(sync.advance(DIRECTORY, now), Stage::Waiting);
        assert_eq!(sync.advance(DIRECTORY, now + PATIENCE * 1000), Stage::Waiting);
        assert_eq!(sync.advance(WITHOUT_PODS, now + PATIENCE * 1000), Stage::Exact);
    }

    #[test]
    fn a_late_source_is_told_of_once_and_changes_nothing() {
        let (mut sync, now) = start(false);
        let later = now + Duration::from_secs(180);
        assert!(!sync.becomes_late(NOTHING, now) && sync.due() == Some(later));
        assert!(sync.becomes_late(NOTHING, later) && !sync.becomes_late(NOTHING, later));
        assert_eq!((sync.is_late(), sync.due(), sync.advance(NOTHING, later)), (true, None, Stage::Waiting));
        assert!(!sync.becomes_late(ALL, later) && !sync.is_late());
    }
}
