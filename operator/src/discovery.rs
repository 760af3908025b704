//! Which of its kinds the API server knows. A kind that is not there is no error: it is looked for until it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use portway_runtime::kubernetes::{Client, jitter, resources};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use crate::observed::Kind;

/// At first, while somebody is likely to make them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// Later, at most. A look is a request for each version of missing kinds, of which there are two.
const BETWEEN_LATER_LOOKS: Duration = Duration::from_secs(20);
/// So many looks are answered before they become rarer.
const LOOKS: u32 = 30;

/// Why looks fail, by group and version.
pub type Problems = BTreeMap<&'static str, String>;

/// Whether Kubernetes itself brings the kind.
pub fn is_built_in(kind: Kind) -> bool {
    kind.api_version() == "v1"
}

/// Looks for kinds that are not there.
pub struct Discovery {
    pub client: Client,
    /// Kinds that are to be looked for from now on. The task ends with its sender.
    pub lost: mpsc::UnboundedReceiver<Kind>,
    /// Is told each kind as soon as the API server knows it.
    pub found: mpsc::Sender<Kind>,
    /// Asks for a look at once.
    pub hurry: Arc<Notify>,
    pub problems: watch::Sender<Problems>,
}

impl Discovery {
    pub async fn run(mut self) {
        let mut wanted = BTreeSet::new();
        let (mut looks, mut wait) = (0, BETWEEN_LOOKS);
        loop {
            if wanted.is_empty() {
                let Some(kind) = self.lost.recv().await else { return };
                wanted.insert(kind);
            }
            while let Ok(kind) = self.lost.try_recv() {
                (looks, wait) = (0, BETWEEN_LOOKS);
                wanted.insert(kind);
            }
            let (known, problems) = look(&self.client, &wanted).await;
            for kind in &known {
                if self.found.send(*kind).await.is_err() {
                    return;
                }
            }
            wanted.retain(|kind| !known.contains(kind));
            wait = longest_wait(looks, wait, !problems.is_empty());
            self.tell(looks, &wanted, problems);
            looks += 1;
            if !wanted.is_empty() {
                // Hurried or not, it is time.
                let _ = timeout(jitter::between(wait / 2, wait), self.hurry.notified()).await;
            }
        }
    }

    /// Says once what is so.
    fn tell(&self, looks: u32, wanted: &BTreeSet<Kind>, problems: Problems) {
        if looks == 0 && !wanted.is_empty() {
            let missing: Vec<_> = wanted.iter().map(|kind| kind.name()).collect();
            tracing::info!(?missing, "the API server does not know these kinds yet; they are waited for");
        }
        for (version, problem) in &problems {
            if !self.problems.borrow().contains_key(version) {
                tracing::warn!(version, problem, "the API server does not say which kinds it knows");
            }
        }
        self.problems.send_if_modified(|old| {
            let is_news = *old != problems;
            *old = problems;
            is_news
        });
    }
}

/// The upper end of the wait after so many looks; `before` is the one before the last look.
fn longest_wait(looks: u32, before: Duration, is_failing: bool) -> Duration {
    if is_failing {
        (before * 2).min(BETWEEN_LATER_LOOKS)
    } else if looks < LOOKS {
        BETWEEN_LOOKS
    } else {
        BETWEEN_LATER_LOOKS
    }
}

/// Those of `wanted` that the API server knows, and of which versions it does not say.
pub async fn look(client: &Client, wanted: &BTreeSet<Kind>) -> (BTreeSet<Kind>, Problems) {
    let versions: BTreeSet<&str> = wanted.iter().map(|kind| kind.api_version()).collect();
    let (mut paths, mut problems) = (BTreeSet::new(), Problems::new());
    for version in versions {
        match resources(client, version).await {
            Ok(of) => paths.extend(of),
            Err(error) => drop(problems.insert(version, error.to_string())),
        }
    }
    let known = wanted.iter().copied().filter(|kind| paths.contains(&kind.path(""))).collect();
    (known, problems)
}

#[cfg(test)]
mod tests;
