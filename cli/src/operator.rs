//! `portway operator`: asks a replica of the operator, over HTTP.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Deserialize;

use crate::agent::body;
use crate::failure::Failure;
use crate::output::{Format, print, print_json};
use crate::status::{duration, indented};
use crate::table::Table;

/// A replica that does not answer in this time is not well.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a replica is, and who leads.
pub(crate) fn status(address: &str, format: Format) -> Result<(), Failure> {
    let answer = get(address, "/v1/status")?;
    let body = body(&answer).with_context(|| format!("GET /v1/status of {address}"))?;
    match format {
        Format::Json => {
            let status: serde_json::Value = serde_json::from_slice(body)
                .with_context(|| format!("the answer of {address} is no JSON"))?;
            print_json(&status)?;
        }
        Format::Text => {
            let status: Status = serde_json::from_slice(body).with_context(|| {
                format!("the answer of {address} is not what this version expects; are operator and portway of one version?")
            })?;
            print(&text(&status))?;
        }
    }
    Ok(())
}

fn get(address: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let host = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let down = |error: &dyn std::fmt::Display| {
        Failure::agent_down(anyhow!(
            "the operator does not answer on {host} ({error}); is it this machine that it runs on, and is \
             operator-api-serve-addr another one? name it with --address"
        ))
    };
    // A name may have addresses of both families, and the operator listens on one.
    let addresses: Vec<_> = host.to_socket_addrs().map_err(|error| down(&error))?.collect();
    let mut stream = None;
    let mut failure = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(connected) => {
                stream = Some(connected);
                break;
            }
            Err(error) => failure = Some(error),
        }
    }
    let Some(mut stream) = stream else {
        return Err(failure.map_or_else(|| down(&"it has no address"), |error| down(&error)));
    };
    // 1.0: the answer ends where the connection does, and is not cut into chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let asked = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.write_all(request.as_bytes()))
        .and_then(|()| stream.read_to_end(&mut answer));
    asked.map_err(|error| down(&error))?;
    Ok(answer)
}

/// Of `/v1/status`, as much as is shown; what an older operator does not say is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    version: String,
    uptime_seconds: f64,
    leadership: Leadership,
    api_server: ApiServer,
    watches: Vec<Watch>,
    missing_kinds: Vec<String>,
    controllers: Vec<Controller>,
    definitions: Vec<Definition>,
    misfits: BTreeMap<String, Vec<Misfit>>,
    warnings: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Leadership {
    state: String,
    since_seconds: f64,
    holder: Option<String>,
    term: Option<u32>,
    earlier_terms: Option<String>,
    lease: String,
    writes_passed: u64,
    writes_refused: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiServer {
    server: String,
    reachable: Option<bool>,
    requests: u64,
    failures: BTreeMap<String, u64>,
    throttled_seconds: f64,
    last_error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Watch {
    kind: String,
    state: String,
    synced: bool,
    objects: u64,
    age_seconds: f64,
    events: u64,
    relists: u64,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Controller {
    name: String,
    state: String,
    plans: u64,
    plan_age_seconds: Option<f64>,
    wanted: u64,
    done: u64,
    late: u64,
    failed: u64,
    left_alone: u64,
    last_error: Option<String>,
    troubles: Vec<Trouble>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Definition {
    name: String,
    problem: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trouble {
    kind: String,
    object: String,
    reason: String,
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Misfit {
    object: String,
    problem: String,
}

fn text(status: &Status) -> String {
    let Status {
        version,
        uptime_seconds,
        leadership,
        api_server,
        watches,
        missing_kinds,
        controllers,
        definitions,
        misfits,
        warnings,
    } = status;
    let mut table = Table::plain();
    table.row(["Operator:", &format!("{version}, up for {}", duration(*uptime_seconds))]);
    table.row(["This replica:", &role(leadership)]);
    table.row(["Leader:", leadership.holder.as_deref().unwrap_or("nobody, as far as is known")]);
    table.row(["Lease:", &leadership.lease]);
    table.row(["API server:", &requests(api_server)]);
    let mut text = table.to_string();
    if !controllers.is_empty() {
        text.push_str(&format!("\nControllers:\n{}", indented(&of_controllers(controllers))));
    }
    text.push_str(&format!("\nWatches:\n{}", indented(&of_watches(watches))));
    let mut lines = |heading: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push_str(&format!("\n{heading}:\n{}", indented(&lines.join("\n"))));
        }
    };
    lines("Kinds that the API server does not know yet", missing_kinds.clone());
    let of_definition = |Definition { name, problem }: &Definition| {
        problem.as_ref().map(|problem| format!("{name}: {problem}"))
    };
    lines("CustomResourceDefinitions", definitions.iter().filter_map(of_definition).collect());
    let of_controller = |controller: &Controller| {
        let line = |Trouble { kind, object, reason, message }: &Trouble| {
            format!("{}: {kind} {object}: {reason}: {message}", controller.name)
        };
        let error =
            controller.last_error.as_ref().map(|error| format!("{}: last error: {error}", controller.name));
        controller.troubles.iter().map(line).chain(error).collect::<Vec<_>>()
    };
    lines("Troubles", controllers.iter().flat_map(of_controller).collect());
    let of_kind = |(kind, misfits): (&String, &Vec<Misfit>)| {
        let line = |Misfit { object, problem }: &Misfit| format!("{kind} {object}: {problem}");
        misfits.iter().map(line).collect::<Vec<_>>()
    };
    lines("Objects that cannot be read", misfits.iter().flat_map(of_kind).collect());
    lines("Warnings", warnings.clone());
    text
}

fn role(leadership: &Leadership) -> String {
    let Leadership { state, since_seconds, term, earlier_terms, writes_passed, writes_refused, .. } =
        leadership;
    let since = duration(*since_seconds);
    let earlier = match earlier_terms.as_deref() {
        Some("refused") => "; the API server refuses writes of earlier terms",
        Some("taken") => "; the API server takes writes of earlier terms where their preconditions hold",
        Some("all-refused") => "; the API server refuses every write",
        Some("unknown") => "; whether the API server refuses writes of earlier terms is not known",
        Some(_) | None => "",
    };
    match (state.as_str(), term) {
        ("leading", Some(term)) => format!(
            "leads for {since} (term {term}); {writes_passed} writes, {writes_refused} refused for want of the lease{earlier}"
        ),
        ("beginning", Some(term)) => {
            format!("has had the lease for {since} (term {term}), which the API server has to know")
        }
        ("stopping", _) => format!("led until {since} ago and waits for its last writes"),
        ("standby", _) => format!("stands by for {since}"),
        (other, _) => other.to_owned(),
    }
}

fn requests(api_server: &ApiServer) -> String {
    let ApiServer { server, reachable, requests, failures, throttled_seconds, last_error } = api_server;
    let failed: u64 = failures.values().sum();
    let state = match reachable {
        Some(true) => "answers",
        Some(false) => "does not answer",
        None => "was not asked yet",
    };
    let mut line = format!(
        "{server} {state}; {requests} requests, {failed} failed, {} held back by operator-k8s-client-qps",
        duration(*throttled_seconds)
    );
    if let Some(error) = last_error.as_ref().filter(|_| *reachable == Some(false)) {
        line.push_str(&format!(" (last error: {error})"));
    }
    line
}

fn of_controllers(controllers: &[Controller]) -> String {
    let heads = [
        "Controller",
        "State",
        "Turns",
        "Last turn",
        "Wanted",
        "Done",
        "Late",
        "Failed",
        "Left alone",
        "Troubles",
    ];
    let mut table = Table::new(&heads);
    for controller in controllers {
        let age = controller.plan_age_seconds.map(|age| format!("{} ago", duration(age)));
        table.row([
            controller.name.clone(),
            controller.state.clone(),
            controller.plans.to_string(),
            age.unwrap_or_else(|| "-".to_owned()),
            controller.wanted.to_string(),
            controller.done.to_string(),
            controller.late.to_string(),
            controller.failed.to_string(),
            controller.left_alone.to_string(),
            controller.troubles.len().to_string(),
        ]);
    }
    table.to_string()
}

fn of_watches(watches: &[Watch]) -> String {
    let mut table = Table::new(&["Watch", "State", "Objects", "Last sign", "Events", "Relists", "Errors"]);
    for watch in watches {
        table.row([
            watch.kind.clone(),
            if watch.synced { watch.state.clone() } else { format!("{}, first list", watch.state) },
            watch.objects.to_string(),
            format!("{} ago", duration(watch.age_seconds)),
            watch.events.to_string(),
            watch.relists.to_string(),
            watch.errors.values().sum::<u64>().to_string(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::agent::tests::head;

    /// As a leader says it.
    const LEADER: &str = include_str!("../tests/data/operator-status.json");

    #[test]
    fn what_an_operator_says_is_aligned_and_names_what_is_wrong() {
        let status: Status = serde_json::from_str(LEADER).unwrap();
        assert_eq!(text(&status), include_str!("../tests/data/operator-status.txt"));
    }

    #[test]
    fn a_replica_that_stands_by_says_who_leads() {
        let leadership = Leadership {
            state: "standby".to_owned(),
            since_seconds: 61.0,
            holder: Some("node-1_5".to_owned()),
            ..Leadership::default()
        };
        let text = text(&Status { leadership, ..Status::default() });
        assert!(text.contains("stands by for 1m1s") && text.contains("node-1_5"), "{text}");
        assert!(!text.contains("Controllers"), "{text}");
    }

    #[test]
    fn the_operator_is_asked_by_its_address_with_or_without_a_scheme() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(head(&mut stream).starts_with("GET /v1/status HTTP/1.0\r\n"));
                stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            }
        });
        for address in [address.to_string(), format!("http://{address}/")] {
            status(&address, Format::Json).unwrap();
        }
        server.join().unwrap();
        let error = status(&address.to_string(), Format::Text).unwrap_err().error.to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--address"), "{error}");
    }
}
