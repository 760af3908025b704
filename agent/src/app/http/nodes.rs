//! Nodes, and whether they answer.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::{Api, Failure};
use crate::api::{ClusterHealth, Node, path};
use crate::health::Health;

pub(super) fn router() -> Router<Arc<Api>> {
    Router::new().route(path::NODES, get(nodes)).route(path::HEALTH, get(health).post(probe))
}

async fn nodes(State(api): State<Arc<Api>>) -> Result<Json<Vec<Node>>, Failure> {
    Ok(Json(api.pods()?.nodes()))
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
