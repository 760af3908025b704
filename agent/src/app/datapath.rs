//! The planner on the kernel's maps: reconciling, retrying what failed, and giving memory back after grace periods.

mod intact;
mod refused;

use std::time::Duration;

use anyhow::{Context as _, bail};
use portway_model::loadbalancer::{Desired, Dirty, Restored};
use portway_model::plan::{Planner, Problem, Retired};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::metrics::{Counted, Metrics};
use super::start::Started;
use crate::api;
use crate::config::Config;
use crate::maps::{Grace, GracePeriods, KernelTables, MapError};
use crate::node::LocalAddresses;
use crate::programs::{Change, Links, Programs, link_dir, retire_other_versions};
use intact::Intact;
pub(super) use intact::{Expected, Finding};
pub(super) use refused::{Cause, Refused};

/// The first wait after a failed write; each further one doubles it.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// A full map fails thousands of services alike: no more of them are logged at once. The status has the number.
const MOST_PROBLEMS: usize = 10;
/// Nor are more of them named by the status.
const MOST_NAMED: usize = 1000;

/// What waits for a grace period.
#[derive(Debug)]
pub(super) enum Ticket {
    /// What the earlier agent had given up may be looked at by programs until then.
    Restored,
    Retired(Retired),
}

pub(super) struct Datapath {
    tables: KernelTables,
    planner: Planner,
    programs: Programs,
    grace: GracePeriods<Ticket>,
    metrics: Metrics,
    /// What may differ between the model and the maps.
    dirty: Dirty,
    /// No program looks at what the earlier agent had given up.
    restored_is_free: bool,
    /// Something goes on after the next grace period.
    waits_for_grace: bool,
    retry_at: Option<Instant>,
    retry_after: Duration,
    writes_fail: bool,
    refused: Refused,
    writes: api::Writes,
    awaiting: usize,
    intact: Intact,
}

impl Datapath {
    /// Adopts what the maps hold, and tells what an earlier agent left there. Nothing is written.
    pub(super) fn new(
        started: Started,
        config: &Config,
        metrics: Metrics,
        reports: mpsc::UnboundedSender<Grace<Ticket>>,
    ) -> anyhow::Result<(Self, Restored)> {
        let Started { tables, pods: _, programs, self_test: _, takes_over, serves_elsewhere: _ } = started;
        let mut planner = Planner::new(config.planner(tables.sizes()));
        let dump = tables.dump()?;
        planner.restore(&dump);
        let restored = Restored::new(&dump);
        let grace = GracePeriods::start(move |report| {
            // The receiver is gone only where the process ends.
            let _ = reports.send(report);
        })
        .context("cannot wait for grace periods")?;
        metrics.watch_maps(tables.reader());
        let mut datapath = Self {
            tables,
            planner,
            programs,
            grace,
            metrics,
            dirty: Dirty::default(),
            restored_is_free: !takes_over,
            waits_for_grace: false,
            retry_at: None,
            retry_after: FIRST_RETRY,
            writes_fail: false,
            refused: Refused::default(),
            writes: api::Writes::default(),
            awaiting: 0,
            intact: Intact::new(),
        };
        if takes_over {
            datapath.request(Ticket::Restored)?;
        }
        Ok((datapath, restored))
    }

    pub(super) fn tables(&self) -> &KernelTables {
        &self.tables
    }

    pub(super) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// When something failed must be tried again.
    pub(super) const fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether something goes on after the next grace period.
    pub(super) const fn waits_for_grace(&self) -> bool {
        self.waits_for_grace
    }

    /// What could not be programmed.
    pub(super) const fn refused(&self) -> &Refused {
        &self.refused
    }

    /// Whether the kernel refuses writes for another reason than that a map is full.
    pub(super) const fn writes_fail(&self) -> bool {
        self.writes_fail
    }

    /// Whether the first write may be made.
    pub(super) const fn may_write(&self) -> bool {
        self.restored_is_free
    }

    pub(super) fn mark(&mut self, dirty: Dirty) {
        self.dirty.merge(dirty);
    }

    /// Makes the maps what is wanted of everything that is dirty. With `prune` also removes what nobody wants.
    pub(super) fn reconcile<D: Desired>(&mut self, desired: &D, prune: bool) -> anyhow::Result<()> {
        let mut tables = Counted { tables: &mut self.tables, metrics: &self.metrics };
        let outcome = if prune {
            self.planner.prune(desired, &mut self.dirty, &mut tables)
        } else {
            self.planner.reconcile(desired, &mut self.dirty, &mut tables)
        };
        self.waits_for_grace = !outcome.waiting.is_empty();
        let fails = |problem: &Problem<_>| match problem {
            Problem::Write { error, .. } => !matches!(error, MapError::Full { .. }),
            Problem::Full(_) | Problem::Name(_) | Problem::NoService(_) => false,
        };
        self.writes_fail = outcome.failures.iter().any(|failure| fails(&failure.problem));
        self.writes.operations += outcome.writes;
        self.writes.failures += outcome.failures.len() as u64;
        self.metrics.write_failures.inc_by(outcome.failures.len() as u64);
        self.writes.outstanding = (self.dirty.services.len() + self.dirty.frontends.len()) as u64;
        self.metrics.outstanding.set(i64::try_from(self.writes.outstanding).unwrap_or(i64::MAX));
        let refused = Refused::new(&outcome.failures, desired);
        let news = refused.news(&self.refused);
        for reject in news.iter().take(MOST_PROBLEMS) {
            tracing::warn!(%reject, "it is tried again");
        }
        if news.len() > MOST_PROBLEMS {
            tracing::warn!(more = news.len() - MOST_PROBLEMS, "not programmed, for reasons of the same sort");
        }
        self.writes.last_error = outcome.failures.iter().map(ToString::to_string).min();
        if outcome.failures.is_empty() {
            self.retry_at = None;
            self.retry_after = FIRST_RETRY;
        } else {
            self.retry_at = Some(Instant::now() + self.retry_after);
            self.retry_after = (self.retry_after * 2).min(LONGEST_RETRY);
        }
        self.metrics.refused(&refused);
        self.refused = refused;
        match self.planner.take_retired() {
            Some(retired) => self.request(Ticket::Retired(retired)),
            None => Ok(()),
        }
    }

    /// Takes the end of a grace period. Returns whether something may go on that waited for it.
    pub(super) fn grace_over(&mut self, report: Grace<Ticket>) -> bool {
        match report {
            Grace::Over { tickets, took } => {
                self.metrics.grace_seconds.observe(took.as_secs_f64());
                for ticket in tickets {
                    match ticket {
                        Ticket::Restored => self.restored_is_free = true,
                        Ticket::Retired(retired) => {
                            self.awaiting = self.awaiting.saturating_sub(retired.len());
                            self.planner.reclaim(retired);
                        }
                    }
                }
                self.waits_for_grace
            }
            Grace::Failed { error, kept } => {
                tracing::warn!(%error, kept, "a grace period could not be waited for; memory is kept until one can");
                false
            }
        }
    }

    fn request(&mut self, ticket: Ticket) -> anyhow::Result<()> {
        if let Ticket::Retired(retired) = &ticket {
            self.awaiting += retired.len();
        }
        if !self.grace.request(ticket) {
            bail!("the thread that waits for grace periods ended");
        }
        Ok(())
    }

    /// Tells the programs the node's namespace, settings and addresses.
    pub(super) fn set_node(&mut self, host_netns: u64, config: &Config) -> anyhow::Result<()> {
        let settings = config.node_settings().word();
        self.tables.set_config(portway_datapath::NodeConfig { host_netns, settings })?;
        Ok(())
    }

    /// Makes `pw_local_addresses` what netlink says. What failed is done by the next call.
    pub(super) fn set_addresses(&mut self, found: &LocalAddresses, config: &Config) -> bool {
        match self.tables.set_local_addresses(&found.table(&config.node_port_addresses)) {
            Ok(changes) => {
                tracing::debug!(?changes, "the node's addresses");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the node's addresses are not all programmed; it is tried again");
                false
            }
        }
    }

    /// Attaches the programs, or puts them in place of the earlier agent's.
    ///
    /// Where that one's programs have learned things in other maps than ours, they are moved over on the way.
    pub(super) fn attach(&mut self, config: &Config) -> anyhow::Result<()> {
        let (cgroup, links) = (&config.cgroup_root, link_dir(&config.bpf_root));
        if self.tables.has_earlier() {
            let began = Instant::now();
            let unread = self.tables.adopt_unread()?;
            self.programs.attach_both(cgroup, &links)?;
            let rest = self.tables.adopt()?;
            tracing::info!(%unread, %rest, took = ?began.elapsed(), "took over what an earlier agent's programs know");
        }
        let changes = self.programs.attach(cgroup, &links)?;
        // Before anything that may fail: a later agent would take dead entries over.
        if let Err(error) = self.tables.forget_earlier() {
            tracing::warn!(%error, "maps of the earlier agent stay pinned");
        }
        self.intact.links = Some(Links::open(cgroup, &links)?);
        match retire_other_versions(&links) {
            Ok(retired) if retired.is_empty() => {}
            Ok(retired) => tracing::info!(?retired, "removed what other layout versions had pinned"),
            Err(error) => tracing::warn!(%error, "what another layout version left stays pinned"),
        }
        let replaced = changes.iter().filter(|(_, change)| matches!(change, Change::Replaced { .. })).count();
        tracing::info!(
            cgroup = %config.cgroup_root.display(),
            attached = changes.len() - replaced,
            replaced,
            "programs serve"
        );
        Ok(())
    }

    pub(super) fn writes(&self) -> api::Writes {
        let refused = self.refused.rejects().take(MOST_NAMED).cloned().collect();
        api::Writes { awaiting_grace: self.awaiting as u64, refused, ..self.writes.clone() }
    }
}
