//! When a controller has its turns, and what is sent in each. Pure but for the clock that times a plan.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portway_runtime::kubernetes::jitter;

use super::backoff::Backoff;
use super::bucket::Bucket;
use super::refusals::{Refusals, Room};
use super::send::Answer;
use super::troubles::Told;
use crate::controller::{Controller, Now, Plan, Trouble};
use crate::observed::{Kind, Observed};
use crate::status;
use crate::write::{Change, Outcome, Write};

/// Between two turns, at least: what comes meanwhile is one turn's.
const REST: Duration = Duration::from_millis(50);
/// Of the time, one part in so many may go into plans.
const SHARE: u32 = 20;
/// What was written is waited for no longer: whoever plans without having seen it may plan it again, which fails.
const SIGHT_PATIENCE: Duration = Duration::from_secs(30);
/// Of a server that fails whatever is written, the first and the longest pause.
const SERVER_PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// A lease that is not held long enough may be renewed by then, if this process leads at all.
const FENCED_PAUSE: Duration = Duration::from_secs(1);

/// A controller and where it is in its turn.
pub(super) struct Turns {
    controller: Box<dyn Controller>,
    state: State,
    /// Something changed since the last plan.
    is_dirty: bool,
    /// It asked for a turn then.
    again: Option<Duration>,
    not_before: Duration,
    bucket: Bucket,
    backoff: Backoff,
    refusals: Refusals,
    server_pause: Duration,
    report: status::Controller,
    planned_at: Option<Duration>,
}

enum State {
    /// Kinds that it needs have not been listed.
    Unsynced,
    Idle,
    Writing {
        left: usize,
        wait_for: Vec<Sight>,
        /// Every answer so far blames the server.
        is_servers_fault: bool,
    },
    Seeing {
        wait_for: Vec<Sight>,
        until: Duration,
    },
}

/// What the watches will tell of a write.
enum Sight {
    Version(Kind, u64),
    Gone(Kind, String, String),
}

impl Sight {
    fn of(write: &Write, version: u64) -> Self {
        match &write.change {
            Change::Delete { uid, .. } => Self::Gone(write.kind, write.object.clone(), uid.to_string()),
            Change::Create(_) | Change::Patch { .. } => Self::Version(write.kind, version),
        }
    }

    fn is_had(&self, observed: &Observed) -> bool {
        match self {
            Self::Version(kind, version) => observed.version(*kind) >= *version,
            Self::Gone(kind, object, uid) => {
                observed.meta(*kind, object).is_none_or(|meta| *meta.uid != **uid || meta.is_deleting)
            }
        }
    }
}

/// What came of a plan.
pub(super) struct Turn {
    pub(super) writes: Vec<Write>,
    pub(super) troubles: Vec<Trouble>,
    /// How long the plan took.
    pub(super) took: Duration,
}

impl Turns {
    pub(super) fn new(controller: Box<dyn Controller>) -> Self {
        let report =
            status::Controller { name: controller.name().to_owned(), ..status::Controller::default() };
        Self {
            controller,
            state: State::Unsynced,
            is_dirty: true,
            again: None,
            not_before: Duration::ZERO,
            bucket: Bucket::default(),
            backoff: Backoff::default(),
            refusals: Refusals::default(),
            server_pause: Duration::ZERO,
            report,
            planned_at: None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.controller.name()
    }

    pub(super) fn note(&mut self, kind: Kind) {
        self.is_dirty |= self.controller.kinds().contains(&kind);
    }

    /// Plans, if a turn is due.
    pub(super) fn step(&mut self, observed: &Observed, now: Now) -> Option<Turn> {
        self.look(observed, now);
        if !matches!(self.state, State::Idle) || self.due()? > now.monotonic {
            return None;
        }
        Some(self.turn(observed, now))
    }

    /// When there is something to do that no event brings.
    pub(super) fn next(&self) -> Option<Duration> {
        match &self.state {
            State::Unsynced | State::Writing { .. } => None,
            State::Idle => self.due(),
            State::Seeing { until, .. } => Some(*until),
        }
    }

    fn due(&self) -> Option<Duration> {
        let wanted = if self.is_dirty { Some(Duration::ZERO) } else { self.again };
        wanted.map(|wanted| wanted.max(self.not_before))
    }

    /// Moves on where what was waited for is there.
    fn look(&mut self, observed: &Observed, now: Now) {
        let is_synced = self.controller.kinds().iter().all(|kind| observed.is_synced(*kind));
        let is_over = match &mut self.state {
            State::Unsynced => is_synced,
            State::Seeing { wait_for, until } => {
                wait_for.retain(|sight| !sight.is_had(observed));
                let is_late = now.monotonic >= *until && !wait_for.is_empty();
                if is_late {
                    tracing::warn!(
                        controller = self.controller.name(),
                        writes = wait_for.len(),
                        seconds = SIGHT_PATIENCE.as_secs(),
                        "the watches have not told of what was written; going on without"
                    );
                }
                is_late || wait_for.is_empty()
            }
            State::Idle | State::Writing { .. } => false,
        };
        if is_over {
            self.state = State::Idle;
        }
        if !is_synced && matches!(self.state, State::Idle) {
            self.state = State::Unsynced;
        }
    }

    fn turn(&mut self, observed: &Observed, now: Now) -> Turn {
        let began = Instant::now();
        let pace = self.controller.pace(observed);
        let Plan { writes, again, troubles } = self.controller.plan(observed, now);
        let took = began.elapsed();
        let monotonic = now.monotonic;
        self.is_dirty = false;
        self.again = again.map(|after| monotonic.saturating_add(after));
        self.not_before = monotonic + REST.max(took * SHARE);
        self.backoff.sweep(monotonic);
        let (wanted, room) = (writes.len(), self.bucket.fill(pace, monotonic));
        let mut objects = BTreeSet::new();
        let mut asked_for = BTreeSet::new();
        let mut sent = Vec::new();
        for write in writes {
            let left_alone = match self.refusals.room(write.kind, monotonic) {
                Room::NoneUntil(until) => Some(until),
                Room::Any | Room::One => self.backoff.until(&write, monotonic),
            };
            if let Some(until) = left_alone {
                self.again = Some(self.again.map_or(until, |again| again.min(until)));
            } else if self.refusals.room(write.kind, monotonic) == Room::One && !asked_for.insert(write.kind)
            {
                // The answer to the one says what becomes of the others.
            } else if sent.len() == room.min(pace.batch)
                || !objects.insert((write.kind, write.object.clone()))
            {
                self.is_dirty = true;
            } else {
                sent.push(write);
            }
        }
        if sent.is_empty() && self.is_dirty {
            match self.bucket.next(pace) {
                Some(next) => self.not_before = self.not_before.max(next),
                // It may write nothing.
                None => self.is_dirty = false,
            }
        }
        self.bucket.take(sent.len());
        self.planned_at = Some(monotonic);
        self.report.plans += 1;
        self.report.plan_seconds = took.as_secs_f64();
        self.report.wanted = wanted as u64;
        if !sent.is_empty() {
            self.state = State::Writing { left: sent.len(), wait_for: Vec::new(), is_servers_fault: true };
        }
        Turn { writes: sent, troubles, took }
    }

    /// Takes note of the answer to a write of the turn.
    pub(super) fn answered(&mut self, write: &Write, answer: &Answer, now: Now) {
        let now = now.monotonic;
        let mut sight = None;
        let mut blames = false;
        match answer {
            Answer::Outcome { outcome, blames_server, is_refusal, retry_after } => {
                blames = *blames_server;
                if !is_refusal && !blames && self.refusals.taken(write.kind) {
                    self.backoff.granted(write.kind);
                }
                match outcome {
                    Outcome::Done { version } => {
                        self.report.done += 1;
                        self.backoff.done(write);
                        sight = Some(Sight::of(write, *version));
                    }
                    Outcome::Late => {
                        self.report.late += 1;
                        self.backoff.late(write, now);
                    }
                    Outcome::Failed(error) => {
                        self.report.failed += 1;
                        self.report.last_error =
                            Some(format!("{} {}: {error}", write.kind.name(), write.object));
                        if *is_refusal {
                            self.backoff.refused(write, *retry_after, now);
                            self.refusals.refused(write, error, *retry_after, now);
                        } else {
                            self.backoff.failed(write, *retry_after, now);
                        }
                        tracing::debug!(
                            controller = self.controller.name(),
                            kind = write.kind.name(),
                            object = write.object,
                            error,
                            "a write failed"
                        );
                    }
                }
                self.controller.done(write, outcome);
            }
            Answer::Fenced => {
                self.report.fenced += 1;
                self.not_before = self.not_before.max(now + FENCED_PAUSE);
            }
        }
        // It has to see for itself what came of its writes.
        self.is_dirty = true;
        let State::Writing { left, wait_for, is_servers_fault } = &mut self.state else { return };
        wait_for.extend(sight);
        *is_servers_fault &= blames;
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        let wait_for = std::mem::take(wait_for);
        if *is_servers_fault {
            self.server_pause = (self.server_pause * 2).clamp(SERVER_PAUSE.0, SERVER_PAUSE.1);
            let pause = jitter::between(self.server_pause / 2, self.server_pause);
            self.not_before = self.not_before.max(now + pause);
        } else {
            self.server_pause = Duration::ZERO;
        }
        self.state = State::Seeing { wait_for, until: now + SIGHT_PATIENCE };
    }

    pub(super) fn status(&self, told: &Told, now: Now) -> status::Controller {
        let state = match self.state {
            State::Unsynced => "waiting for lists",
            State::Idle => "idle",
            State::Writing { .. } => "writing",
            State::Seeing { .. } => "waiting for watches",
        };
        status::Controller {
            state: state.to_owned(),
            refused: self.refusals.errors(),
            left_alone: self.backoff.len(now.monotonic) as u64,
            plan_age_seconds: self.planned_at.map(|at| now.monotonic.saturating_sub(at).as_secs_f64()),
            troubles: told.troubles().cloned().map(Into::into).collect(),
            ..self.report.clone()
        }
    }
}

#[cfg(test)]
mod tests;
