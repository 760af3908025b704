//! HTTP on `operator-api-serve-addr`.
//!
//! | path | answer |
//! |---|---|
//! | `GET /healthz` | 200 `ok` while the main task answers, whoever leads and whatever the API server does; 503 |
//! | `GET /v1/status` | [`status::Status`] as JSON |
//! | `GET /v1/dump` | objects and versions by kind as JSON |

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::status;

/// A plan of a large cluster takes a part of a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asked of the main task.
pub(super) enum Question {
    Ping(oneshot::Sender<()>),
    Status(oneshot::Sender<Box<status::Status>>),
    Dump(oneshot::Sender<BTreeMap<&'static str, status::Dump>>),
}

type Questions = mpsc::Sender<Question>;
type Failure = (StatusCode, &'static str);

pub(super) fn router(questions: Questions) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/v1/status", get(show_status))
        .route("/v1/dump", get(dump))
        .with_state(questions)
}

async fn health(State(questions): State<Questions>) -> Result<&'static str, Failure> {
    ask(&questions, Question::Ping).await.map(|()| "ok\n")
}

async fn show_status(State(questions): State<Questions>) -> Result<Json<Box<status::Status>>, Failure> {
    ask(&questions, Question::Status).await.map(Json)
}

async fn dump(
    State(questions): State<Questions>,
) -> Result<Json<BTreeMap<&'static str, status::Dump>>, Failure> {
    ask(&questions, Question::Dump).await.map(Json)
}

async fn ask<T>(
    questions: &Questions,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Result<T, Failure> {
    let (to, answer) = oneshot::channel();
    let asking = async {
        questions.send(question(to)).await.ok()?;
        answer.await.ok()
    };
    match timeout(PATIENCE, asking).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) | Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "the main task does not answer\n")),
    }
}
