//! The API on the unix socket; its paths and answers are in [`crate::api`].

mod endpoints;
mod identities;
mod nodes;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use portway_datapath::{Counter, FrontendKey};
use portway_model::tables::{TableDump, rows};
use portway_runtime::readiness::Readiness;
use tokio::sync::{mpsc, oneshot};

use super::audit::objects::{Objects, Outcome};
use super::owner::Question;
use super::pod_network::Pods;
use crate::api::{self, path};
use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::maps::{MapError, MapReader};

/// How long the owner may take: a large batch keeps it busy for a second or two.
const OWNER_PATIENCE: Duration = Duration::from_secs(10);

/// What the answers are made from.
pub(super) struct Api {
    config: Arc<Config>,
    settings: Vec<api::Setting>,
    readiness: Readiness,
    questions: mpsc::Sender<Question>,
    maps: OnceLock<MapReader>,
    objects: OnceLock<Objects>,
    endpoints: Arc<OnceLock<Endpoints>>,
    /// Where there is a pod network.
    pods: OnceLock<Pods>,
    /// The same.
    identities: OnceLock<mpsc::Sender<crate::identities::Question>>,
    started: Instant,
}

/// An answer that is none.
enum Failure {
    /// The maps are not open yet.
    Starting,
    Busy,
    Maps(MapError),
    Task(tokio::task::JoinError),
    /// The comparison failed.
    Audit(String),
    /// There is no such thing; in words.
    NotFound(String),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Starting => {
                (StatusCode::SERVICE_UNAVAILABLE, "the agent is starting; try again".to_owned())
            }
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the agent is busy with a large change; try again".to_owned(),
            ),
            Self::Maps(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            Self::Task(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            Self::Audit(error) => (StatusCode::INTERNAL_SERVER_ERROR, error),
            Self::NotFound(error) => (StatusCode::NOT_FOUND, error),
        };
        (status, Json(api::Error { error })).into_response()
    }
}

impl Api {
    pub(super) fn new(
        config: Arc<Config>,
        settings: Vec<api::Setting>,
        readiness: Readiness,
        questions: mpsc::Sender<Question>,
        started: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            settings,
            readiness,
            questions,
            maps: OnceLock::new(),
            objects: OnceLock::new(),
            endpoints: Arc::default(),
            pods: OnceLock::new(),
            identities: OnceLock::new(),
            started,
        })
    }

    /// From now on the maps can be shown.
    pub(super) fn watch_maps(&self, reader: MapReader) {
        // A second reader of the same maps would say the same.
        let _ = self.maps.set(reader);
    }

    /// Where the pod network puts its endpoints, once it knows them.
    pub(super) fn endpoints(&self) -> Arc<OnceLock<Endpoints>> {
        Arc::clone(&self.endpoints)
    }

    /// There is a pod network.
    pub(super) fn show_pods(&self, pods: Pods) {
        self.pods.get_or_init(|| pods);
    }

    /// There are identities.
    pub(super) fn show_identities(&self, questions: mpsc::Sender<crate::identities::Question>) {
        self.identities.get_or_init(|| questions);
    }

    fn pods(&self) -> Result<&Pods, Failure> {
        self.pods.get().ok_or_else(|| {
            let text =
                "this agent has no pod network, so it knows of no other nodes: enable-pod-network is off";
            Failure::NotFound(text.to_owned())
        })
    }

    /// The value of a configuration key.
    pub(super) fn setting(&self, key: &str) -> &str {
        self.settings.iter().find(|setting| setting.key == key).map_or("", |setting| &setting.value)
    }

    /// There is an API server: its objects are compared from now on. Ends with the task.
    pub(super) async fn audit_objects(self: Arc<Self>, objects: Objects) {
        self.objects.get_or_init(|| objects).run().await;
    }

    /// The kernel's side after the objects that it is made from.
    async fn audit(self: &Arc<Self>, fix: bool) -> Result<api::Audit, Failure> {
        let began = Instant::now();
        let objects = match self.objects.get() {
            Some(objects) => objects.audit(fix).await,
            None => Outcome::default(),
        };
        let kernel = self.ask(|to| Question::Audit { fix, to }).await?.map_err(Failure::Audit)?;
        let ipcache = nodes::audit_ipcache(self, fix).await?;
        let Outcome { found, remaining, skipped } = objects;
        Ok(api::Audit {
            found: [found, kernel.found, ipcache.found].concat(),
            remaining: [remaining, kernel.remaining, ipcache.remaining].concat(),
            skipped: [skipped, kernel.skipped].concat(),
            seconds: began.elapsed().as_secs_f64(),
            warnings: kernel.warnings,
        })
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, Failure> {
        let (to, answer) = oneshot::channel();
        let asking = async {
            self.questions.send(question(to)).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(OWNER_PATIENCE, asking).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Failure::Starting),
            Err(_) => Err(Failure::Busy),
        }
    }

    /// Reads the maps on a thread of its own: a dump of ten thousand services takes tens of milliseconds.
    async fn read_maps<T: Send + 'static>(
        &self,
        read: impl FnOnce(&MapReader) -> Result<T, MapError> + Send + 'static,
    ) -> Result<T, Failure> {
        let maps = self.maps.get().cloned().ok_or(Failure::Starting)?;
        let task = tokio::task::spawn_blocking(move || read(&maps));
        task.await.map_err(Failure::Task)?.map_err(Failure::Maps)
    }
}

pub(super) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::SERVICES, get(services))
        .route(path::ROWS, get(all_rows))
        .route(path::CONFIG, get(settings))
        .route(path::REJECTS, get(rejects))
        .route(path::CLASHES, get(clashes))
        .route(path::AUDIT, get(audit).post(fix))
        .merge(endpoints::router())
        .merge(identities::router())
        .merge(nodes::router())
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                Json(api::Error { error: "no such path; see agent/src/api.rs".to_owned() }),
            )
        })
        .with_state(api)
}

async fn status(State(api): State<Arc<Api>>) -> Result<Json<api::Status>, Failure> {
    let mut status = api.ask(Question::Status).await?;
    let (maps, unremembered) = api.read_maps(|maps| Ok((map_use(maps)?, unremembered(maps)?))).await?;
    if let Some(objects) = api.objects.get() {
        objects.add_to(&mut status.audit);
    }
    status.maps = maps;
    if let Some(pods) = api.pods.get() {
        status.maps.extend(pods.maps());
        let shown = pods.status();
        status.warnings.extend(pods.ipcache_warnings());
        status.warnings.extend(shown.cluster_health.iter().flat_map(|health| health.warnings.clone()));
        status.pod_network = Some(shown);
        if let Some(identities) = identities::status(&api).await {
            status.warnings.extend(identities.waiting.iter().chain(&identities.duplicates).cloned());
            status.identities = Some(identities);
        }
    }
    status.counts.unremembered = unremembered.0;
    status.warnings.extend(unremembered.1);
    status.waiting_for = api.readiness.waiting_for();
    status.ready = status.waiting_for.is_empty();
    status.uptime_seconds = api.started.elapsed().as_secs_f64();
    status.node.clone_from(&api.config.node_name);
    Ok(Json(status))
}

fn map_use(maps: &MapReader) -> Result<Vec<api::MapUse>, MapError> {
    let facts = maps.facts()?.into_iter().map(|fact| api::MapUse {
        name: fact.id.name().to_owned(),
        used: fact.used.map(u64::from),
        size: fact.max.into(),
        bytes: fact.kernel_bytes.unwrap_or_default(),
    });
    Ok(facts.collect())
}

/// How often the maps had no room for a connection, and what is said of that.
fn unremembered(maps: &MapReader) -> Result<(u64, Option<String>), MapError> {
    let number = maps.counters()?.get(&Counter::Unremembered).copied().unwrap_or_default();
    Ok((number, super::status::unremembered(number, maps.sizes().sockets)))
}

async fn services(State(api): State<Arc<Api>>) -> Result<Json<Vec<api::Service>>, Failure> {
    let dump = api.read_maps(MapReader::dump).await?;
    Ok(Json(numbered(&dump)))
}

/// The rows of a dump with the index of their service.
fn numbered(dump: &TableDump) -> Vec<api::Service> {
    let name = |key: &FrontendKey| {
        let protocol = portway_datapath::Protocol::from_number(key.protocol).map_or("", |p| p.name());
        (key.addr.to_string(), key.port.get(), protocol)
    };
    let indices: HashMap<_, _> =
        dump.frontends.iter().map(|(key, value)| (name(key), value.service().get())).collect();
    rows(dump)
        .into_iter()
        .map(|row| {
            let key = (row.address.clone(), row.port, row.protocol.as_str());
            let id = indices.get(&key).copied().unwrap_or_default();
            api::Service { id, row }
        })
        .collect()
}

async fn all_rows(State(api): State<Arc<Api>>) -> Result<Json<Vec<portway_model::tables::Row>>, Failure> {
    let dump = api.read_maps(MapReader::dump).await?;
    Ok(Json(rows(&dump)))
}

async fn audit(State(api): State<Arc<Api>>) -> Result<Json<api::Audit>, Failure> {
    api.audit(false).await.map(Json)
}

async fn fix(State(api): State<Arc<Api>>) -> Result<Json<api::Audit>, Failure> {
    api.audit(true).await.map(Json)
}

async fn settings(State(api): State<Arc<Api>>) -> Json<Vec<api::Setting>> {
    Json(api.settings.clone())
}

async fn rejects(State(api): State<Arc<Api>>) -> Result<Json<Vec<api::Reject>>, Failure> {
    api.ask(Question::Rejects).await.map(Json)
}

async fn clashes(State(api): State<Arc<Api>>) -> Result<Json<Vec<api::Reject>>, Failure> {
    api.ask(Question::Clashes).await.map(Json)
}
