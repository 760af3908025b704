//! What becomes of the objects of a [`World`]: the API server's side, and the collector's.

use portway_datapath::NumericIdentity;

use super::super::{Action, Outcome, Phase};
use super::uses::Use;
use super::world::{CURRENT, Collector, Identity, LeftOut, Rules, STALE, Set, World};
use crate::identity::garbage::{self, Verdict};
use crate::identity::seen::{Standing, Version};

impl World {
    /// The API server's side.
    pub(super) fn request(&mut self, rules: &Rules, set: Set, action: Action) -> Outcome {
        let is_free = rules.left_out == LeftOut::Preconditions;
        match action {
            Action::List => Outcome::Listed(self.identities_of(set)),
            Action::Create { number, standing } => {
                if self.objects.contains_key(&number) {
                    return Outcome::Refused;
                }
                let identity = Identity { set, standing, is_marked: false };
                self.write(number, Some(identity));
                Outcome::Is(identity.seen(number))
            }
            Action::Delete { number, version } => match self.objects.get(&number) {
                Some(_) if version == CURRENT || is_free => {
                    self.write(number, None);
                    Outcome::Done
                }
                Some(_) | None => Outcome::Refused,
            },
            Action::Confirm { number, version } => match self.objects.get(&number).copied() {
                Some(identity) if version == CURRENT || is_free => {
                    let identity = Identity { standing: Standing::Confirmed, is_marked: false, ..identity };
                    self.write(number, Some(identity));
                    Outcome::Is(identity.seen(number))
                }
                Some(_) | None => Outcome::Refused,
            },
            Action::Get { number } => match self.objects.get(&number) {
                Some(identity) if identity.set == set => Outcome::Is(identity.seen(number)),
                Some(_) => Outcome::Foreign,
                None => Outcome::Absent,
            },
            Action::Refer { .. } | Action::Hold { .. } | Action::Wait | Action::Exhausted => Outcome::Unknown,
        }
    }

    pub(super) fn collect(&mut self, rules: &Rules, collector: Collector) -> Collector {
        match collector {
            Collector::Idle => Collector::Idle,
            Collector::Listed { number, is_used } => match self.objects.get(&number) {
                Some(identity) => {
                    let verdict = judge(identity.is_marked, is_used);
                    Collector::Judged { number, version: CURRENT, verdict }
                }
                None => Collector::Idle,
            },
            Collector::Read { number, is_marked: true, .. }
                if rules.uses == (Use::Settled { is_in_time: true }) && self.is_used_unseen(number) =>
            {
                Collector::Idle
            }
            Collector::Read { number, version, is_marked } => {
                Collector::Judged { number, version, verdict: judge(is_marked, self.is_referred(number)) }
            }
            Collector::Judged { number, version, verdict } => {
                let is_same = version == CURRENT || rules.left_out == LeftOut::Preconditions;
                if let Some(identity) = self.objects.get(&number).copied()
                    && is_same
                {
                    match verdict {
                        Verdict::Keep => {}
                        Verdict::Mark => self.write(number, Some(Identity { is_marked: true, ..identity })),
                        Verdict::Unmark => {
                            self.write(number, Some(Identity { is_marked: false, ..identity }))
                        }
                        Verdict::Delete => self.write(number, None),
                    }
                }
                Collector::Idle
            }
        }
    }

    /// What names a version that is gone will be refused: it is as good as over.
    pub(super) fn forget_the_outdated(&mut self) {
        for collector in &mut self.collectors {
            match collector {
                Collector::Read { version, .. } | Collector::Judged { version, .. } if *version == STALE => {
                    *collector = Collector::Idle;
                }
                Collector::Judged { verdict: Verdict::Keep, .. } => *collector = Collector::Idle,
                Collector::Idle
                | Collector::Listed { .. }
                | Collector::Read { .. }
                | Collector::Judged { .. } => {}
            }
        }
        self.late.retain(|(_, action)| {
            !matches!(action, Action::Delete { version, .. } | Action::Confirm { version, .. } if *version == STALE)
        });
    }

    /// Whatever was read of this object before is out of date.
    pub(super) fn write(&mut self, number: NumericIdentity, identity: Option<Identity>) {
        match identity {
            Some(identity) => self.objects.insert(number, identity),
            None => self.objects.remove(&number),
        };
        let outdate = |of: NumericIdentity, version: &mut Version| {
            if of == number {
                *version = STALE;
            }
        };
        for client in &mut self.clients {
            client.read.iter_mut().for_each(|seen| outdate(seen.number, &mut seen.version));
            match &mut client.answer {
                Some((_, Outcome::Listed(seen))) => {
                    seen.iter_mut().for_each(|seen| outdate(seen.number, &mut seen.version));
                }
                Some((_, Outcome::Is(seen))) => outdate(seen.number, &mut seen.version),
                Some((
                    _,
                    Outcome::Done | Outcome::Absent | Outcome::Foreign | Outcome::Refused | Outcome::Unknown,
                ))
                | None => {}
            }
            match client.claim.as_mut().map(|(_, claim)| &mut claim.phase) {
                Some(
                    Phase::Remove(of, version) | Phase::Confirm(of, version) | Phase::Unmark(of, version),
                ) => outdate(*of, version),
                Some(
                    Phase::Look { .. }
                    | Phase::Create { .. }
                    | Phase::Refer(_)
                    | Phase::Check(_)
                    | Phase::Held(_)
                    | Phase::Wait,
                )
                | None => {}
            }
        }
        for collector in &mut self.collectors {
            match collector {
                Collector::Read { number, version, .. } | Collector::Judged { number, version, .. } => {
                    outdate(*number, version);
                }
                Collector::Idle | Collector::Listed { .. } => {}
            }
        }
        for (_, action) in &mut self.late {
            match action {
                Action::Delete { number, version } | Action::Confirm { number, version } => {
                    outdate(*number, version);
                }
                Action::List
                | Action::Create { .. }
                | Action::Refer { .. }
                | Action::Get { .. }
                | Action::Hold { .. }
                | Action::Wait
                | Action::Exhausted => {}
            }
        }
    }
}

/// Every wait of the collector is over.
fn judge(is_marked: bool, is_used: bool) -> Verdict {
    garbage::judge(is_marked.then_some(garbage::Mark::At(0)), 0, is_used, i64::MAX, 1.into())
}
