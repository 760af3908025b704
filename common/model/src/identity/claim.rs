//! How a label set comes by its number, and keeps it: a protocol of requests to the API server, as a state machine.
//!
//! An identity is *tentative* when it is created and *confirmed* by an update later; only a confirmed one is used.
//!
//! ```text
//! List ──► none ──► Create (tentative) ──► List
//!      ──► tentative ones alone: Delete all but the best, then Confirm it
//!      ──► a confirmed one ──► Refer (the owner's CiliumEndpoints name it) ──► Get ──► held
//! ```
//!
//! Why two identities of a label set are never both confirmed: every update and delete names the version it was decided
//! by. Let X and Y be confirmed. Who confirmed X listed after X was there, and did not see Y, so Y was made later; who
//! confirmed Y listed after Y was there, and did not see X, so X was made later. A List *before* a Create proves nothing,
//! which is why there is one after it: B sits beside its home because A has it; A goes; a client that has not seen B makes
//! another B at home.
//!
//! Why a number in use is never collected: garbage collection deletes what it has marked, by the version of the mark, when
//! a list of CiliumEndpoints made after the mark names it nowhere. Use begins with a Get after the references are written:
//! it sees a mark, which is then removed and with it the version; or none, and any later mark comes after the references.
//!
//! Agents use a number from `Refer` on, for pods that start. Until its reference is written nothing keeps a collector from
//! it but time: between its mark and its delete a collector waits for longer than it takes to write the reference, or to
//! see the mark and remove it, and than the collector's watches are late (three minutes at least, unless it is configured
//! otherwise: `operator/src/identity_gc/pressure.rs`).
//!
//! What others do without these rules (delete an identity in use, make a second one of a label set) is survived: a
//! vanished number is made again, and among several confirmed ones all claims choose the same.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use portway_datapath::NumericIdentity;

use super::home::NumberRange;
use super::seen::{Seen, Standing, Version};

/// The claim of one label set to a number. Whoever runs it does what [`Self::next`] says and tells the outcome to
/// [`Self::done`]; it may be dropped at any point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    home: NumericIdentity,
    /// Where it looks for a number.
    range: NumberRange,
    right: Right,
    /// See [`Self::keeper`].
    keeps: bool,
    phase: Phase,
    /// Numbers that other label sets were found to have.
    others: BTreeSet<NumericIdentity>,
    /// The number that the owner's references name.
    referred: Option<NumericIdentity>,
    /// The number that was held last and is not known to be lost.
    in_use: Option<NumericIdentity>,
}

/// What a claim may do to identities (`identity-management-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Create them.
    Create,
    /// Wait for the operator's.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    /// Which identities has the label set? A create of `refused` said that the number is taken.
    Look {
        refused: Option<NumericIdentity>,
    },
    /// Make one: at home or after it, or this number again.
    Create {
        again: Option<NumericIdentity>,
    },
    /// A tentative one that another goes before.
    Remove(NumericIdentity, Version),
    Confirm(NumericIdentity, Version),
    Refer(NumericIdentity),
    /// Is it still there after it was referred to?
    Check(NumericIdentity),
    Unmark(NumericIdentity, Version),
    Held(NumericIdentity),
    /// For somebody who may create.
    Wait,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Read all identities of the label set, from the quorum.
    List,
    /// Create one, tentative.
    Create { number: NumericIdentity, standing: Standing },
    /// Delete it, if it is still this version.
    Delete { number: NumericIdentity, version: Version },
    /// Remove the annotations of a claim and of garbage collection, if it is still this version.
    Confirm { number: NumericIdentity, version: Version },
    /// Write the references: until then the number is the label set's but must not be used.
    Refer { number: NumericIdentity },
    /// Read this one, from the quorum.
    Get { number: NumericIdentity },
    /// Nothing: the number may be used.
    Hold { number: NumericIdentity },
    /// Nothing until somebody else has created one: [`Claim::observe`].
    Wait,
    /// Nothing until there is a free number again, or somebody else has created an identity ([`Claim::observe`]); then ask
    /// anew.
    Exhausted,
}

/// What came of an [`Action`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Of List: those of exactly this label set.
    Listed(Vec<Seen>),
    /// Of Create, Confirm and Get: the identity of this label set as it is.
    Is(Seen),
    /// Of Delete and Refer.
    Done,
    /// Of Get: nothing has the number.
    Absent,
    /// Of Get: another label set has the number.
    Foreign,
    /// The API server refused it: the number exists, or the version is another one, or the object is gone.
    Refused,
    /// It is not known whether it happened, or will happen.
    Unknown,
}

impl Claim {
    /// A label set of which nothing is known.
    pub fn new(home: NumericIdentity, right: Right) -> Self {
        Self {
            home,
            range: NumberRange::of_cluster((home.get() >> 16) as u16),
            right,
            keeps: false,
            phase: Phase::Look { refused: None },
            others: BTreeSet::new(),
            referred: None,
            in_use: None,
        }
    }

    /// A label set whose identity a watch has shown.
    pub fn known(home: NumericIdentity, right: Right, seen: &[Seen]) -> Self {
        let mut claim = Self::new(home, right);
        if let Some(best) = seen.iter().min_by_key(|seen| seen.rank())
            && best.standing == Standing::Confirmed
        {
            claim.phase = claim.take(best);
        }
        claim
    }

    /// A label set whose number was held before a restart and has been in use since.
    pub fn restored(home: NumericIdentity, right: Right, number: NumericIdentity) -> Self {
        let phase = Phase::Check(number);
        Self { phase, referred: Some(number), in_use: Some(number), ..Self::new(home, right) }
    }

    /// A label set whose number is kept for others, as the operator does: nothing of the keeper's own is judged by it, and
    /// whoever collects garbage asks the keeper which label sets it wishes. So it writes no references, and what a watch has
    /// shown is good enough: it looks again when the watch says that it is gone.
    ///
    /// Where the watch shows nothing it begins with a create: a list before a create proves nothing, and there is one after
    /// it in any case.
    pub fn keeper(home: NumericIdentity, seen: &[Seen]) -> Self {
        let mut claim = Self { keeps: true, ..Self::new(home, Right::Create) };
        claim.phase = match seen.iter().min_by_key(|seen| seen.rank()) {
            None => Phase::Create { again: None },
            Some(best) if best.standing == Standing::Confirmed => claim.take(best),
            Some(_) => claim.phase,
        };
        claim
    }

    /// It makes no number outside of the range, in which its home is.
    pub fn within(self, range: NumberRange) -> Self {
        Self { range, ..self }
    }

    /// What is to be done; the same until [`Self::done`] or [`Self::observe`]. `is_taken` says which numbers are held as far
    /// as is known; it may be out of date.
    pub fn next(&self, is_taken: impl Fn(NumericIdentity) -> bool) -> Action {
        match self.phase {
            Phase::Look { .. } => Action::List,
            Phase::Create { again: Some(number) } => Action::Create { number, standing: Standing::Again },
            Phase::Create { again: None } => {
                let is_free = |number: &NumericIdentity| !self.others.contains(number) && !is_taken(*number);
                match self.range.numbers_from(self.home).find(is_free) {
                    Some(number) => Action::Create { number, standing: Standing::New },
                    None => Action::Exhausted,
                }
            }
            Phase::Remove(number, version) => Action::Delete { number, version },
            Phase::Confirm(number, version) | Phase::Unmark(number, version) => {
                Action::Confirm { number, version }
            }
            Phase::Refer(number) => Action::Refer { number },
            Phase::Check(number) => Action::Get { number },
            Phase::Held(number) => Action::Hold { number },
            Phase::Wait => Action::Wait,
        }
    }

    /// Takes note of what came of `action`. One that is not what [`Self::next`] says any more changes nothing, but that
    /// references are written is so whatever is being done meanwhile.
    pub fn done(&mut self, action: Action, outcome: Outcome) {
        let phase = self.phase;
        if let (Action::Refer { number }, Outcome::Done) = (action, &outcome)
            && self.is_settled().is_none_or(|settled| settled == number)
        {
            self.referred = Some(number);
        }
        self.phase = match (phase, action, outcome) {
            (Phase::Look { refused }, Action::List, Outcome::Listed(seen)) => self.decide(seen, refused),
            // A list is due after a create, whatever came of it.
            (Phase::Create { .. }, Action::Create { number, .. }, Outcome::Refused) => {
                Phase::Look { refused: Some(number) }
            }
            (Phase::Create { .. }, Action::Create { .. }, _)
            | (Phase::Remove(..), Action::Delete { .. }, _) => Phase::Look { refused: None },
            (Phase::Confirm(..), Action::Confirm { .. }, Outcome::Is(seen)) => self.take(&seen),
            (Phase::Confirm(..), Action::Confirm { .. }, _) => Phase::Look { refused: None },
            (Phase::Refer(number), Action::Refer { number: referred }, Outcome::Done)
                if number == referred =>
            {
                Phase::Check(number)
            }
            (Phase::Check(number), Action::Get { .. }, outcome) => self.check(number, &outcome),
            (Phase::Unmark(number, _), Action::Confirm { .. }, Outcome::Is(_))
                if self.referred == Some(number) =>
            {
                self.hold(number)
            }
            (Phase::Unmark(..), Action::Confirm { .. }, Outcome::Is(seen)) => self.take(&seen),
            (Phase::Unmark(..), Action::Confirm { .. }, _) => Phase::Look { refused: None },
            (phase, _, _) => phase,
        };
    }

    /// Takes note of what a watch shows of the label set, which may be out of date.
    pub fn observe(&mut self, seen: &[Seen]) {
        let best = seen.iter().min_by_key(|seen| seen.rank());
        self.phase = match (self.phase, best) {
            (Phase::Held(held), Some(best)) if best.number == held && !best.is_marked => Phase::Held(held),
            (Phase::Held(held), Some(best))
                if best.number != held && best.standing == Standing::Confirmed =>
            {
                Phase::Look { refused: None }
            }
            // One list answers all of a namespace.
            (Phase::Held(_), _) if self.keeps => Phase::Look { refused: None },
            (Phase::Held(held), _) => Phase::Check(held),
            // Who uses it before it is referred to has nothing else that keeps a collector from it.
            (Phase::Refer(number), Some(best)) if best.number == number && best.is_marked => {
                Phase::Unmark(number, best.version)
            }
            // Who finds no free number waits for somebody else's, too. After a create that is under way a list is due anyhow.
            (Phase::Wait | Phase::Create { again: None }, Some(best))
                if best.standing == Standing::Confirmed =>
            {
                Phase::Look { refused: None }
            }
            (phase, _) => phase,
        };
    }

    /// The references were gone for a while and are written again: before more is used by them, the identity is read.
    pub fn recheck(&mut self) {
        if let Phase::Held(number) = self.phase {
            self.phase = Phase::Check(number);
        }
    }

    /// The number that may be used, or still be used while another one is sought. `None` before the first is held and after
    /// it was found to be another label set's.
    pub fn in_use(&self) -> Option<NumericIdentity> {
        self.in_use
    }

    /// The number that references name. `None` before the first and after it was found to be another label set's.
    pub fn referred(&self) -> Option<NumericIdentity> {
        self.referred
    }

    /// The number is known, though its use may have to wait for references.
    pub fn is_settled(&self) -> Option<NumericIdentity> {
        match self.phase {
            Phase::Refer(number) | Phase::Check(number) | Phase::Unmark(number, _) | Phase::Held(number) => {
                Some(number)
            }
            Phase::Look { .. }
            | Phase::Create { .. }
            | Phase::Remove(..)
            | Phase::Confirm(..)
            | Phase::Wait => None,
        }
    }

    /// Forgets which numbers others have: what was exhausted is sought anew. `is_seen`: a watch shows an identity of the
    /// label set, be it a tentative one, whose maker may be gone.
    pub fn retry(&mut self, is_seen: bool) {
        self.others.clear();
        if self.phase == (Phase::Create { again: None }) && is_seen {
            self.phase = Phase::Look { refused: None };
        }
    }

    fn decide(&mut self, mut seen: Vec<Seen>, refused: Option<NumericIdentity>) -> Phase {
        seen.sort_by_key(Seen::rank);
        let Some(best) = seen.first() else {
            if let Some(refused) = refused {
                self.others.insert(refused);
                self.lose(refused);
            }
            return match self.right {
                Right::Create => Phase::Create { again: self.in_use },
                Right::Wait => Phase::Wait,
            };
        };
        self.others.clear();
        let loser = seen.iter().skip(1).find(|seen| seen.standing != Standing::Confirmed);
        match (best.standing, self.right, loser) {
            (_, Right::Create, Some(loser)) => Phase::Remove(loser.number, loser.version),
            (Standing::Confirmed, _, _) => self.take(best),
            (_, Right::Create, None) => Phase::Confirm(best.number, best.version),
            (_, Right::Wait, _) => Phase::Wait,
        }
    }

    /// A confirmed number is the label set's. Its mark goes first: until the references are written nothing else would keep a
    /// collector from it.
    fn take(&mut self, seen: &Seen) -> Phase {
        let number = seen.number;
        match seen {
            Seen { is_marked: true, version, .. } => Phase::Unmark(number, *version),
            _ if self.keeps => self.hold(number),
            _ if self.referred == Some(number) => Phase::Check(number),
            _ => Phase::Refer(number),
        }
    }

    fn check(&mut self, number: NumericIdentity, outcome: &Outcome) -> Phase {
        match outcome {
            Outcome::Is(seen) if seen.standing != Standing::Confirmed => Phase::Look { refused: None },
            Outcome::Is(seen) if seen.is_marked => Phase::Unmark(number, seen.version),
            Outcome::Is(_) => self.hold(number),
            Outcome::Foreign => {
                self.lose(number);
                Phase::Look { refused: None }
            }
            Outcome::Unknown => Phase::Check(number),
            Outcome::Absent | Outcome::Listed(_) | Outcome::Done | Outcome::Refused => {
                Phase::Look { refused: None }
            }
        }
    }

    fn hold(&mut self, number: NumericIdentity) -> Phase {
        self.in_use = Some(number);
        Phase::Held(number)
    }

    fn lose(&mut self, number: NumericIdentity) {
        self.in_use = self.in_use.filter(|in_use| *in_use != number);
        self.referred = self.referred.filter(|referred| *referred != number);
    }
}
