//! Which of its kinds the API server knows. A kind that is not there is no error: it is looked for until it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use portway_runtime::kubernetes::Client;
use serde::Deserialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::observed::Kind;

/// At first, while somebody is likely to make them.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
/// A look is two requests.
const BETWEEN_LATER_LOOKS: Duration = Duration::from_secs(60);
/// So many looks are answered before they become rarer.
const LOOKS: u32 = 30;

/// Whether Kubernetes itself brings the kind.
pub fn is_built_in(kind: Kind) -> bool {
    kind.api_version() == "v1"
}

/// Tells each of `wanted` as soon as the API server knows it; `hurry` asks for a look at once. Ends with the last one.
pub async fn discover(
    client: Client,
    mut wanted: BTreeSet<Kind>,
    found: mpsc::Sender<Kind>,
    hurry: Arc<Notify>,
) {
    let mut looks = 0;
    while !wanted.is_empty() {
        if let Some(known) = known(&client, &wanted).await {
            for kind in &known {
                if found.send(*kind).await.is_err() {
                    return;
                }
            }
            wanted.retain(|kind| !known.contains(kind));
            if looks == 0 && !wanted.is_empty() {
                let missing: Vec<_> = wanted.iter().map(|kind| kind.name()).collect();
                tracing::info!(?missing, "the API server does not know these kinds yet; they are waited for");
            }
            looks += 1;
        }
        if wanted.is_empty() {
            return;
        }
        let wait = if looks < LOOKS { BETWEEN_LOOKS } else { BETWEEN_LATER_LOOKS };
        // Hurried or not, it is time.
        let _ = timeout(wait, hurry.notified()).await;
    }
}

/// Those of `wanted` that the API server knows; `None` where it does not say.
pub async fn known(client: &Client, wanted: &BTreeSet<Kind>) -> Option<BTreeSet<Kind>> {
    let versions: BTreeSet<&str> = wanted.iter().map(|kind| kind.api_version()).collect();
    let mut paths = BTreeSet::new();
    for version in versions {
        match client.get(&format!("/apis/{version}")).await {
            Ok(text) => {
                let list: ResourceList = serde_json::from_slice(&text).ok()?;
                paths.extend(list.resources.into_iter().map(|of| format!("/apis/{version}/{}", of.name)));
            }
            // No kind of this version.
            Err(error) if error.code() == Some(404) => {}
            Err(error) => {
                tracing::debug!(%error, "the API server does not say which kinds it knows");
                return None;
            }
        }
    }
    Some(wanted.iter().copied().filter(|kind| paths.contains(&kind.path(""))).collect())
}

/// `meta/v1` APIResourceList.
#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}
