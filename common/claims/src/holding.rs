use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

use portway_datapath::NumericIdentity;
use portway_model::identity::{Action, Claim, Identities, NumberRange, Outcome, Seen};
use portway_model::labels::Labels;
use portway_runtime::kubernetes::RequestError;

use super::{News, Place, Role, SYSTEM_NAMESPACE};

/// For people. `kept`: for whom the label set is not.
pub(super) fn exhausted(range: NumberRange, kept: usize) -> String {
    // As people write it; there are fewer than a million.
    let written = |count: usize| match (count / 1000, count % 1000) {
        (0, count) => count.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    };
    let but = match kept {
        0 => String::new(),
        kept => format!(" but at most {}, which are kept for namespace {SYSTEM_NAMESPACE}", written(kept)),
    };
    format!(
        "all {} numbers of identities are taken{but}: fewer different label sets are needed (`labels` says which labels \
         count)",
        written(range.count() as usize)
    )
}

const WAITS: &str =
    "waits for the operator to make a CiliumIdentity of its labels (identity-management-mode)";

const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Of a keeper that is refused, where few are, and where many are: there may be thousands, and others need requests, too.
const LONGEST_PAUSE_OF_REFUSED: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(60));
/// So many answers one after the other that say no are no coincidence.
const REFUSALS: u32 = 3;

/// A label set that is held.
pub(super) struct Holding {
    how: How,
    pub(super) holders: usize,
    /// Holders whose CiliumEndpoints name the number, at least. Without one, a collector may mark the identity, and what is
    /// referred to after that has to be read again.
    referring: usize,
    pub(super) serial: u64,
    /// A request or a pause is under way.
    pub(super) is_busy: bool,
    /// A watch has told something since the request was sent, which its answer may not know.
    is_doubted: bool,
    /// Requests that failed one after the other.
    failures: u32,
    /// Of them those that the server answered.
    refusals: u32,
    /// What comes after an obstacle is told, be it what was told before.
    was_obstructed: bool,
    /// Its number is from before a restart and was not looked for yet.
    restored: bool,
    /// The version in which an answer has shown its identity, until the watch has told as much.
    answered: Option<u64>,
    /// It is held for others: see [`Role::Keeper`].
    keeps: bool,
    /// Since when it has no number.
    since: Option<Instant>,
    told: Told,
    /// Numbers that were found to be another label set's, to be told.
    lost: Vec<NumericIdentity>,
}

enum How {
    Claim(Claim),
    Given(Option<NumericIdentity>),
}

/// What was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Settled(NumericIdentity),
    Held(NumericIdentity),
    Waits,
    Exhausted,
}

impl Holding {
    pub(super) fn claim(
        labels: &Labels,
        range: NumberRange,
        role: Role,
        before: Option<NumericIdentity>,
        observed: &Identities,
        serial: u64,
    ) -> Self {
        let home = range.home_of(labels);
        let claim = match (role, before) {
            (Role::User(right), Some(number)) => Claim::restored(home, right, number),
            (Role::User(right), None) => Claim::known(home, right, &observed.seen(labels)),
            (Role::Keeper, _) => Claim::keeper(home, &observed.seen(labels)),
        };
        let restored = before.is_some() && matches!(role, Role::User(_));
        let since = (!restored).then(Instant::now);
        let keeps = matches!(role, Role::Keeper);
        Self { restored, since, keeps, ..Self::new(How::Claim(claim.within(range)), serial) }
    }

    pub(super) fn given(number: Option<NumericIdentity>, serial: u64) -> Self {
        Self::new(How::Given(number), serial)
    }

    fn new(how: How, serial: u64) -> Self {
        Self {
            how,
            holders: 1,
            referring: 0,
            serial,
            is_busy: false,
            is_doubted: false,
            failures: 0,
            refusals: 0,
            was_obstructed: false,
            restored: false,
            answered: None,
            keeps: false,
            since: None,
            told: Told::Nothing,
            lost: Vec::new(),
        }
    }

    pub(super) fn place(&self) -> Place {
        match &self.how {
            How::Given(number) => number.map_or(Place::Pending, Place::Held),
            How::Claim(claim) => match (claim.in_use(), self.told) {
                // It takes the place of the one in use as soon as it stands in CiliumEndpoints.
                (_, Told::Settled(number)) if claim.is_settled() == Some(number) => Place::Settled(number),
                (Some(number), _) if self.keeps || self.referring > 0 => Place::Held(number),
                (Some(number), _) => Place::Settled(number),
                (None, _) => Place::Pending,
            },
        }
    }

    /// True if it is another one than before.
    pub(super) fn give(&mut self, number: Option<NumericIdentity>) -> bool {
        match &mut self.how {
            How::Given(before) => std::mem::replace(before, number) != number,
            How::Claim(_) => false,
        }
    }

    pub(super) fn next(&self, is_taken: impl Fn(NumericIdentity) -> bool) -> Action {
        match &self.how {
            How::Claim(claim) => claim.next(is_taken),
            How::Given(_) => Action::Wait,
        }
    }

    pub(super) fn tell(&mut self, action: Action, outcome: Outcome) {
        if let Outcome::Is(seen) = &outcome {
            self.answered = Some(seen.version.resource_version);
        }
        if let How::Claim(claim) = &mut self.how {
            let before = [claim.in_use(), claim.referred()];
            claim.done(action, outcome);
            // Pods may have it, told or not: from before a restart, or settled and not held yet.
            for (before, after) in before.into_iter().zip([claim.in_use(), claim.referred()]) {
                let lost = before.filter(|lost| after.is_none() && !self.lost.contains(lost));
                self.lost.extend(lost);
            }
        }
    }

    /// A request is sent: its answer is newer than what was told before.
    pub(super) fn begin(&mut self) {
        self.is_busy = true;
        self.is_doubted = false;
    }

    /// An answer has come: what was told since its request was sent counts where nothing more would be asked.
    pub(super) fn end(&mut self, seen: &[Seen]) {
        if let How::Claim(claim) = &mut self.how
            && std::mem::take(&mut self.is_doubted)
        {
            claim.observe(seen);
        }
    }

    /// A holder's CiliumEndpoint names the number.
    pub(super) fn refer(&mut self, number: NumericIdentity) {
        if let How::Claim(claim) = &mut self.how {
            if claim.in_use() == Some(number) && self.referring == 0 {
                claim.recheck();
                self.told = Told::Settled(number);
            }
            claim.done(Action::Refer { number }, Outcome::Done);
            if claim.referred() == Some(number) {
                self.referring += 1;
            }
        }
    }

    /// One holder less; true if it was the last.
    pub(super) fn leave(&mut self) -> bool {
        self.holders = self.holders.saturating_sub(1);
        self.referring = self.referring.saturating_sub(1);
        self.holders == 0
    }

    pub(super) fn observe(&mut self, seen: &[Seen]) {
        if let How::Claim(claim) = &mut self.how
            && !self.restored
        {
            claim.observe(seen);
            self.is_doubted = self.is_busy;
        }
    }

    /// The watch has told everything up to this version, and this of the label set. True if an answer has shown more, which
    /// went before the watch had told of it.
    pub(super) fn has_missed(&mut self, version: u64, seen: &[Seen]) -> bool {
        if self.answered.is_none_or(|answered| answered > version) {
            return false;
        }
        self.answered = None;
        matches!(&self.how, How::Claim(claim) if claim.is_settled().is_some_and(|number| {
            seen.iter().all(|seen| seen.number != number)
        }))
    }

    /// Whether it waits for the identities to be seen, to be found among them instead of by a request: its references were
    /// written long before they were listed.
    pub(super) fn is_restored(&mut self, synced: bool, seen: &[Seen]) -> bool {
        if !self.restored {
            return false;
        }
        if !synced {
            return true;
        }
        self.restored = false;
        if let How::Claim(claim) = &mut self.how
            && let Action::Get { number } = claim.next(|_| false)
            && let [best, ..] = seen
            && best.number == number
        {
            claim.done(Action::Get { number }, Outcome::Is(*best));
        }
        false
    }

    /// What is to be told of it, once.
    pub(super) fn news(&mut self, action: Action, range: NumberRange, kept: usize) -> Vec<News> {
        let How::Claim(claim) = &self.how else { return Vec::new() };
        let lost = std::mem::take(&mut self.lost);
        if let Told::Settled(number) | Told::Held(number) = self.told
            && lost.contains(&number)
        {
            self.told = Told::Nothing;
        }
        let mut news: Vec<_> = lost.into_iter().map(News::Lost).collect();
        let (told, more) = match action {
            Action::Refer { number } => (Told::Settled(number), News::Settled(number)),
            Action::Hold { number } => (Told::Held(number), News::Held(number)),
            Action::Wait => (Told::Waits, News::Obstacle(WAITS.to_owned())),
            Action::Exhausted => (Told::Exhausted, News::Obstacle(exhausted(range, kept))),
            Action::List
            | Action::Create { .. }
            | Action::Delete { .. }
            | Action::Confirm { .. }
            | Action::Get { .. } => {
                // Whoever looks now finds none; it is told again when it is the one again.
                if matches!(self.told, Told::Settled(number) if claim.is_settled() != Some(number)) {
                    self.told = Told::Nothing;
                }
                return news;
            }
        };
        if std::mem::take(&mut self.was_obstructed) || self.told != told {
            self.told = told;
            news.push(more);
        }
        news
    }

    /// How long it took to come to a number, when it has come to it.
    pub(super) fn settled_in(&mut self, action: Action) -> Option<f64> {
        match action {
            Action::Refer { .. } | Action::Hold { .. } => {
                self.since.take().map(|since| since.elapsed().as_secs_f64())
            }
            Action::List
            | Action::Create { .. }
            | Action::Delete { .. }
            | Action::Confirm { .. }
            | Action::Get { .. }
            | Action::Wait
            | Action::Exhausted => None,
        }
    }

    /// A request failed, and whether it did anything is not known. Gives how long to wait. `are_many`: so many are
    /// refused.
    pub(super) fn failed(&mut self, action: Action, error: &RequestError, are_many: bool) -> Duration {
        if may_have_happened(error) {
            self.tell(action, Outcome::Unknown);
        }
        self.failures = self.failures.saturating_add(1);
        self.was_obstructed = true;
        // One that is asked to wait is not refused.
        if error.code().is_some_and(|code| code != 429) {
            self.refusals = self.refusals.saturating_add(1);
        }
        let longest = match self.keeps && self.is_refused() {
            true if are_many => LONGEST_PAUSE_OF_REFUSED.1,
            true => LONGEST_PAUSE_OF_REFUSED.0,
            false => LONGEST_PAUSE,
        };
        let pause = SHORTEST_PAUSE * (1 << self.failures.min(9).saturating_sub(1));
        // Agents that failed together do not come back together.
        let spread = u32::try_from(RandomState::new().hash_one(self.serial) % 100).unwrap_or(0);
        pause.min(longest) * (50 + spread / 2) / 100
    }

    pub(super) fn succeeded(&mut self) {
        (self.failures, self.refusals) = (0, 0);
    }

    /// Its requests are answered, and in vain.
    pub(super) const fn is_refused(&self) -> bool {
        self.refusals >= REFUSALS
    }

    /// `serial`: what it is from now on, where its pause goes on for nothing.
    pub(super) fn pause_is_over(&mut self, seen: &[Seen], serial: u64) {
        (self.is_busy, self.serial) = (false, serial);
        if let How::Claim(claim) = &mut self.how {
            claim.retry(!seen.is_empty());
        }
    }
}

/// Whether a write may have been done, or may still be.
pub(super) fn may_have_happened(error: &RequestError) -> bool {
    match error {
        RequestError::Unreachable { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. } => true,
        RequestError::Status { code, .. } => *code >= 500,
        RequestError::Path { .. } | RequestError::Fenced { .. } | RequestError::OtherTerm { .. } => false,
    }
}
