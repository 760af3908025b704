//! The chart's sets of values, as their programs would read them in a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portway_runtime::config::Class;
use portway_tests::harness::chart;
use serde_json::Value;
use tempfile::TempDir;

/// What the kubelet gives every pod.
const KUBERNETES: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");

/// A program as a pod of the chart starts it.
struct Container {
    spec: Value,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    _config: TempDir,
}

/// The first container of a workload; `None` where the set has no such workload.
fn container(set: &str, kind: &str, name: &str) -> Result<Option<Container>> {
    let Some(workload) = chart::object(set, kind, name)? else { return Ok(None) };
    let pod = workload.pointer("/spec/template/spec").context("no pod")?;
    let spec = pod.pointer("/containers/0").context("no container")?.clone();
    let volumes: BTreeSet<_> = items(&pod["volumes"]).map(|volume| text(&volume["name"])).collect();
    for container in items(&pod["containers"]).chain(items(&pod["initContainers"])) {
        for mount in items(&container["volumeMounts"]) {
            ensure!(volumes.contains(text(&mount["name"])), "{set}: {name} has no volume for {mount}");
        }
    }
    let config = tempfile::tempdir()?;
    for (key, value) in chart::config(set)? {
        std::fs::write(config.path().join(key), value)?;
    }
    let mounted = items(&spec["volumeMounts"]).find(|mount| mount["name"] == "config");
    let mounted = mounted.map_or("", |mount| text(&mount["mountPath"]));
    let dir = config.path().display().to_string();
    let argument = |argument: &Value| OsString::from(text(argument).replace(mounted, &dir));
    let arguments = items(&spec["args"]).map(argument).collect();
    let mut environment = vec![(OsString::from(KUBERNETES.0), OsString::from(KUBERNETES.1))];
    for variable in items(&spec["env"]) {
        let value = match text(&variable["valueFrom"]["fieldRef"]["fieldPath"]) {
            "spec.nodeName" => "node-1",
            "metadata.namespace" => text(&workload["metadata"]["namespace"]),
            other => anyhow::bail!("{set}: {name} is given {other}"),
        };
        environment.push((text(&variable["name"]).into(), value.into()));
    }
    Ok(Some(Container { spec, arguments, environment, _config: config }))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn agent(set: &str) -> Result<Option<(Container, portway_agent::config::Loaded)>> {
    let Some(container) = container(set, "DaemonSet", "portway-agent")? else { return Ok(None) };
    if container.spec["name"] != "agent" {
        return Ok(None);
    }
    let invocation = portway_agent::config::Invocation {
        arguments: container.arguments.clone(),
        environment: container.environment.clone(),
        host_name: "pod".to_owned(),
    };
    let loaded = portway_agent::config::load(invocation).with_context(|| format!("the agent of {set}"))?;
    Ok(Some((container, loaded)))
}

fn operator(set: &str) -> Result<Option<(Container, portway_operator::config::Loaded)>> {
    let Some(container) = container(set, "Deployment", "portway-operator")? else { return Ok(None) };
    let invocation = portway_operator::config::Invocation {
        arguments: container.arguments.clone(),
        environment: container.environment.clone(),
    };
    let loaded =
        portway_operator::config::load(invocation).with_context(|| format!("the operator of {set}"))?;
    Ok(Some((container, loaded)))
}

/// That probes ask where `health` is, and that `/metrics` is where the container says, if anywhere.
fn check_ports(container: &Container, health: Option<SocketAddr>, metrics: Option<SocketAddr>) -> Result<()> {
    let spec = &container.spec;
    let probes = ["startupProbe", "livenessProbe", "readinessProbe"];
    let probes: Vec<_> = probes.iter().filter_map(|probe| spec.get(probe)).collect();
    ensure!(probes.len() >= 2, "{spec} lacks a probe");
    for http in probes.iter().map(|probe| &probe["httpGet"]) {
        let asked: SocketAddr = format!("{}:{}", text(&http["host"]), http["port"]).parse()?;
        ensure!(Some(asked) == health, "{asked} is asked, not {health:?}");
    }
    let port = items(&spec["ports"]).find(|port| port["name"] == "metrics");
    let port = port.and_then(|port| port["containerPort"].as_u64());
    ensure!(port == metrics.map(|address| u64::from(address.port())), "{port:?} is no port of {metrics:?}");
    Ok(())
}

#[test]
fn both_programs_take_the_configuration_of_every_set() -> Result<()> {
    let mut started = [0, 0];
    for set in chart::sets()? {
        if let Some((container, loaded)) = agent(&set)? {
            started[0] += 1;
            assert_eq!(loaded.config.node_name, "node-1", "{set}");
            assert_eq!(loaded.config.pod_network.is_some(), set != "services", "{set}");
            let unknown = loaded.settings.unknown();
            assert!(unknown.is_empty(), "{set}: {unknown:?}");
            let keys: Vec<_> = loaded.warnings.iter().map(|warning| &*warning.key).collect();
            let by_service = !chart::config(&set)?.contains_key("k8s-api-server");
            assert_eq!(keys, if by_service { vec!["k8s-api-server"] } else { vec![] }, "{set}: {keys:?}");
            check_ports(&container, loaded.config.health_address, loaded.config.metrics_address)?;
        }
        if let Some((container, loaded)) = operator(&set)? {
            started[1] += 1;
            assert_eq!(loaded.config.namespace, "kube-system", "{set}");
            assert!(loaded.warnings.is_empty(), "{set}: {:?}", loaded.config.warnings);
            check_ports(&container, loaded.config.api_address, loaded.config.metrics_address)?;
        }
    }
    // Neither in the sets that take Portway away or have no use for it.
    let sets = chart::sets()?.len();
    assert_eq!(started, [sets - 1, sets - 2]);
    Ok(())
}

#[test]
fn each_key_of_the_chart_is_one_that_a_program_heeds() -> Result<()> {
    let tables = [portway_agent::config::KEYS, portway_operator::config::KEYS];
    let heeded: BTreeSet<&str> = tables
        .into_iter()
        .flatten()
        .filter(|key| key.class == Class::Honoured)
        .flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()))
        .collect();
    for set in chart::sets()? {
        for key in chart::config(&set)?.keys() {
            assert!(heeded.contains(key.as_str()), "{set}: {key} has no effect");
        }
    }
    Ok(())
}

#[test]
fn what_the_agent_leaves_on_a_node_is_on_a_volume() -> Result<()> {
    for set in chart::sets()? {
        let Some((container, loaded)) = agent(&set)? else { continue };
        let mounts: BTreeMap<_, _> = items(&container.spec["volumeMounts"])
            .map(|mount| (text(&mount["mountPath"]), mount["readOnly"] == true))
            .collect();
        let config = &loaded.config;
        let conf = config.pod_network.as_ref().and_then(|network| network.cni_conf.as_deref());
        assert_eq!(conf.is_some(), config.pod_network.is_some(), "{set}");
        for path in [&*config.bpf_root, &config.cgroup_root, &config.state_dir, &config.socket_path]
            .into_iter()
            .chain(conf)
        {
            let is_there =
                |(mount, read_only): (&&str, &bool)| path.starts_with(Path::new(mount)) && !read_only;
            assert!(mounts.iter().any(is_there), "{set}: {} is in the container alone", path.display());
        }
    }
    Ok(())
}

#[test]
fn the_operator_knows_the_agents_pods_by_their_labels() -> Result<()> {
    for set in chart::sets()? {
        let Some((_, loaded)) = operator(&set)? else { continue };
        let agents = chart::object(&set, "DaemonSet", "portway-agent")?.context("no agents")?;
        let key = portway_operator::config::KEYS.iter().find(|key| key.name == "cilium-pod-labels").unwrap();
        let (name, value) = loaded
            .settings
            .said(key)
            .value
            .split_once('=')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        assert_eq!(agents["spec"]["template"]["metadata"]["labels"][&name], *value, "{set}");
        assert_eq!(agents["metadata"]["namespace"], *loaded.config.namespace, "{set}");
    }
    Ok(())
}

/// The runtime may be starting the plugin at that very moment.
#[test]
fn the_plugin_is_put_in_place_of_one_that_runs() -> Result<()> {
    let agents = chart::object("default", "DaemonSet", "portway-agent")?.context("no agents")?;
    let install = items(&agents["spec"]["template"]["spec"]["initContainers"]).next().context("no plugin")?;
    let (image, node) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (new, old) = (image.path().join("portway-cni"), node.path().join("portway-cni"));
    // Any program; what `sleep` is, it goes on being while it runs.
    std::fs::copy("/bin/cat", &new)?;
    std::fs::copy("/bin/sleep", &old)?;
    let mut running = Command::new(&old).arg("60").spawn()?;
    let mut words = items(&install["command"]).map(text);
    let mut command = Command::new(words.next().context("no command")?);
    let mounted = text(&install["volumeMounts"][0]["mountPath"]);
    command.args(words.map(|word| word.replace(mounted, &node.path().display().to_string())));
    let path = std::env::join_paths([image.path(), Path::new("/usr/bin"), Path::new("/bin")])?;
    let status = command.env("PATH", path).status();
    running.kill()?;
    running.wait()?;
    assert!(status?.success());
    assert_eq!(std::fs::read(&old)?, std::fs::read(&new)?);
    assert!(Command::new(&old).arg("/dev/null").status()?.success(), "it cannot be started");
    assert_eq!(std::fs::read_dir(node.path())?.count(), 1, "something is left beside it");
    Ok(())
}
