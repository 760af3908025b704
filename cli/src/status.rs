mod pod_network;

use std::process::ExitCode;

use portway_agent::api::{KubeProxyReplacement, Reject, Source, StaleSockets, Status, counted, path};

use crate::agent::Agent;
use crate::failure::{Failure, NOT_READY};
use crate::output::{Format, print, print_json};
use crate::table::Table;

/// Prints how the agent is; the exit code tells whether it is ready.
pub(crate) fn run(agent: &Agent, verbose: bool, format: Format) -> Result<ExitCode, Failure> {
    let status: Status = agent.get(path::STATUS)?;
    match format {
        Format::Json => print_json(&status)?,
        Format::Text if verbose => {
            let mut text = full(&status);
            text.push_str(&refused("Refused", &agent.get::<Vec<Reject>>(path::REJECTS)?));
            text.push_str(&refused("Clashes of frontends", &agent.get::<Vec<Reject>>(path::CLASHES)?));
            print(&text)?;
        }
        Format::Text => print(&brief(&status))?,
    }
    Ok(if status.ready { ExitCode::SUCCESS } else { ExitCode::from(NOT_READY) })
}

fn brief(status: &Status) -> String {
    let replacement = &status.kube_proxy_replacement;
    let mut table = Table::plain();
    table.row(["Portway:", &health(status)]);
    table.row(["Node:", or_dash(&status.node)]);
    let names: Vec<_> = replacement.devices.iter().map(|device| device.name.as_str()).collect();
    table.row(["KubeProxyReplacement:", &format!("{}   [{}]", replacement.status, names.join(", "))]);
    for source in &status.sources {
        table.row(["Source:", &source_line(source)]);
    }
    let counts = &status.counts;
    table.row([
        "Services:",
        &format!(
            "{}, {}, {}",
            counted(counts.service_ports, "service port", "service ports"),
            counted(counts.frontends, "frontend", "frontends"),
            counted(counts.backends, "backend", "backends")
        ),
    ]);
    let writes = &status.writes;
    let mut line = format!(
        "{}, {} failed, {} outstanding",
        counted(writes.operations, "operation", "operations"),
        writes.failures,
        writes.outstanding
    );
    if let Some(error) = &writes.last_error {
        line.push_str(&format!(" (last error: {error})"));
    }
    table.row(["Kernel maps:", &line]);
    let identities = status.identities.iter().map(pod_network::identities);
    for line in status.pod_network.iter().flat_map(pod_network::lines).chain(identities) {
        table.row(line);
    }
    let mut text = table.to_string();
    text.push_str(&status.pod_network.as_ref().map(pod_network::unreachable).unwrap_or_default());
    if counts.rejects + counts.clashes > 0 {
        text.push_str(&format!(
            "\n{} refused, {} (--verbose names them)\n",
            counted(counts.rejects, "value", "values"),
            counted(counts.clashes, "clash of frontends", "clashes of frontends")
        ));
    }
    if !status.warnings.is_empty() {
        text.push_str("\nWarnings:\n");
        for warning in &status.warnings {
            text.push_str(&format!("  {warning}\n"));
        }
    }
    text
}

fn health(status: &Status) -> String {
    let about =
        format!("version {}, pid {}, up {}", status.version, status.pid, duration(status.uptime_seconds));
    if status.ready {
        format!("Ok   {about}")
    } else {
        format!("Not ready   {about}; waiting for {}", status.waiting_for.join(", "))
    }
}

fn full(status: &Status) -> String {
    let mut text = brief(status);
    text.push_str(&format!(
        "\nKubeProxyReplacement Details:\n{}",
        indented(&details(&status.kube_proxy_replacement))
    ));
    for source in &status.sources {
        text.push_str(&watches(source));
        text.push_str(&broken(source));
    }
    text.push_str(&status.pod_network.as_ref().map(pod_network::full).unwrap_or_default());
    text.push_str(&format!("\nKernel {}:\n", or_dash(&status.kernel.release)));
    let mut checks = Table::plain();
    for check in &status.kernel.self_test {
        checks.row([check.name.as_str(), if check.ok { "ok" } else { "FAILED" }, check.detail.as_str()]);
    }
    text.push_str(&indented(&checks.to_string()));
    for note in &status.kernel.notes {
        text.push_str(&format!("  {note}\n"));
    }
    let mut maps = Table::new(&["Map", "Used", "Size", "Kernel memory"]);
    for map in &status.maps {
        maps.row([
            map.name.clone(),
            map.used.map_or_else(|| "-".to_owned(), |used| used.to_string()),
            map.size.to_string(),
            kib(map.bytes),
        ]);
    }
    text.push_str(&format!("\nMaps:\n{}", indented(&maps.to_string())));
    text.push_str(&refused("Not programmed, tried again", &status.writes.refused));
    text.push_str(&format!("\nWaiting for a grace period: {}\n", status.writes.awaiting_grace));
    text.push_str(&stale_sockets(&status.stale_sockets));
    text
}

fn stale_sockets(sockets: &StaleSockets) -> String {
    let StaleSockets { closed_tcp, closed_udp, failed, last_error, forgotten, kept, waiting, .. } = sockets;
    let mut line = format!(
        "Stale sockets: {closed_tcp} TCP and {closed_udp} UDP closed, {failed} failed, {kept} kept, {waiting} waiting, \
         {forgotten} forgotten"
    );
    if let Some(error) = last_error {
        line.push_str(&format!(" (last error: {error})"));
    }
    line.push('\n');
    line
}

/// The block as Cilium prints it, which scripts read.
fn details(replacement: &KubeProxyReplacement) -> String {
    let mut table = Table::plain();
    table.row(["Status:", &replacement.status]);
    table.row(["Socket LB:", &replacement.socket_lb]);
    table.row(["Protocols:", &replacement.protocols.join(", ")]);
    table.row(["Devices:", &devices(replacement)]);
    table.row(["Mode:", &replacement.mode]);
    table.row(["Backend Selection:", &replacement.backend_selection]);
    table.row(["Session Affinity:", &replacement.session_affinity]);
    table.row(["Graceful Termination:", &replacement.graceful_termination]);
    table.row(["NAT46/64 Support:", &replacement.nat46x64]);
    table.row(["XDP Acceleration:", &replacement.xdp_acceleration]);
    let mut services = Table::plain();
    for service in &replacement.services {
        services.row([format!("- {}:", service.kind), service.status.clone()]);
    }
    format!("{table}Services:\n{}", indented(&services.to_string()))
}

fn devices(replacement: &KubeProxyReplacement) -> String {
    let devices: Vec<_> = replacement
        .devices
        .iter()
        .map(|device| format!("{} {}", device.name, device.addresses.join(" ")).trim_end().to_owned())
        .collect();
    devices.join(", ")
}

fn source_line(source: &Source) -> String {
    let mut line = format!("{} {}: {}", source.kind, source.path, source.state);
    match &source.api_server {
        None => line.push_str(&format!(", {}", counted(source.files, "file", "files"))),
        Some(api_server) => match api_server.reachable {
            None => line.push_str(", not asked yet"),
            Some(true) => line.push_str(", reachable"),
            Some(false) => line.push_str(", UNREACHABLE"),
        },
    }
    line.push_str(&format!(", {}", counted(source.objects, "object", "objects")));
    if let Some(seconds) = source.last_change_seconds {
        line.push_str(&format!(", last change {} ago", duration(seconds)));
    }
    if !source.broken.is_empty() {
        line.push_str(", ");
        line.push_str(&counted(source.broken.len() as u64, "broken file", "broken files"));
    }
    line
}

/// The watches of an API server, a line each.
fn watches(source: &Source) -> String {
    let Some(api_server) = &source.api_server else { return String::new() };
    let mut table = Table::new(&[
        "Watch",
        "State",
        "Objects",
        "Last sign",
        "Version",
        "Events",
        "Relists",
        "Resumes",
        "Errors",
    ]);
    for watch in &api_server.watches {
        table.row([
            watch.kind.clone(),
            if watch.synced { watch.state.clone() } else { format!("{}, first list", watch.state) },
            watch.objects.to_string(),
            format!("{} ago", duration(watch.age_seconds)),
            watch.version.to_string(),
            watch.events.to_string(),
            watch.relists.to_string(),
            watch.resumes.to_string(),
            watch.errors.values().sum::<u64>().to_string(),
        ]);
    }
    let requests = counted(api_server.requests, "request", "requests");
    let failed: u64 = api_server.failures.values().sum();
    let throttled = duration(api_server.throttled_seconds);
    let mut text = format!(
        "\nAPI server {}: {requests}, {failed} failed, {throttled} held back by k8s-client-qps\n{}",
        source.path,
        indented(&table.to_string())
    );
    if let Some(error) = &api_server.last_error {
        text.push_str(&format!("  last error: {error}\n"));
    }
    text
}

fn broken(source: &Source) -> String {
    if source.broken.is_empty() {
        return String::new();
    }
    let mut text = format!("\nBroken files in {}:\n", source.path);
    for file in &source.broken {
        text.push_str(&format!("  {}: {}", file.path, file.reason));
        if file.kept_objects > 0 {
            let objects = counted(file.kept_objects, "object of before is", "objects of before are");
            text.push_str(&format!(" (its {objects} served)"));
        }
        text.push('\n');
    }
    text
}

fn refused(heading: &str, rejects: &[Reject]) -> String {
    if rejects.is_empty() {
        return String::new();
    }
    let mut table = Table::plain();
    for reject in rejects {
        let field = format!("{} {:?}", reject.field, reject.value);
        table.row([
            format!("{} {}", reject.kind, reject.name),
            field.trim().to_owned(),
            reject.reason.clone(),
        ]);
    }
    format!("\n{heading}:\n{}", indented(&table.to_string()))
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

pub(crate) fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn kib(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{} KiB", bytes.div_ceil(1024)) }
}

/// `12s`, `3m4s`, `5h6m`, `7d8h`.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        serde_json::from_str(include_str!("../tests/data/status.json")).unwrap()
    }

    #[test]
    fn the_brief_status_is_aligned_and_names_what_is_wrong() {
        assert_eq!(brief(&status()), include_str!("../tests/data/status.txt"));
    }

    #[test]
    fn the_full_status_has_the_block_that_scripts_read() {
        assert_eq!(full(&status()), include_str!("../tests/data/status-verbose.txt"));
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let cases = [(0.4, "0s"), (59.0, "59s"), (61.0, "1m1s"), (3_660.0, "1h1m"), (90_000.0, "1d1h")];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
    }
}
