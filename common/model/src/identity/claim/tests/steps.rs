//! What can happen next in a [`World`], and what becomes of it where nothing disturbs it.

use portway_datapath::NumericIdentity;

use super::super::{Action, Claim, Phase, Right};
use super::uses::Use;
use super::world::{Client, Collector, Rules, SETS, Step, World};

impl Rules {
    /// What a client does next by its claim.
    pub(super) fn next(&self, client: &Client, claim: &Claim) -> Action {
        if self.is_full && !client.keeps && claim.phase == (Phase::Create { again: None }) {
            return Action::Exhausted;
        }
        claim.next(|_| false)
    }

    fn sends(&self, c: usize) -> Step {
        if self.are_answers_late { Step::Send(c) } else { Step::Act(c) }
    }
}

impl World {
    pub(super) fn steps(&self, rules: &Rules, steps: &mut Vec<Step>) {
        for (c, client) in self.clients.iter().enumerate() {
            self.steps_of(rules, c, client, steps);
        }
        steps.extend((0..self.late.len()).map(Step::Land));
        for (g, collector) in self.collectors.iter().enumerate() {
            match collector {
                Collector::Idle if self.collections == Some(0) => {}
                Collector::Idle => steps.extend(self.objects.keys().map(|number| Step::Collect(g, *number))),
                Collector::Listed { .. } | Collector::Read { .. } | Collector::Judged { .. } => {
                    steps.extend([Step::CollectorGoesOn(g), Step::CollectorEnds(g)]);
                }
            }
        }
        if self.foreign > 0 {
            steps.extend(self.objects.keys().map(|number| Step::ForeignDelete(*number)));
            for number in [256, 257, 258].map(NumericIdentity::new) {
                if !self.objects.contains_key(&number) {
                    steps.extend(SETS.map(|set| Step::ForeignCreate(number, set)));
                }
            }
        }
    }

    fn steps_of(&self, rules: &Rules, c: usize, client: &Client, steps: &mut Vec<Step>) {
        match &client.claim {
            Some((_, claim)) => {
                match rules.next(client, claim) {
                    _ if client.answer.is_some() => {
                        steps.extend([Step::Answer(c), Step::AnswerDoubted(c), Step::Hear(c)]);
                    }
                    Action::Hold { .. } => {
                        steps.push(Step::Release(c));
                        if rules.is_news_late {
                            steps.extend([Step::Notice(c), Step::LookAgain(c)]);
                        }
                    }
                    Action::Wait | Action::Exhausted => {
                        steps.extend([Step::Release(c), Step::Hear(c)]);
                        if rules.is_news_late {
                            steps.push(Step::LookAgain(c));
                        }
                    }
                    Action::Refer { .. } => steps.extend([Step::Act(c), Step::Hear(c)]),
                    Action::List | Action::Get { .. } => steps.push(rules.sends(c)),
                    Action::Create { .. } | Action::Delete { .. } | Action::Confirm { .. } => {
                        steps.extend([rules.sends(c), Step::Hear(c)]);
                        if self.late_writes > 0 {
                            steps.push(Step::GiveUp(c));
                        }
                    }
                }
                let is_unseen = client.using.is_some_and(|(_, number)| client.refers != Some(number));
                if is_unseen && matches!(rules.uses, Use::Settled { .. }) {
                    steps.push(Step::Refer(c));
                }
                if self.crashes > 0 {
                    steps.push(Step::Crash(c));
                }
            }
            None if client.using.is_some() => {
                steps.extend(rules.rights.iter().map(|right| Step::Restart(c, *right)));
            }
            None => {
                if client.refers.is_some() {
                    steps.push(Step::Unrefer(c));
                }
                if client.starts == Some(0) {
                    return;
                }
                let rights = if client.keeps { &[Right::Create] } else { rules.rights };
                for set in client.wants {
                    for right in rights {
                        steps.push(Step::Start(c, *set, *right));
                        let known = self.objects.iter().filter(|(_, identity)| {
                            rules.is_news_late || client.keeps && identity.set == *set
                        });
                        steps.extend(known.map(|(number, _)| Step::StartKnown(c, *set, *right, *number)));
                    }
                }
            }
        }
    }

    /// Every claim does what it says until it holds, undisturbed, and watches tell the truth. `None`: one never comes to an
    /// end.
    pub(super) fn at_rest(&self, rules: &Rules) -> Option<Self> {
        let mut world = self.clone();
        for _ in 0..40 {
            let mut is_quiet = true;
            for c in 0..world.clients.len() {
                if world.clients[c].answer.is_some() {
                    world = world.after(rules, Step::Answer(c))?;
                    is_quiet = false;
                    break;
                }
                if world.clients[c].claim.is_none() && world.clients[c].using.is_some() {
                    world = world.after(rules, Step::Restart(c, *rules.rights.first()?))?;
                    is_quiet = false;
                    break;
                }
                if let Some(set) = world.misses(c) {
                    let seen = world.identities_of(set);
                    world.clients[c].claim = Some((set, Claim::keeper(rules.home(set), &seen)));
                    is_quiet = false;
                    break;
                }
                let Some((set, claim)) = world.clients[c].claim.clone() else { continue };
                if matches!(
                    rules.next(&world.clients[c], &claim),
                    Action::Hold { .. } | Action::Wait | Action::Exhausted
                ) {
                    let mut told = claim.clone();
                    told.observe(&world.identities_of(set));
                    if told == claim {
                        continue;
                    }
                    world.clients[c].claim = Some((set, told));
                }
                world.act(rules, c);
                is_quiet = false;
            }
            if is_quiet {
                return Some(world);
            }
        }
        None
    }

    /// The label set that a keeper does not keep though somebody has it.
    fn misses(&self, c: usize) -> Option<super::world::Set> {
        let client = &self.clients[c];
        if !client.keeps || client.claim.is_some() {
            return None;
        }
        let is_wanted = |set: &&super::world::Set| {
            let others = self.clients.iter().filter(|other| !other.keeps);
            others.filter_map(|other| other.claim.as_ref()).any(|(of, _)| of == *set)
        };
        client.wants.iter().find(is_wanted).copied()
    }
}
