use std::time::Duration;

use serde_json::{Value, json};

use super::series::COUNT_INTERVAL;
use super::*;
use crate::kubernetes::scripted::{Asked, Server, scripted};

const REPORTER: fn() -> Reporter =
    || Reporter { controller: "portway-agent", instance: "node-1".to_owned(), action: "Program" };

fn recorder() -> (EventRecorder, Client, Server) {
    let (client, server) = scripted(&["http://a"]);
    (EventRecorder::start(client.clone(), REPORTER()), client, server)
}

fn service(name: &str) -> Regarding {
    Regarding {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: "u-1".to_owned(),
    }
}

fn refuse(recorder: &EventRecorder, name: &str) {
    recorder.record(service(name), EventType::Warning, "Refused", "port 80 is another service's".to_owned());
}

fn body(asked: &Asked) -> Value {
    serde_json::from_slice(&asked.body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_event_says_what_the_api_demands() {
    let (recorder, _client, mut server) = recorder();
    refuse(&recorder, "web");
    let asked = server.next().await;
    assert_eq!(
        (&asked.method, asked.path.as_str()),
        (&Method::POST, "/apis/events.k8s.io/v1/namespaces/shop/events")
    );
    let event = body(&asked);
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web.") && name.len() == "web.".len() + 12, "{name}");
    let time = event["eventTime"].as_str().unwrap();
    assert!(time.len() == "2026-11-30T07:00:00.000000Z".len() && time.ends_with('Z'), "{time}");
    let mut rest = event.clone();
    for field in ["metadata", "eventTime"] {
        rest.as_object_mut().unwrap().remove(field);
    }
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "type": "Warning", "reason": "Refused", "action": "Program",
        "note": "port 80 is another service's", "reportingController": "portway-agent",
        "reportingInstance": "node-1", "series": null,
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u-1"},
    });
    assert_eq!(rest, expected);
}

#[tokio::test(start_paused = true)]
async fn what_repeats_is_one_event_whose_count_is_told_now_and_then() {
    let (recorder, _client, mut server) = recorder();
    refuse(&recorder, "web");
    let asked = server.next().await;
    let (made, name) = (asked.at, body(&asked)["metadata"]["name"].as_str().unwrap().to_owned());
    asked.json(201, &json!({}));
    for _ in 0..1000 {
        refuse(&recorder, "web");
        sleep(Duration::from_millis(100)).await;
    }
    let asked = server.next().await;
    assert_eq!((&asked.method, asked.path.ends_with(&format!("/events/{name}"))), (&Method::PATCH, true));
    assert!(asked.at - made >= COUNT_INTERVAL, "{:?}", asked.at - made);
    assert_eq!(body(&asked)["series"]["count"], 1001);
    asked.json(200, &json!({}));
    server.stays_quiet(Duration::from_secs(1200)).await;
    assert_eq!(
        recorder.status(),
        RecorderStatus { recorded: 1001, written: 2, dropped: 0, last_error: None }
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_of_the_cluster_has_its_events_in_the_default_namespace() {
    let (recorder, _client, mut server) = recorder();
    let node = Regarding { kind: "Node".to_owned(), name: "n".to_owned(), ..Regarding::default() };
    recorder.record(node, EventType::Normal, "Healed", "é".repeat(1000));
    let asked = server.next().await;
    assert_eq!(asked.path, "/apis/events.k8s.io/v1/namespaces/default/events");
    let event = body(&asked);
    assert_eq!(event["note"].as_str().unwrap().len(), 1024, "cut between characters");
    assert!(event["regarding"].get("namespace").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_event_that_has_expired_is_made_anew() {
    let (recorder, _client, mut server) = recorder();
    refuse(&recorder, "web");
    server.next().await.json(201, &json!({}));
    sleep(COUNT_INTERVAL).await;
    refuse(&recorder, "web");
    let asked = server.next().await;
    assert_eq!(asked.method, Method::PATCH);
    asked.status(404, &[]);
    sleep(Duration::from_secs(1)).await;
    refuse(&recorder, "web");
    assert_eq!(server.next().await.method, Method::POST);
    assert!(recorder.status().last_error.unwrap().contains("404"));
}

#[tokio::test(start_paused = true)]
async fn events_take_a_fifth_of_the_rate_and_wait_for_everybody_else() {
    let (recorder, client, mut server) = recorder();
    for number in 0..20 {
        refuse(&recorder, &format!("web-{number}"));
    }
    let began = Instant::now();
    for _ in 0..20 {
        server.next().await.json(201, &json!({}));
    }
    let took = began.elapsed().as_secs_f64();
    assert!((9.5..10.5).contains(&took), "20 events at 2 a second took {took} s");

    // Somebody uses all of the rate: no event comes through until that ends.
    refuse(&recorder, "late");
    let busy = client.clone();
    let others = tokio::spawn(async move {
        for _ in 0..100 {
            drop(busy.get("/other").await);
        }
    });
    let mut between = 0;
    loop {
        let asked = server.next().await;
        if asked.method == Method::POST {
            break;
        }
        between += 1;
        asked.json(200, &json!({}));
    }
    assert!(between >= 90, "the event came after {between} of 100 requests");
    others.abort();
}

#[tokio::test(start_paused = true)]
async fn without_a_server_recording_does_not_wait_and_what_is_lost_is_counted() {
    let (recorder, _client, mut server) = recorder();
    for number in 0..2000 {
        refuse(&recorder, &format!("web-{number}"));
    }
    let status = recorder.status();
    assert_eq!((status.recorded, status.dropped), (2000, 2000 - QUEUE as u64));
    let until = Instant::now() + Duration::from_secs(400);
    while let Ok(asked) = tokio::time::timeout_at(until, server.next()).await {
        asked.refuse();
    }
    let status = recorder.status();
    assert!(status.dropped > 2000 - QUEUE as u64 && status.written == 0, "{status:?}");
    assert!(status.last_error.unwrap().contains("connection refused"));
}
