//! What is shown of identities.

use std::collections::BTreeMap;

use portway_datapath::{NumericIdentity, Scope};
use portway_model::labels::Labels;
use tokio::sync::{mpsc, oneshot};

use super::allocate::{Allocator, Counts};
use super::writes::Writes;
use crate::api::{IdentitiesStatus, Identity};
use crate::ipcache::Ipcache;

/// Questions that wait for the thread.
const QUESTIONS: usize = 16;

/// What others ask the thread.
pub(crate) enum Question {
    /// Every identity that is known, by number.
    List(oneshot::Sender<Vec<Identity>>),
    Status(oneshot::Sender<IdentitiesStatus>),
}

/// The two ends of a channel of questions.
pub(crate) fn questions() -> (mpsc::Sender<Question>, mpsc::Receiver<Question>) {
    mpsc::channel(QUESTIONS)
}

/// O(identities × log identities).
pub(super) fn list(
    allocator: &Allocator,
    ipcache: &Ipcache,
    users: &BTreeMap<NumericIdentity, u64>,
) -> Vec<Identity> {
    let reserved = (1..100).map(NumericIdentity::new);
    let reserved = reserved.filter_map(|number| Some((number, Labels::of_reserved(number)?, false)));
    let of_cluster = allocator
        .observed()
        .iter()
        .map(|identity| (identity.number, identity.labels.clone(), identity.heartbeat.is_some()));
    let given = allocator.given().map(|(number, labels)| (number, labels, false));
    let local = ipcache.local_identities().into_iter().map(|(number, labels)| (number, labels, false));
    let mut all = BTreeMap::new();
    for (number, labels, is_marked) in reserved.chain(of_cluster).chain(given).chain(local) {
        all.entry(number).or_insert_with(|| Identity {
            id: number.get(),
            labels: labels.iter().map(ToString::to_string).collect(),
            scope: scope(number).to_owned(),
            endpoints: users.get(&number).copied().unwrap_or_default(),
            is_marked,
        });
    }
    all.into_values().collect()
}

pub(super) fn status(
    mode: &str,
    allocator: &Allocator,
    writes: Option<&Writes>,
    waiting: Vec<String>,
    users: &BTreeMap<NumericIdentity, u64>,
) -> IdentitiesStatus {
    let duplicates = allocator.observed().duplicates();
    let Counts { allocated, seconds, retries } = allocator.counts();
    let written = writes.map(Writes::counts).unwrap_or_default();
    IdentitiesStatus {
        mode: mode.to_owned(),
        known: allocator.observed().len() as u64,
        used: users.len() as u64,
        allocated,
        allocation_seconds: seconds,
        retries: retries + written.retries,
        reads: written.reads,
        writes: written.writes,
        waiting,
        duplicates: duplicates
            .into_iter()
            .map(|(labels, numbers)| {
                let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
                format!("{} mean the same labels, {labels}; the first is used", numbers.join(", "))
            })
            .collect(),
    }
}

const fn scope(number: NumericIdentity) -> &'static str {
    match number.scope() {
        Scope::Reserved => "reserved",
        Scope::WellKnown => "well-known",
        Scope::UserReserved => "user-reserved",
        Scope::Cluster => "cluster",
        Scope::Local => "local",
        Scope::RemoteNode => "remote-node",
        Scope::Invalid => "invalid",
    }
}
