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
        (
            Method::POST,
            "/apis/cilium.io/v2/ciliumnodes?dryRun=All&fieldManager=portway-operator/7".to_owned()
        )
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
    (client_of(url).await, asked)
}

async fn client_of(url: String) -> Client {
    let options = ClientOptions { servers: vec![url], ..ClientOptions::unlimited("test") };
    Client::new(options).await.unwrap().in_term(numbered(7))
}

/// What is told where writes of this term and of the one before come to this; and how many were tried of each.
async fn told(now: Rule, before: Rule) -> (Vec<Guard>, u32, u32) {
    let ((now, of_now), (before, of_before)) = (client(now).await, client(before).await);
    let (to, mut of) = watch::channel(None);
    let watching = tokio::spawn(watch(now, before, to));
    let mut told = Vec::new();
    while told.last().is_none_or(|guard| *guard == Guard::NotAsked) {
        timeout(Duration::from_secs(30), of.changed()).await.unwrap().unwrap();
        told.extend(of.borrow_and_update().clone());
    }
    watching.abort();
    (told, of_now.load(Ordering::Relaxed), of_before.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_term_begins_when_its_writes_are_taken_and_those_of_the_one_before_are_not() {
    let now: Rule = |before| if before < 3 { (422, DENIED) } else { (201, "") };
    let (told, of_now, of_before) = told(now, |_| (422, DENIED)).await;
    assert_eq!((told.last().unwrap(), of_now, of_before), (&Guard::Refused, 4, 1));
    assert_eq!(Guard::Refused.warning(), None);
}

/// It does not wait for what becomes of the other.
#[tokio::test]
async fn a_term_begins_when_its_writes_are_taken_though_nothing_is_known_of_the_one_before() {
    let (now, _) = client(|_| (201, "")).await;
    // Nobody listens there.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let before = client_of(format!("http://{}", listener.local_addr().unwrap())).await;
    let (to, mut of) = watch::channel(None);
    let watching = tokio::spawn(watch(now, before, to));
    timeout(Duration::from_secs(10), of.changed()).await.unwrap().unwrap();
    assert_eq!(*of.borrow(), Some(Guard::NotAsked));
    watching.abort();
}

#[tokio::test]
async fn where_there_is_no_policy_a_person_is_told() {
    let (told, of_now, of_before) = told(|_| (201, ""), |_| (201, "")).await;
    assert_eq!((told.last().unwrap(), of_now, of_before), (&Guard::Taken, 1, 1));
    assert!(Guard::Taken.warning().unwrap().contains("ValidatingAdmissionPolicy portway-operator-term"));
}

#[tokio::test]
async fn a_policy_of_another_lease_is_named_with_what_it_says() {
    let (told, of_now, of_before) = told(|_| (422, DENIED), |_| (201, "")).await;
    assert!(of_now > 10 && of_before == 0, "{of_now} and {of_before} tries");
    assert!(matches!(&told[..], [Guard::AllRefused(_)]), "{told:?}");
    assert!(told[0].warning().unwrap().contains(DENIED), "{told:?}");
}

#[tokio::test]
async fn what_is_refused_for_something_else_says_nothing() {
    let rules: [Rule; 4] =
        [|_| (422, "spec: Invalid"), |_| (404, "no such kind"), |_| (403, "forbidden"), |_| (500, "broken")];
    for rule in rules {
        for (now, before) in [(rule, (|_| (422, DENIED)) as Rule), (|_| (201, ""), rule)] {
            let (told, ..) = told(now, before).await;
            assert!(matches!(told.last(), Some(Guard::Unknown(_))), "{told:?}");
        }
    }
}
