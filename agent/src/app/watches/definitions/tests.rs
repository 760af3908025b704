use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::http::{StatusCode, Uri};
use portway_runtime::kubernetes::{ClientOptions, Resource, WatchOptions};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;

/// An API server that does not know CiliumIdentities until it is told, and has none of them.
#[derive(Clone, Default)]
struct Server {
    is_defined: Arc<AtomicBool>,
    questions: Arc<AtomicUsize>,
}

impl Server {
    async fn start(&self) -> Client {
        let state = self.clone();
        let answer = move |uri: Uri| {
            let state = state.clone();
            async move { state.answer(&uri).await }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        let options = ClientOptions { servers: vec![server], ..ClientOptions::unlimited("test") };
        Client::new(options).await.unwrap()
    }

    async fn answer(&self, uri: &Uri) -> (StatusCode, String) {
        let is_defined = self.is_defined.load(Ordering::SeqCst);
        match uri.path() {
            "/apis/cilium.io/v2" => {
                self.questions.fetch_add(1, Ordering::SeqCst);
                let other = json!({"name": "ciliumnodes"});
                let ours = json!({"name": "ciliumidentities"});
                let resources = if is_defined { vec![other, ours] } else { vec![other] };
                (StatusCode::OK, json!({"resources": resources}).to_string())
            }
            "/apis/cilium.io/v2/ciliumidentities" if is_defined => {
                if uri.query().unwrap_or_default().contains("watch") {
                    std::future::pending::<()>().await;
                }
                (StatusCode::OK, json!({"metadata": {"resourceVersion": "7"}, "items": []}).to_string())
            }
            _ => (StatusCode::NOT_FOUND, json!({"kind": "Status", "code": 404}).to_string()),
        }
    }
}

fn watch(
    client: &Client,
) -> (Watch, mpsc::Receiver<(&'static str, portway_runtime::kubernetes::WatchEvent)>) {
    let (to, told) = mpsc::channel(64);
    let path = "/apis/cilium.io/v2/ciliumidentities".into();
    let resource = Resource { kind: ObjectKind::CiliumIdentity.name(), path, selector: String::new() };
    // Left alone it would take an hour.
    let hour = Duration::from_secs(3600);
    let options = WatchOptions { shortest_backoff: hour, longest_backoff: hour, ..WatchOptions::default() };
    (Watch::start(client.clone(), resource, options, to), told)
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(Duration::from_secs(20), wait).await.is_ok(), "not in time: {what}");
}

#[tokio::test]
async fn a_missing_definition_is_named_and_its_kind_listed_as_soon_as_it_is_there() {
    let server = Server::default();
    let client = server.start().await;
    let (watch, _told) = watch(&client);
    let missing = Missing::default();
    let watches: Arc<[_]> = Arc::new([(ObjectKind::CiliumIdentity, watch.clone())]);
    let waiting = tokio::spawn(wait(client, watches, missing.clone(), Duration::from_secs(2)));
    eventually("it is missing", || missing.contains(ObjectKind::CiliumIdentity)).await;
    assert!(!watch.status().synced);
    server.is_defined.store(true, Ordering::SeqCst);
    eventually("it is listed", || watch.status().synced).await;
    timeout(Duration::from_secs(20), waiting).await.expect("it ends").unwrap();
    assert!(!missing.contains(ObjectKind::CiliumIdentity));
}

#[tokio::test]
async fn where_all_kinds_are_there_nobody_asks_for_definitions() {
    let server = Server::default();
    server.is_defined.store(true, Ordering::SeqCst);
    let client = server.start().await;
    let (watch, _told) = watch(&client);
    let watches: Arc<[_]> = Arc::new([(ObjectKind::CiliumIdentity, watch)]);
    let waiting = wait(client, watches, Missing::default(), Duration::from_secs(2));
    timeout(Duration::from_secs(20), waiting).await.expect("it ends");
    assert_eq!(server.questions.load(Ordering::SeqCst), 0);
}
