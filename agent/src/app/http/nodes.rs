//! Nodes, whether they answer, and who is at which address.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::{Api, Failure, Pods};
use crate::api::{Audit, ClusterHealth, IpcacheEntry, Node, path};
use crate::health::Health;

pub(super) fn router() -> Router<Arc<Api>> {
    Router::new()
        .route(path::NODES, get(nodes))
        .route(path::HEALTH, get(health).post(probe))
        .route(path::ADDRESSES, get(addresses))
}

async fn nodes(State(api): State<Arc<Api>>) -> Result<Json<Vec<Node>>, Failure> {
    Ok(Json(api.pods()?.nodes()))
}

/// On a thread of its own: a large cluster has hundreds of thousands.
async fn addresses(State(api): State<Arc<Api>>) -> Result<Json<Vec<IpcacheEntry>>, Failure> {
    api.pods()?;
    let api = Arc::clone(&api);
    let list = tokio::task::spawn_blocking(move || api.pods().map(Pods::ipcache));
    list.await.map_err(Failure::Task)?.map(Json)
}

/// The kernel's table of who is where, compared on a thread of its own. Nothing where there is no pod network.
pub(super) async fn audit_ipcache(api: &Arc<Api>, fix: bool) -> Result<Audit, Failure> {
    let api = Arc::clone(api);
    let audit = tokio::task::spawn_blocking(move || match api.pods.get() {
        Some(pods) => pods.audit_ipcache(fix),
        None => Ok(Audit::default()),
    });
    audit.await.map_err(Failure::Task)?.map_err(Failure::Maps)
}

async fn health(State(api): State<Arc<Api>>) -> Result<Json<ClusterHealth>, Failure> {
    Ok(Json(probes(&api)?.show()))
}

async fn probe(State(api): State<Arc<Api>>) -> Result<Json<ClusterHealth>, Failure> {
    let health = probes(&api)?;
    health.probe_all().await;
    Ok(Json(health.show()))
}

fn probes(api: &Api) -> Result<&Health, Failure> {
    api.pods()?
        .health()
        .ok_or_else(|| Failure::NotFound("nodes are not probed: enable-health-checking=false".to_owned()))
}
