use serde_json::json;

use super::*;
use crate::kubernetes::scripted::scripted;

mod certificates;
mod credentials;
mod fence;
mod term;

/// A request that runs while the test answers it.
fn ask(client: &Client, method: Method) -> tokio::task::JoinHandle<Result<Bytes, RequestError>> {
    let client = client.clone();
    tokio::spawn(async move { client.send(method, "/api/v1/nodes?x=1", b"{}".to_vec()).await })
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_left_for_one_that_answers_and_not_returned_to() {
    let (client, mut server) = scripted(&["http://a", "http://b", "http://c"]);
    let request = ask(&client, Method::GET);
    let asked = server.next().await;
    assert_eq!(
        (asked.host.as_str(), asked.path.as_str(), asked.query["x"].as_str()),
        ("a", "/api/v1/nodes", "1")
    );
    asked.refuse();
    let asked = server.next().await;
    assert_eq!(asked.host, "b");
    asked.status(503, &[]);
    let asked = server.next().await;
    assert_eq!(asked.host, "c");
    asked.json(200, &json!({"kind": "NodeList"}));
    assert_eq!(request.await.unwrap().unwrap(), r#"{"kind":"NodeList"}"#);
    for _ in 0..3 {
        let request = ask(&client, Method::GET);
        let asked = server.next().await;
        assert_eq!(asked.host, "c");
        asked.json(200, &json!({}));
        request.await.unwrap().unwrap();
    }
    let status = client.status();
    assert_eq!((status.server.as_str(), status.reachable, status.requests), ("http://c", Some(true), 6));
    assert_eq!((status.failures["unreachable"], status.failures["503"], status.answers[&200]), (1, 1, 4));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stalls_is_left_after_a_while() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let request = ask(&client, Method::GET);
    let stalled = server.next().await;
    let asked = server.next().await;
    assert_eq!((asked.host.as_str(), asked.at - stalled.at), ("b", ANSWER_PATIENCE));
    // The head comes, and then nothing.
    let stream = asked.stream();
    stream.write("{");
    let error = request.await.unwrap().unwrap_err();
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    assert_eq!(client.status().server, "http://a");
}

#[tokio::test(start_paused = true)]
async fn where_every_server_fails_each_is_asked_once() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let request = ask(&client, Method::GET);
    server.next().await.refuse();
    server.next().await.refuse();
    let error = request.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "http://b/api/v1/nodes: connection refused");
    server.stays_quiet(Duration::from_secs(60)).await;
    assert_eq!(client.status().reachable, Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_answer_and_no_reason_to_go_elsewhere() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    for code in [400, 403, 404, 409, 410, 422, 429] {
        let request = ask(&client, Method::GET);
        let asked = server.next().await;
        assert_eq!(asked.host, "a");
        asked.status(code, &[("Retry-After", "3")]);
        let error = request.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), format!("http://a/api/v1/nodes: {code} Scripted: so it is"));
        assert_eq!((error.code(), error.retry_after()), (Some(code), Some(Duration::from_secs(3))));
    }
    assert_eq!(client.status().reachable, Some(true));
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_not_repeated() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let request = ask(&client, Method::POST);
    let stalled = server.next().await;
    assert_eq!(stalled.headers["content-type"], "application/json");
    let error = request.await.unwrap().unwrap_err();
    assert!(matches!(error, RequestError::Timeout { .. }), "{error}");
    // The next one goes to the other server all the same.
    let request = ask(&client, Method::PATCH);
    let asked = server.next().await;
    assert_eq!((asked.host.as_str(), &*asked.body), ("b", &b"{}"[..]));
    assert_eq!(asked.headers["content-type"], "application/merge-patch+json");
    asked.json(200, &json!({}));
    request.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_is_none() {
    let (client, mut server) = scripted(&["http://a"]);
    let request = ask(&client, Method::GET);
    let stream = server.next().await.stream();
    stream.write("{\"kind\":");
    stream.cut();
    let error = request.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("the answer broke off") && error.contains("reset by peer"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_no_status_is_quoted() {
    let (client, mut server) = scripted(&["http://a"]);
    let request = ask(&client, Method::GET);
    server.next().await.json(502, &json!("a proxy's words"));
    let error = request.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "http://a/api/v1/nodes: 502 Bad Gateway: \"a proxy's words\"");
}

#[tokio::test(start_paused = true)]
async fn what_exists_is_listed_with_versions_and_without_content() {
    let (client, mut server) = scripted(&["http://a"]);
    let resource =
        crate::kubernetes::Resource { kind: "Pod", path: "/api/v1/pods".into(), selector: "a=b".to_owned() };
    let listing = tokio::spawn(async move { crate::kubernetes::object_versions(&client, &resource).await });
    let asked = server.next().await;
    assert_eq!(asked.headers["accept"], "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    assert_eq!((asked.path.as_str(), asked.query["a"].as_str()), ("/api/v1/pods", "b"));
    let item = |namespace: &str, name: &str, version: &str| json!({"metadata": {"namespace": namespace, "name": name, "resourceVersion": version}});
    asked.json(
        200,
        &json!({"metadata": {"resourceVersion": "90", "continue": "2"}, "items": [item("x", "a", "7")]}),
    );
    let asked = server.next().await;
    assert_eq!(asked.query["continue"], "2");
    let cluster = json!({"metadata": {"name": "b", "resourceVersion": "8"}});
    asked.json(200, &json!({"metadata": {"resourceVersion": "91"}, "items": [item("x", "b", "9"), cluster]}));
    let (version, versions) = listing.await.unwrap().unwrap();
    assert_eq!(version, 90);
    let expected = [("b", 8), ("x/a", 7), ("x/b", 9)].map(|(name, version)| (name.to_owned(), version));
    assert_eq!(versions, expected.into());
}
