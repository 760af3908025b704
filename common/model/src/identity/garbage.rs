//! Garbage collection of identities: what nobody has used for long is marked, and what stays marked for long is deleted.
//!
//! The clock is on the object: the annotation [`HEARTBEAT`](super::HEARTBEAT) says since when it is unused, so that a collector that
//! restarts, or another one, goes on where the last was. Who takes an identity into use removes the mark (`claim.rs`).
//!
//! The order matters: read the identities, *then* list what uses them (CiliumEndpoints and their slices), then judge, and
//! write with the version that was read.

use std::collections::BTreeSet;

use portway_datapath::NumericIdentity;

use super::seen::Version;
use super::store::version_of;
use crate::k8s::CiliumIdentity;

/// What the annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Seconds since 1970.
    At(i64),
    /// No RFC 3339 time.
    Unreadable,
}

/// How long an identity that nothing uses stays, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From its creation to its mark.
    pub young: i64,
    /// From its mark to its end. Who takes it into use writes a reference, or removes the mark, within this time.
    pub marked: i64,
}

impl From<i64> for Timeouts {
    /// Both, as Cilium's `identity-heartbeat-timeout` (30 minutes).
    fn from(seconds: i64) -> Self {
        Self { young: seconds, marked: seconds }
    }
}

/// What is to be done with an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Keep,
    Mark,
    Unmark,
    Delete,
}

/// A write of the collector; all but `Keep` are conditional on the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    pub number: NumericIdentity,
    pub version: Version,
    pub verdict: Verdict,
}

/// What is to be written, by number. `used` are the numbers that something refers to, listed after `identities` were
/// read; `now` is in seconds.
pub fn plan<'a>(
    identities: impl IntoIterator<Item = &'a CiliumIdentity>,
    used: &BTreeSet<NumericIdentity>,
    now: i64,
    timeouts: impl Into<Timeouts>,
) -> Vec<Collection> {
    let timeouts = timeouts.into();
    let judged = identities.into_iter().map(|identity| {
        let mark = identity
            .heartbeat
            .as_deref()
            .map(|text| crate::k8s::seconds_of(text).map_or(Mark::Unreadable, Mark::At));
        let verdict =
            judge(mark, identity.created.unwrap_or(0), used.contains(&identity.number), now, timeouts);
        Collection { number: identity.number, version: version_of(identity), verdict }
    });
    judged.filter(|collection| collection.verdict != Verdict::Keep).collect()
}

/// Of one identity. `created` in seconds since 1970: an identity is older than its first CiliumEndpoint, so a young one is
/// left alone.
pub fn judge(mark: Option<Mark>, created: i64, is_used: bool, now: i64, timeouts: Timeouts) -> Verdict {
    match (mark, is_used) {
        (None, true) => Verdict::Keep,
        (Some(_), true) => Verdict::Unmark,
        (None, false) if now.saturating_sub(created) < timeouts.young => Verdict::Keep,
        (None | Some(Mark::Unreadable), false) => Verdict::Mark,
        // The clock of who marked it was wrong, or ours was.
        (Some(Mark::At(at)), false) if at > now.saturating_add(timeouts.marked) => Verdict::Mark,
        (Some(Mark::At(at)), false) if now.saturating_sub(at) >= timeouts.marked => Verdict::Delete,
        (Some(Mark::At(_)), false) => Verdict::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;
    const TIMEOUT: i64 = 1800;
    const YOUNG: i64 = 60;

    fn judged(mark: Option<Mark>, created: i64, is_used: bool) -> Verdict {
        judge(mark, created, is_used, NOW, Timeouts { young: YOUNG, marked: TIMEOUT })
    }

    #[test]
    fn what_is_used_stays_and_loses_its_mark() {
        assert_eq!(judged(None, 0, true), Verdict::Keep);
        for mark in [Mark::At(0), Mark::At(NOW), Mark::At(i64::MAX), Mark::Unreadable] {
            assert_eq!(judged(Some(mark), 0, true), Verdict::Unmark, "{mark:?}");
        }
    }

    #[test]
    fn what_is_unused_is_marked_once_it_is_old_enough_to_have_been_used() {
        assert_eq!(judged(None, NOW - YOUNG + 1, false), Verdict::Keep);
        assert_eq!(judged(None, NOW - YOUNG, false), Verdict::Mark);
    }

    #[test]
    fn what_stays_marked_is_deleted() {
        assert_eq!(judged(Some(Mark::At(NOW - TIMEOUT + 1)), 0, false), Verdict::Keep);
        assert_eq!(judged(Some(Mark::At(NOW - TIMEOUT)), 0, false), Verdict::Delete);
        assert_eq!(judged(Some(Mark::At(i64::MIN)), 0, false), Verdict::Delete);
    }

    #[test]
    fn a_mark_that_says_nothing_is_made_anew() {
        assert_eq!(judged(Some(Mark::Unreadable), 0, false), Verdict::Mark);
        assert_eq!(judged(Some(Mark::At(NOW + TIMEOUT + 1)), 0, false), Verdict::Mark);
        assert_eq!(judged(Some(Mark::At(NOW + TIMEOUT)), 0, false), Verdict::Keep);
    }
}
