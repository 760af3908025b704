//! What others ask the owner.

use super::{Owner, Question};
use crate::api;
use crate::app::audit::objects::differing;
use crate::app::events::Trouble;
use crate::app::metrics::Tallies;
use crate::app::status;
use crate::sockets::Sockets;

impl Owner {
    pub(super) fn tallies(&self) -> Tallies {
        let addresses = self.local_addresses.interfaces.iter().map(|interface| interface.addresses.len());
        Tallies {
            rejects: self.rejects().count() as u64,
            clashes: self.balancer.conflicts().count() as u64,
            broken_files: self.sources.status().iter().map(|source| source.broken.len() as u64).sum(),
            local_addresses: addresses.sum::<usize>() as u64,
            usage: self.datapath.planner().usage(),
        }
    }

    fn rejects(&self) -> impl Iterator<Item = api::Reject> {
        let of_nodes = self.network.as_ref().map(|network| network.troubles().rejects.clone());
        self.sources.rejects().chain(self.balancer.rejects()).chain(of_nodes.unwrap_or_default())
    }

    /// Says on the API server's objects what is wrong with them; not before all are known, for a clash may be none.
    pub(super) fn tell_events(&mut self) {
        let knows = self.first_sync.knows_services();
        let Some(events) = self.events.as_mut().filter(|_| knows) else { return };
        let not_used = self.sources.rejects().map(|reject| (Trouble::NotUsed, reject));
        let clashes = self.balancer.conflicts().map(|reject| (Trouble::FrontendTaken, reject));
        let refused = self.datapath.refused().rejects().cloned();
        let refused = refused.map(|reject| (Trouble::NotProgrammed, reject));
        events.tell(not_used.chain(clashes).chain(refused), self.sources.manifests());
    }

    pub(super) fn answer(&mut self, question: Question) -> anyhow::Result<()> {
        // Whoever asked may have gone meanwhile: then nobody needs the answer.
        match question {
            Question::Status(to) => drop(to.send(self.status())),
            Question::Rejects(to) => drop(to.send(self.rejects().collect())),
            Question::Clashes(to) => drop(to.send(self.balancer.conflicts().collect())),
            Question::Audit { fix, to } => drop(to.send(self.compare(fix)?)),
            Question::Versions { kind, versions, to } => {
                drop(to.send(differing(self.sources.manifests().versions(kind), versions)));
            }
        }
        Ok(())
    }

    fn status(&self) -> api::Status {
        let mut status = status::build(status::Facts {
            config: &self.config,
            addresses: &self.local_addresses,
            kernel: self.kernel.clone(),
            sources: self.sources.status(),
            late: if self.first_sync.is_late() || (self.prune_is_due && self.is_exact) {
                self.sources.unsynced()
            } else {
                Vec::new()
            },
            tallies: self.tallies(),
            writes: self.datapath.writes(),
            stale_sockets: self.sockets.as_ref().map(Sockets::status).unwrap_or_default(),
            audit: self.audit.status(),
            without_maglev: self.datapath.planner().without_maglev().len(),
            serving: self.serves,
            silent_files: if self.prune_is_due && self.serves { self.sources.silent_files() } else { 0 },
        });
        let of_network = self.network.as_ref().map(|network| network.troubles().lines.clone());
        status.warnings.extend(of_network.unwrap_or_default());
        status
    }
}
