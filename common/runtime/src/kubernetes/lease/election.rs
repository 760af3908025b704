//! Who leads, decided without clock or network: what is seen and what time it is goes in, what to ask the API server
//! comes out.
//!
//! Times are of this process' own monotonic clock. The leader leads until [`LeaseTimes::hold`] after it *sent* the last
//! renewal that was answered. The others wait for the whole duration after they *saw* the last sign of the leader, which
//! is later. A Lease that somebody deletes is no exception, but for a process that has never seen it. With clocks whose rates are up to 5 % wrong, a tenth of the duration is between the two at least.

use std::time::Duration;

use super::LeaseTimes;
use super::record::{Claim, Record};

/// The number of the term after this one. The field is an `int32`.
const fn after(transitions: u32) -> u32 {
    if transitions < i32::MAX.unsigned_abs() { transitions + 1 } else { 1 }
}

/// A conflict is answered by a look at once, but not more than so often in a row.
const CONFLICTS_IN_A_ROW: u32 = 2;

/// Time since some moment of this process.
pub(super) type Time = Duration;

pub(super) struct Election {
    identity: String,
    times: LeaseTimes,
    seen: Seen,
    /// What was seen may not be what is there.
    must_look: bool,
    /// The newest version that is known.
    version: u64,
    held: Option<Held>,
    /// When the request under way was sent.
    asking: Option<(Time, Action)>,
    /// No request before.
    not_before: Time,
    conflicts: u32,
}

/// What is known of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Unknown,
    /// There is none. Who held the last one may not know that it is gone, and may have given a sign right before.
    Absent {
        before: Option<(Record, Time)>,
    },
    /// `since` then the holder gave no sign.
    Record {
        record: Record,
        since: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    term: u32,
    /// When the last renewal that was answered was sent.
    sent: Time,
}

/// A request to the API server. One is under way at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Look,
    Create(Claim),
    /// Of the Lease at this version and no other.
    Replace {
        version: u64,
        claim: Claim,
    },
}

impl Action {
    /// Who did not hold the lease does after it.
    fn is_taking(&self) -> bool {
        match self {
            Self::Look => false,
            Self::Create(claim) | Self::Replace { claim, .. } => claim.is_new,
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send it; [`Election::answered`] takes its answer.
    Ask(Action),
    /// Nothing before this time, unless something is seen or answered.
    Wait(Time),
}

/// The answer to an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The Lease as it is.
    Lease(Record),
    /// There is no Lease.
    Absent,
    /// Somebody else wrote first. Nothing was changed.
    Conflict,
    /// Whether it is done is not known.
    Failed,
}

/// As the process itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing was seen of the Lease yet.
    Unknown,
    Standby {
        leader: Option<String>,
    },
    /// Until then, unless renewed.
    Leading {
        term: u32,
        until: Time,
    },
}

impl Election {
    pub(super) fn new(identity: String, times: LeaseTimes) -> Self {
        Self {
            identity,
            times,
            seen: Seen::Unknown,
            must_look: true,
            version: 0,
            held: None,
            asking: None,
            not_before: Time::ZERO,
            conflicts: 0,
        }
    }

    pub(super) fn role(&self, now: Time) -> Role {
        if let Some(held) = self.held.filter(|held| now < self.until(held)) {
            return Role::Leading { term: held.term, until: self.until(&held) };
        }
        match &self.seen {
            Seen::Unknown => Role::Unknown,
            Seen::Absent { .. } => Role::Standby { leader: None },
            Seen::Record { record, .. } => {
                let leader = Some(record.holder.clone()).filter(|holder| !holder.is_empty());
                // One's own lease that is over is nobody's.
                Role::Standby { leader: leader.filter(|holder| *holder != self.identity) }
            }
        }
    }

    const fn until(&self, held: &Held) -> Time {
        held.sent.saturating_add(self.times.hold())
    }

    /// What is to be done now.
    pub(super) fn poll(&mut self, now: Time) -> Step {
        if let Some(held) = self.held
            && now >= self.until(&held)
        {
            self.held = None;
        }
        let end = self.held.map_or(Time::MAX, |held| self.until(&held));
        if self.asking.is_some() {
            return Step::Wait(end);
        }
        if now < self.not_before {
            return Step::Wait(self.not_before.min(end));
        }
        let action = match &self.seen {
            _ if self.must_look => Action::Look,
            Seen::Unknown => Action::Look,
            Seen::Absent { before } => {
                let over = before.as_ref().map_or(Time::ZERO, |(record, since)| self.over(record, *since));
                if now < over {
                    return Step::Wait(over.min(end));
                }
                let transitions = before.as_ref().map_or(0, |(record, _)| record.transitions);
                Action::Create(self.claim(after(transitions)))
            }
            Seen::Record { record, since } => {
                let over = self.over(record, *since);
                if now < over {
                    return Step::Wait(over.min(end));
                }
                let claim = if self.held.is_some() {
                    Claim { is_new: false, ..self.claim(record.transitions) }
                } else {
                    // Be it one's own: what was written in a term that is over is told from what is written in this one.
                    self.claim(after(record.transitions))
                };
                Action::Replace { version: record.version, claim }
            }
        };
        self.asking = Some((now, action.clone()));
        Step::Ask(action)
    }

    /// When whoever holds the lease leads no more, unless he gives another sign.
    fn over(&self, record: &Record, since: Time) -> Time {
        if record.holder.is_empty() || record.holder == self.identity {
            return Time::ZERO;
        }
        since.saturating_add(record.duration.unwrap_or(self.times.duration))
    }

    fn claim(&self, transitions: u32) -> Claim {
        let (holder, duration) = (self.identity.clone(), self.times.duration);
        Claim { holder, duration, transitions, is_new: true }
    }

    /// The watch told of the Lease; `None`: that there is none. What is older than what is known says nothing.
    pub(super) fn told(&mut self, now: Time, version: u64, record: Option<Record>) {
        if version > self.version {
            self.see(now, version, record);
        }
    }

    /// Takes the answer to the request under way.
    pub(super) fn answered(&mut self, now: Time, answer: Answer) {
        let Some((sent, action)) = self.asking.take() else { return };
        let is_look = action == Action::Look;
        let is_leaders = self.held.is_some() || matches!(answer, Answer::Lease(_)) && !is_look;
        let wait = if is_leaders { self.times.period() } else { self.times.retry };
        let next = sent.saturating_add(wait);
        self.not_before = match answer {
            Answer::Lease(record) if is_look => {
                self.see(now, record.version, Some(record));
                // What is to be done about it is done at once, but not for ever.
                if self.conflicts < CONFLICTS_IN_A_ROW { now } else { next }
            }
            Answer::Absent if is_look => {
                self.see(now, self.version, None);
                now
            }
            Answer::Lease(record) => {
                self.conflicts = 0;
                let holds = self.held.is_some_and(|held| now < self.until(&held));
                self.held = (holds || action.is_taking()).then_some(Held { term: record.transitions, sent });
                self.see(now, record.version, Some(record));
                // A renewal whose answer comes after the end has renewed nothing: the lease is taken anew.
                if self.held.is_some() { next } else { now }
            }
            Answer::Absent | Answer::Conflict => {
                self.conflicts = self.conflicts.saturating_add(1);
                self.must_look = true;
                now
            }
            Answer::Failed => next,
        };
    }

    /// Takes the answer to a look that was not asked for by [`Self::poll`].
    pub(super) fn looked(&mut self, now: Time, answer: Answer) {
        self.asking = Some((now, Action::Look));
        self.answered(now, answer);
    }

    fn see(&mut self, now: Time, version: u64, record: Option<Record>) {
        (self.version, self.must_look) = (version, false);
        if self.held.is_some() && record.as_ref().is_none_or(|record| record.holder != self.identity) {
            self.held = None;
        }
        self.seen = match (record, std::mem::replace(&mut self.seen, Seen::Unknown)) {
            (None, Seen::Unknown) => Seen::Absent { before: None },
            (None, Seen::Record { record, .. }) => Seen::Absent { before: Some((record, now)) },
            (None, absent @ Seen::Absent { .. }) => absent,
            (Some(record), Seen::Record { record: before, since }) if record.is_same_sign(&before) => {
                Seen::Record { record, since }
            }
            (Some(record), _) => Seen::Record { record, since: now },
        };
    }

    /// What gives the lease to whoever wants it, where it is this process' own.
    pub(super) fn release(&mut self) -> Option<Action> {
        self.held = None;
        let Seen::Record { record, .. } = &self.seen else { return None };
        if record.holder != self.identity {
            return None;
        }
        let transitions = record.transitions;
        let claim =
            Claim { holder: String::new(), duration: Duration::from_secs(1), transitions, is_new: false };
        Some(Action::Replace { version: record.version, claim })
    }
}
