//! Waits for the CustomResourceDefinitions of what is watched, and says so. Services are served meanwhile.
//!
//! A watch of a kind that the API server does not know is refused, and tries again at ever longer intervals. Here the
//! server is asked which kinds it knows, so that a watch lists its kind as soon as there is one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portway_model::crd::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumNode, Definition, Resource as _,
};
use portway_model::k8s::ObjectKind;
use portway_runtime::kubernetes::{Client, Watch, WatchState, resources};
use tokio::time::{Instant, sleep};

/// A kind that is there is listed in far less, and nobody asks then.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// Kinds whose definitions are missing, as far as is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Missing(Arc<Mutex<BTreeSet<ObjectKind>>>);

impl Missing {
    pub(super) fn contains(&self, kind: ObjectKind) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&kind)
    }

    /// Returns whether it is news.
    fn set(&self, kinds: BTreeSet<ObjectKind>) -> bool {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *missing != kinds;
        *missing = kinds;
        is_news
    }
}

/// The definition of a kind that Kubernetes does not bring.
pub(super) const fn definition(kind: ObjectKind) -> Option<Definition> {
    match kind {
        ObjectKind::CiliumNode => Some(CiliumNode::DEFINITION),
        ObjectKind::CiliumIdentity => Some(CiliumIdentity::DEFINITION),
        ObjectKind::CiliumEndpoint => Some(CiliumEndpoint::DEFINITION),
        ObjectKind::CiliumEndpointSlice => Some(CiliumEndpointSlice::DEFINITION),
        ObjectKind::Service
        | ObjectKind::EndpointSlice
        | ObjectKind::Pod
        | ObjectKind::Namespace
        | ObjectKind::Node => None,
    }
}

/// Until every one of `watches` has listed its kind. After `patience` that something is missing is an error.
pub(super) async fn wait(
    client: Client,
    watches: Arc<[(ObjectKind, Watch)]>,
    missing: Missing,
    patience: Duration,
) {
    let began = Instant::now();
    let mut is_late = false;
    sleep(FIRST_LOOK).await;
    loop {
        let waiting: Vec<_> = watches
            .iter()
            .filter(|(kind, watch)| definition(*kind).is_some() && !watch.status().synced)
            .collect();
        if waiting.is_empty() {
            if missing.set(BTreeSet::new()) {
                tracing::info!("the CustomResourceDefinitions are there");
            }
            return;
        }
        let refused = waiting.iter().any(|(_, watch)| watch.status().state == WatchState::Retrying);
        let known = if refused { known(&client).await } else { None };
        // Where the server does not say, the watches do.
        if let Some(known) = known {
            let is_known = |kind: ObjectKind| definition(kind).is_none_or(|of| known.contains(&of.path()));
            let lacked: BTreeSet<_> =
                waiting.iter().map(|(kind, _)| *kind).filter(|kind| !is_known(*kind)).collect();
            let names = names(&lacked);
            if missing.set(lacked) && !names.is_empty() {
                tracing::warn!(missing = names, "waiting for CustomResourceDefinitions: apply deploy/crds");
            }
            if began.elapsed() >= patience && !names.is_empty() && !std::mem::replace(&mut is_late, true) {
                tracing::error!(
                    missing = names,
                    seconds = patience.as_secs(),
                    "CustomResourceDefinitions are still missing after crd-wait-timeout: no pod gets an identity"
                );
            }
            for (_, watch) in waiting.iter().filter(|(kind, _)| is_known(*kind)) {
                watch.relist();
            }
        }
        sleep(BETWEEN_LOOKS).await;
    }
}

/// `ciliumnodes.cilium.io, …`.
fn names(kinds: &BTreeSet<ObjectKind>) -> String {
    kinds.iter().filter_map(|kind| Some(definition(*kind)?.name())).collect::<Vec<_>>().join(", ")
}

/// Paths of the kinds that the API server knows; `None` where it does not say.
async fn known(client: &Client) -> Option<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    for version in ["cilium.io/v2", "cilium.io/v2alpha1"] {
        known.extend(resources(client, version).await.ok()?);
    }
    Some(known)
}

#[cfg(test)]
mod tests;
