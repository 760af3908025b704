//! The watches of the API server. They run on a thread of their own, at a pace, and tell the owner by a bounded channel:
//! an owner that is busy holds them back.

mod definitions;
mod pace;

use std::future::pending;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use portway_model::k8s::ObjectKind;
use portway_runtime::kubernetes::{
    Client, ClientStatus, EventRecorder, Reporter, Resource, Watch, WatchEvent, WatchOptions, WatchState,
    WatchStatus,
};
use tokio::sync::{mpsc, oneshot};

use super::source::watched_kinds;
use crate::api;
use crate::config::Config;
use definitions::Missing;
use pace::Pace;

/// Events that wait for the owner, a page of a list counting as one. More than come within a rest of the watches: a
/// watch that is held back rests, too.
const WAITING: usize = 8192;

/// What a watch tells, with its kind.
pub(super) type Told = (&'static str, WatchEvent);

/// Handles to the running watches. Cheap to clone; they end with the last one.
#[derive(Clone)]
pub(super) struct Watches {
    client: Client,
    watches: Arc<[(ObjectKind, Watch)]>,
    events: EventRecorder,
    missing: Missing,
}

/// Starts a thread with a watch for each kind. Makes no request before it returns: an API server that is down is no
/// error.
///
/// # Errors
/// The kubeconfig, the service account or a URL cannot be used, or there can be no thread.
pub(super) async fn start(config: &Arc<Config>) -> anyhow::Result<Option<(Watches, mpsc::Receiver<Told>)>> {
    if config.api_server.is_none() {
        return Ok(None);
    }
    let (started, result) = oneshot::channel();
    let config = Arc::clone(config);
    let body = move || {
        let client = Arc::new(OnceLock::<Client>::new());
        let runtime = match runtime(Arc::clone(&client)) {
            Ok(runtime) => runtime,
            // The receiver waits for one or the other.
            Err(error) => return drop(started.send(Err(error))),
        };
        runtime.block_on(async {
            drop(started.send(begin(&config, &client).await));
            pending::<()>().await;
        });
    };
    std::thread::Builder::new().name("watches".to_owned()).spawn(body).context("cannot start a thread")?;
    result.await.context("the thread of the watches ended")?.map(Some)
}

/// What the watches run on: it wakes at their pace, except for requests that somebody waits for.
fn runtime(client: Arc<OnceLock<Client>>) -> anyhow::Result<tokio::runtime::Runtime> {
    let pace = Mutex::new(Pace::new(Instant::now()));
    let rest = move || {
        if client.get().is_some_and(|client| !client.is_asking()) {
            let rest = pace.lock().unwrap_or_else(PoisonError::into_inner).rest(Instant::now());
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().on_thread_park(rest).build().context("the runtime of the watches")
}

async fn begin(config: &Config, known: &OnceLock<Client>) -> anyhow::Result<(Watches, mpsc::Receiver<Told>)> {
    let api_server = config.api_server.as_ref().context("no API server is configured")?;
    let client = Client::new(api_server.client.clone()).await;
    let client = client.context("cannot use what is configured for the API server")?;
    let client = known.get_or_init(|| client).clone();
    let (to, told) = mpsc::channel(WAITING);
    let watches = resources(config).into_iter().map(|(kind, resource)| {
        (kind, Watch::start(client.clone(), resource, WatchOptions::default(), to.clone()))
    });
    let watches: Arc<[_]> = watches.collect();
    let missing = Missing::default();
    if let Some(network) = &config.pod_network {
        let patience = network.identities.crd_wait;
        // It ends by itself, or with the thread.
        drop(tokio::spawn(definitions::wait(
            client.clone(),
            Arc::clone(&watches),
            missing.clone(),
            patience,
        )));
    }
    let reporter =
        Reporter { controller: "portway-agent", instance: config.node_name.clone(), action: "Program" };
    let events = EventRecorder::start(client.clone(), reporter);
    Ok((Watches { client, watches, events, missing }, told))
}

impl Watches {
    pub(super) const fn events(&self) -> &EventRecorder {
        &self.events
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Lists a kind anew, soon.
    pub(super) fn relist(&self, kind: ObjectKind) {
        self.watches.iter().filter(|(known, _)| *known == kind).for_each(|(_, watch)| watch.relist());
    }

    /// What a kind that has not been listed waits for: the name of a definition that the API server lacks.
    pub(super) fn missing_definition(&self, kind: ObjectKind) -> Option<String> {
        definitions::definition(kind).filter(|_| self.missing.contains(kind)).map(|of| of.name())
    }

    pub(super) fn client_status(&self) -> ClientStatus {
        self.client.status()
    }

    pub(super) fn watch_status(&self) -> impl Iterator<Item = WatchStatus> {
        self.watches.iter().map(|(_, watch)| watch.status())
    }

    /// For `portway status`. `objects` counts those of a kind.
    pub(super) fn status(&self, objects: impl Fn(ObjectKind) -> u64) -> api::ApiServer {
        let ClientStatus {
            server: _,
            reachable,
            requests,
            answers: _,
            failures,
            throttled_seconds,
            reloads: _,
            reload_error,
            last_error,
            last_success_age,
        } = self.client.status();
        let watches = self.watches.iter().map(|(kind, watch)| {
            let status = watch.status();
            api::Watch {
                kind: kind.name().to_owned(),
                state: state(status.state).to_owned(),
                synced: status.synced,
                age_seconds: status.age_seconds,
                version: status.version,
                objects: objects(*kind),
                events: status.events,
                relists: status.relists,
                resumes: status.resumes,
                duplicates: status.duplicates,
                errors: status.errors,
                last_error: status.last_error,
            }
        });
        api::ApiServer {
            reachable,
            requests,
            failures,
            throttled_seconds,
            credentials_error: reload_error,
            last_error,
            last_success_seconds: last_success_age,
            watches: watches.collect(),
        }
    }
}

const fn state(state: WatchState) -> &'static str {
    match state {
        WatchState::Listing => "listing",
        WatchState::Watching => "watching",
        WatchState::Quiet => "quiet",
        WatchState::Retrying => "retrying",
        WatchState::Ended => "ended",
    }
}

/// What is watched.
pub(super) fn resources(config: &Config) -> Vec<(ObjectKind, Resource)> {
    let resource = |kind| {
        let all_nodes = config.pod_network.is_some();
        (kind, resource(kind, &config.node_name, &config.services.proxy_name, all_nodes))
    };
    watched_kinds(config).map(resource).collect()
}

/// Where the objects of a kind are, as far as they matter on this node.
///
/// Of Services and EndpointSlices those that kube-proxy watches: without the labels `service-proxy-name` (or with the
/// name that this agent answers to) and `headless` of `service.kubernetes.io`. Of Nodes this one, or `all_nodes`.
fn resource(kind: ObjectKind, node: &str, proxy_name: &str, all_nodes: bool) -> Resource {
    const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
    let for_us = match proxy_name {
        "" => format!("!{PROXY_NAME}"),
        name => format!("{PROXY_NAME}={name}"),
    };
    let services =
        || Resource::selecting("labelSelector", &format!("{for_us},!service.kubernetes.io/headless"));
    let (path, selector) = match kind {
        ObjectKind::Service => ("/api/v1/services", services()),
        ObjectKind::EndpointSlice => ("/apis/discovery.k8s.io/v1/endpointslices", services()),
        ObjectKind::Pod => {
            ("/api/v1/pods", Resource::selecting("fieldSelector", &format!("spec.nodeName={node}")))
        }
        ObjectKind::Namespace => ("/api/v1/namespaces", String::new()),
        ObjectKind::CiliumNode => ("/apis/cilium.io/v2/ciliumnodes", String::new()),
        ObjectKind::CiliumIdentity => ("/apis/cilium.io/v2/ciliumidentities", String::new()),
        ObjectKind::CiliumEndpoint => ("/apis/cilium.io/v2/ciliumendpoints", String::new()),
        ObjectKind::CiliumEndpointSlice => ("/apis/cilium.io/v2alpha1/ciliumendpointslices", String::new()),
        ObjectKind::Node if all_nodes => ("/api/v1/nodes", String::new()),
        ObjectKind::Node => {
            ("/api/v1/nodes", Resource::selecting("fieldSelector", &format!("metadata.name={node}")))
        }
    };
    Resource { kind: kind.name(), path: path.into(), selector }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_and_slices_are_those_of_kube_proxy() {
        let selector = |kind, name| resource(kind, "node-1", name, true).selector;
        let of_everybody = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C\
                            %21service.kubernetes.io%2Fheadless";
        let of_edge = "labelSelector=service.kubernetes.io%2Fservice-proxy-name%3Dedge%2C\
                       %21service.kubernetes.io%2Fheadless";
        for kind in [ObjectKind::Service, ObjectKind::EndpointSlice] {
            assert_eq!(selector(kind, ""), of_everybody);
            assert_eq!(selector(kind, "edge"), of_edge);
        }
    }

    #[test]
    fn pods_and_nodes_are_those_of_this_node() {
        let selector = |kind| resource(kind, "node-1", "edge", false).selector;
        assert_eq!(selector(ObjectKind::Pod), "fieldSelector=spec.nodeName%3Dnode-1");
        assert_eq!(selector(ObjectKind::Node), "fieldSelector=metadata.name%3Dnode-1");
        // The pod network has routes to all of them.
        assert_eq!(resource(ObjectKind::Node, "node-1", "edge", true).selector, "");
        assert_eq!(resource(ObjectKind::Pod, "node-1", "edge", true).selector, selector(ObjectKind::Pod));
    }
}
