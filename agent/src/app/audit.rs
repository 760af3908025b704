//! The truth audit of the kernel's side: is everything still as this agent made it, and is that what is wanted.
//!
//! - A *look* compares maps, pins and links with what the agent wrote, each few seconds: foreign interference is
//!   noticed and put right within ten.
//! - A *comparison* also asks whether what was written is what is wanted now: each half hour and on demand. It finds
//!   defects of this program.
//!
//! Nothing here touches readiness or what is served: a difference is put right, named in the log, the status and the
//! metrics.

mod kube_proxy;
mod metrics;
pub(super) mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use portway_model::loadbalancer::Desired;

use super::datapath::{Datapath, Expected, Finding};
use crate::api::{self, counted};
use kube_proxy::Netfilter;
pub(super) use metrics::AuditMetrics;

/// Between two looks: half of what a repair may take.
const LOOK: Duration = Duration::from_secs(5);
/// Looks take at most a hundredth of one CPU, as long as that keeps them ten seconds apart.
const SHARE: u32 = 100;
const LONGEST_PAUSE: Duration = Duration::from_secs(9);
/// Between two comparisons; a tenth more or less, so that the agents of a cluster don't do it at once.
const COMPARISON: Duration = Duration::from_secs(30 * 60);
/// After one that found something.
const AGAIN: Duration = Duration::from_secs(60);
/// More differences than this are not logged one by one.
const MOST_LOGGED: usize = 10;
/// Nor are more of them kept for the status.
const MOST_KEPT: usize = 1000;

/// When what is due, and what was found.
pub(super) struct Audit {
    metrics: AuditMetrics,
    netfilter: Netfilter,
    /// `None` until programs serve.
    due: Option<Due>,
    looked: Option<Instant>,
    look_took: Duration,
    compared: Option<Instant>,
    /// Since when each difference has been known.
    open: BTreeMap<api::Difference, Instant>,
    divergence: BTreeMap<String, u64>,
    last_repair: Option<String>,
    trouble: Option<String>,
    warnings: Vec<String>,
}

#[derive(Clone, Copy)]
struct Due {
    look: tokio::time::Instant,
    comparison: tokio::time::Instant,
}

/// What a look found.
struct Found {
    findings: Vec<Finding>,
    /// What the agent did not program though it is wanted, where that was asked for.
    unprogrammed: Vec<portway_model::plan::Difference>,
}

impl Audit {
    pub(super) fn new(metrics: AuditMetrics) -> Self {
        Self {
            metrics,
            netfilter: Netfilter::new(),
            due: None,
            looked: None,
            look_took: Duration::ZERO,
            compared: None,
            open: BTreeMap::new(),
            divergence: BTreeMap::new(),
            last_repair: None,
            trouble: None,
            warnings: Vec::new(),
        }
    }

    /// Programs serve: from now on there is something to look at.
    pub(super) fn begin(&mut self) {
        let now = tokio::time::Instant::now();
        self.due = Some(Due { look: now + LOOK, comparison: now + jittered(COMPARISON) });
    }

    /// When [`Self::look`] is to be called.
    pub(super) fn due_at(&self) -> Option<tokio::time::Instant> {
        self.due.map(|due| due.look)
    }

    /// The periodic look, or comparison. Puts right what it finds; returns whether a reconcile is to follow.
    pub(super) fn look<D: Desired>(
        &mut self,
        datapath: &mut Datapath,
        desired: &D,
        expected: &Expected<'_>,
    ) -> bool {
        let Some(due) = &mut self.due else { return false };
        let began = Instant::now();
        let now = tokio::time::Instant::now();
        let compare = due.comparison <= now;
        if compare {
            due.comparison = now + jittered(COMPARISON);
        }
        let found = find(datapath, desired, expected, compare);
        self.warn_of_others(datapath);
        let took = began.elapsed();
        if let Some(due) = &mut self.due {
            due.look = now + (took * SHARE).clamp(LOOK, LONGEST_PAUSE);
        }
        self.metrics.took(compare, took);
        self.look_took = took;
        match found {
            Ok(found) => {
                self.trouble = None;
                self.looked = Some(began);
                if compare {
                    self.compared = Some(began);
                }
                if !found.unprogrammed.is_empty()
                    && let Some(due) = &mut self.due
                {
                    due.comparison = now + AGAIN;
                }
                self.note(&found.differences(false), compare);
                self.repair(&found, datapath, desired, expected)
            }
            Err(error) => {
                let trouble = format!("{error:#}");
                if self.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(
                        error = trouble,
                        "the kernel's side cannot be compared; it is tried again"
                    );
                }
                self.trouble = Some(trouble);
                false
            }
        }
    }

    /// A comparison on demand; with `fix` it puts right what it finds. Also whether a reconcile is to follow.
    pub(super) fn compare<D: Desired>(
        &mut self,
        datapath: &mut Datapath,
        desired: &D,
        expected: &Expected<'_>,
        fix: bool,
    ) -> anyhow::Result<(api::Audit, bool)> {
        let began = Instant::now();
        let found = find(datapath, desired, expected, true)?;
        self.warn_of_others(datapath);
        (self.looked, self.compared) = (Some(began), Some(began));
        self.note(&found.differences(false), true);
        let goes_on = fix && self.repair(&found, datapath, desired, expected);
        let found = found.differences(true);
        let audit = api::Audit {
            remaining: found.clone(),
            found,
            warnings: self.warnings.clone(),
            skipped: Vec::new(),
            seconds: began.elapsed().as_secs_f64(),
        };
        Ok((audit, goes_on))
    }

    fn repair<D: Desired>(
        &mut self,
        found: &Found,
        datapath: &mut Datapath,
        desired: &D,
        expected: &Expected<'_>,
    ) -> bool {
        let is_lost = found.unprogrammed.iter().any(|difference| !difference.is_pending);
        if found.findings.is_empty() && !is_lost {
            return false;
        }
        let failures = datapath.repair(&found.findings, expected);
        for failure in failures.iter().take(MOST_LOGGED) {
            tracing::warn!(failure, "not put right yet; it is tried again");
        }
        if is_lost {
            datapath.mark_everything(desired, expected.leftovers);
        }
        let differences = found.differences(false);
        for difference in &differences {
            self.metrics.repaired(&difference.kind);
        }
        self.last_repair = differences.last().map(line);
        true
    }

    /// Counts and logs what is new, and forgets what is gone. A look does not see what only a comparison sees.
    fn note(&mut self, differences: &[api::Difference], compared: bool) {
        let now = Instant::now();
        let there: BTreeSet<&api::Difference> = differences.iter().collect();
        self.open.retain(|known, _| there.contains(known) || (!compared && known.kind == PLAN));
        let news: Vec<_> =
            differences.iter().filter(|difference| !self.open.contains_key(difference)).collect();
        for difference in news.iter().take(MOST_LOGGED) {
            let api::Difference { kind, what, held, wanted } = difference;
            tracing::warn!(kind, what, held, wanted, "the kernel's side is not as it should be");
        }
        if news.len() > MOST_LOGGED {
            tracing::warn!(more = news.len() - MOST_LOGGED, "other differences of the kernel's side");
        }
        for difference in &news {
            *self.divergence.entry(difference.kind.clone()).or_default() += 1;
            self.metrics.diverged(&difference.kind);
        }
        let news: Vec<_> = news.into_iter().cloned().collect();
        self.open.extend(news.into_iter().take(MOST_KEPT).map(|difference| (difference, now)));
        self.metrics.oldest(self.oldest());
    }

    fn oldest(&self) -> Option<Duration> {
        self.open.values().min().map(Instant::elapsed)
    }

    /// What others do beside us that is not ours to end.
    fn warn_of_others(&mut self, datapath: &Datapath) {
        let mut warnings = Vec::new();
        match datapath.other_programs() {
            Ok(others) => warnings.extend(others.iter().map(|other| {
                format!("{other}, on sockets of our cgroup or of all; services may not be translated as they should")
            })),
            Err(error) => warnings.push(format!("whether other programs run beside ours is not known: {error:#}")),
        }
        match self.netfilter.look() {
            Ok(rules) => warnings.extend(rules.iter().map(|rules| {
                format!(
                    "kube-proxy's rules are there ({rules}): end kube-proxy and run `kube-proxy --cleanup`, or two translate the same services"
                )
            })),
            Err(error) => warnings.push(format!("whether kube-proxy's rules are there is not known: {error}")),
        }
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        self.warnings = warnings;
    }

    pub(super) fn status(&self) -> api::AuditStatus {
        let age = |at: Option<Instant>| at.map(|at| at.elapsed().as_secs_f64());
        api::AuditStatus {
            look_age_seconds: age(self.looked),
            look_seconds: self.look_took.as_secs_f64(),
            compare_age_seconds: age(self.compared),
            objects_age_seconds: None,
            objects_trouble: None,
            divergence: self.divergence.clone(),
            remaining: self.open.keys().cloned().collect(),
            oldest_seconds: self.oldest().map(|age| age.as_secs_f64()),
            last_repair: self.last_repair.clone(),
            trouble: self.trouble.clone(),
            warnings: self.warnings.clone(),
        }
    }
}

/// [`api::Difference::kind`] of what the agent has not programmed.
const PLAN: &str = "plan";

/// Whether the kernel is as written; with `compare` also whether that is what is wanted.
fn find<D: Desired>(
    datapath: &mut Datapath,
    desired: &D,
    expected: &Expected<'_>,
    compare: bool,
) -> anyhow::Result<Found> {
    let findings = datapath.findings(expected)?;
    let unprogrammed = if compare { datapath.differences(desired, expected.leftovers) } else { Vec::new() };
    Ok(Found { findings, unprogrammed })
}

impl Found {
    /// `pending`: also what is tried again anyway, of which the status tells by itself.
    fn differences(&self, pending: bool) -> Vec<api::Difference> {
        let unprogrammed = self.unprogrammed.iter().filter(|difference| pending || !difference.is_pending);
        let unprogrammed = unprogrammed.map(|difference| {
            let portway_model::plan::Difference { subject, aspect, held, wanted, is_pending } = difference;
            let later = if *is_pending { " (tried again)" } else { "" };
            api::Difference {
                kind: PLAN.to_owned(),
                what: format!("{subject}: {}{later}", aspect.name()),
                held: held.clone(),
                wanted: wanted.clone(),
            }
        });
        self.findings.iter().map(Finding::difference).chain(unprogrammed).collect()
    }
}

/// What the status says of an audit.
pub(super) fn warnings(status: &api::AuditStatus) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Some(first), Some(oldest)) = (status.remaining.first(), status.oldest_seconds) {
        let number = counted(status.remaining.len() as u64, "difference", "differences");
        warnings.push(format!(
            "the audit has {number} that are not put right, the oldest for {oldest:.0} s: {}",
            line(first)
        ));
    }
    if let Some(trouble) = &status.trouble {
        warnings.push(format!("the audit cannot compare the kernel's side: {trouble}"));
    }
    warnings.extend(status.warnings.iter().cloned());
    warnings
}

fn line(difference: &api::Difference) -> String {
    let api::Difference { kind, what, held, wanted } = difference;
    format!("{kind} {what}: {held}, wanted {wanted}")
}

/// A tenth more or less.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause.mul_f64(0.9 + 0.2 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_a_tenth_apart_at_most_and_not_all_alike() {
        let pauses: Vec<_> = (0..100).map(|_| jittered(COMPARISON).as_secs()).collect();
        assert!(pauses.iter().all(|pause| (1620..=1980).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().min().unwrap() + 60 < *pauses.iter().max().unwrap(), "{pauses:?}");
    }
}
