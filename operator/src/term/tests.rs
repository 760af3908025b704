use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use portway_runtime::kubernetes::ClientOptions;
use tokio::time::timeout;

use super::*;

const DENIED: &str = "forbidden: ValidatingAdmissionPolicy 'portway-operator-term' denied request";

/// By how many dry runs were there before, what a server makes of one.
type Rule = fn(u32) -> (u16, &'static str);

async fn serve(
    State((rule, asked)): State<(Rule, Arc<AtomicU32>)>,
    method: Method,
    uri: Uri,
) -> (StatusCode, String) {
    assert_eq!(
        (method, uri.to_string()),
        (Method::POST, "/apis/cilium.io/v2/ciliumnodes?dryRun=All".to_owned())
    );
    let (code, message) = rule(asked.fetch_add(1, Ordering::Relaxed));
    (StatusCode::from_u16(code).unwrap(), json!({"reason": "Test", "message": message}).to_string())
}

/// A client of a server with this rule, and how many it asked.
async fn client(rule: Rule) -> (Client, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(serve).with_state((rule, Arc::clone(&asked)));
    // It ends with the test's runtime.
    tokio::spawn(async move { axum::serve(listener, router).await });
    let options = ClientOptions {
        kubeconfig: None,
        servers: vec![url],
        qps: 1000,
        burst: 1000,
        heartbeat: Duration::ZERO,
        user_agent: "test".to_owned(),
    };
    (Client::new(options).await.unwrap(), asked)
}

/// What is told first where writes of this term and of the one before come to this; and how many were tried of each.
async fn told(now: Rule, before: Rule) -> (Guard, u32, u32) {
    let ((now, of_now), (before, of_before)) = (client(now).await, client(before).await);
    let (to, mut of) = watch::channel(None);
    let watching = tokio::spawn(watch(now, before, to));
    timeout(Duration::from_secs(30), of.changed()).await.unwrap().unwrap();
    watching.abort();
    let guard = of.borrow().clone().unwrap();
    (guard, of_now.load(Ordering::Relaxed), of_before.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_term_begins_when_its_writes_are_taken_and_those_of_the_one_before_are_not() {
    let now: Rule = |before| if before < 3 { (422, DENIED) } else { (201, "") };
    let (guard, of_now, of_before) = told(now, |_| (422, DENIED)).await;
    assert_eq!((guard.clone(), of_now, of_before), (Guard::Refused, 4, 1));
    assert_eq!(guard.warning(), None);
}

#[tokio::test]
async fn where_there_is_no_policy_a_person_is_told() {
    let (guard, of_now, of_before) = told(|_| (201, ""), |_| (201, "")).await;
    assert_eq!((guard.clone(), of_now, of_before), (Guard::Taken, 1, 1));
    assert!(guard.warning().unwrap().contains(POLICY));
}

#[tokio::test]
async fn a_policy_of_another_lease_is_named_with_what_it_says() {
    let (guard, of_now, of_before) = told(|_| (422, DENIED), |_| (201, "")).await;
    assert_eq!((of_now, of_before), (TRIES, 0));
    assert!(guard.warning().unwrap().contains(DENIED), "{guard:?}");
}

#[tokio::test]
async fn what_is_refused_for_something_else_says_nothing() {
    let rules: [Rule; 4] =
        [|_| (422, "spec: Invalid"), |_| (404, "no such kind"), |_| (403, "forbidden"), |_| (500, "broken")];
    for rule in rules {
        for (now, before) in [(rule, (|_| (422, DENIED)) as Rule), (|_| (201, ""), rule)] {
            let (guard, ..) = told(now, before).await;
            assert!(matches!(guard, Guard::Unknown(_)), "{guard:?}");
        }
    }
}
