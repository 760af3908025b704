//! The one owner of model and maps. Everyone else asks it by a channel, or reads the maps beside it.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portway_model::loadbalancer::{Desired as _, LoadBalancer};
use portway_model::plan;
use portway_runtime::directory::Directory;
use portway_runtime::readiness::{Guard, Readiness};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use super::datapath::{Datapath, Ticket};
use super::http::Api;
use super::metrics::{Metrics, Tallies};
use super::source::Source;
use super::{memory, start, status};
use crate::api;
use crate::config::Config;
use crate::maps::Grace;
use crate::node::{self, Addresses, LocalAddresses, ReservedPorts};

/// After a batch of this many bytes, freed memory is given back to the kernel.
const LARGE_BATCH: usize = 256 * 1024;
/// When a failed write of addresses or a lost netlink connection is tried again.
const ADDRESS_RETRY: Duration = Duration::from_secs(1);

/// Changes closer together than this are counted once.
const TALLY_PAUSE: Duration = Duration::from_millis(500);

/// What others ask the owner.
pub(super) enum Question {
    Status(oneshot::Sender<api::Status>),
    Rejects(oneshot::Sender<Vec<api::Reject>>),
    Clashes(oneshot::Sender<Vec<api::Reject>>),
}

pub(super) struct Owner {
    config: Arc<Config>,
    metrics: Metrics,
    asked: mpsc::Receiver<Question>,
    grace_reports: mpsc::UnboundedReceiver<Grace<Ticket>>,
    directory: Directory,
    addresses: Addresses,
    local_addresses: LocalAddresses,
    addresses_retry: Option<tokio::time::Instant>,
    source: Source,
    balancer: LoadBalancer,
    datapath: Datapath,
    /// When the oldest change that is not programmed yet was seen.
    changed_at: Option<Instant>,
    /// When the metrics of what is held are counted anew: that costs O(files), so not after each change.
    tally_at: Option<tokio::time::Instant>,
    /// Open until programs serve.
    serving: Option<Guard>,
    /// What an earlier agent left and nobody wants is still to be removed.
    prune_is_due: bool,
    host_netns: u64,
    kernel: api::Kernel,
    started: Instant,
}

impl Owner {
    /// Everything up to the first sync. Nothing that serves is changed.
    pub(super) async fn start(
        config: Arc<Config>,
        metrics: Metrics,
        readiness: &Readiness,
        api: &Api,
        asked: mpsc::Receiver<Question>,
        started: Instant,
    ) -> anyhow::Result<Self> {
        let serving = readiness.task(format!("first sync of {}", config.source_dir.display()));
        let loading = readiness.task("kernel maps and programs");
        let host_netns = node::netns_cookie()?;
        let addresses = Addresses::open()?;
        let local_addresses = addresses.read().await?;
        let directory = Directory::open(&config.source_dir)?;
        let kernel_side = start::start(&config)?;
        let kernel = status::kernel(&kernel_side.self_test);
        let (reports, grace_reports) = mpsc::unbounded_channel();
        let datapath = Datapath::new(kernel_side, &config, metrics.clone(), reports)?;
        api.watch_maps(datapath.tables().reader());
        drop(loading);
        tracing::info!(after = ?started.elapsed(), "maps and programs are there; waiting for the first sync");
        Ok(Self {
            source: Source::new(&config.source_dir),
            balancer: LoadBalancer::new(config.load_balancer()),
            config,
            metrics,
            asked,
            grace_reports,
            directory,
            addresses,
            local_addresses,
            addresses_retry: None,
            datapath,
            changed_at: None,
            tally_at: None,
            serving: Some(serving),
            prune_is_due: true,
            host_netns,
            kernel,
            started,
        })
    }

    /// Follows everything until an error that no retry mends.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        loop {
            let due =
                [self.datapath.retry_at(), self.addresses_retry, self.tally_at].into_iter().flatten().min();
            tokio::select! {
                event = self.directory.next() => match event {
                    Ok(event) => {
                        let seen = Instant::now();
                        if self.source.take(event, &mut self.balancer, &self.metrics) {
                            self.program()?;
                        } else if self.source.last_change().is_some_and(|changed| changed >= seen) {
                            self.changed_at.get_or_insert(seen);
                        }
                    }
                    Err(error) => self.source.failed(&error),
                },
                Some(report) = self.grace_reports.recv() => {
                    let waited = self.serving.is_some();
                    if self.datapath.grace_over(report) || waited {
                        self.program()?;
                    }
                }
                changed = self.addresses.changed() => self.follow_addresses(changed).await?,
                question = self.asked.recv() => match question {
                    Some(question) => self.answer(question),
                    None => return Ok(()),
                },
                () = until(due) => self.do_what_is_due().await?,
            }
        }
    }

    async fn do_what_is_due(&mut self) -> anyhow::Result<()> {
        let now = tokio::time::Instant::now();
        let is_due = |at: Option<tokio::time::Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.addresses_retry) {
            self.reread_addresses().await?;
        }
        if is_due(self.datapath.retry_at()) {
            self.program()?;
        }
        if is_due(self.tally_at) {
            self.tally_at = None;
            self.metrics.tally(&self.tallies());
        }
        Ok(())
    }

    /// Brings everything that changed into the kernel; the first time, once it may.
    fn program(&mut self) -> anyhow::Result<()> {
        let dirty = self.balancer.take_dirty();
        self.datapath.mark(dirty);
        if !self.source.has_synced() || !self.datapath.may_write() {
            return Ok(());
        }
        if self.serving.is_some() {
            self.serve()?;
        } else {
            self.datapath.reconcile(&self.balancer, false)?;
            self.prune()?;
        }
        if let Some(seen) = self.changed_at.take() {
            self.metrics.programmed(seen.elapsed());
        }
        if self.source.take_batch_bytes() > LARGE_BATCH {
            memory::trim();
        }
        self.tally_at.get_or_insert_with(|| tokio::time::Instant::now() + TALLY_PAUSE);
        Ok(())
    }

    /// The first time: everything, then what nobody wants goes, then the programs.
    fn serve(&mut self) -> anyhow::Result<()> {
        self.datapath.set_node(self.host_netns, &self.config)?;
        self.program_addresses();
        self.datapath.mark(self.balancer.everything());
        self.datapath.reconcile(&self.balancer, false)?;
        self.prune()?;
        if self.prune_is_due {
            tracing::warn!(
                files = self.source.silent_files(),
                "files cannot be used: what an earlier agent made of them, or of others, is not removed until they can"
            );
        }
        if self.config.kube_proxy_replacement {
            self.datapath.attach(&self.config)?;
        } else {
            let removed = crate::programs::detach(&crate::programs::link_dir(&self.config.bpf_root))?;
            tracing::warn!(
                detached = removed.len(),
                "kube-proxy-replacement is false: no program is attached"
            );
        }
        self.protect_node_ports();
        let plan::Usage { frontends, services, backends, .. } = self.datapath.planner().usage();
        let after = self.started.elapsed();
        self.metrics.started(after);
        tracing::info!(?after, frontends, services, backends, "ready");
        self.serving = None;
        Ok(())
    }

    /// Once, and not before every file has spoken: what a broken one last held may be in the maps alone.
    fn prune(&mut self) -> anyhow::Result<()> {
        if self.prune_is_due && self.source.silent_files() == 0 {
            self.datapath.reconcile(&self.balancer, true)?;
            self.prune_is_due = false;
        }
        Ok(())
    }

    fn protect_node_ports(&self) {
        let Config {
            auto_protect_node_port_range, kube_proxy_replacement, node_port_range, state_dir, ..
        } = &*self.config;
        if !auto_protect_node_port_range || !kube_proxy_replacement {
            return;
        }
        match ReservedPorts::new(state_dir).protect(*node_port_range) {
            Ok(added) if added.is_empty() => {}
            Ok(added) => tracing::info!(%added, "added to ip_local_reserved_ports"),
            Err(error) => tracing::warn!(
                %error,
                "NodePorts may be taken by outgoing connections; reserve them yourself and set \
                 enable-auto-protect-node-port-range=false"
            ),
        }
    }

    async fn follow_addresses(&mut self, changed: Result<(), node::AddressesError>) -> anyhow::Result<()> {
        if let Err(error) = changed {
            tracing::warn!(%error, "opening it again");
            self.addresses = Addresses::open()?;
        }
        self.reread_addresses().await
    }

    async fn reread_addresses(&mut self) -> anyhow::Result<()> {
        match self.addresses.read().await {
            Ok(found) if found == self.local_addresses && self.addresses_retry.is_none() => {}
            Ok(found) => {
                self.local_addresses = found;
                self.addresses_retry = None;
                if self.serving.is_none() {
                    self.program_addresses();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "trying again");
                self.addresses_retry = Some(tokio::time::Instant::now() + ADDRESS_RETRY);
            }
        }
        Ok(())
    }

    fn program_addresses(&mut self) {
        let done = self.datapath.set_addresses(&self.local_addresses, &self.config);
        self.addresses_retry = (!done).then(|| tokio::time::Instant::now() + ADDRESS_RETRY);
    }

    fn tallies(&self) -> Tallies {
        let addresses = self.local_addresses.interfaces.iter().map(|interface| interface.addresses.len());
        Tallies {
            rejects: self.rejects().count() as u64,
            clashes: self.balancer.conflicts().count() as u64,
            broken_files: self.source.status().broken.len() as u64,
            local_addresses: addresses.sum::<usize>() as u64,
            usage: self.datapath.planner().usage(),
        }
    }

    fn rejects(&self) -> impl Iterator<Item = api::Reject> {
        self.source.rejects().chain(self.balancer.rejects())
    }

    fn answer(&self, question: Question) {
        // Whoever asked may have gone meanwhile: then nobody needs the answer.
        match question {
            Question::Status(to) => drop(to.send(self.status())),
            Question::Rejects(to) => drop(to.send(self.rejects().collect())),
            Question::Clashes(to) => drop(to.send(self.balancer.conflicts().collect())),
        }
    }

    fn status(&self) -> api::Status {
        status::build(status::Facts {
            config: &self.config,
            addresses: &self.local_addresses,
            kernel: self.kernel.clone(),
            source: self.source.status(),
            tallies: self.tallies(),
            writes: self.datapath.writes(),
            without_maglev: self.datapath.planner().without_maglev().len(),
            serving: self.serving.is_none(),
            silent_files: if self.prune_is_due && self.serving.is_none() {
                self.source.silent_files()
            } else {
                0
            },
        })
    }
}

async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
