//! Where objects come from: a directory of manifests, the API server, or both.

mod directory;
mod watched;

use std::time::Instant;

use portway_model::k8s::{Change, Event as ObjectEvent, FileProblem, Manifests, Node, Object, ObjectKind};
use portway_model::loadbalancer::LoadBalancer;
use portway_runtime::directory::{DirectoryError, Event};
use portway_runtime::kubernetes::WatchEvent;

use super::metrics::Metrics;
use super::watches::Watches;
use crate::api;
use crate::config::{Config, Ipam};
use crate::identities;
use directory::{Files, Told};
use watched::Kinds;
pub(super) use watched::{KINDS, watched_kinds};

/// What each source has told so far. A source that is not configured has told everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Synced {
    pub(super) directory: bool,
    /// Services and EndpointSlices: one without the other says little.
    pub(super) services: bool,
    pub(super) pods: bool,
    pub(super) node: bool,
    /// Whether any source that is there has synced.
    pub(super) any: bool,
}

impl Synced {
    /// Whether everything is known that services and their backends are made of.
    pub(super) const fn knows_services(&self) -> bool {
        self.directory && self.services
    }

    pub(super) const fn all(&self) -> bool {
        self.knows_services() && self.pods && self.node
    }
}

/// Objects, whoever has them, and what is wrong with their sources.
pub(super) struct Sources {
    manifests: Manifests,
    directory: Option<Files>,
    api_server: Option<(Kinds, Watches)>,
    last_change: Option<Instant>,
    /// What the model took since it was asked for last.
    applied: Vec<ObjectEvent>,
    /// Bytes that the batch under way has read.
    batch_bytes: usize,
    /// This node, as it was told of last.
    node: Option<std::sync::Arc<Node>>,
    node_name: String,
    /// CiliumNodes say where pods are.
    has_pool: bool,
}

impl Sources {
    pub(super) fn new(config: &Config, watches: Option<Watches>) -> Self {
        Self {
            manifests: Manifests::new(),
            directory: config.source_dir.as_deref().map(Files::new),
            api_server: watches.map(|watches| (Kinds::new(config), watches)),
            last_change: None,
            applied: Vec::new(),
            batch_bytes: 0,
            node: None,
            node_name: config.node_name.clone(),
            has_pool: config.pod_network.as_ref().is_some_and(|network| network.ipam == Ipam::ClusterPool),
        }
    }

    pub(super) fn synced(&self) -> Synced {
        let directory = self.directory.as_ref().map(Files::has_synced);
        let kinds = self.api_server.as_ref().map(|(kinds, _)| kinds);
        let kind = |kind| kinds.map(|kinds| kinds.has_synced(kind));
        let services =
            kinds.map(|k| k.has_synced(ObjectKind::Service) && k.has_synced(ObjectKind::EndpointSlice));
        Synced {
            directory: directory.unwrap_or(true),
            services: services.unwrap_or(true),
            pods: kind(ObjectKind::Pod).unwrap_or(true),
            node: kind(ObjectKind::Node).unwrap_or(true),
            any: directory.unwrap_or(false) || services.unwrap_or(false),
        }
    }

    /// Whether every source has told of all nodes, and of all pods of this one.
    pub(super) fn knows_cluster(&self) -> (bool, bool) {
        let Synced { directory, node, pods, .. } = self.synced();
        let directory = directory && self.silent_files() == 0;
        let pools = !self.has_pool
            || self.api_server.as_ref().is_none_or(|(kinds, _)| kinds.has_synced(ObjectKind::CiliumNode));
        (directory && node && pools, directory && pods)
    }

    /// Of which kinds that identities are made of every source has told everything.
    pub(super) fn knows_identities(&self) -> identities::Synced {
        let directory = self.synced().directory && self.silent_files() == 0;
        let kinds = self.api_server.as_ref().map(|(kinds, _)| kinds);
        let kind = |kind| directory && kinds.is_none_or(|kinds| kinds.has_synced(kind));
        identities::Synced {
            namespaces: kind(ObjectKind::Namespace),
            pods: kind(ObjectKind::Pod),
            nodes: kind(ObjectKind::Node) && kind(ObjectKind::CiliumNode),
            identities: kind(ObjectKind::CiliumIdentity),
            identities_listed: kinds.and_then(|kinds| kinds.listed(ObjectKind::CiliumIdentity)),
            endpoints: kind(ObjectKind::CiliumEndpoint) && kind(ObjectKind::CiliumEndpointSlice),
            api_server: kind(ObjectKind::EndpointSlice),
        }
    }

    /// What has not synced yet, for people.
    pub(super) fn unsynced(&self) -> Vec<String> {
        let directory = self.directory.as_ref().filter(|files| !files.has_synced());
        let directory = directory.map(|files| files.path().display().to_string());
        let kinds = self.api_server.iter().flat_map(|(kinds, watches)| {
            let late = KINDS.into_iter().filter(|kind| !kinds.has_synced(*kind));
            late.map(|kind| match watches.missing_definition(kind) {
                None => kind.name().to_owned(),
                Some(name) => {
                    format!("{} (waits for CustomResourceDefinition {name}: apply deploy/crds)", kind.name())
                }
            })
        });
        directory.into_iter().chain(kinds).collect()
    }

    /// Takes what the directory told into the model. Returns whether the batch is closed.
    pub(super) fn take_file(&mut self, event: Event, balancer: &mut LoadBalancer, metrics: &Metrics) -> bool {
        let Some(files) = &mut self.directory else { return false };
        match files.take(event, &mut self.manifests) {
            Told::Change(change, bytes) => {
                self.batch_bytes += bytes;
                self.last_change = Some(Instant::now());
                self.applied.extend(change.events.iter().cloned());
                let node = apply(change, "directory", balancer, metrics, &self.node_name);
                self.node = node.or(self.node.take());
                false
            }
            Told::Settled => true,
            Told::Nothing => false,
        }
    }

    /// Takes what a watch of `kind` told into the model.
    pub(super) fn take_watched(
        &mut self,
        kind: &str,
        event: &WatchEvent,
        balancer: &mut LoadBalancer,
        metrics: &Metrics,
    ) {
        let Some((kinds, _)) = &mut self.api_server else { return };
        let (node, name, applied) = (&mut self.node, &self.node_name, &mut self.applied);
        let bytes = kinds.take(kind, event, &mut self.manifests, |change| {
            applied.extend(change.events.iter().cloned());
            if let Some(seen) = apply(change, "k8s", balancer, metrics, name) {
                *node = Some(seen);
            }
        });
        self.batch_bytes += bytes;
        self.last_change = Some(Instant::now());
    }

    /// The directory cannot be followed; it is tried again.
    pub(super) fn failed(&mut self, error: &DirectoryError) {
        if let Some(files) = &mut self.directory {
            files.failed(error);
        }
    }

    /// Files that nobody knows the objects of. O(files).
    pub(super) fn silent_files(&self) -> usize {
        self.directory.as_ref().map_or(0, |files| files.silent(&self.manifests))
    }

    /// When something was last told.
    pub(super) const fn last_change(&self) -> Option<Instant> {
        self.last_change
    }

    /// The changes of objects since this was asked last.
    pub(super) fn take_applied(&mut self) -> Vec<ObjectEvent> {
        std::mem::take(&mut self.applied)
    }

    /// The bytes that were read since this was asked last.
    pub(super) fn take_batch_bytes(&mut self) -> usize {
        std::mem::take(&mut self.batch_bytes)
    }

    /// This node, as it was told of last; it stays where it is deleted.
    pub(super) fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    pub(super) const fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    pub(super) fn rejects(&self) -> impl Iterator<Item = api::Reject> {
        self.manifests.rejects()
    }

    pub(super) fn status(&self) -> Vec<api::Source> {
        let directory = self.directory.as_ref().map(|files| files.status(&self.manifests));
        let api_server = self.api_server.as_ref().map(|(kinds, watches)| api::Source {
            kind: api::Source::API_SERVER.to_owned(),
            path: watches.client_status().server,
            state: if KINDS.iter().all(|kind| kinds.has_synced(*kind)) { "synced" } else { "first sync" }
                .to_owned(),
            objects: KINDS.iter().map(|kind| self.manifests.watched_count(*kind) as u64).sum(),
            last_change_seconds: kinds.last_change().map(|age| age.as_secs_f64()),
            api_server: Some(watches.status(|kind| self.manifests.watched_count(kind) as u64)),
            ..api::Source::default()
        });
        directory.into_iter().chain(api_server).collect()
    }
}

/// Takes a change into the model. Returns this node, where the change told of it.
fn apply(
    change: Change,
    source: &'static str,
    balancer: &mut LoadBalancer,
    metrics: &Metrics,
    node_name: &str,
) -> Option<std::sync::Arc<Node>> {
    note(&change);
    let mut node = None;
    for event in change.events {
        metrics.object_changed(&event, source, balancer);
        if let ObjectEvent::Apply(Object::Node(seen)) = &event
            && *seen.name == *node_name
        {
            node = Some(std::sync::Arc::clone(seen));
        }
        balancer.apply(event);
    }
    node
}

fn note(change: &Change) {
    if let Some(problem) = &change.problem {
        let FileProblem { path, reason, kept_objects } = problem;
        let path = path.display();
        if *kept_objects == 0 {
            tracing::warn!(%path, reason, "a file is not used");
        } else {
            tracing::warn!(%path, reason, kept_objects, "a file is broken; its objects of before are served");
        }
    }
    for reject in &change.rejects {
        let api::Reject { kind, name, field, value, reason } = reject;
        tracing::warn!(kind, name, field, value, reason, "not used");
    }
}
