use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use portway_runtime::kubernetes::{ClientOptions, Fence};
use serde_json::{Value, json};

use super::*;
use crate::observed::{Kind, Meta};

/// A server that gives one answer for ever and notes what it was asked.
#[derive(Clone)]
struct Server {
    answer: (StatusCode, Value),
    asked: Arc<Mutex<Vec<(String, String, Value)>>>,
}

async fn serve(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let content_type = headers.get("content-type").map(|value| value.to_str().unwrap().to_owned());
    let asked = (
        format!("{method} {uri}"),
        content_type.unwrap_or_default(),
        serde_json::from_slice(&body).unwrap_or_default(),
    );
    server.asked.lock().unwrap().push(asked);
    (server.answer.0, server.answer.1.to_string())
}

/// Sends a write to a server that answers so; the answer, and what was asked.
async fn sent(write: &Write, code: u16, answer: Value) -> (Answer, (String, String, Value)) {
    let server = Server { answer: (StatusCode::from_u16(code).unwrap(), answer), asked: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(serve).with_state(server.clone());
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let answer = send(&client(&url).await, write).await;
    serving.abort();
    let asked = server.asked.lock().unwrap().remove(0);
    (answer, asked)
}

async fn client(url: &str) -> Client {
    let options = ClientOptions { servers: vec![url.to_owned()], ..ClientOptions::unlimited("test") };
    Client::new(options).await.unwrap()
}

fn seen() -> Meta {
    Meta {
        namespace: "x".into(),
        name: "a".into(),
        uid: "u-1".into(),
        version: 7,
        created: 0,
        is_deleting: false,
    }
}

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::Outcome { outcome, .. } => outcome,
        Answer::Fenced => panic!("there is no fence"),
    }
}

#[tokio::test]
async fn an_object_is_made_beside_the_others_and_its_version_is_told() {
    let write = Write::create(Kind::CiliumEndpoint, "x/a", json!({"spec": {}}), "test");
    let (answer, asked) = sent(&write, 201, json!({"metadata": {"resourceVersion": "12"}})).await;
    assert_eq!(outcome(answer), Outcome::Done { version: 12 });
    assert_eq!(asked.0, "POST /apis/cilium.io/v2/namespaces/x/ciliumendpoints");
    assert_eq!((asked.1.as_str(), asked.2), ("application/json", json!({"spec": {}})));
    let write = Write::create(Kind::CiliumNode, "a", json!({}), "test");
    let (_, asked) = sent(&write, 201, json!({})).await;
    assert_eq!(asked.0, "POST /apis/cilium.io/v2/ciliumnodes");
}

#[tokio::test]
async fn a_patch_names_what_was_seen_and_says_how_it_is_read() {
    let write = Write::patch(
        Kind::Pod,
        &seen(),
        Patch::Strategic,
        Some("status"),
        json!({"status": {"phase": "Running"}}),
        "test",
    );
    let (answer, asked) = sent(&write, 200, json!({"metadata": {"resourceVersion": "13"}})).await;
    assert_eq!(outcome(answer), Outcome::Done { version: 13 });
    assert_eq!(asked.0, "PATCH /api/v1/namespaces/x/pods/a/status");
    assert_eq!(asked.1, "application/strategic-merge-patch+json");
    assert_eq!(asked.2["metadata"], json!({"uid": "u-1", "resourceVersion": "7"}));
    let (_, asked) = sent(&Write::merge(Kind::Pod, &seen(), json!({}), "test"), 200, json!({})).await;
    assert_eq!(asked.0, "PATCH /api/v1/namespaces/x/pods/a");
    assert_eq!(asked.1, "application/merge-patch+json");
}

#[tokio::test]
async fn a_deletion_has_preconditions_and_what_is_gone_is_done() {
    let write = Write::delete(Kind::Pod, &seen(), "test");
    // A Pod that ends first is the answer, at a version of its own.
    let (answer, asked) = sent(&write, 200, json!({"metadata": {"resourceVersion": "14"}})).await;
    assert_eq!(outcome(answer), Outcome::Done { version: 0 });
    assert_eq!(asked.0, "DELETE /api/v1/namespaces/x/pods/a");
    assert_eq!(asked.2["preconditions"], json!({"uid": "u-1", "resourceVersion": "7"}));
    let (answer, _) = sent(&write, 404, json!({"reason": "NotFound"})).await;
    assert_eq!(outcome(answer), Outcome::Done { version: 0 });
    let (answer, _) = sent(&write, 409, json!({"reason": "Conflict"})).await;
    assert_eq!(outcome(answer), Outcome::Late);
}

#[tokio::test]
async fn a_precondition_that_does_not_hold_is_no_failure() {
    let write = Write::merge(Kind::CiliumNode, &seen(), json!({}), "test");
    for (code, message) in [
        (404, "not found"),
        (409, "the object has been modified"),
        (422, "metadata.uid: Invalid value: \"u-1\": field is immutable"),
    ] {
        let (answer, _) = sent(&write, code, json!({"reason": "Test", "message": message})).await;
        assert_eq!(outcome(answer), Outcome::Late, "{code}");
    }
    // There is nothing beside which it could be made.
    let create = Write::create(Kind::CiliumNode, "a", json!({}), "test");
    let (answer, _) = sent(&create, 404, json!({"reason": "NotFound"})).await;
    assert!(matches!(outcome(answer), Outcome::Failed(_)));
    for (code, blames) in [(403, false), (422, false), (429, true), (500, true), (503, true)] {
        let (answer, _) = sent(&write, code, json!({"reason": "Test", "message": "so it is"})).await;
        assert_eq!(answer.word(), "failed", "{code}");
        let Answer::Outcome { blames_server, outcome: Outcome::Failed(error), .. } = answer else {
            panic!("{code} is a failure")
        };
        assert_eq!(blames_server, blames, "{code}");
        assert!(error.contains("so it is"), "{error}");
    }
}

#[tokio::test]
async fn what_a_fence_keeps_is_told_apart() {
    let client = client("http://127.0.0.1:1").await.fenced(Fence::new(Duration::from_secs(4)));
    let answer = send(&client, &Write::delete(Kind::Pod, &seen(), "test")).await;
    assert_eq!(answer.word(), "fenced");
}
