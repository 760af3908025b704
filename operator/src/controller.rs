//! What a controller is: it decides, and never does.

use std::time::Duration;

use crate::observed::{Kind, Observed};
use crate::write::{Outcome, Write};

/// Keeps one sort of objects as it should be.
///
/// A turn is: plan, at most [`Pace::batch`] of its writes, all of them answered, and what they wrote seen by the watches.
/// Only then is there another one: a plan knows everything that earlier ones did. An object whose write failed is left
/// out of turns for a while, which grows; the others go on.
pub trait Controller: Send {
    /// In logs and metrics, such as `identity-gc`.
    fn name(&self) -> &'static str;

    /// Kinds whose changes call for a turn. All of them have been listed before the first one.
    fn kinds(&self) -> &'static [Kind];

    /// How fast its writes may be.
    fn pace(&self, observed: &Observed) -> Pace;

    /// What is to be written, the most urgent first. Pure but for what the controller remembers; O(objects of its kinds).
    fn plan(&mut self, observed: &Observed, now: Now) -> Plan;

    /// Takes note of what came of a write.
    fn done(&mut self, _write: &Write, _outcome: &Outcome) {}
}

/// When a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since 1970, by the clock that the API server's times are compared with.
    pub wall: Duration,
    /// Since the process began; never goes back.
    pub monotonic: Duration,
}

impl Now {
    /// Seconds since 1970.
    pub fn seconds(self) -> i64 {
        i64::try_from(self.wall.as_secs()).unwrap_or(i64::MAX)
    }
}

/// How fast writes may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Writes of a turn, at most; all of them at once.
    pub batch: usize,
    /// Writes a second, over many turns.
    pub per_second: f64,
}

/// What a controller wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub writes: Vec<Write>,
    /// Where nothing changes, it is asked again after this long. `None`: it need not be.
    pub again: Option<Duration>,
    /// What is wrong and no write mends, for status and Events.
    pub troubles: Vec<Trouble>,
}

/// Something that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Trouble {
    pub kind: Kind,
    /// `namespace/name`, or the name.
    pub object: String,
    /// `metadata.uid`, "" where it is not known.
    pub uid: String,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// What is wrong and how to mend it.
    pub message: String,
}
