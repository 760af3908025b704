//! From what was told to what is served.

use std::time::SystemTime;

use portway_model::loadbalancer::{Desired as _, Union};
use portway_model::plan;
use tokio::time::Instant;

use super::Owner;
use crate::app::memory;
use crate::app::sync::Stage;
use crate::programs;

/// After a batch of this many bytes, freed memory is given back to the kernel.
const LARGE_BATCH: usize = 256 * 1024;
/// Changes closer together than this are counted once.
const TALLY_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

impl Owner {
    /// Brings everything that changed into the kernel, as far as it may be.
    pub(super) fn program(&mut self) -> anyhow::Result<()> {
        self.mark();
        let applied = self.sources.take_applied();
        if let Some(network) = &mut self.network {
            network.apply(&applied, self.sources.knows_cluster());
        }
        if let Some(identities) = &mut self.identities {
            identities.apply(&applied, self.sources.knows_identities());
        }
        if let Some(sockets) = &self.sockets {
            sockets.changed(applied);
        }
        self.health.set_node_eligible(!self.sources.node().is_some_and(|node| node.leaving));
        let stage = self.first_sync.advance(self.sources.synced(), Instant::now());
        if stage == Stage::Waiting || !self.datapath.may_write() {
            return Ok(());
        }
        self.health.queued(std::time::Instant::now());
        // What a broken file held may be in the maps alone, beside what others have of the same service.
        if stage == Stage::Exact && !self.is_exact && self.sources.silent_files() == 0 {
            self.is_exact = true;
            self.restored.clear();
            self.datapath.mark(self.balancer.everything());
        }
        if self.serves {
            self.reconcile()?;
            self.prune()?;
        } else {
            self.serve()?;
        }
        if let Some(network) = self.network.as_ref().filter(|_| self.first_sync.serves_enough()) {
            network.serves();
        }
        if self.first_sync.serves_enough() && self.starting.take().is_some() {
            self.tell_ready();
        }
        if !self.datapath.writes_fail() && !self.datapath.waits_for_grace() {
            self.health.updated(SystemTime::now());
        }
        if let Some(sockets) = self.sockets.as_ref().filter(|_| !self.prune_is_due) {
            sockets.programmed(!self.datapath.writes_fail() && !self.datapath.waits_for_grace());
        }
        if let Some(seen) = self.changed_at.take() {
            self.metrics.programmed(seen.elapsed());
        }
        if self.sources.take_batch_bytes() > LARGE_BATCH {
            memory::trim();
        }
        self.tally_at.get_or_insert_with(|| Instant::now() + TALLY_PAUSE);
        Ok(())
    }

    /// Notes what the model found to be different.
    fn mark(&mut self) {
        let mut dirty = self.balancer.take_dirty();
        self.restored.learn(&self.balancer, &mut dirty);
        if self.sources.synced().directory && self.sources.silent_files() == 0 {
            dirty.merge(self.restored.settle_files(self.sources.manifests()));
        }
        if !dirty.is_empty() {
            self.changed_at.get_or_insert(self.seen_at);
        }
        self.datapath.mark(dirty);
    }

    fn reconcile(&mut self) -> anyhow::Result<()> {
        if self.is_exact {
            return self.datapath.reconcile(&self.balancer, false);
        }
        let union = Union { balancer: &self.balancer, restored: &self.restored };
        self.datapath.reconcile(&union, false)
    }

    /// The first time: everything that was seen, then what nobody wants goes, then the programs.
    fn serve(&mut self) -> anyhow::Result<()> {
        self.datapath.set_node(self.host_netns, &self.config)?;
        self.program_addresses();
        self.datapath.mark(self.balancer.everything());
        self.reconcile()?;
        self.prune()?;
        if self.prune_is_due {
            tracing::warn!(
                unsynced = self.sources.unsynced().join(", "),
                broken_files = self.sources.silent_files(),
                "not every source has told everything: what an earlier agent left is not removed until they have"
            );
        }
        if self.config.kube_proxy_replacement {
            self.datapath.attach(&self.config)?;
        } else {
            let links = programs::link_dir(&self.config.bpf_root);
            let removed = programs::detach(&links)?;
            programs::retire_other_versions(&links)?;
            tracing::warn!(
                detached = removed.len(),
                "kube-proxy-replacement is false: no program is attached"
            );
        }
        self.protect_node_ports();
        self.serves = true;
        self.audit.begin();
        Ok(())
    }

    fn tell_ready(&self) {
        let plan::Usage { frontends, services, backends, .. } = self.datapath.planner().usage();
        let after = self.started.elapsed();
        self.metrics.started(after);
        tracing::info!(?after, frontends, services, backends, "ready");
    }

    /// Once, and not before every source and every file has spoken: what a broken one last held may be in the maps
    /// alone.
    fn prune(&mut self) -> anyhow::Result<()> {
        let synced = self.sources.synced();
        let all_spoke = self.is_exact && synced.knows_services() && synced.pods;
        if self.prune_is_due && all_spoke && self.sources.silent_files() == 0 {
            self.datapath.reconcile(&self.balancer, true)?;
            self.prune_is_due = false;
        }
        Ok(())
    }
}
