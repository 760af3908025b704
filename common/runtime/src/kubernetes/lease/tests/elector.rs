//! The elector against an API server whose answers are given by hand.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::run::Run;
use super::super::{Elector, ElectorOptions, Leadership};
use super::TIMES;
use crate::kubernetes::scripted::{Asked, Server, Stream, options, scripted};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn elector() -> (Elector, Server, JoinHandle<()>) {
    let (client, server) = scripted(&["http://a"]);
    let options = ElectorOptions {
        client: options(&["http://a"]),
        namespace: "kube-system".to_owned(),
        name: "portway-operator".to_owned(),
        identity: "me".to_owned(),
        times: TIMES,
    };
    let (run, elector) = Run::over(client, options);
    (elector, server, tokio::spawn(run.run()))
}

fn lease(version: u64, holder: &str) -> Value {
    json!({
        "metadata": {"name": "portway-operator", "resourceVersion": version.to_string()},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": format!("2026-11-30T10:00:00.{version:06}Z"),
            "leaseTransitions": 3,
        },
    })
}

/// Answers list and watch, which come first, and gives the next request of the election.
async fn begin(server: &mut Server) -> (Stream, Asked) {
    let (mut stream, mut election) = (None, None);
    while stream.is_none() || election.is_none() {
        let asked = server.next().await;
        if asked.is_watch() {
            stream = Some(asked.stream());
        } else if asked.path == LEASES && asked.method == http::Method::GET {
            assert_eq!(asked.query["fieldSelector"], "metadata.name%3Dportway-operator");
            asked.json(200, &json!({"metadata": {"resourceVersion": "1"}, "items": []}));
        } else {
            election = Some(asked);
        }
    }
    (stream.unwrap(), election.unwrap())
}

/// Leads, with a lease of version 6.
async fn lead(server: &mut Server, elector: &Elector) -> Stream {
    let (stream, asked) = begin(server).await;
    let asked = if asked.method == http::Method::GET {
        assert_eq!(asked.path, format!("{LEASES}/portway-operator"));
        asked.status(404, &[]);
        server.next().await
    } else {
        asked
    };
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", LEASES));
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["spec"]["holderIdentity"], "me");
    assert_eq!(body["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(body["spec"]["renewTime"].as_str().unwrap().len(), "2026-11-30T10:00:00.000001Z".len());
    asked.json(201, &lease(6, "me"));
    let mut leadership = elector.leadership();
    let leads = |leadership: &Leadership| *leadership == Leadership::Leading { term: 3 };
    leadership.wait_for(leads).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn an_elector_leads_renews_and_gives_the_lease_back() {
    let (elector, mut server, _run) = elector();
    assert!(!elector.fence().is_open());
    let stream = lead(&mut server, &elector).await;
    assert!(elector.fence().is_open());
    let asked = server.next().await;
    assert_eq!(asked.method.as_str(), "PATCH");
    assert_eq!(asked.headers["content-type"], "application/merge-patch+json");
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["metadata"]["resourceVersion"], "6");
    assert_eq!(body["spec"]["leaseTransitions"], 3);
    assert_eq!(body["spec"].get("acquireTime"), None, "{body}");
    asked.json(200, &lease(7, "me"));
    stream.event("MODIFIED", &lease(7, "me"));
    let fence = elector.fence().clone();
    let stopping = tokio::spawn(elector.stop());
    let asked = server.next().await;
    assert!(!fence.is_open(), "nothing is written once the lease is given back");
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert_eq!(
        (&body["spec"]["holderIdentity"], &body["spec"]["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );
    asked.json(200, &lease(8, ""));
    assert!(stopping.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_elector_whose_renewals_are_lost_closes_the_fence_before_it_stands_by() {
    let (elector, mut server, _run) = elector();
    let _stream = lead(&mut server, &elector).await;
    let began = tokio::time::Instant::now();
    let mut leadership = elector.leadership();
    leadership.mark_unchanged();
    let silent = tokio::spawn(async move {
        loop {
            server.next().await.refuse();
        }
    });
    while elector.fence().is_open() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let closed = began.elapsed().as_secs_f64();
    // A write takes four seconds at most: none goes on when the lease is over.
    assert!((5.9..6.1).contains(&closed), "{closed}");
    leadership.changed().await.unwrap();
    let stood_by = began.elapsed().as_secs_f64();
    assert!((9.9..10.1).contains(&stood_by), "{stood_by}");
    assert_eq!(*leadership.borrow(), Leadership::Standby { leader: None });
    assert!(elector.status().failures > 2);
    silent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_standby_takes_a_lease_that_is_given_back_as_soon_as_its_watch_tells() {
    let (elector, mut server, _run) = elector();
    let (stream, asked) = begin(&mut server).await;
    // Whether it looked or was told that there is none, somebody else was faster.
    let code = if asked.method == http::Method::GET { 200 } else { 409 };
    asked.json(code, &lease(5, "other"));
    stream.event("ADDED", &lease(6, "other"));
    let mut leadership = elector.leadership();
    let waits =
        |leadership: &Leadership| *leadership == Leadership::Standby { leader: Some("other".to_owned()) };
    leadership.wait_for(waits).await.unwrap();
    let began = tokio::time::Instant::now();
    stream.event("MODIFIED", &lease(7, ""));
    let mut asked = server.next().await;
    if asked.method == http::Method::GET {
        asked.json(200, &lease(7, ""));
        asked = server.next().await;
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!(body["spec"]["leaseTransitions"], 4);
    asked.json(200, &lease(8, "me"));
    leadership.wait_for(|leadership| matches!(leadership, Leadership::Leading { .. })).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_stopped_while_the_server_is_away_takes_a_few_seconds() {
    let (elector, mut server, run) = elector();
    let _stream = lead(&mut server, &elector).await;
    let _unanswered = server.next().await;
    let began = tokio::time::Instant::now();
    assert!(!elector.stop().await);
    assert!(began.elapsed() <= Duration::from_secs(3), "{:?}", began.elapsed());
    run.await.unwrap();
}
