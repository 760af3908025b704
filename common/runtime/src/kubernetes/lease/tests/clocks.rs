//! Two candidates whose clocks go wrong, an API server that loses requests and answers, and processes that are frozen:
//! never do two lead, and never does a term begin twice.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::LeaseTimes;
use super::super::election::{Action, Answer, Election, Role, Step};
use super::super::record::Record;

/// xorshift64*: the same history for the same number.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct Candidate {
    name: &'static str,
    election: Election,
    /// Its clock gains so many of a thousand.
    rate: i64,
    /// True time of its birth.
    born: u64,
    /// A request under way: when the server has it, and when its answer is back; lost where there is none.
    asking: Option<(u64, Option<u64>, Action)>,
    answer: Option<Answer>,
    /// It does nothing until then.
    frozen_until: u64,
    /// What the watch will tell, and when.
    told: Vec<(u64, Option<Record>, u64)>,
    /// It has seen a Lease.
    knows: bool,
}

impl Candidate {
    /// Its clock.
    fn clock(&self, now: u64) -> Duration {
        let passed = i64::try_from(now - self.born).unwrap() * (1000 + self.rate) / 1000;
        Duration::from_millis(u64::try_from(passed).unwrap())
    }

    /// Where it leads.
    fn term(&self, now: u64) -> Option<u32> {
        match self.election.role(self.clock(now)) {
            Role::Leading { term, .. } => Some(term),
            Role::Standby { .. } | Role::Unknown => None,
        }
    }
}

struct Server {
    lease: Option<Record>,
    version: u64,
}

impl Server {
    fn serve(&mut self, action: &Action) -> Answer {
        let claim = match (action, &self.lease) {
            (Action::Look, None) | (Action::Replace { .. }, None) => return Answer::Absent,
            (Action::Look, Some(lease)) => return Answer::Lease(lease.clone()),
            (Action::Create(_), Some(_)) => return Answer::Conflict,
            (Action::Replace { version, .. }, Some(lease)) if *version != lease.version => {
                return Answer::Conflict;
            }
            (Action::Create(claim) | Action::Replace { claim, .. }, _) => claim,
        };
        self.version += 1;
        let lease = Record {
            version: self.version,
            holder: claim.holder.clone(),
            duration: Some(claim.duration),
            acquired: String::new(),
            renewed: self.version.to_string(),
            transitions: claim.transitions,
        };
        self.lease = Some(lease.clone());
        Answer::Lease(lease)
    }
}

/// A history of forty leases' durations in steps of 50 ms; how often somebody began to lead.
fn history(seed: u64, times: LeaseTimes) -> u32 {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let duration = u64::try_from(times.duration.as_millis()).unwrap();
    let mut server = Server { lease: None, version: 1 };
    let mut candidates = ["a", "b"].map(|name| Candidate {
        name,
        election: Election::new(name.to_owned(), times),
        rate: 0,
        born: 0,
        asking: None,
        answer: None,
        frozen_until: 0,
        told: Vec::new(),
        knows: false,
    });
    for candidate in &mut candidates {
        // The worst of both directions, or anything between.
        candidate.rate = [-50, 50, i64::try_from(chance.below(101)).unwrap() - 50]
            [usize::try_from(chance.below(3)).unwrap()];
    }
    let (mut terms, mut led) = (0, None);
    // By their numbers, as long as nobody has deleted the Lease.
    let mut begun = Some(BTreeSet::new());
    let (mut outage_until, mut slow) = (0, 0);
    for now in (0..40 * duration).step_by(50) {
        if chance.below(2000) == 0 {
            outage_until = now + chance.below(3 * duration);
        }
        if chance.below(1000) == 0 {
            slow = [0, 100, 2000, 6000][usize::try_from(chance.below(4)).unwrap()];
        }
        if chance.below(5000) == 0 && candidates.iter().all(|candidate| candidate.knows) {
            server.version += 1;
            server.lease = None;
            begun = None;
        }
        let before = server.lease.clone();
        for candidate in &mut candidates {
            if now < candidate.frozen_until {
                // What it sent may arrive all the same.
                if let Some((at, _, action)) = &candidate.asking
                    && *at == now
                {
                    candidate.answer = Some(server.serve(action));
                }
                continue;
            }
            if chance.below(800) == 0 {
                candidate.frozen_until = now + chance.below(3 * duration);
                continue;
            }
            let due: Vec<_> = candidate.told.extract_if(.., |(at, ..)| *at <= now).collect();
            for (_, record, version) in due {
                candidate.knows |= record.is_some();
                candidate.election.told(candidate.clock(now), version, record);
            }
            if let Some((at, back, action)) = candidate.asking.take() {
                if at == now && back.is_some() {
                    candidate.answer = Some(server.serve(&action));
                }
                match back {
                    // The answer is lost, though the request may not be.
                    None if now >= at + 5000 => {
                        candidate.election.answered(candidate.clock(now), Answer::Failed);
                    }
                    Some(back) if now >= back => {
                        let answer = candidate.answer.take().unwrap_or(Answer::Failed);
                        candidate.election.answered(candidate.clock(now), answer);
                    }
                    _ => {
                        if at == now && chance.percent(50) {
                            drop(server.serve(&action));
                        }
                        candidate.asking = Some((at, back, action));
                    }
                }
            }
            while candidate.asking.is_none()
                && let Step::Ask(action) = candidate.election.poll(candidate.clock(now))
            {
                let at = now + 50 * (1 + chance.below(1 + slow / 50));
                let is_lost = now < outage_until || chance.percent(3);
                let back = at + 50 * chance.below(1 + slow / 50);
                candidate.asking = Some((at, (!is_lost).then_some(back), action));
            }
        }
        if server.lease != before {
            for candidate in &mut candidates {
                // A watch may be dead, or late.
                if !chance.percent(20) {
                    let at = now + 50 * chance.below(20);
                    candidate.told.push((at, server.lease.clone(), server.version));
                }
            }
        }
        let leaders: Vec<_> =
            candidates.iter().filter(|candidate| candidate.term(now).is_some()).map(|of| of.name).collect();
        assert!(leaders.len() < 2, "history {seed}: both lead at {now} ms");
        let term = candidates.iter().find_map(|candidate| candidate.term(now));
        if let Some(term) = term
            && led != Some(term)
        {
            let is_new = begun.as_mut().is_none_or(|begun| begun.insert(term));
            assert!(is_new, "history {seed}: term {term} begins once more at {now} ms");
            terms += 1;
        }
        led = term;
    }
    terms
}

#[test]
fn of_two_candidates_with_clocks_five_percent_wrong_never_two_lead_and_no_term_begins_twice() {
    let times = [
        super::TIMES,
        LeaseTimes {
            duration: Duration::from_secs(100),
            renew: Duration::from_secs(98),
            retry: Duration::from_secs(5),
        },
        LeaseTimes {
            duration: Duration::from_secs(4),
            renew: Duration::from_secs(2),
            retry: Duration::from_secs(1),
        },
    ];
    for times in times {
        let terms: u32 = (1..=100).map(|seed| history(seed, times)).sum();
        assert!(terms > 200, "{terms} times somebody began to lead in 100 histories: that shows nothing");
    }
}
