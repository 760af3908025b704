use super::*;

#[tokio::test(start_paused = true)]
async fn half_an_event_is_not_told_and_the_watch_resumes() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 11));
    stream.write(r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"12","#);
    drop(stream);
    let asked = rig.server.next().await;
    assert_eq!(asked.from(), "11");
    asked.stream().event("ADDED", &object("b", 12));
    assert_eq!(rig.told(2).await, ["+a 11", "+b 12"]);
    assert_eq!((rig.errors("half-line"), rig.watch.status().relists), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_read_is_asked_for_again_and_then_listed() {
    let (mut rig, first) = Rig::watching().await;
    let mut stream = first;
    for time in 0..4 {
        stream.event("ADDED", &json!({"metadata": {"name": "a", "resourceVersion": "eleven"}}));
        let asked = rig.server.next().await;
        if time == 3 {
            assert!(!asked.is_watch());
            asked.json(200, &list(12, &[object("a", 11)]));
            break;
        }
        assert_eq!(asked.from(), "10");
        stream = asked.stream();
    }
    assert_eq!(rig.told(3).await, ["list", "a", "end 12"]);
    assert_eq!((rig.errors("undecodable"), rig.watch.status().relists), (4, 1));
    assert!(rig.watch.status().last_error.unwrap().contains("\"eleven\" is not a number"));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_event_is_named() {
    for (line, problem) in [
        ("garbage", "expected value"),
        (r#"{"type":"RENAMED","object":{"metadata":{"resourceVersion":"11"}}}"#, "\"RENAMED\""),
        (r#"{"type":"ADDED","object":{"metadata":{}}}"#, "resourceVersion"),
        (r#"{"type":"ADDED"}"#, "object"),
    ] {
        let (mut rig, stream) = Rig::watching().await;
        stream.write(&format!("{line}\n"));
        assert_eq!(rig.server.next().await.from(), "10");
        let error = rig.watch.status().last_error.unwrap();
        assert!(error.contains(problem), "{line}: {error}");
        assert_eq!(rig.errors("undecodable"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_without_an_end_is_given_up_at_a_limit() {
    let mut rig = Rig::with(WatchOptions { max_line_bytes: 1000, ..WatchOptions::default() });
    rig.server.next().await.json(200, &list(10, &[]));
    let stream = rig.server.next().await.stream();
    for _ in 0..11 {
        stream.write(&"x".repeat(100));
    }
    stream.closed().await;
    assert_eq!(rig.server.next().await.from(), "10");
    assert_eq!(rig.watch.status().last_error.as_deref(), Some("an event is longer than 1000 bytes"));
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() {
    let (mut rig, stream) = Rig::watching().await;
    stream.cut();
    let asked = rig.server.next().await;
    let began = asked.at;
    asked.status(429, &[("Retry-After", "40")]);
    let asked = rig.server.next().await;
    let waited = asked.at - began;
    assert!((Duration::from_secs(40)..Duration::from_secs(42)).contains(&waited), "{waited:?}");
    assert_eq!((asked.from(), rig.errors("429")), ("10", 1));
    // The same in the stream, where the status says how long.
    let stream = asked.stream();
    let began = Instant::now();
    stream.event("ERROR", &json!({"code": 429, "message": "busy", "details": {"retryAfterSeconds": 7}}));
    let waited = rig.server.next().await.at - began;
    assert!((Duration::from_secs(7)..Duration::from_secs(9)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_asked_ever_more_rarely_from_the_same_version() {
    let (mut rig, stream) = Rig::watching().await;
    stream.cut();
    let mut waits = Vec::new();
    let mut failed = Instant::now();
    for code in [500, 502, 503, 504, 500, 500, 403, 401, 500, 500] {
        let asked = rig.server.next().await;
        assert_eq!(asked.from(), "10");
        waits.push((asked.at - failed).as_secs_f64());
        failed = asked.at;
        asked.status(code, &[]);
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    for (wait, upper) in waits.iter().zip([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]) {
        // The rate limit adds a tenth of a second at most.
        assert!((upper / 2.0..upper + 0.11).contains(wait), "{waits:?}");
    }
    assert_eq!((rig.watch.status().relists, rig.errors("500"), rig.errors("403")), (0, 5, 1));
    assert_eq!(rig.watch.status().state, WatchState::Retrying);
    // Once it answers and tells something, everything is forgotten.
    let stream = rig.server.next().await.stream();
    stream.event("ADDED", &object("a", 11));
    rig.told(1).await;
    stream.cut();
    let cut = Instant::now();
    let asked = rig.server.next().await;
    assert!(asked.at - cut < Duration::from_secs(1), "{:?}", asked.at - cut);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ended_in_good_order_resumes_at_once() {
    let (mut rig, stream) = Rig::watching().await;
    for minute in 0..5 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        stream.event("BOOKMARK", &object("", 11 + minute));
    }
    let ended = Instant::now();
    drop(stream);
    let asked = rig.server.next().await;
    assert_eq!(asked.from(), "15");
    assert!(asked.at - ended < Duration::from_millis(600), "{:?}", asked.at - ended);
    assert!(rig.watch.status().errors.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_watch_at_once_is_asked_ever_more_rarely() {
    let (mut rig, stream) = Rig::watching().await;
    drop(stream);
    let mut last = Duration::ZERO;
    for _ in 0..8 {
        let began = Instant::now();
        let asked = rig.server.next().await;
        last = asked.at - began;
        drop(asked.stream());
    }
    assert!(last >= Duration::from_secs(15), "{last:?}");
    assert_eq!(rig.errors("ended"), 8);
}

/// A definition that is deleted takes its kind with it, and a new one brings it back.
#[tokio::test(start_paused = true)]
async fn a_kind_that_goes_is_told_once_and_listed_when_it_is_back() {
    let (mut rig, stream) = Rig::watching().await;
    stream.cut();
    rig.server.next().await.status(404, &[]);
    for _ in 0..3 {
        let asked = rig.server.next().await;
        assert!(!asked.is_watch());
        asked.status(404, &[]);
    }
    assert_eq!(rig.told(2).await, ["list", "kind gone"]);
    rig.told_nothing_else();
    assert_eq!((rig.watch.status().synced, rig.watch.unheard()), (false, None));
    rig.server.next().await.json(200, &list(20, &[object("b", 15)]));
    assert_eq!(rig.told(2).await, ["b", "end 20"]);
    assert!(rig.watch.status().synced && rig.watch.unheard().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_alone_is_no_news_but_events_and_bookmarks_and_an_open_watch_of_a_quiet_kind_are() {
    let (mut rig, stream) = Rig::watching().await;
    let heard = |rig: &Rig| rig.watch.unheard().map(|unheard| unheard.as_secs());
    assert_eq!(heard(&rig), Some(0));
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(heard(&rig), Some(50));
    stream.event("BOOKMARK", &object("", 11));
    assert_eq!(rig.told(1).await, ["= 11"]);
    assert_eq!(heard(&rig), Some(0));
    tokio::time::sleep(Duration::from_secs(30)).await;
    stream.cut();
    let _open = rig.server.next().await.stream();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(heard(&rig) >= Some(31), "{:?}", heard(&rig));
    // It is silent, which is a fault; the next silence is none, and the watch after that one is of a quiet kind.
    let _silent = rig.server.next().await.stream();
    let _quiet = rig.server.next().await.stream();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(heard(&rig), Some(0));
}
