use super::*;

const KINDS: [&str; 12] = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"];

/// A dozen kinds behind one client, each in a watch.
async fn dozen() -> (Server, Client, Vec<Watch>, Vec<Stream>) {
    let (client, mut server) = scripted(&["http://a"]);
    let (to, mut told) = mpsc::channel(1024);
    tokio::spawn(async move { while told.recv().await.is_some() {} });
    let watches = KINDS.map(|kind| {
        let resource = Resource { kind, path: "/api/v1/services".into(), selector: String::new() };
        Watch::start(client.clone(), resource, WatchOptions::default(), to.clone())
    });
    let mut streams = Vec::new();
    while streams.len() < KINDS.len() {
        let asked = server.next().await;
        if asked.is_watch() {
            streams.push(asked.stream());
        } else {
            asked.json(200, &list(10, &[]));
        }
    }
    (server, client, watches.into(), streams)
}

/// The largest number of requests within any one second.
fn peak(times: &[Instant]) -> usize {
    let within = |from: Instant| {
        times.iter().filter(|at| **at >= from && **at - from < Duration::from_secs(1)).count()
    };
    times.iter().map(|from| within(*from)).max().unwrap_or(0)
}

/// Refuses everything for a while; when which request came.
async fn refuse(server: &mut Server, length: Duration) -> Vec<Instant> {
    let (until, mut times) = (Instant::now() + length, Vec::new());
    while let Ok(asked) = tokio::time::timeout_at(until, server.next()).await {
        times.push(asked.at);
        asked.refuse();
    }
    times
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_without_a_server_cost_little_and_the_return_keeps_the_rate() {
    let (mut server, client, watches, streams) = dozen().await;
    streams.into_iter().for_each(Stream::cut);
    let outage = refuse(&mut server, Duration::from_secs(600)).await;
    assert!(peak(&outage) <= 20, "{} requests a second, which is more than the burst", peak(&outage));
    let late = outage.iter().filter(|at| **at - outage[0] > Duration::from_secs(120)).count();
    assert!(late <= 12 * 480 / 15, "{late} requests in the last eight minutes");
    assert!(client.status().failures["unreachable"] >= 12);
    assert_eq!(client.status().reachable, Some(false));
    for watch in &watches {
        let status = watch.status();
        assert_eq!((status.state, status.synced, status.relists), (WatchState::Retrying, true, 0));
    }

    // It is back, and has forgotten everything: each kind costs a watch, a list and a watch.
    let (back, mut times, mut streams) = (Instant::now(), Vec::new(), Vec::new());
    while streams.len() < KINDS.len() {
        let asked = server.next().await;
        times.push(asked.at);
        assert!(times.len() <= 36, "{} requests for a watch, a list and a watch of each kind", times.len());
        match (asked.is_watch(), asked.is_watch() && asked.from() == "10") {
            (_, true) => asked.status(410, &[]),
            (true, false) => streams.push(asked.stream()),
            (false, _) => asked.json(200, &list(99, &[])),
        }
    }
    assert!(peak(&times) <= 11, "{} requests a second", peak(&times));
    // One found out within its wait, and the others need not wait for theirs.
    let took = *times.last().unwrap() - times[0];
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(times[0] - back <= Duration::from_secs(30));
    assert_eq!(client.status().reachable, Some(true));
}

#[tokio::test(start_paused = true)]
async fn watches_that_lose_their_server_together_do_not_come_back_in_one_moment() {
    let (mut server, _client, _watches, streams) = dozen().await;
    let cut = Instant::now();
    streams.into_iter().for_each(Stream::cut);
    let mut times = Vec::new();
    let mut streams = Vec::new();
    while streams.len() < KINDS.len() {
        let asked = server.next().await;
        assert_eq!(asked.from(), "10");
        times.push(asked.at - cut);
        streams.push(asked.stream());
    }
    times.sort();
    times.dedup();
    assert!(times.len() >= 10, "{times:?}");
    assert!(
        times[0] >= Duration::from_millis(250) && times[times.len() - 1] < Duration::from_secs(2),
        "{times:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn another_server_is_asked_when_a_watch_falls_silent() {
    let (client, mut server) = scripted(&["http://a", "http://b"]);
    let (to, mut told) = mpsc::channel(1024);
    let _watch = Watch::start(client.clone(), services(), WatchOptions::default(), to);
    let asked = server.next().await;
    assert_eq!(asked.host, "a");
    asked.json(200, &list(10, &[]));
    let stream = server.next().await.stream();
    stream.event("ADDED", &object("x", 11));
    // a is gone without a word; b knows the same versions.
    let asked: Asked = server.next().await;
    assert_eq!((asked.host.as_str(), asked.from()), ("b", "11"));
    asked.stream().event("ADDED", &object("y", 12));
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(short(&told.recv().await.unwrap().1));
    }
    assert_eq!(names, ["list", "end 10", "+x 11", "+y 12"]);
    assert_eq!(client.status().server, "http://b");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watch_speaks_is_reachable_though_a_request_failed() {
    let (mut rig, stream) = Rig::watching().await;
    let client = rig.client.clone();
    let request = tokio::spawn(async move { client.get("/api/v1/nodes").await });
    rig.server.next().await.status(503, &[]);
    request.await.unwrap().unwrap_err();
    assert_eq!(rig.client.status().reachable, Some(false));
    stream.event("ADDED", &object("a", 11));
    assert_eq!(rig.told(1).await, ["+a 11"]);
    assert_eq!(rig.client.status().reachable, Some(true));
}
