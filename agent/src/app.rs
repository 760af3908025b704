//! The agent, wired together.
//!
//! ```text
//! main thread                               owner thread
//!   signals, /healthz, /metrics, API socket   directory ─► manifests ─► load balancer ─► planner ─► kernel maps
//! network thread, where there is a pod network: see `network`
//! watches thread
//!   watches of the API server ───────────────────────────────┘
//!        │  questions ─────────────────────►  addresses ─────────────────────────────────────────► kernel maps
//!        ◄────────────────────────── answers  grace periods ─► planner
//! ```
//!
//! Order of a start: place and lock checked, listeners open, watches begun, then (owner thread) maps, programs,
//! self-test, restore, the sources' first sync (`sync` says how much of it is waited for), everything reconciled and
//! pruned, programs attached or replaced. Nothing is deleted from the kernel before every source has told everything.
//!
//! A stop leaves programs attached and maps pinned: connections go on, and the next agent takes over.

mod audit;
mod datapath;
mod events;
mod health;
mod http;
mod memory;
mod metrics;
mod owner;
mod pod_network;
mod source;
mod start;
mod status;
mod sync;
mod watches;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use portway_runtime::readiness::{Guard, Readiness};
use portway_runtime::shutdown::{Drain, Shutdown, signalled};
use portway_runtime::{admin, logging};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::{self, Config, Loaded};
use crate::identities::Census;
use crate::ipcache::Ipcache;
use crate::lock::Lock;
use crate::{endpoints, identities, network, node, thread};
use audit::AuditMetrics;
use audit::objects::Objects;
use health::ProxyHealth;
use http::Api;
use metrics::Metrics;
use owner::{Inputs, Owner, ToIdentities, ToNetwork};
use pod_network::Pods;

/// What is under way at the end is waited for this long.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// Questions that wait for the owner; more are answered by "busy".
const QUESTIONS: usize = 64;

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// The start failed, or a part of the agent ended that must not.
pub fn run(loaded: Loaded) -> anyhow::Result<()> {
    let started = Instant::now();
    let Loaded { config, warnings, settings } = loaded;
    logging::begin(&config.log, &settings, &warnings)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node = config.node_name, "starting");
    tracing::debug!(?config, "configuration");
    memory::limit_arenas();
    node::check_place(&config)?;
    let _lock = Lock::take(&config.bpf_root)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(serve(Arc::new(config), config::settings(&settings), started))
}

async fn serve(
    config: Arc<Config>,
    settings: Vec<crate::api::Setting>,
    started: Instant,
) -> anyhow::Result<()> {
    let readiness = Readiness::new();
    // Held until the owner has named what it waits for: the listeners answer before that thread runs.
    let starting = readiness.task("start");
    let metrics = Metrics::new(&readiness)?;
    let (questions, asked) = mpsc::channel(QUESTIONS);
    let shutdown = Shutdown::new();
    let drain = || shutdown.drain().context("the shutdown has begun");

    let to_owner = questions.clone();
    let api = Api::new(Arc::clone(&config), settings, readiness.clone(), questions, started);
    let mut servers = JoinSet::new();
    let socket = admin::listen_on_socket(&config.socket_path).await?;
    servers.spawn(admin::serve(socket, http::router(Arc::clone(&api)), drain()?));
    if let Some(address) = config.health_address {
        let (listener, _) = admin::listen(address).await?;
        servers.spawn(admin::serve(listener, admin::health(readiness.clone()), drain()?));
    }
    if let Some(address) = config.metrics_address {
        let (listener, address) = admin::listen(address).await?;
        tracing::info!(%address, "serving /metrics");
        servers.spawn(admin::serve(listener, admin::metrics(metrics.registry.clone()), drain()?));
    }

    let health = ProxyHealth::new();
    if let Some(address) = config.proxy_health_address {
        let listener = health::listen(address).await?;
        servers.spawn(health::serve(listener, address, health.clone(), drain()?));
    }
    let api_server = watches::start(&config).await?;
    let audit = AuditMetrics::new(&metrics.registry)?;
    if let Some((watches, _)) = &api_server {
        metrics.watch_api_server(watches.clone())?;
        let objects = Objects::new(watches.clone(), watches::resources(&config), audit.clone(), to_owner);
        let api = Arc::clone(&api);
        servers.spawn(async move {
            api.audit_objects(objects).await;
            Ok(())
        });
    }

    let recorder = api_server.as_ref().map(|(watches, _)| watches.events().clone());
    let (to_network, to_identities, network_ended) = match &config.pod_network {
        Some(network) => {
            let (owner, from_owner) = ToNetwork::new(&config, network);
            let (to_identities, told) = ToIdentities::new();
            let (identities, asked_identities) = identities::questions();
            api.show_identities(identities);
            let census = Census::default();
            metrics.watch_identities(census.clone())?;
            let cluster = from_owner.cluster.clone();
            let (name, endpoints) = (api.setting("cluster-name"), api.endpoints());
            metrics.watch_pods(api.endpoints())?;
            api.show_pods(Pods::start(&config, network, name, cluster, endpoints, &metrics, drain()?)?);
            let ipcache = Ipcache::new(network.tunnel_port().is_some(), config.ipv4 && config.ipv6);
            let ended = network::spawn(network::Inputs {
                config: Arc::clone(&config),
                network: network.clone(),
                owner: from_owner,
                ipcache,
                identities: identities::FromOwner { questions: asked_identities, told, census, recorder },
                endpoints: api.endpoints(),
                flows: Arc::clone(&metrics.flows),
                starting: readiness.task("the pod network"),
                drain: drain()?,
            })?;
            (Some(owner), Some(to_identities), Some(ended))
        }
        None => {
            // A runtime would go on to ask for pods' networks that nobody gives.
            match endpoints::remove_configuration(&config.state_dir) {
                Ok(done) => done.iter().for_each(|what| tracing::warn!("the pod network is off now: {what}")),
                Err(error) => tracing::warn!(%error, "the pod network is off now"),
            }
            (None, None, None)
        }
    };
    let owner_ended = spawn_owner(OwnerParts {
        config: Arc::clone(&config),
        metrics,
        readiness,
        starting,
        api,
        inputs: Inputs { asked, api_server, health, audit, network: to_network, identities: to_identities },
        drain: drain()?,
        started,
    })?;
    let result = tokio::select! {
        signal = signalled() => signal.map(|signal| tracing::info!(signal, "stopping; services stay as they are"))
            .context("waiting for signals"),
        ended = owner_ended => match ended {
            Ok(result) => result,
            Err(_) => Err(anyhow!("the owner of the maps panicked")),
        },
        ended = result_of(network_ended) => ended.unwrap_or_else(|_| Err(anyhow!("the pod network panicked"))),
        Some(ended) = servers.join_next() => {
            Err(anyhow!("a listener ended: {ended:?}"))
        }
    };
    if !shutdown.finish(DRAIN_DEADLINE).await {
        tracing::warn!("something was still under way at the end and was given up");
    }
    // The lock goes with the process; the socket would be taken for a live agent's until someone connects.
    if let Err(error) = std::fs::remove_file(&config.socket_path) {
        tracing::debug!(%error, "the API socket could not be removed");
    }
    result
}

/// What a thread ended with; waits for ever where there is none.
async fn result_of(thread: Option<thread::Ended>) -> Result<anyhow::Result<()>, oneshot::error::RecvError> {
    match thread {
        Some(thread) => thread.await,
        None => std::future::pending().await,
    }
}

struct OwnerParts {
    config: Arc<Config>,
    metrics: Metrics,
    readiness: Readiness,
    starting: Guard,
    api: Arc<Api>,
    inputs: Inputs,
    drain: Drain,
    started: Instant,
}

/// Starts the one thread that owns model and maps.
fn spawn_owner(parts: OwnerParts) -> anyhow::Result<thread::Ended> {
    thread::spawn("owner", || own(parts))
}

async fn own(parts: OwnerParts) -> anyhow::Result<()> {
    let OwnerParts { config, metrics, readiness, starting, api, inputs, mut drain, started } = parts;
    let mut owner = Owner::start(config, metrics, &readiness, &api, inputs, started).await?;
    drop(starting);
    tokio::select! {
        result = owner.run() => result,
        () = drain.begun() => Ok(()),
    }
}
