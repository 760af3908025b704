//! The truth audit of the API server's side: is every object that it has the one that is held.
//!
//! A watch that skips an event says nothing of it. Each half hour, and on demand, what exists is listed (metadata
//! alone) and compared; what still differs a little later, though nothing changed, was skipped. It is counted, named,
//! and mended by a new list of its kind. An API server that does not answer changes nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use portway_model::k8s::ObjectKind;
use portway_runtime::kubernetes::{Resource, WatchState, object_versions};
use tokio::sync::{mpsc, oneshot};

use super::{AuditMetrics, MOST_KEPT, MOST_LOGGED, jittered};
use crate::api;
use crate::app::owner::Question;
use crate::app::watches::Watches;

const PERIOD: Duration = Duration::from_secs(30 * 60);
/// What an event may need from the API server to the owner.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
/// A large change keeps the owner busy for a second or two.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked whether a new list has mended everything, [`ON_ITS_WAY`] apart.
const TRIES: u32 = 5;

/// The objects of a kind that differ, by name: the held version, then the API server's; `None` where there is none.
pub(in crate::app) type Differing = BTreeMap<String, (Option<u64>, Option<u64>)>;

/// The audit of the API server's objects.
pub(in crate::app) struct Objects {
    watches: Watches,
    resources: Vec<(ObjectKind, Resource)>,
    metrics: AuditMetrics,
    questions: mpsc::Sender<Question>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    audited: Option<Instant>,
    divergence: BTreeMap<String, u64>,
    /// Since when each difference has been known.
    open: BTreeMap<api::Difference, Instant>,
    trouble: Option<String>,
}

/// What an audit came to.
#[derive(Default)]
pub(in crate::app) struct Outcome {
    pub(in crate::app) found: Vec<api::Difference>,
    pub(in crate::app) remaining: Vec<api::Difference>,
    pub(in crate::app) skipped: Vec<String>,
}

impl Objects {
    pub(in crate::app) fn new(
        watches: Watches,
        resources: Vec<(ObjectKind, Resource)>,
        metrics: AuditMetrics,
        questions: mpsc::Sender<Question>,
    ) -> Self {
        Self { watches, resources, metrics, questions, state: Mutex::default() }
    }

    /// Audits and mends now and then, for ever.
    pub(in crate::app) async fn run(&self) {
        loop {
            tokio::time::sleep(jittered(PERIOD)).await;
            self.audit(true).await;
        }
    }

    /// Compares every kind; with `fix` lists anew what differs.
    pub(in crate::app) async fn audit(&self, fix: bool) -> Outcome {
        let mut outcome = Outcome::default();
        let mut suspects = Vec::new();
        for (kind, resource) in &self.resources {
            match self.differing(*kind, resource).await {
                Ok(differing) if differing.is_empty() => {}
                Ok(differing) => suspects.push((*kind, resource, differing)),
                Err(reason) => outcome.skipped.push(format!("{}: {reason}", kind.name())),
            }
        }
        if !suspects.is_empty() {
            // What is only on its way is there by then.
            tokio::time::sleep(ON_ITS_WAY).await;
        }
        for (kind, resource, before) in &mut suspects {
            match self.differing(*kind, resource).await {
                Ok(now) => before.retain(|name, versions| now.get(name) == Some(versions)),
                Err(reason) => {
                    outcome.skipped.push(format!("{}: {reason}", kind.name()));
                    before.clear();
                }
            }
            outcome.found.extend(before.iter().map(|(name, versions)| difference(*kind, name, *versions)));
        }
        suspects.retain(|(_, _, differing)| !differing.is_empty());
        self.note(&outcome);
        outcome.remaining.clone_from(&outcome.found);
        if fix && !suspects.is_empty() {
            suspects.iter().for_each(|(kind, ..)| self.watches.relist(*kind));
            for _ in 0..TRIES {
                tokio::time::sleep(ON_ITS_WAY).await;
                outcome.remaining = self.still_differing(&suspects).await;
                if outcome.remaining.is_empty() {
                    break;
                }
            }
            self.mended(&outcome);
        }
        outcome
    }

    async fn differing(&self, kind: ObjectKind, resource: &Resource) -> Result<Differing, String> {
        let watch = self.watches.watch_status().find(|watch| watch.kind == kind.name());
        // Who is being told at the moment may hold less than there is.
        match watch.map(|watch| (watch.synced, watch.state)) {
            Some((true, WatchState::Watching | WatchState::Quiet)) => {}
            Some((_, WatchState::Retrying)) => return Err("its watch is cut and tries again".to_owned()),
            Some((_, WatchState::Listing | WatchState::Watching | WatchState::Quiet)) => {
                return Err("its first list is under way".to_owned());
            }
            Some((_, WatchState::Ended)) | None => return Err("it is not watched".to_owned()),
        }
        let (_, versions) = object_versions(self.watches.client(), resource)
            .await
            .map_err(|error| format!("cannot be listed: {error}"))?;
        self.compare(kind, versions).await.ok_or_else(|| "the agent is busy with a large change".to_owned())
    }

    /// Asks the owner which of these versions it does not hold; `None` where it does not answer.
    async fn compare(&self, kind: ObjectKind, versions: BTreeMap<String, u64>) -> Option<Differing> {
        let (to, answer) = oneshot::channel();
        self.questions.send(Question::Versions { kind, versions, to }).await.ok()?;
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }

    async fn still_differing(&self, suspects: &[(ObjectKind, &Resource, Differing)]) -> Vec<api::Difference> {
        let mut remaining = Vec::new();
        for (kind, resource, before) in suspects {
            let now = self.differing(*kind, resource).await;
            let still = before.iter().filter(|(name, (held, _))| match &now {
                Ok(now) => now.get(*name).is_some_and(|(now, _)| now == held),
                // Not known to be mended.
                Err(_) => true,
            });
            remaining.extend(still.map(|(name, versions)| difference(*kind, name, *versions)));
        }
        remaining
    }

    fn note(&self, outcome: &Outcome) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.trouble = (!outcome.skipped.is_empty()).then(|| outcome.skipped.join("; "));
        if outcome.skipped.is_empty() {
            state.audited = Some(now);
        }
        state.open.retain(|known, _| outcome.found.contains(known));
        for (n, difference) in outcome.found.iter().enumerate() {
            if state.open.contains_key(difference) {
                continue;
            }
            let api::Difference { kind, what, held, wanted } = difference;
            if n < MOST_LOGGED {
                tracing::warn!(kind, what, held, wanted, "a watch skipped an event");
            }
            self.metrics.diverged(kind);
            *state.divergence.entry(kind.clone()).or_default() += 1;
            if state.open.len() < MOST_KEPT {
                state.open.insert(difference.clone(), now);
            }
        }
        if outcome.found.len() > MOST_LOGGED {
            tracing::warn!(
                more = outcome.found.len() - MOST_LOGGED,
                "other objects that are not held as they are"
            );
        }
    }

    fn mended(&self, outcome: &Outcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for difference in outcome.found.iter().filter(|found| !outcome.remaining.contains(found)) {
            self.metrics.repaired(&difference.kind);
            state.open.remove(difference);
        }
    }

    /// Adds what is known to the status of the kernel's audit.
    pub(in crate::app) fn add_to(&self, status: &mut api::AuditStatus) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        status.objects_age_seconds = state.audited.map(|at| at.elapsed().as_secs_f64());
        status.objects_trouble.clone_from(&state.trouble);
        status.divergence.extend(state.divergence.iter().map(|(kind, number)| (kind.clone(), *number)));
        status.remaining.extend(state.open.keys().cloned());
        let oldest = state.open.values().min().map(|at| at.elapsed().as_secs_f64());
        status.oldest_seconds = status.oldest_seconds.into_iter().chain(oldest).reduce(f64::max);
    }
}

/// What of `versions`, the API server's, is not `held`. What is held newer came after the list.
pub(in crate::app) fn differing<'a>(
    held: impl Iterator<Item = (&'a str, u64)>,
    mut versions: BTreeMap<String, u64>,
) -> Differing {
    let mut differing = Differing::new();
    for (name, held) in held {
        match versions.remove(name) {
            Some(version) if version <= held => {}
            version => {
                differing.insert(name.to_owned(), (Some(held), version));
            }
        }
    }
    differing.extend(versions.into_iter().map(|(name, version)| (name, (None, Some(version)))));
    differing
}

fn difference(kind: ObjectKind, name: &str, (held, wanted): (Option<u64>, Option<u64>)) -> api::Difference {
    let text = |version: Option<u64>| {
        version.map_or_else(|| "nothing".to_owned(), |version| format!("version {version}"))
    };
    api::Difference {
        kind: kind.name().to_owned(),
        what: name.to_owned(),
        held: text(held),
        wanted: text(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_missing_or_left_differs_and_what_is_newer_does_not() {
        let held = [("ns/same", 3), ("ns/older", 4), ("ns/newer", 9), ("ns/left", 5)];
        let versions = [("ns/same", 3), ("ns/older", 6), ("ns/newer", 8), ("ns/missing", 7)];
        let versions = versions.map(|(name, version)| (name.to_owned(), version)).into();
        let wanted: Differing = [
            ("ns/left".to_owned(), (Some(5), None)),
            ("ns/missing".to_owned(), (None, Some(7))),
            ("ns/older".to_owned(), (Some(4), Some(6))),
        ]
        .into();
        assert_eq!(differing(held.into_iter(), versions), wanted);
    }
}
