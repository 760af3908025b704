use std::time::Duration;

use super::*;
use crate::kubernetes::fence::Fence;

const LIMIT: Duration = Duration::from_secs(4);

/// Open for so many seconds from now on.
fn fence(seconds: u64) -> Fence {
    let fence = Fence::new(LIMIT);
    fence.open_until(Instant::now() + Duration::from_secs(seconds));
    fence
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_everything_but_gets_is_refused_and_counted() {
    let (client, mut server) = scripted(&["http://a"]);
    let fence = Fence::new(LIMIT);
    let client = client.fenced(fence.clone());
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let error = client.send(method, "/api/v1/nodes?x=1", Vec::new()).await.unwrap_err();
        assert!(matches!(error, RequestError::Fenced { .. }), "{error}");
        assert_eq!(error.to_string(), "http://a/api/v1/nodes: not written, for the lease is not held");
    }
    let error = client.patch("/api/v1/nodes/a", PatchType::Strategic, b"{}".to_vec()).await.unwrap_err();
    assert_eq!((error.label().as_str(), error.code(), error.blames_server()), ("fenced", None, false));
    assert_eq!((fence.refused(), fence.passed(), fence.under_way()), (5, 0, 0));
    let request = ask(&client, Method::GET);
    server.next().await.json(200, &json!({}));
    request.await.unwrap().unwrap();
    server.stays_quiet(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_passes_while_the_lease_is_held_for_as_long_as_it_may_take() {
    let (client, mut server) = scripted(&["http://a"]);
    let fence = fence(10);
    let client = client.fenced(fence.clone());
    tokio::time::sleep(Duration::from_millis(5990)).await;
    let write = ask(&client, Method::POST);
    server.next().await.json(201, &json!({}));
    write.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(matches!(ask(&client, Method::POST).await.unwrap(), Err(RequestError::Fenced { .. })));
    // Renewed.
    fence.open_until(Instant::now() + Duration::from_secs(10));
    let write = ask(&client, Method::POST);
    server.next().await.json(201, &json!({}));
    write.await.unwrap().unwrap();
    fence.close();
    assert!(matches!(ask(&client, Method::POST).await.unwrap(), Err(RequestError::Fenced { .. })));
    assert_eq!((fence.passed(), fence.refused()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waited_for_the_rate_limit_is_looked_at_when_it_is_sent() {
    let (client, mut server) = scripted(&["http://a"]);
    let fence = fence(5);
    let client = client.fenced(fence.clone());
    // The burst of 20, and 10 a second after it: the last one's turn is after two seconds.
    let writes: Vec<_> = (0..40).map(|_| ask(&client, Method::POST)).collect();
    let answering = tokio::spawn(async move {
        loop {
            server.next().await.json(201, &json!({}));
        }
    });
    let mut refused = 0;
    for write in writes {
        refused += u32::from(matches!(write.await.unwrap(), Err(RequestError::Fenced { .. })));
    }
    assert!((9..=11).contains(&refused), "{refused} of those that waited for more than a second");
    assert_eq!(fence.refused(), u64::from(refused));
    answering.abort();
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_within_the_limit_whatever_it_waits_for() {
    // An answer that does not come.
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let fenced = client.fenced(fence(60));
    let began = Instant::now();
    let write = ask(&fenced, Method::POST);
    let _unanswered = server.next().await;
    let error = write.await.unwrap().unwrap_err();
    assert!(matches!(error, RequestError::Timeout { after: LIMIT, .. }), "{error}");
    assert_eq!(began.elapsed(), LIMIT);
    // An answer that is never whole.
    let write = ask(&fenced, Method::POST);
    let stream = server.next().await.stream();
    stream.write("{");
    assert!(matches!(write.await.unwrap(), Err(RequestError::Timeout { .. })));
    // A turn that does not come: each of these is one of the ten a second.
    let began = Instant::now();
    let writes: Vec<_> = (0..200).map(|_| ask(&fenced, Method::POST)).collect();
    for write in writes {
        assert!(write.await.unwrap().is_err());
    }
    assert_eq!(began.elapsed(), LIMIT);
}

#[tokio::test(start_paused = true)]
async fn the_next_server_is_asked_only_while_the_lease_is_held() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let fence = fence(60);
    let client = client.fenced(fence.clone());
    let write = ask(&client, Method::POST);
    let asked = server.next().await;
    fence.close();
    asked.refuse();
    assert!(matches!(write.await.unwrap(), Err(RequestError::Fenced { .. })));
    server.stays_quiet(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn who_stands_down_can_wait_for_the_writes_under_way() {
    let (client, mut server) = scripted(&["http://a"]);
    let fence = fence(60);
    let client = client.fenced(fence.clone());
    fence.idle().await;
    let writes = [ask(&client, Method::POST), ask(&client, Method::DELETE)];
    let (first, second) = (server.next().await, server.next().await);
    fence.close();
    assert_eq!(fence.under_way(), 2);
    let waiting = tokio::spawn({
        let fence = fence.clone();
        async move { fence.idle().await }
    });
    first.json(200, &json!({}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    second.json(200, &json!({}));
    waiting.await.unwrap();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    assert_eq!(fence.under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_patch_says_how_it_is_to_be_read() {
    let (client, mut server) = scripted(&["http://a"]);
    for (patch, content_type) in [
        (PatchType::Strategic, "application/strategic-merge-patch+json"),
        (PatchType::Merge, "application/merge-patch+json"),
    ] {
        let client = client.clone();
        let sent = tokio::spawn(async move { client.patch("/api/v1/nodes/a", patch, b"{}".to_vec()).await });
        let asked = server.next().await;
        assert_eq!(
            (asked.method.as_str(), &asked.headers["content-type"]),
            ("PATCH", &content_type.parse().unwrap())
        );
        asked.json(200, &json!({}));
        sent.await.unwrap().unwrap();
    }
}

/// 300 writes at 10 a second; a renewal comes after the end of the term, and then the next term.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_is_refused_when_its_term_ends_and_passes_in_no_other() {
    let (client, mut server) = scripted(&["http://a"]);
    let fence = fence(60);
    let (old, new) = (fence.of_term(), fence.of_term());
    let writes: Vec<_> = (0..300).map(|_| ask(&client.fenced(old.clone()), Method::POST)).collect();
    let sent = [server.next().await, server.next().await];
    let began = Instant::now();
    old.end();
    fence.open_until(Instant::now() + Duration::from_secs(60));
    assert!(!old.is_open() && new.is_open());
    for asked in sent {
        asked.json(201, &json!({}));
    }
    let answering = tokio::spawn(async move {
        loop {
            server.next().await.json(201, &json!({}));
        }
    });
    let mut refused = 0;
    for write in writes {
        refused += u32::from(matches!(write.await.unwrap(), Err(RequestError::Fenced { .. })));
    }
    old.idle().await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert!((280..=298).contains(&refused), "{refused}");
    // Their turns are given back: nobody waits behind them.
    ask(&client.fenced(new), Method::POST).await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    answering.abort();
}
