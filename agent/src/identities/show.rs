//! What is shown of identities.

use std::collections::BTreeMap;

use portway_claims::{Allocator, Counts};
use portway_datapath::{NumericIdentity, Scope};
use portway_model::labels::{Label, Labels, SOURCE_RESERVED};
use tokio::sync::{mpsc, oneshot};

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
    let has_api_server = ipcache.status().api_server_is_here;
    let reserved = reserved.filter_map(|number| Some((number, labels_here(number, has_api_server)?, false)));
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

/// Of a reserved number, on this node: where the API server runs on it, the host is that, too.
fn labels_here(number: NumericIdentity, has_api_server: bool) -> Option<Labels> {
    let labels = Labels::of_reserved(number)?;
    if number != NumericIdentity::HOST || !has_api_server {
        return Some(labels);
    }
    let api_server = Label::new(SOURCE_RESERVED, NumericIdentity::KUBE_APISERVER.reserved_name()?, "");
    Some(Labels::new(labels.iter().cloned().chain([api_server])))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portway_datapath::{Addr, IpcacheValue};
    use portway_model::ipcache::Reach;
    use portway_model::k8s::{Event, Format, Names, decode};

    use super::*;

    #[test]
    fn the_host_has_the_label_of_an_api_server_that_runs_on_it() {
        let ipcache = Ipcache::new(false, false);
        let allocator = Allocator::alone(0);
        let labels_of_host = || {
            let all = list(&allocator, &ipcache, &BTreeMap::new());
            all.into_iter().find(|identity| identity.id == 1).unwrap().labels
        };
        let slice = r#"{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "a", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "endpoints": [{"addresses": ["192.0.2.1"]}]}"#;
        let mut decoded = decode(slice.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        ipcache.apply(&Event::Apply(decoded.objects.remove(0))).unwrap();
        assert_eq!(labels_of_host(), ["reserved:host"]);
        let mut reach = Reach::default();
        let host = IpcacheValue::new(NumericIdentity::HOST, None, IpcacheValue::INSIDE);
        reach.ipcache.insert((Addr::v4([192, 0, 2, 1]), 128), host);
        ipcache.set_nodes(&reach, &BTreeSet::new(), true).unwrap();
        assert_eq!(labels_of_host(), ["reserved:host", "reserved:kube-apiserver"]);
    }
}
