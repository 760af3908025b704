//! Which replica leads, and what a process does when it begins to.
//!
//! The lease `portway-operator` in `k8s-namespace` is another one than Cilium's (`cilium-operator-resource-lock`): while
//! one is replaced by the other both run for a while, and each must have a leader of its own. Neither can tell what the
//! other's writes mean.

use std::fs;
use std::sync::Arc;

use anyhow::Context as _;
use portway_runtime::kubernetes::{Client, Elector, ElectorOptions, Leadership};
use tokio::sync::{Notify, watch};

use crate::config::Config;
use crate::definitions::{self, Report};

/// The Lease.
pub const LEASE: &str = "portway-operator";

/// Takes part in the election.
///
/// # Errors
/// What is configured for the API server cannot be used.
pub async fn elector(config: &Config) -> anyhow::Result<Elector> {
    let options = ElectorOptions {
        client: config.api_server.clone(),
        namespace: config.namespace.clone(),
        name: LEASE.to_owned(),
        identity: identity(),
        times: config.lease,
    };
    Elector::start(options).await.context("cannot take part in the leader election")
}

/// Machine and a number that no other process has, be it a later one of the same pod: `node-1_4f9c…`.
fn identity() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let (host, unique) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/uuid"));
    let unique = if unique.is_empty() { std::process::id().to_string() } else { unique };
    format!("{host}_{unique}")
}

/// Makes the CustomResourceDefinitions, or replaces earlier ones, unless `skip`; and once more each time that `again` says
/// so. Whenever one is served that was not, `made` is told, so that missing kinds are looked for.
pub async fn definitions(
    client: Client,
    skip: bool,
    again: Arc<Notify>,
    made: Arc<Notify>,
    told: watch::Sender<Report>,
) {
    if skip {
        return;
    }
    let mut established = 0;
    definitions::install(&client, &again, |report| {
        let now = report.definitions.iter().filter(|definition| definition.is_established).count();
        if now > established {
            made.notify_one();
        }
        established = now;
        told.send_replace(report.clone());
    })
    .await;
}

/// Says who leads.
pub fn tell(leadership: &Leadership) {
    match leadership {
        Leadership::Unknown => {}
        Leadership::Standby { leader: Some(leader) } => {
            tracing::info!(leader, "standing by: another replica leads")
        }
        Leadership::Standby { leader: None } => tracing::info!("standing by: nobody leads"),
        Leadership::Leading { term } => tracing::info!(term, "leading: this replica has the lease"),
    }
}
