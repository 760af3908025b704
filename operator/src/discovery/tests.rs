use std::sync::Mutex;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use portway_runtime::kubernetes::ClientOptions;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;

/// Which resources each version has; a version that is not there fails.
type Served = Arc<Mutex<BTreeMap<String, Vec<&'static str>>>>;

async fn answer(State(served): State<Served>, uri: Uri) -> (StatusCode, String) {
    let served = served.lock().unwrap();
    let Some(names) = served.get(uri.path()) else { return (StatusCode::FORBIDDEN, "no".to_owned()) };
    let resources: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
    (StatusCode::OK, json!({"resources": resources}).to_string())
}

#[tokio::test]
async fn a_version_that_fails_hides_no_other_and_a_kind_that_is_lost_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = vec![format!("http://{}", listener.local_addr().unwrap())];
    let served = Served::default();
    served.lock().unwrap().insert("/apis/cilium.io/v2".to_owned(), vec!["ciliumnodes"]);
    let router = Router::new().fallback(answer).with_state(Arc::clone(&served));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let options = ClientOptions { servers, ..ClientOptions::unlimited("test") };
    let client = Client::new(options).await.unwrap();
    let (lose, lost) = mpsc::unbounded_channel();
    let (found, mut finds) = mpsc::channel(8);
    let (hurry, problems) = (Arc::new(Notify::new()), watch::Sender::new(Problems::new()));
    let mut told = problems.subscribe();
    for kind in [Kind::CiliumNode, Kind::CiliumEndpointSlice] {
        lose.send(kind).unwrap();
    }
    tokio::spawn(Discovery { client, lost, found, hurry: Arc::clone(&hurry), problems }.run());
    let patience = Duration::from_secs(20);
    assert_eq!(timeout(patience, finds.recv()).await.unwrap(), Some(Kind::CiliumNode));
    timeout(patience, told.changed()).await.unwrap().unwrap();
    assert!(told.borrow_and_update()["cilium.io/v2alpha1"].contains("403"), "{:?}", told.borrow());
    // Its definition goes and comes back; the other one is served at last.
    lose.send(Kind::CiliumNode).unwrap();
    served.lock().unwrap().insert("/apis/cilium.io/v2alpha1".to_owned(), vec!["ciliumendpointslices"]);
    hurry.notify_one();
    let mut again = BTreeSet::new();
    while again.len() < 2 {
        again.extend(timeout(patience, finds.recv()).await.unwrap());
    }
    timeout(patience, told.changed()).await.unwrap().unwrap();
    assert!(told.borrow().is_empty());
}

#[test]
fn a_kind_that_is_missing_is_looked_for_at_least_every_twenty_seconds_for_ever_and_costs_little() {
    for is_failing in [false, true] {
        let (mut wait, mut longest, mut elapsed, mut looks) = (BETWEEN_LOOKS, Duration::ZERO, 0.0, 0);
        while elapsed < 3600.0 {
            wait = longest_wait(looks, wait, is_failing);
            (longest, elapsed, looks) = (longest.max(wait), elapsed + wait.as_secs_f64(), looks + 1);
        }
        // The second half of each is chance.
        assert!(longest <= Duration::from_secs(20) && looks < 240, "{longest:?} {looks}");
    }
}
