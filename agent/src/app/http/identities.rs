//! Identities.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use portway_model::labels::Label;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::{Api, Failure, OWNER_PATIENCE};
use crate::api::{IdentitiesStatus, Identity, path};
use crate::identities::Question;

pub(super) fn router() -> Router<Arc<Api>> {
    Router::new().route(path::IDENTITIES, get(list)).route(&format!("{}/{{id}}", path::IDENTITIES), get(one))
}

/// What of the list is asked for.
#[derive(Deserialize)]
struct Selection {
    /// `k8s:app=x` or `app=x`, separated by commas: those with all of these labels.
    labels: Option<String>,
}

async fn list(
    State(api): State<Arc<Api>>,
    Query(selection): Query<Selection>,
) -> Result<Json<Vec<Identity>>, Failure> {
    let mut all = ask(&api, Question::List).await?;
    if let Some(labels) = selection.labels {
        let asked: Vec<_> = labels.split(',').filter_map(|label| Label::parse(label.trim())).collect();
        all.retain(|identity| identity.labels().answer(&asked));
    }
    Ok(Json(all))
}

async fn one(State(api): State<Arc<Api>>, Path(id): Path<u32>) -> Result<Json<Identity>, Failure> {
    let all = ask(&api, Question::List).await?;
    let one = all.into_iter().find(|identity| identity.id == id);
    one.map(Json).ok_or_else(|| Failure::NotFound(format!("no identity has the number {id}")))
}

/// How identities are given and told; `None` where there are none, or before the pod network has begun.
pub(super) async fn status(api: &Api) -> Option<IdentitiesStatus> {
    ask(api, Question::Status).await.ok()
}

async fn ask<T>(api: &Api, question: impl FnOnce(oneshot::Sender<T>) -> Question) -> Result<T, Failure> {
    let Some(questions) = api.identities.get() else {
        let text = "this agent has no pod network, so its pods have no identities: enable-pod-network is off";
        return Err(Failure::NotFound(text.to_owned()));
    };
    let (to, answer) = oneshot::channel();
    // Nobody takes questions before the maps are there.
    questions.try_send(question(to)).map_err(|_| Failure::Busy)?;
    match tokio::time::timeout(OWNER_PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Failure::Starting),
        Err(_) => Err(Failure::Busy),
    }
}
