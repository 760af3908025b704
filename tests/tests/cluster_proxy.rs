//! The fault proxy itself: each fault is what its name says.

use std::time::{Duration, Instant};

use anyhow::Result;
use http::Method;
use portway_tests::harness::cluster::api::has_code;
use portway_tests::harness::cluster::identity::AGENT_TOKEN;
use portway_tests::harness::cluster::{ApiClient, ControlPlane};
use portway_tests::harness::fault::{EventFault, Reach, RequestFault};
use portway_tests::harness::manifest::{Service, TCP};
use portway_tests::harness::{FaultProxy, Namespace, eventually};

const SERVICES: &str = "/api/v1/services";
/// Without the service that the API server makes of itself, some time after its start.
const MINE: &str = "/api/v1/services?fieldSelector=metadata.name%21%3Dkubernetes";
const PATIENCE: Duration = Duration::from_millis(500);

/// A control plane with services `a` to `d`, made one after the other; a client by the proxy.
fn set_up() -> Result<(ControlPlane, FaultProxy, ApiClient)> {
    let namespace = Namespace::new("cluster")?;
    let control_plane = ControlPlane::start(&namespace)?;
    for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let service = Service::new(name, &[&format!("10.96.0.{}", 10 + n)]).port("http", TCP, 80);
        control_plane.client().apply(&service.into())?;
    }
    let proxy = FaultProxy::start(&control_plane)?;
    let address = proxy.url().trim_start_matches("https://").parse()?;
    let client = ApiClient::new(&namespace, address, control_plane.identity(), AGENT_TOKEN)?;
    Ok((control_plane, proxy, client))
}

#[test]
fn requests_are_passed_on_counted_and_failed() -> Result<()> {
    let (_control_plane, proxy, client) = set_up()?;
    assert_eq!(client.list(MINE)?.len(), 4);
    assert_eq!((proxy.lists(SERVICES), proxy.watches(SERVICES)), (1, 0));
    // The agent's rights, not the proxy's.
    assert!(has_code(&client.get("/api/v1/secrets").unwrap_err(), 403));
    for code in [410, 429, 500] {
        proxy.on_requests(move |_| RequestFault::Status(code, Some(1)));
        assert!(has_code(&client.list(MINE).unwrap_err(), code));
    }
    for fault in
        [RequestFault::Refuse, RequestFault::Half, RequestFault::HalfInChunks, RequestFault::HalfJson]
    {
        proxy.on_requests(move |_| fault);
        assert!(client.list(MINE).is_err(), "{fault:?}");
    }
    proxy.on_requests(|_| RequestFault::Delay(PATIENCE));
    let delayed = Instant::now();
    assert!(client.list(MINE).is_ok() && delayed.elapsed() >= PATIENCE);
    proxy.behave();
    assert_eq!(client.list(MINE)?.len(), 4);
    assert!(client.request(Method::GET, "/readyz", "", None).is_err(), "it is no JSON");
    Ok(())
}

#[test]
fn an_api_server_is_gone_or_silent_and_comes_back() -> Result<()> {
    let (_control_plane, proxy, client) = set_up()?;
    proxy.set_reach(Reach::Refused);
    assert!(client.list(MINE).is_err());
    proxy.set_reach(Reach::Up);
    let listed = eventually(Duration::from_secs(5), "the proxy to listen again", || client.list(MINE))?;
    assert_eq!(listed.len(), 4);
    // A watch whose connection is cut ends, and not as it should.
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| client.watch("/api/v1/services?watch=1", Duration::from_secs(20)));
        while proxy.watches(SERVICES) == 0 {
            std::thread::yield_now();
        }
        proxy.set_reach(Reach::Silent);
        // An error where it had not begun to be answered.
        assert!(!watching.join().unwrap().is_ok_and(|(_, ended)| ended));
        Ok(())
    })
}

/// The events of services `a` to `d` as they come where the second one has `fault`, and whether the stream ended well.
fn with_fault(proxy: &FaultProxy, client: &ApiClient, fault: EventFault) -> Result<(String, bool)> {
    let mut number = 0;
    proxy.on_events(move |_, _| {
        number += 1;
        if number == 2 { fault } else { EventFault::None }
    });
    let selector = "fieldSelector=metadata.name%21%3Dkubernetes";
    let (lines, ended) =
        client.watch(&format!("{SERVICES}?watch=1&resourceVersion=0&{selector}"), PATIENCE)?;
    let name = |line: &String| {
        let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { return "?".to_owned() };
        let name = event.pointer("/object/metadata/name").or_else(|| event.pointer("/object/code"));
        name.map_or_else(String::new, |name| name.to_string().trim_matches('"').to_owned())
    };
    Ok((lines.iter().map(name).collect::<Vec<_>>().join(" "), ended))
}

#[test]
fn events_are_dropped_doubled_swapped_and_broken() -> Result<()> {
    let (_control_plane, proxy, client) = set_up()?;
    let mut seen = Vec::new();
    for (fault, wanted, ends) in [
        (EventFault::None, "a b c d", false),
        (EventFault::Skip, "a c d", false),
        (EventFault::Duplicate, "a b b c d", false),
        (EventFault::Swap, "a c b d", false),
        (EventFault::Delay(Duration::from_millis(50)), "a b c d", false),
        (EventFault::HalfLine, "a", false),
        (EventFault::Garbage, "a ? c d", false),
        (EventFault::Gone, "a 410", true),
        (EventFault::Cut, "a", false),
        (EventFault::End, "a", true),
        (EventFault::Stall, "a", false),
    ] {
        let (events, ended) = with_fault(&proxy, &client, fault)?;
        if (events.as_str(), ended) != (wanted, ends) {
            seen.push(format!("{fault:?}: {events:?}, ended: {ended}"));
        }
    }
    assert_eq!(seen, [""; 0]);
    Ok(())
}
