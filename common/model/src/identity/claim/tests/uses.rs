//! From when on a number is used, and what shows it to collectors.

use portway_datapath::NumericIdentity;

use super::super::{Action, Outcome, Phase};
use super::world::{Client, Rules, World};

/// From when on a client uses its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Held,
    /// As agents do: from [`Action::Refer`] on.
    Settled {
        /// Collectors wait for longer between mark and delete than a client takes to write its reference.
        is_in_time: bool,
    },
}

impl Client {
    /// Its pods are judged by what its claim says now.
    pub(super) fn uses(&mut self, rules: &Rules) {
        let Some((set, claim)) = self.claim.as_ref().filter(|_| !self.keeps) else { return };
        self.using = match (rules.uses, claim.phase) {
            (Use::Held, _) => claim.in_use().map(|number| (*set, number)),
            (Use::Settled { .. }, Phase::Refer(number) | Phase::Held(number)) => Some((*set, number)),
            // Until there is another one.
            (Use::Settled { .. }, _) => self.using,
        };
    }
}

impl World {
    /// What a client uses is referred to, whatever its claim is doing.
    pub(super) fn refer(&mut self, c: usize) -> Option<()> {
        let client = &mut self.clients[c];
        let (_, number) = client.using?;
        client.refers = Some(number);
        client.claim.as_mut()?.1.done(Action::Refer { number }, Outcome::Done);
        Some(())
    }

    /// Somebody uses it whom nothing shows to collectors yet.
    pub(super) fn is_used_unseen(&self, number: NumericIdentity) -> bool {
        let uses = |client: &Client| client.using.is_some_and(|(_, of)| of == number);
        self.clients.iter().any(|client| uses(client) && client.refers != Some(number))
    }
}
