//! The operator, wired together.
//!
//! ```text
//! main thread                                                     lease thread
//!   watches ─► main task: Observed, executor ─► fenced client       elector: client and rate limit of its own
//!   HTTP, metrics ─ questions ─┘        ▲ leadership, fence ───────────┘
//! ```
//!
//! The main task lives as long as the process: a lost lease ends the controllers, a lease that is held begins new ones.
//! Nothing that an API server does ends the process.

pub mod controllers;
mod http;
mod main_task;
mod metrics;
mod plan;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use portway_runtime::kubernetes::Client;
use portway_runtime::shutdown::{Shutdown, signalled};
use portway_runtime::{admin, logging};
use prometheus::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::config::Loaded;
use crate::executor;
use crate::lead;
use crate::watches::Watches;
use controllers::Instruments;
use main_task::MainTask;
use metrics::Metrics;

pub use plan::{Format, plan};

/// Answers that are under way at the end are waited for this long.
const DRAIN_DEADLINE: std::time::Duration = std::time::Duration::from_millis(100);
/// Questions that wait for the main task.
const QUESTIONS: usize = 64;

/// Runs the operator until SIGTERM or SIGINT.
///
/// # Errors
/// The start failed, or a listener ended.
pub fn run(loaded: Loaded) -> anyhow::Result<()> {
    let started = Instant::now();
    begin_log(&loaded)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(serve(loaded, started))
}

fn begin_log(loaded: &Loaded) -> anyhow::Result<()> {
    let Loaded { config, warnings, settings } = loaded;
    logging::begin(&config.log, settings, warnings)?;
    tracing::debug!(?config, "configuration");
    Ok(())
}

async fn serve(loaded: Loaded, started: Instant) -> anyhow::Result<()> {
    let config = Arc::new(loaded.config);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespace = config.namespace, "starting");
    let registry = Registry::new();
    let (instruments, written) = (Instruments::new(&registry)?, executor::Metrics::new(&registry)?);
    let shutdown = Shutdown::new();
    let drain = || shutdown.drain().context("the shutdown has begun");
    let (questions, asked) = mpsc::channel(QUESTIONS);
    let mut servers = JoinSet::new();
    if let Some(address) = config.api_address {
        let (listener, address) = admin::listen(address).await?;
        tracing::info!(%address, "serving /healthz, /v1/status and /v1/dump");
        servers.spawn(admin::serve(listener, http::router(questions.clone()), drain()?));
    }
    if let Some(address) = config.metrics_address {
        let (listener, address) = admin::listen(address).await?;
        tracing::info!(%address, "serving /metrics");
        servers.spawn(admin::serve(listener, admin::metrics(registry.clone()), drain()?));
    }
    let client = Client::new(config.api_server.clone()).await;
    let client = client.context("cannot use what is configured for the API server")?;
    let kinds = controllers::kinds(&config, &instruments);
    let (watches, told) = Watches::start(client.clone(), &config.namespace, &kinds);
    let elector = lead::elector(&config).await?;
    let objects = Metrics::register(&registry, client.clone(), watches.shown(), &elector)?;
    let mut task = MainTask::new(main_task::Inputs {
        config: Arc::clone(&config),
        instruments,
        written,
        objects,
        client,
        watches,
        told,
        elector,
        asked,
        started,
    });
    let result = tokio::select! {
        signal = signalled() => {
            signal.map(|signal| tracing::info!(signal, "stopping")).context("waiting for signals")
        }
        // It never returns.
        () = task.run() => Ok(()),
        Some(ended) = servers.join_next() => Err(anyhow::anyhow!("a listener ended: {ended:?}")),
    };
    task.stop().await;
    drop(questions);
    if !shutdown.finish(DRAIN_DEADLINE).await {
        tracing::debug!("an answer was still under way at the end and was given up");
    }
    result
}
