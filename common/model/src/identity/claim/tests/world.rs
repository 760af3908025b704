//! A small cluster: an API server, clients with claims, a garbage collector, and everything that can happen next.

use std::collections::BTreeMap;

use portway_datapath::NumericIdentity;

use super::super::{Action, Claim, Outcome, Phase, Right};
use super::uses::Use;
use crate::identity::garbage::Verdict;
use crate::identity::seen::{Seen, Standing, Version};
use crate::k8s::Uid;

/// One of two label sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Set {
    A,
    B,
}

pub(super) const SETS: [Set; 2] = [Set::A, Set::B];

impl Set {
    const fn alone(self) -> &'static [Self] {
        match self {
            Self::A => &[Self::A],
            Self::B => &[Self::B],
        }
    }
}

/// What is left out of the protocol, to see that the checker misses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    Nothing,
    /// A client takes what it read before its create, and what it created, for all there is.
    ReadAfterCreate,
    /// Updates and deletes happen whatever the object has become.
    Preconditions,
    /// A number is used before references are written and the identity is read again.
    ReferenceBeforeUse,
    /// The collector lists references before it reads identities.
    CollectorsOrder,
}

/// What this cluster may see.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) left_out: LeftOut,
    pub(super) uses: Use,
    pub(super) homes: [u32; 2],
    /// Which label sets each client may want.
    pub(super) clients: &'static [&'static [Set]],
    /// What clients may do, which is another thing after a restart (`identity-management-mode`).
    pub(super) rights: &'static [Right],
    /// Those of operators: each keeps one of the label sets for others.
    pub(super) keepers: &'static [Set],
    /// Between a request and its answer the world goes on, and watches tell of it.
    pub(super) are_answers_late: bool,
    /// Whoever is no keeper finds no free number.
    pub(super) is_full: bool,
    /// How often each may begin; `None`: for ever.
    pub(super) starts: Option<u8>,
    pub(super) collectors: usize,
    pub(super) crashes: u8,
    /// Writes that are given up and land late.
    pub(super) late_writes: u8,
    /// Watches tell what was, and what is not.
    pub(super) is_news_late: bool,
    /// Deletes and creates of somebody who knows no rules.
    pub(super) foreign: u8,
    /// How many identities collectors look at; `None`: no end of them.
    pub(super) collections: Option<u8>,
}

impl Rules {
    pub(super) fn home(&self, set: Set) -> NumericIdentity {
        let [a, b] = self.homes;
        NumericIdentity::new(match set {
            Set::A => a,
            Set::B => b,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct World {
    pub(super) objects: BTreeMap<NumericIdentity, Identity>,
    pub(super) clients: Vec<Client>,
    pub(super) collectors: Vec<Collector>,
    pub(super) collections: Option<u8>,
    pub(super) late: Vec<(Set, Action)>,
    pub(super) crashes: u8,
    pub(super) late_writes: u8,
    pub(super) foreign: u8,
}

/// A CiliumIdentity. Versions are not numbered: who holds one knows whether the object still has it ([`CURRENT`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Identity {
    pub(super) set: Set,
    pub(super) standing: Standing,
    pub(super) is_marked: bool,
}

pub(super) const CURRENT: Version = Version { uid: Uid::NONE, resource_version: 1 };
pub(super) const STALE: Version = Version { uid: Uid::NONE, resource_version: 0 };

impl Identity {
    pub(super) fn seen(self, number: NumericIdentity) -> Seen {
        let Self { set: _, standing, is_marked } = self;
        Seen { number, version: CURRENT, standing, is_marked, created: 0 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Client {
    pub(super) claim: Option<(Set, Claim)>,
    /// It keeps a label set for others.
    pub(super) keeps: bool,
    /// What its pods are judged by; it outlives a crash.
    pub(super) using: Option<(Set, NumericIdentity)>,
    /// What its CiliumEndpoints name; they outlive a crash, too.
    pub(super) refers: Option<NumericIdentity>,
    /// [`LeftOut::ReadAfterCreate`]: what it read before its create.
    pub(super) read: Vec<Seen>,
    created: bool,
    /// On its way.
    pub(super) answer: Option<(Action, Outcome)>,
    pub(super) wants: &'static [Set],
    pub(super) starts: Option<u8>,
}

impl Client {
    fn stop(&mut self) {
        *self = Self { wants: self.wants, starts: self.starts, keeps: self.keeps, ..Self::default() };
    }
}

/// It looks at one identity after the other; two of a round are two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Collector {
    Idle,
    /// [`LeftOut::CollectorsOrder`]: it knows who is used, and nothing else yet.
    Listed {
        number: NumericIdentity,
        is_used: bool,
    },
    Read {
        number: NumericIdentity,
        version: Version,
        is_marked: bool,
    },
    Judged {
        number: NumericIdentity,
        version: Version,
        verdict: Verdict,
    },
}

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Start(usize, Set, Right),
    /// A client takes a number for its label set's that once was.
    StartKnown(usize, Set, Right, NumericIdentity),
    /// A client does what its claim says, and learns what came of it.
    Act(usize),
    /// A client sends what its claim says; the answer is on its way.
    Send(usize),
    Answer(usize),
    /// A watch has told something meanwhile.
    AnswerDoubted(usize),
    /// A client gives a write up, which goes its way.
    GiveUp(usize),
    Land(usize),
    /// True news of a watch.
    Hear(usize),
    /// News of a watch, true or not.
    Notice(usize),
    LookAgain(usize),
    /// A client writes its reference while something else is being done.
    Refer(usize),
    Release(usize),
    Unrefer(usize),
    Crash(usize),
    Restart(usize, Right),
    Collect(usize, NumericIdentity),
    CollectorGoesOn(usize),
    CollectorEnds(usize),
    ForeignDelete(NumericIdentity),
    ForeignCreate(NumericIdentity, Set),
}

impl World {
    pub(super) fn new(rules: &Rules) -> Self {
        Self {
            objects: BTreeMap::new(),
            clients: rules
                .clients
                .iter()
                .map(|wants| (*wants, false))
                .chain(rules.keepers.iter().map(|set| (set.alone(), true)))
                .map(|(wants, keeps)| Client { wants, keeps, starts: rules.starts, ..Client::default() })
                .collect(),
            collectors: vec![Collector::Idle; rules.collectors],
            collections: rules.collections,
            late: Vec::new(),
            crashes: rules.crashes,
            late_writes: rules.late_writes,
            foreign: rules.foreign,
        }
    }

    /// `None`: it changes nothing.
    pub(super) fn after(&self, rules: &Rules, step: Step) -> Option<Self> {
        let mut world = self.clone();
        match step {
            Step::Start(c, set, right) => {
                let claim = match world.clients[c].keeps {
                    true => Claim::keeper(rules.home(set), &[]),
                    false => Claim::new(rules.home(set), right),
                };
                world.start(c, set, claim);
                // Who only has begun might as well not have.
                world.act(rules, c);
            }
            Step::StartKnown(c, set, right, number) => {
                let was = Identity { set, standing: Standing::Confirmed, is_marked: false }.seen(number);
                let is = world.objects.get(&number).map(|identity| identity.seen(number));
                let claim = match world.clients[c].keeps {
                    true if rules.is_news_late => Claim::keeper(rules.home(set), &[was]),
                    true => Claim::keeper(rules.home(set), is.as_slice()),
                    false => Claim::known(rules.home(set), right, &[was]),
                };
                world.start(c, set, claim);
                world.act(rules, c);
            }
            Step::Act(c) => world.act(rules, c),
            Step::Send(c) => {
                let (set, claim) = world.clients[c].claim.as_ref()?;
                let (set, action) = (*set, rules.next(&world.clients[c], claim));
                let outcome = world.request(rules, set, action);
                world.clients[c].answer = Some((action, outcome));
            }
            Step::Answer(c) => world.answered(rules, c)?,
            Step::AnswerDoubted(c) => {
                world.answered(rules, c)?;
                world.hear(c)?;
            }
            Step::GiveUp(c) => {
                world.late_writes -= 1;
                let (set, mut claim) = world.clients[c].claim.take()?;
                let action = rules.next(&world.clients[c], &claim);
                claim.done(action, Outcome::Unknown);
                world.clients[c].claim = Some((set, claim));
                world.late.push((set, action));
            }
            Step::Land(n) => {
                let (set, action) = world.late.remove(n);
                world.request(rules, set, action);
            }
            Step::Hear(c) => world.hear(c)?,
            Step::Refer(c) => world.refer(c)?,
            Step::Notice(c) => world.clients[c].claim.as_mut()?.1.observe(&[]),
            Step::LookAgain(c) => {
                let other = Identity { set: Set::A, standing: Standing::Confirmed, is_marked: false };
                world.clients[c].claim.as_mut()?.1.observe(&[other.seen(NumericIdentity::new(1))]);
            }
            Step::Release(c) => {
                // An agent that stops in between leaves its references: that is a crash.
                world.clients[c].stop();
            }
            Step::Unrefer(c) => world.clients[c].refers = None,
            Step::Crash(c) => {
                world.crashes -= 1;
                let client = &mut world.clients[c];
                let (using, refers) = (client.using, client.refers);
                client.stop();
                (client.using, client.refers) = (using, refers);
            }
            Step::Restart(c, right) => {
                let (set, number) = world.clients[c].using?;
                world.clients[c].claim = Some((set, Claim::restored(rules.home(set), right, number)));
            }
            Step::Collect(g, number) => {
                world.collections = world.collections.map(|left| left - 1);
                world.collectors[g] = if rules.left_out == LeftOut::CollectorsOrder {
                    Collector::Listed { number, is_used: world.is_referred(number) }
                } else {
                    let is_marked = world.objects.get(&number)?.is_marked;
                    Collector::Read { number, version: CURRENT, is_marked }
                };
            }
            Step::CollectorGoesOn(g) => world.collectors[g] = world.collect(rules, world.collectors[g]),
            Step::CollectorEnds(g) => world.collectors[g] = Collector::Idle,
            Step::ForeignDelete(number) => {
                world.foreign -= 1;
                world.write(number, None);
            }
            Step::ForeignCreate(number, set) => {
                world.foreign -= 1;
                let identity = Identity { set, standing: Standing::Confirmed, is_marked: false };
                world.write(number, Some(identity));
            }
        }
        if rules.left_out != LeftOut::Preconditions {
            world.forget_the_outdated();
        }
        world.late.sort();
        // Clients are alike, and so are collectors: worlds that differ in their order alone are one.
        world.clients.sort();
        world.collectors.sort();
        (world != *self).then_some(world)
    }

    /// What clients use.
    pub(super) fn used(&self) -> impl Iterator<Item = (Set, NumericIdentity)> {
        self.clients.iter().filter_map(|client| client.using)
    }

    pub(super) fn identities_of(&self, set: Set) -> Vec<Seen> {
        let objects = self.objects.iter().filter(|(_, identity)| identity.set == set);
        objects.map(|(number, identity)| identity.seen(*number)).collect()
    }

    /// Whether something names the number, or an operator keeps its label set.
    pub(super) fn is_referred(&self, number: NumericIdentity) -> bool {
        let set = self.objects.get(&number).map(|identity| identity.set);
        let keeps = |client: &Client| client.keeps && client.claim.as_ref().map(|(set, _)| *set) == set;
        let is_wished = set.is_some() && self.clients.iter().any(keeps);
        is_wished || self.clients.iter().any(|client| client.refers == Some(number))
    }

    fn answered(&mut self, rules: &Rules, c: usize) -> Option<()> {
        let client = &mut self.clients[c];
        let (action, outcome) = client.answer.take()?;
        client.claim.as_mut()?.1.done(action, outcome);
        client.uses(rules);
        Some(())
    }

    /// A watch tells what is.
    fn hear(&mut self, c: usize) -> Option<()> {
        let (set, _) = self.clients[c].claim.as_ref()?;
        let seen = self.identities_of(*set);
        self.clients[c].claim.as_mut()?.1.observe(&seen);
        Some(())
    }

    pub(super) fn start(&mut self, c: usize, set: Set, claim: Claim) {
        let client = &mut self.clients[c];
        client.claim = Some((set, claim));
        client.starts = client.starts.map(|starts| starts - 1);
    }

    pub(super) fn act(&mut self, rules: &Rules, c: usize) {
        let Some((set, claim)) = self.clients[c].claim.clone() else { return };
        let action = rules.next(&self.clients[c], &claim);
        let outcome = match action {
            Action::List if rules.left_out == LeftOut::ReadAfterCreate && self.clients[c].created => {
                Outcome::Listed(std::mem::take(&mut self.clients[c].read))
            }
            Action::Refer { number } => {
                self.clients[c].refers = Some(number);
                Outcome::Done
            }
            Action::List
            | Action::Create { .. }
            | Action::Delete { .. }
            | Action::Confirm { .. }
            | Action::Get { .. }
            | Action::Hold { .. }
            | Action::Wait
            | Action::Exhausted => self.request(rules, set, action),
        };
        let client = &mut self.clients[c];
        client.created = false;
        if rules.left_out == LeftOut::ReadAfterCreate {
            match (&action, &outcome) {
                (Action::List, Outcome::Listed(seen)) => client.read.clone_from(seen),
                (Action::Create { .. }, Outcome::Is(seen)) => {
                    client.read.push(*seen);
                    client.created = true;
                }
                _ => {}
            }
        }
        // What the request wrote made versions stale that the claim may hold.
        if let Some((_, claim)) = &mut client.claim {
            claim.done(action, outcome);
            if rules.left_out == LeftOut::ReferenceBeforeUse
                && let Phase::Refer(number) = claim.phase
            {
                claim.phase = claim.hold(number);
            }
            client.uses(rules);
        }
    }
}
