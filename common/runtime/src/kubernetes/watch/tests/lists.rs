use super::*;

/// A page after which there is another one.
fn page(version: u64, next: &str, items: &[Value]) -> Value {
    json!({"metadata": {"resourceVersion": version.to_string(), "continue": next}, "items": items})
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages_and_is_of_the_first_ones_version() {
    let mut rig = Rig::start();
    let asked = rig.server.next().await;
    assert_eq!(asked.query["limit"], "500");
    assert!(!asked.query.contains_key("resourceVersion"), "the newest is wanted");
    asked.json(200, &page(10, "to/ken=", &[object("a", 3), object("b", 4)]));
    let asked = rig.server.next().await;
    assert_eq!(asked.query["continue"], "to%2Fken%3D");
    asked.json(200, &json!({"metadata": {"resourceVersion": "12"}, "items": [object("c", 5)]}));
    assert_eq!(rig.told(4).await, ["list", "a,b", "c", "end 10"]);
    assert_eq!(rig.server.next().await.from(), "10");
    assert_eq!(rig.watch.status().relists, 0);
}

#[tokio::test(start_paused = true)]
async fn the_pages_of_a_long_list_wait_for_the_server_alone() {
    let mut rig = Rig::start();
    let began = Instant::now();
    for _ in 0..150 {
        rig.server.next().await.json(200, &page(10, "more", &[object("a", 3)]));
    }
    rig.server.next().await.json(200, &list(10, &[]));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_list_without_items_is_an_empty_one() {
    let mut rig = Rig::start();
    rig.server.next().await.json(200, &json!({"metadata": {"resourceVersion": "7"}, "items": null}));
    assert_eq!(rig.told(2).await, ["list", "end 7"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_fails_is_asked_for_again_and_the_others_are_not() {
    let mut rig = Rig::start();
    rig.server.next().await.json(200, &page(10, "2nd", &[object("a", 3)]));
    rig.server.next().await.status(503, &[]);
    let asked = rig.server.next().await;
    assert_eq!(asked.query["continue"], "2nd");
    asked.json(200, &list(10, &[object("b", 4)]));
    assert_eq!(rig.told(4).await, ["list", "a", "b", "end 10"]);
    assert_eq!(rig.errors("503"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_took_too_long_begins_anew() {
    let mut rig = Rig::start();
    rig.server.next().await.json(200, &page(10, "2nd", &[object("a", 3)]));
    rig.server.next().await.status(410, &[]);
    let asked = rig.server.next().await;
    assert!(!asked.query.contains_key("continue"));
    asked.json(200, &list(90, &[object("b", 4)]));
    assert_eq!(rig.told(5).await, ["list", "a", "list", "b", "end 90"]);
    assert_eq!(rig.server.next().await.from(), "90");
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_be_of_some_objects_only() {
    let (client, mut server) = scripted(&["http://a"]);
    let (to, _told) = mpsc::channel(8);
    let selector = "fieldSelector=metadata.name%3Dnode-1".to_owned();
    let resource = Resource { kind: "Node", path: "/api/v1/nodes".into(), selector };
    let _watch = Watch::start(client, resource, WatchOptions::default(), to);
    let asked = server.next().await;
    assert_eq!(asked.query["fieldSelector"], "metadata.name%3Dnode-1");
    asked.json(200, &list(10, &[]));
    let asked = server.next().await;
    assert_eq!((asked.from(), asked.query["fieldSelector"].as_str()), ("10", "metadata.name%3Dnode-1"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_forgot_lists_again_and_the_list_replaces() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 11));
    assert_eq!(rig.told(1).await, ["+a 11"]);
    stream.cut();
    let asked = rig.server.next().await;
    assert_eq!(asked.from(), "11");
    let gone = asked.at;
    asked.status(410, &[]);
    let asked = rig.server.next().await;
    assert!(!asked.is_watch());
    assert!(asked.at - gone < Duration::from_secs(1), "{:?}", asked.at - gone);
    asked.json(200, &list(50, &[object("b", 40)]));
    // a was not named: whoever takes the events knows that it is gone.
    assert_eq!(rig.told(3).await, ["list", "b", "end 50"]);
    assert_eq!(rig.server.next().await.from(), "50");
    assert_eq!((rig.watch.status().relists, rig.errors("gone")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_server_may_forget_in_the_middle_of_a_watch() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ERROR", &json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}));
    rig.server.next().await.json(200, &list(50, &[]));
    assert_eq!(rig.told(2).await, ["list", "end 50"]);
    assert_eq!(rig.server.next().await.from(), "50");
    assert!(rig.watch.status().last_error.unwrap().ends_with("410 Expired: too old"));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_goes_backwards_is_not_told_and_lists_again() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 20));
    stream.event("ADDED", &object("b", 19));
    rig.server.next().await.json(200, &list(21, &[object("a", 20), object("b", 19)]));
    assert_eq!(rig.told(4).await, ["+a 20", "list", "a,b", "end 21"]);
    assert_eq!((rig.watch.status().relists, rig.errors("backwards")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_after_its_own_bookmark_lists_again() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("BOOKMARK", &object("", 11));
    stream.event("ADDED", &object("a", 11));
    rig.server.next().await.json(200, &list(11, &[object("a", 11)]));
    assert_eq!(rig.told(4).await, ["= 11", "list", "a", "end 11"]);
    assert_eq!((rig.watch.status().relists, rig.errors("backwards")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_goes_backwards_is_listed_ever_more_rarely() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 9));
    let mut waits = Vec::new();
    for _ in 0..9 {
        let began = Instant::now();
        let asked = rig.server.next().await;
        waits.push(asked.at - began);
        asked.json(200, &list(10, &[]));
        rig.server.next().await.stream().event("ADDED", &object("a", 9));
    }
    assert!(waits[0] < Duration::from_secs(1), "{waits:?}");
    assert!(waits[8] >= Duration::from_secs(15), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_knows_better_has_it_listed_again() {
    let (mut rig, stream) = Rig::watching().await;
    // The watch is up: the first word ends it, and the second one waits for whatever comes next.
    tokio::time::sleep(Duration::from_millis(1)).await;
    rig.watch.relist();
    rig.watch.relist();
    rig.server.next().await.json(200, &list(11, &[]));
    assert_eq!(rig.told(2).await, ["list", "end 11"]);
    stream.closed().await;
    let _stream = rig.server.next().await.stream();
    rig.server.stays_quiet(Duration::from_secs(60)).await;
    let status = rig.watch.status();
    assert_eq!((status.relists, status.errors.len()), (1, 0), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_is_tried_at_once_when_somebody_knows_that_there_is_one() {
    let mut rig = Rig::start();
    // The kind is not defined yet.
    for _ in 0..9 {
        rig.server.next().await.status(404, &[]);
    }
    // The next try is many seconds away.
    rig.server.stays_quiet(Duration::from_secs(2)).await;
    rig.watch.relist();
    let before = Instant::now();
    let asked = rig.server.next().await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    // The API server says that it knows a kind some moments before it lists it.
    asked.status(404, &[]);
    rig.server.next().await.json(200, &list(11, &[]));
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(rig.told(3).await, ["list", "list", "end 11"]);
    // It is not listed once more for that.
    let asked = rig.server.next().await;
    assert_eq!((asked.from(), rig.watch.status().relists), ("11", 0));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_no_server_knows_yet_is_waited_for_and_then_listed() {
    let (mut rig, stream) = Rig::watching().await;
    stream.cut();
    let ahead = json!({"kind": "Status", "code": 504, "reason": "Timeout", "message": "Too large resource version",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1}});
    for _ in 0..4 {
        let asked = rig.server.next().await;
        assert_eq!(asked.from(), "10");
        asked.json(504, &ahead);
    }
    // etcd was restored from a copy: its versions are of an earlier time.
    rig.server.next().await.json(200, &list(3, &[]));
    assert_eq!(rig.told(2).await, ["list", "end 3"]);
    assert_eq!(rig.server.next().await.from(), "3");
}
