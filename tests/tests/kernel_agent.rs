//! The agent as a process: where it refuses to work and why, what it waits for, what it changes on the node.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_tests::harness::agent::Places;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::endpoints;
use portway_tests::harness::{Agent, World, cgroup, eventually, process};

/// Runs the agent to its end in the node's namespace.
fn run(places: &Places, flags: &[String]) -> Result<Output> {
    let mut command = places.namespace.command(process::binary("portway-agent")?);
    command.args(flags).output().context("run portway-agent")
}

fn flags(places: &Places) -> Vec<String> {
    vec![
        format!("--source-dir={}", places.manifests.display()),
        format!("--cgroup-root={}", places.cgroup.display()),
        format!("--bpf-root={}", places.bpf_root.display()),
        format!("--state-dir={}", places.state.display()),
        format!("--socket-path={}", places.socket().display()),
    ]
}

fn refusal(places: &Places, change: &[&str]) -> Result<(Option<i32>, String)> {
    let mut flags = flags(places);
    flags.extend(change.iter().map(ToString::to_string));
    let output = run(places, &flags)?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn entries(dir: &std::path::Path) -> Result<Vec<String>> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

#[test]
fn places_that_will_not_do_are_refused_before_anything_is_touched() -> Result<()> {
    World::test("places", |world| {
        let places = world.places();
        let root = cgroup::unified_hierarchy()?;
        let plain = places.state.display().to_string();
        for (change, said) in [
            (format!("--cgroup-root={}", root.display()), "is the root of the cgroup hierarchy"),
            (format!("--cgroup-root={plain}"), "is not a cgroup v2 directory"),
            (format!("--cgroup-root={plain}/none"), "create the cgroup"),
            (format!("--bpf-root={plain}"), "mount -t bpf bpf"),
            (format!("--bpf-root={plain}/none"), "create the directory and mount"),
        ] {
            let (code, stderr) = refusal(&places, &[&change])?;
            ensure!(code == Some(1) && stderr.contains(said), "{change}: {code:?} {stderr}");
        }
        let touched = entries(&places.bpf_root)?;
        ensure!(!touched.contains(&"portway".to_owned()), "{touched:?}");
        Ok(())
    })
}

#[test]
fn a_bad_configuration_ends_with_64_and_names_every_problem() -> Result<()> {
    World::test("usage", |world| {
        let (code, stderr) =
            refusal(&world.places(), &["--bpf-lb-mode=dsr", "--node-port-range=1,0", "--debug=maybe"])?;
        ensure!(code == Some(64) && stderr.contains("3 problems"), "{code:?} {stderr}");
        for key in ["bpf-lb-mode", "node-port-range", "debug"] {
            ensure!(stderr.contains(key), "{stderr}");
        }
        let help = run(&world.places(), &["--help".to_owned()])?;
        ensure!(help.status.success() && help.stdout.len() > 2000, "{help:?}");
        Ok(())
    })
}

#[test]
fn a_missing_directory_at_a_restart_deletes_nothing() -> Result<()> {
    World::test("missing", |world| {
        let pod = world.serving_pod("a")?;
        world.publish(&web(), endpoints(&[&pod]))?;
        world.start_agent(&[])?;
        world.kill_agent()?;
        let places = world.places();
        let away = places.manifests.with_extension("away");
        std::fs::rename(&places.manifests, &away)?;

        let mut agent = Agent::spawn(&places, &[])?;
        let health = || -> Result<String> {
            let curl = &mut places.namespace.command("curl");
            let curl: &mut Command = curl.args(["-s", "-m1", "http://127.0.0.1:9879/healthz"]);
            let text = String::from_utf8_lossy(&curl.output()?.stdout).into_owned();
            ensure!(text.contains("waiting for\nfirst sync of"), "{text:?}");
            ensure!(!text.contains("kernel maps"), "{text:?}");
            Ok(text)
        };
        let said = eventually(Duration::from_secs(10), "the agent to wait for its source", health)?;
        ensure!(said.contains(&places.manifests.display().to_string()), "{said}");
        // The programs of the killed agent serve what they served.
        let mut client = world.node_client()?;
        ensure!(client.tcp(WEB[0])?.is_ok_and(|answer| answer.name == "a"));
        std::fs::rename(&away, &places.manifests)?;
        agent.wait_ready()?;
        ensure!(client.tcp(WEB[0])?.is_ok_and(|answer| answer.name == "a"));

        // While it runs, a directory that vanishes takes nothing along either.
        std::fs::rename(&places.manifests, &away)?;
        eventually(Duration::from_secs(5), "the status to say that the directory is missing", || {
            let status = world.portway(&["status", "-o", "json"])?;
            ensure!(status.contains("\"missing\""), "{status}");
            Ok(())
        })?;
        ensure!(client.tcp(WEB[0])?.is_ok_and(|answer| answer.name == "a"));
        std::fs::rename(&away, &places.manifests)?;
        agent.stop()
    })
}

#[test]
fn node_ports_are_kept_from_outgoing_connections_until_cleanup() -> Result<()> {
    World::test("ports", |world| {
        let node = world.node().clone();
        let reserved = || -> Result<String> {
            node.run(|| {
                Ok(std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_reserved_ports")?.trim().to_owned())
            })
        };
        node.sysctl("ipv4/ip_local_port_range", "20000 40000")?;
        node.sysctl("ipv4/ip_local_reserved_ports", "25000")?;
        world.start_agent(&["--node-port-range=31000,31999"])?;
        eventually(Duration::from_secs(5), "the ports to be reserved", || {
            let reserved = reserved()?;
            ensure!(reserved == "25000,31000-31999", "{reserved}");
            Ok(())
        })?;
        world.kill_agent()?;
        let state = world.places().state.display().to_string();
        world.portway(&["cleanup", "--yes", &format!("--state-dir={state}")])?;
        ensure!(reserved()? == "25000", "{}", reserved()?);
        Ok(())
    })
}

/// Dashboards and alerts that were made for Cilium go on: the names are Cilium's (observability/metrics.rst).
#[test]
fn the_metrics_bear_ciliums_names() -> Result<()> {
    World::test("metrics", |world| {
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        world.publish(&web(), [a.endpoint(), b.endpoint().terminating()])?;
        world.start_agent(&["--prometheus-serve-addr=127.0.0.1:9962"])?;
        let places = world.places();
        let curl = &mut places.namespace.command("curl");
        let text = process::output(curl.args(["-sf", "-m5", "http://127.0.0.1:9962/metrics"]))?;
        for line in [
            "cilium_services_events_total{action=\"add\"} 1",
            "cilium_agent_bootstrap_seconds{outcome=\"success\",scope=\"overall\"} ",
            "cilium_k8s_terminating_endpoints_events_total 1",
            "cilium_bpf_map_ops_total{map_name=\"pw_services\",operation=\"update\",outcome=\"success\"}",
            "cilium_bpf_map_pressure{map_name=\"pw_frontends\"}",
            "cilium_service_implementation_delay_count{action=\"update\"} 1",
            "cilium_bpf_maps_virtual_memory_max_bytes ",
            "cilium_event_ts{source=\"directory\"}",
            "cilium_version{version=",
            "portway_ready 1",
        ] {
            ensure!(text.lines().any(|found| found.starts_with(line)), "no {line} in\n{text}");
        }
        // A Service that is there already is changed, not added.
        world.publish(&web().affinity(60), [a.endpoint(), b.endpoint()])?;
        world.manifests().remove("web")?;
        eventually(Duration::from_secs(5), "the Service to be counted as gone", || {
            let text = process::output(curl.args(["-sf", "-m5", "http://127.0.0.1:9962/metrics"]))?;
            for line in ["add", "delete"].map(|action| format!("{{action=\"{action}\"}} 1")) {
                let line = format!("cilium_services_events_total{line}");
                ensure!(text.lines().any(|found| found == line), "no {line} in\n{text}");
            }
            Ok(())
        })?;
        // Nobody is to be woken by a map that is full because it has a fixed size.
        for line in text.lines().filter(|line| line.starts_with("cilium_bpf_map_pressure{")) {
            let pressure: f64 = line.rsplit(' ').next().context("no value")?.parse()?;
            ensure!(pressure < 0.5, "{line}");
        }
        Ok(())
    })
}
