//! The one owner of model and maps. Everyone else asks it by a channel, or reads the maps beside it.

mod answers;
mod audit;
mod identities;
mod network;
mod node;
mod serving;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use portway_model::k8s::ObjectKind;
use portway_model::loadbalancer::{LoadBalancer, Restored};
use portway_runtime::directory::{Directory, DirectoryError, Event};
use portway_runtime::readiness::{Guard, Readiness};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

pub(super) use identities::ToIdentities;
pub(super) use network::ToNetwork;

use super::audit::objects::Differing;
use super::audit::{Audit, AuditMetrics};
use super::datapath::{Datapath, Ticket};
use super::events::ObjectEvents;
use super::health::ProxyHealth;
use super::http::Api;
use super::metrics::Metrics;
use super::source::Sources;
use super::sync::FirstSync;
use super::watches::{Told, Watches};
use super::{start, status};
use crate::api;
use crate::config::Config;
use crate::maps::Grace;
use crate::node::{Addresses, LocalAddresses, netns_cookie};
use crate::sockets::Sockets;

/// Events of watches that are taken before what they changed is programmed.
const BATCH: usize = 512;

/// What others ask the owner.
pub(super) enum Question {
    Status(oneshot::Sender<api::Status>),
    Rejects(oneshot::Sender<Vec<api::Reject>>),
    Clashes(oneshot::Sender<Vec<api::Reject>>),
    /// Compares everything; with `fix` also puts it right. An error is in words.
    Audit {
        fix: bool,
        to: oneshot::Sender<Result<api::Audit, String>>,
    },
    /// Which of these objects of the API server's are not held in these versions.
    Versions {
        kind: ObjectKind,
        versions: BTreeMap<String, u64>,
        to: oneshot::Sender<Differing>,
    },
}

/// What the main thread hands to the owner.
pub(super) struct Inputs {
    pub(super) asked: mpsc::Receiver<Question>,
    /// The API server's watches and what they tell, where there is one.
    pub(super) api_server: Option<(Watches, mpsc::Receiver<Told>)>,
    pub(super) health: ProxyHealth,
    pub(super) audit: AuditMetrics,
    /// Where there is a pod network.
    pub(super) network: Option<ToNetwork>,
    /// The same.
    pub(super) identities: Option<ToIdentities>,
}

pub(super) struct Owner {
    config: Arc<Config>,
    metrics: Metrics,
    health: ProxyHealth,
    asked: mpsc::Receiver<Question>,
    grace_reports: mpsc::UnboundedReceiver<Grace<Ticket>>,
    directory: Option<Directory>,
    told: Option<mpsc::Receiver<Told>>,
    batch: Vec<Told>,
    addresses: Addresses,
    local_addresses: LocalAddresses,
    addresses_retry: Option<tokio::time::Instant>,
    sources: Sources,
    /// Where there is an API server.
    events: Option<ObjectEvents>,
    balancer: LoadBalancer,
    /// What an earlier agent left and nobody has spoken of; empty once everything is exact.
    restored: Restored,
    datapath: Datapath,
    /// Where there is a pod network.
    network: Option<ToNetwork>,
    /// The same.
    identities: Option<ToIdentities>,
    /// `None` where no program is attached.
    sockets: Option<Sockets>,
    audit: Audit,
    first_sync: FirstSync,
    /// Everything was compared with what the sources say, all that they say being known.
    is_exact: bool,
    /// When what is taken at the moment was seen.
    seen_at: Instant,
    /// When the oldest change that is not programmed yet was seen.
    changed_at: Option<Instant>,
    /// When the metrics of what is held are counted anew: that costs O(files), so not after each change.
    tally_at: Option<tokio::time::Instant>,
    /// Programs serve, or were detached where they shall not.
    serves: bool,
    /// Open until what is served is worth something.
    starting: Option<Guard>,
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
        inputs: Inputs,
        started: Instant,
    ) -> anyhow::Result<Self> {
        let Inputs { asked, api_server, health, audit, mut network, identities } = inputs;
        let (watches, told) = api_server.unzip();
        let events = watches.as_ref().map(|watches| ObjectEvents::new(watches.events().clone()));
        let sources = Sources::new(&config, watches);
        let starting = readiness.task(format!("first sync of {}", sources.unsynced().join(", ")));
        let loading = readiness.task("kernel maps and programs");
        let host_netns = netns_cookie()?;
        let addresses = Addresses::open()?;
        let local_addresses = addresses.read().await?;
        let directory = config.source_dir.as_deref().map(Directory::open).transpose()?;
        let mut kernel_side = start::start(&config)?;
        if let (Some(network), Some((tables, opening))) = (&mut network, kernel_side.pods.take()) {
            network.opened(tables, opening);
        }
        let kernel = status::kernel(&kernel_side.self_test);
        let serves_elsewhere = kernel_side.serves_elsewhere;
        let (reports, grace_reports) = mpsc::unbounded_channel();
        let (datapath, restored) = Datapath::new(kernel_side, &config, metrics.clone(), reports)?;
        api.watch_maps(datapath.tables().reader());
        let sockets = config
            .kube_proxy_replacement
            .then(|| Sockets::start(datapath.tables().sockets(), &metrics.registry))
            .transpose()?;
        drop(loading);
        let timeout = config.api_server.as_ref().map(|api_server| api_server.sync_timeout);
        let restored_serves = !serves_elsewhere && !restored.is_empty();
        let first_sync =
            FirstSync::new(restored_serves, serves_elsewhere, timeout, tokio::time::Instant::now());
        tracing::info!(after = ?started.elapsed(), "maps and programs are there; waiting for the first sync");
        Ok(Self {
            audit: Audit::new(audit),
            balancer: LoadBalancer::new(config.load_balancer()),
            config,
            metrics,
            health,
            asked,
            grace_reports,
            directory,
            told,
            batch: Vec::new(),
            addresses,
            local_addresses,
            addresses_retry: None,
            sources,
            events,
            restored,
            datapath,
            network,
            identities,
            sockets,
            first_sync,
            is_exact: false,
            seen_at: Instant::now(),
            changed_at: None,
            tally_at: None,
            serves: false,
            starting: Some(starting),
            prune_is_due: true,
            host_netns,
            kernel,
            started,
        })
    }

    /// Follows everything until an error that no retry mends.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        loop {
            let due = [
                self.datapath.retry_at(),
                self.addresses_retry,
                self.tally_at,
                self.first_sync.due(),
                self.audit.due_at(),
            ];
            let due = due.into_iter().flatten().min();
            let takes = !self.identities.as_ref().is_some_and(ToIdentities::is_behind);
            tokio::select! {
                event = next_file(&mut self.directory), if takes => self.take_file(event)?,
                number = next_told(&mut self.told, &mut self.batch), if takes => self.take_told(number)?,
                () = deliver(&mut self.identities) => {}
                Some(report) = self.grace_reports.recv() => {
                    let goes_on = self.datapath.grace_over(report);
                    if goes_on && !self.datapath.writes_fail() {
                        // What waited for it comes now, so nothing is overdue for that.
                        self.health.updated(SystemTime::now());
                    }
                    if goes_on || !self.serves {
                        self.program()?;
                    }
                }
                changed = self.addresses.changed() => self.follow_addresses(changed).await?,
                question = self.asked.recv() => match question {
                    Some(question) => self.answer(question)?,
                    None => return Ok(()),
                },
                () = until(due) => self.do_what_is_due().await?,
            }
        }
    }

    fn take_file(&mut self, event: Result<Event, DirectoryError>) -> anyhow::Result<()> {
        match event {
            Ok(event) => {
                self.seen_at = Instant::now();
                if self.sources.take_file(event, &mut self.balancer, &self.metrics) {
                    self.program()?;
                } else if self.sources.last_change().is_some_and(|changed| changed >= self.seen_at) {
                    self.changed_at.get_or_insert(self.seen_at);
                }
            }
            Err(error) => self.sources.failed(&error),
        }
        Ok(())
    }

    /// A burst of events is one change of the maps.
    fn take_told(&mut self, number: usize) -> anyhow::Result<()> {
        if number == 0 {
            bail!("the watches of the API server ended");
        }
        self.seen_at = Instant::now();
        for (kind, event) in std::mem::take(&mut self.batch) {
            self.sources.take_watched(kind, &event, &mut self.balancer, &self.metrics);
        }
        self.program()
    }

    async fn do_what_is_due(&mut self) -> anyhow::Result<()> {
        let now = tokio::time::Instant::now();
        let is_due = |at: Option<tokio::time::Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.addresses_retry) {
            self.reread_addresses().await?;
        }
        if is_due(self.first_sync.due()) && self.first_sync.becomes_late(self.sources.synced(), now) {
            let sources = self.sources.unsynced().join(", ");
            tracing::warn!(sources, "not read to the end within k8s-sync-timeout; it is waited for");
        }
        if is_due(self.datapath.retry_at()) || is_due(self.first_sync.due()) {
            self.program()?;
        }
        if is_due(self.audit.due_at()) {
            self.look()?;
        }
        if is_due(self.tally_at) {
            self.tally_at = None;
            self.metrics.tally(&self.tallies());
            self.tell_events();
        }
        Ok(())
    }
}

async fn next_file(directory: &mut Option<Directory>) -> Result<Event, DirectoryError> {
    match directory {
        Some(directory) => directory.next().await,
        None => pending().await,
    }
}

/// What the watches have told by now, at least one event. 0: they ended.
async fn next_told(told: &mut Option<mpsc::Receiver<Told>>, batch: &mut Vec<Told>) -> usize {
    match told {
        Some(told) => told.recv_many(batch, BATCH).await,
        None => pending().await,
    }
}

async fn deliver(identities: &mut Option<ToIdentities>) {
    match identities {
        Some(identities) => identities.deliver().await,
        None => pending().await,
    }
}

async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// When a failed write of addresses or a lost netlink connection is tried again.
const ADDRESS_RETRY: Duration = Duration::from_secs(1);
