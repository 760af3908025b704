use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::*;
use crate::kubernetes::scripted::{Asked, Server, Stream, scripted};

mod failures;
mod lists;
mod misbehaviour;
mod outages;

/// A watch of a scripted server, and what it told.
struct Rig {
    server: Server,
    client: Client,
    watch: Watch,
    told: mpsc::Receiver<(&'static str, WatchEvent)>,
}

fn services() -> Resource {
    Resource { kind: "Service", path: "/api/v1/services".into(), selector: String::new() }
}

fn object(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": version.to_string()}})
}

/// A list that is whole.
fn list(version: u64, items: &[Value]) -> Value {
    json!({"kind": "ServiceList", "metadata": {"resourceVersion": version.to_string()}, "items": items})
}

impl Rig {
    fn start() -> Self {
        Self::with(WatchOptions::default())
    }

    fn with(options: WatchOptions) -> Self {
        let (client, server) = scripted(&["http://a"]);
        let (to, told) = mpsc::channel(1024);
        let watch = Watch::start(client.clone(), services(), options, to);
        Self { server, client, watch, told }
    }

    /// Past an empty list of version 10, in a watch that began there.
    async fn watching() -> (Self, Stream) {
        let mut rig = Self::start();
        rig.server.next().await.json(200, &list(10, &[]));
        assert_eq!(rig.told(2).await, ["list", "end 10"]);
        let asked = rig.server.next().await;
        assert_eq!((asked.path.as_str(), asked.from()), ("/api/v1/services", "10"));
        assert_eq!(asked.query["allowWatchBookmarks"], "true");
        let seconds: u64 = asked.query["timeoutSeconds"].parse().unwrap();
        assert!((300..600).contains(&seconds), "{seconds}");
        (rig, asked.stream())
    }

    /// The next `count` events, in short.
    async fn told(&mut self, count: usize) -> Vec<String> {
        let mut told = Vec::new();
        for _ in 0..count {
            let (kind, event) = timeout(Duration::from_secs(3600), self.told.recv())
                .await
                .unwrap_or_else(|_| panic!("an event after {told:?}"))
                .expect("a watch that runs");
            assert_eq!(kind, "Service");
            told.push(short(&event));
        }
        told
    }

    /// Nothing was told that was not taken.
    fn told_nothing_else(&mut self) {
        let more = self.told.try_recv();
        assert!(more.is_err(), "{:?}", more.map(|(_, event)| short(&event)));
    }

    fn errors(&self, reason: &str) -> u64 {
        self.watch.status().errors.get(reason).copied().unwrap_or_default()
    }
}

fn short(event: &WatchEvent) -> String {
    let name = |object: &RawValue| {
        let object: Value = serde_json::from_str(object.get()).unwrap();
        object["metadata"]["name"].as_str().unwrap().to_owned()
    };
    match event {
        WatchEvent::ListBegins => "list".to_owned(),
        WatchEvent::Listed(items) => items.iter().map(|item| name(item)).collect::<Vec<_>>().join(","),
        WatchEvent::ListEnds { version } => format!("end {version}"),
        WatchEvent::Applied { object, version } => format!("+{} {version}", name(object)),
        WatchEvent::Deleted { object, version } => format!("-{} {version}", name(object)),
        WatchEvent::Bookmark { version } => format!("= {version}"),
        WatchEvent::KindGone => "kind gone".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_told_in_order_and_a_bookmark_moves_the_version() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 11));
    stream.event("MODIFIED", &object("a", 12));
    stream.event("DELETED", &object("a", 15));
    assert_eq!(rig.told(3).await, ["+a 11", "+a 12", "-a 15"]);
    stream.event("BOOKMARK", &object("", 40));
    // The same again is no news.
    stream.event("BOOKMARK", &object("", 40));
    stream.cut();
    assert_eq!(rig.server.next().await.from(), "40");
    assert_eq!(rig.told(1).await, ["= 40"]);
    rig.told_nothing_else();
    let status = rig.watch.status();
    assert_eq!((status.version, status.events, status.synced), (40, 3, true));
}

#[tokio::test(start_paused = true)]
async fn an_object_is_told_as_the_server_wrote_it() {
    let (mut rig, stream) = Rig::watching().await;
    let text = r#"{"metadata":{"resourceVersion":"11","name":"a"},"odd":1.50e1,"é":"\u00e9 "}"#;
    stream.write(&format!(r#"{{"type":"ADDED","object":{text}}}"#));
    stream.write("\n");
    let (_, event) = rig.told.recv().await.unwrap();
    let WatchEvent::Applied { object, .. } = event else { panic!("{event:?}") };
    assert_eq!(object.get(), text);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_in_pieces_is_one_event() {
    let (mut rig, stream) = Rig::watching().await;
    let line = format!("{}\n\n", json!({"type": "ADDED", "object": object("a", 11)}));
    for byte in line.as_bytes() {
        stream.write(std::str::from_utf8(&[*byte]).unwrap());
    }
    // A piece may also be the end of a long one and all of a shorter one.
    let line = json!({"type": "ADDED", "object": object("b-that-is-longer", 12)}).to_string();
    let (begin, end) = line.split_at(line.len() - 3);
    stream.write(begin);
    stream.write(&format!("{end}\n{}\n", json!({"type": "ADDED", "object": object("c", 13)})));
    assert_eq!(rig.told(3).await, ["+a 11", "+b-that-is-longer 12", "+c 13"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_for_65_seconds_is_resumed_from_its_last_version() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 11));
    rig.told(1).await;
    let silent_since = Instant::now();
    // The socket stays open: nothing but the silence says that it is dead.
    let asked = rig.server.next().await;
    assert_eq!(asked.from(), "11");
    let silence = asked.at - silent_since;
    assert!((Duration::from_secs(65)..Duration::from_secs(66)).contains(&silence), "{silence:?}");
    stream.closed().await;
    let resumed = asked.stream();
    resumed.event("ADDED", &object("b", 12));
    assert_eq!(rig.told(1).await, ["+b 12"]);
    let status = rig.watch.status();
    assert_eq!((status.relists, status.resumes, rig.errors("silent")), (0, 1, 1));
    assert_eq!(rig.client.status().failures["timeout"], 1);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_keep_a_watch_alive() {
    let (mut rig, stream) = Rig::watching().await;
    for minute in 0..30 {
        stream.event("BOOKMARK", &object("", 11 + minute));
        rig.server.stays_quiet(Duration::from_secs(60)).await;
    }
    assert!(rig.watch.status().age_seconds <= 60.0);
    assert_eq!(rig.watch.status().resumes, 0);
}

#[tokio::test(start_paused = true)]
async fn of_a_kind_that_never_says_anything_the_silence_grows_until_it_does() {
    let (mut rig, first) = Rig::watching().await;
    let (mut stream, mut began) = (first, Instant::now());
    for silence in [65, 130, 260, 520, 600, 600] {
        let asked = rig.server.next().await;
        let passed = (asked.at - began).as_secs_f64();
        let expected = f64::from(silence);
        assert!((expected..expected + 1.0).contains(&passed), "{passed} s instead of {silence}");
        assert_eq!(asked.from(), "10");
        began = asked.at;
        stream = asked.stream();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(rig.watch.status().state, WatchState::Quiet);
    assert!(rig.watch.status().errors.is_empty(), "{:?}", rig.watch.status());
    // A sign of life, and the short silence counts again.
    stream.event("BOOKMARK", &object("", 20));
    let began = Instant::now();
    let asked = rig.server.next().await;
    assert!(asked.at - began < Duration::from_secs(66), "{:?}", asked.at - began);
    assert_eq!(rig.watch.status().state, WatchState::Retrying);
    let (_silent, began) = (asked.stream(), Instant::now());
    let asked = rig.server.next().await;
    assert!(asked.at - began < Duration::from_secs(66), "{:?}", asked.at - began);
    // Of a kind that spoke, a watch that never does is a fault as well: once, for the server may have begun anew.
    assert_eq!(rig.watch.status().errors.get("silent"), Some(&2));
    let (_silent, began) = (asked.stream(), Instant::now());
    let asked = rig.server.next().await;
    assert!(asked.at - began < Duration::from_secs(66), "{:?}", asked.at - began);
    assert_eq!(rig.watch.status().errors.get("silent"), Some(&2));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_was_told_already_is_dropped() {
    let (mut rig, stream) = Rig::watching().await;
    stream.event("ADDED", &object("a", 11));
    stream.event("ADDED", &object("a", 11));
    stream.event("ADDED", &object("b", 12));
    assert_eq!(rig.told(2).await, ["+a 11", "+b 12"]);
    assert_eq!(rig.watch.status().duplicates, 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_who_takes_events_ends_the_watch_and_its_status_says_so() {
    let (mut rig, stream) = Rig::watching().await;
    rig.told.close();
    stream.event("ADDED", &object("a", 11));
    stream.closed().await;
    rig.server.stays_quiet(Duration::from_secs(600)).await;
    let status = rig.watch.status();
    assert_eq!(status.state, WatchState::Ended);
    assert_eq!(status.last_error.as_deref(), Some("nobody takes its events any more"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_dropped_closes_its_connection() {
    let (rig, stream) = Rig::watching().await;
    let clone = rig.watch.clone();
    drop(rig.watch);
    assert!(timeout(Duration::from_secs(1), stream.closed()).await.is_err(), "a clone holds it");
    drop(clone);
    stream.closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_channel_holds_the_watch_back_and_loses_nothing() {
    let (client, mut server) = scripted(&["http://a"]);
    let (to, mut told) = mpsc::channel(1);
    let watch = Watch::start(client, services(), WatchOptions::default(), to);
    server.next().await.json(200, &list(10, &[object("a", 5)]));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(watch.status().state, WatchState::Listing);
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(short(&told.recv().await.unwrap().1));
    }
    assert_eq!(names, ["list", "a", "end 10"]);
    assert_eq!(server.next().await.from(), "10");
}
