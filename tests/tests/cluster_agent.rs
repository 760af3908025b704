//! The agent on a real API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_agent::api::{ApiServer, Status, Watch};
use portway_tests::harness::agent::Agent;
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::{Endpoint, HostPortPod, Service, TCP, endpoints, node};
use portway_tests::harness::world::{NODE, NODE_V4};
use portway_tests::harness::{ControlPlane, Errno, Namespace, World, eventually};
use serde_json::{Value, json};

const PROXY_HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
const SOON: Duration = Duration::from_secs(5);

/// Flags of an agent that has the API server alone.
fn on(control_plane: &ControlPlane) -> Result<Vec<String>> {
    Ok(vec![
        // In place of the world's directory.
        "--source-dir=".to_owned(),
        format!("--k8s-kubeconfig-path={}", control_plane.kubeconfig()?.display()),
        format!("--kube-proxy-replacement-healthz-bind-address={PROXY_HEALTH}"),
    ])
}

fn start_agent(world: &mut World, flags: &[String]) -> Result<()> {
    world.start_agent(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn apply(control_plane: &ControlPlane, service: &Service, endpoints: Vec<Endpoint>) -> Result<()> {
    for object in service.clone().with_endpoints(endpoints) {
        control_plane.client().apply(&object)?;
    }
    Ok(())
}

fn status(world: &World) -> Result<Status> {
    // An agent that is not ready is a status, too.
    let mut command = portway_tests::harness::agent::cli(&world.places(), &["status", "-o", "json"])?;
    Ok(serde_json::from_slice(&command.output()?.stdout)?)
}

fn api_server(status: &Status) -> Result<&ApiServer> {
    status.sources.iter().find_map(|source| source.api_server.as_ref()).context("no API server is a source")
}

fn watch<'a>(status: &'a Status, kind: &str) -> Result<&'a Watch> {
    let watches = &api_server(status)?.watches;
    watches.iter().find(|watch| watch.kind == kind).with_context(|| format!("no watch of {kind}"))
}

fn warns_of(world: &World, text: &str) -> Result<()> {
    eventually(Duration::from_secs(10), &format!("a warning of {text:?}"), || {
        let warnings = status(world)?.warnings;
        ensure!(warnings.iter().any(|warning| warning.contains(text)), "{warnings:?}");
        Ok(())
    })
}

fn is_well(namespace: &Namespace, path: &str) -> Result<bool> {
    Ok(namespace.http_get(PROXY_HEALTH, path)?.starts_with("HTTP/1.1 200"))
}

#[test]
fn services_come_change_and_go_with_the_clusters_objects() -> Result<()> {
    World::test("cluster", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        apply(&control_plane, &web(), endpoints(&[&a]))?;
        control_plane.client().apply(&node(NODE, "zone-a"))?;
        let host = HostPortPod::new("host", "u", NODE, a.v4).port(TCP, 8443, 8080);
        control_plane.client().apply(&host.into())?;
        start_agent(world, &on(&control_plane)?)?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a"])?;
        client.wait_servers((NODE_V4.into(), 8443), &["a"])?;

        apply(&control_plane, &web(), endpoints(&[&a, &b]))?;
        for to in WEB {
            client.wait_servers(to, &["a", "b"])?;
        }
        let not_ready = endpoints(&[&a]).into_iter().map(Endpoint::not_ready).collect();
        apply(&control_plane, &web(), not_ready)?;
        eventually(SOON, "a refusal where no endpoint is ready", || {
            let answer = client.tcp(WEB[0])?;
            ensure!(answer == Err(Errno::ECONNREFUSED), "{answer:?}");
            Ok(())
        })?;
        for object in web().with_endpoints(endpoints(&[&a])) {
            control_plane.client().delete(&object)?;
        }
        eventually(SOON, "no frontend of the service", || {
            let listed = world.portway(&["bpf", "lb", "list"])?;
            ensure!(!listed.contains("default/web"), "{listed}");
            Ok(())
        })?;

        let status = status(world)?;
        assert!(status.ready && status.warnings.is_empty(), "{:?}", status.warnings);
        for kind in ["Service", "EndpointSlice", "Pod", "Node"] {
            let watch = watch(&status, kind)?;
            assert!(watch.synced && watch.version > 0 && watch.relists == 0, "{watch:?}");
        }
        // Of the cluster's own service `kubernetes` and of this node.
        let objects = |kind| watch(&status, kind).map(|watch| watch.objects);
        assert_eq!((objects("Service")?, objects("Pod")?, objects("Node")?), (1, 1, 1));
        assert_eq!(api_server(&status)?.reachable, Some(true));
        Ok(())
    })
}

#[test]
fn objects_that_are_not_served_as_they_say_get_an_event_and_only_one() -> Result<()> {
    World::test("events", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        let service = |name: &str, ip: &str| Service::new(name, &[ip]).port("http", TCP, 80);
        let refused = service("refused", "10.96.0.11").external_ips(&["2001:db8::7"]);
        let older = service("older", "10.96.0.12").external_ips(&["203.0.113.7"]);
        let younger = service("younger", "10.96.0.13").external_ips(&["203.0.113.7"]);
        for service in [&refused, &older] {
            apply(&control_plane, service, vec![])?;
        }
        start_agent(world, &on(&control_plane)?)?;
        // By name: the API server's clock has seconds.
        apply(&control_plane, &younger, vec![])?;
        let events = || -> Result<Vec<(String, String, String)>> {
            let events = control_plane.client().list("/apis/events.k8s.io/v1/namespaces/default/events")?;
            let field =
                |event: &Value, path| event.pointer(path).and_then(Value::as_str).unwrap_or("").to_owned();
            Ok(events
                .iter()
                .filter(|event| event["reportingController"] == "portway-agent")
                .map(|event| {
                    (field(event, "/regarding/name"), field(event, "/reason"), field(event, "/note"))
                })
                .collect())
        };
        eventually(Duration::from_secs(15), "two Events", || {
            let events = events()?;
            let has = |name: &str, reason: &str, note: &str| {
                events
                    .iter()
                    .any(|(n, r, text)| (n.as_str(), r.as_str()) == (name, reason) && text.contains(note))
            };
            ensure!(has("refused", "NotUsed", "has no IPv6 cluster IP"), "{events:?}");
            ensure!(
                has("younger", "FrontendTaken", "belongs to port http of service default/older"),
                "{events:?}"
            );
            Ok(())
        })?;
        // Another change of the same objects says nothing new.
        apply(&control_plane, &refused, vec![Endpoint::new([10, 244, 1, 2])])?;
        apply(&control_plane, &service("last", "10.96.0.14").external_ips(&["2001:db8::8"]), vec![])?;
        eventually(Duration::from_secs(15), "the Event of the last service", || {
            ensure!(events()?.iter().any(|(name, ..)| name == "last"), "none yet");
            Ok(())
        })?;
        assert_eq!(events()?.len(), 3, "{:?}", events()?);
        Ok(())
    })
}

#[test]
fn a_node_that_is_about_to_go_fails_the_load_balancers_probe_and_no_other() -> Result<()> {
    World::test("leaving", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        control_plane.client().apply(&node(NODE, "zone-a"))?;
        start_agent(world, &on(&control_plane)?)?;
        assert!(is_well(world.node(), "/healthz")? && is_well(world.node(), "/livez")?);
        let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
        control_plane.client().patch(&node(NODE, "zone-a"), &json!({"spec": {"taints": taint}}))?;
        eventually(SOON, "healthz to fail", || {
            ensure!(!is_well(world.node(), "/healthz")?, "it does not");
            Ok(())
        })?;
        let answer = world.node().http_get(PROXY_HEALTH, "/healthz")?;
        assert!(answer.contains(r#""nodeEligible": false"#), "{answer}");
        assert!(is_well(world.node(), "/livez")? && status(world)?.ready);
        control_plane.client().patch(&node(NODE, "zone-a"), &json!({"spec": {"taints": null}}))?;
        eventually(SOON, "healthz to be well again", || {
            ensure!(is_well(world.node(), "/healthz")?, "it is not");
            Ok(())
        })
    })
}

#[test]
fn an_api_server_that_is_gone_takes_nothing_away_also_not_at_a_restart() -> Result<()> {
    World::test("outage", |world| {
        let mut control_plane = ControlPlane::start(world.node())?;
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        apply(&control_plane, &web(), endpoints(&[&a]))?;
        start_agent(world, &on(&control_plane)?)?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["a"])?;
        control_plane.stop_api_server()?;
        warns_of(world, "cannot be reached")?;
        let is_as_before = |world: &World, client: &mut portway_tests::harness::Probe| -> Result<()> {
            for to in WEB {
                client.wait_servers(to, &["a"])?;
            }
            ensure!(status(world)?.ready, "it is not ready");
            ensure!(is_well(world.node(), "/healthz")?, "healthz fails");
            Ok(())
        };
        is_as_before(world, &mut client)?;
        // A new agent that never saw the API server serves what the old one left.
        world.kill_agent()?;
        start_agent(world, &on(&control_plane)?)?;
        is_as_before(world, &mut client)?;
        warns_of(world, "has not answered yet")?;
        control_plane.start_api_server()?;
        apply(&control_plane, &web(), endpoints(&[&b]))?;
        eventually(Duration::from_secs(40), "the new backend alone", || {
            let servers = client.servers(WEB[0])?;
            ensure!(servers == ["b".to_owned()].into(), "it is answered by {servers:?}");
            Ok(())
        })?;
        // A server that has just come up refuses what it does not know the rules of yet.
        eventually(Duration::from_secs(40), "nothing to warn of", || {
            let warnings = status(world)?.warnings;
            ensure!(warnings.is_empty(), "{warnings:?}");
            Ok(())
        })
    })
}

/// Lets the agent list everything but Pods.
fn forbid_pods(control_plane: &ControlPlane) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "portway-agent"},
    });
    let verbs = ["get", "list", "watch"];
    let rules = json!({"rules": [
        {"apiGroups": [""], "resources": ["services", "nodes"], "verbs": verbs},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
    ]});
    control_plane.client().patch(&role, &rules)?;
    Ok(())
}

#[test]
fn a_kind_that_may_not_be_listed_holds_the_others_not_back() -> Result<()> {
    World::test("forbidden", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        let a = world.serving_pod("a")?;
        apply(&control_plane, &web(), endpoints(&[&a]))?;
        forbid_pods(&control_plane)?;
        let flags = [on(&control_plane)?, vec!["--k8s-sync-timeout=1s".to_owned()]].concat();
        start_agent(world, &flags)?;
        world.node_client()?.wait_servers(WEB[0], &["a"])?;
        warns_of(world, "Pod cannot be listed")?;
        warns_of(world, "Pod: not read to the end yet")?;
        assert!(status(world)?.ready);
        Ok(())
    })
}

/// The audit compares what is known; what nobody has spoken of yet is no difference, and not removed by it.
#[test]
fn an_audit_removes_nothing_before_every_kind_is_known() -> Result<()> {
    World::test("leftovers", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        let a = world.serving_pod("a")?;
        apply(&control_plane, &web(), endpoints(&[&a]))?;
        let host = HostPortPod::new("host", "u", NODE, a.v4).port(TCP, 8443, 8080);
        world.manifests().put("host", [host])?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        let host_port = format!("{NODE_V4}:8443");
        client.wait_servers(&*host_port, &["a"])?;
        world.kill_agent()?;
        forbid_pods(&control_plane)?;
        start_agent(world, &on(&control_plane)?)?;
        client.wait_servers(WEB[0], &["a"])?;
        for _ in 0..2 {
            // It exits with 1 where something differs.
            world.portway(&["audit", "--fix"])?;
            assert_eq!(client.tcp(&*host_port)?.unwrap().name, "a");
        }
        Ok(())
    })
}

#[test]
fn of_an_object_that_a_file_has_too_the_files_counts() -> Result<()> {
    World::test("both", |world| {
        let control_plane = ControlPlane::start(world.node())?;
        let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
        let other = Service::new("other", &["10.96.0.20"]).port("http", TCP, 80);
        apply(&control_plane, &web(), endpoints(&[&a]))?;
        apply(&control_plane, &other, endpoints(&[&b]))?;
        world.publish(&web(), endpoints(&[&b]))?;
        let kubeconfig = format!("--k8s-kubeconfig-path={}", control_plane.kubeconfig()?.display());
        world.start_agent(&[&kubeconfig])?;
        let mut client = world.node_client()?;
        client.wait_servers(WEB[0], &["b"])?;
        client.wait_servers("10.96.0.20:80", &["b"])?;
        world.manifests().remove("web")?;
        client.wait_servers(WEB[0], &["a"])
    })
}

#[test]
fn credentials_that_cannot_be_used_are_named() -> Result<()> {
    World::test("credentials", |world| {
        let missing = ["--source-dir=", "--k8s-kubeconfig-path=/nothing/kubeconfig"];
        let mut agent = Agent::spawn(&world.places(), &missing)?;
        assert_eq!(agent.wait_ended(SOON)?.code(), Some(1));
        assert!(agent.log().contains("kubeconfig /nothing/kubeconfig"), "{}", agent.log());

        let control_plane = ControlPlane::start(world.node())?;
        let kubeconfig = control_plane.kubeconfig()?;
        let wrong = token_replaced(&kubeconfig, world.bpf_root().parent().context("no parent")?)?;
        let flag = format!("--k8s-kubeconfig-path={}", wrong.display());
        let flags = ["--source-dir=", &flag];
        let agent = Agent::spawn(&world.places(), &flags)?;
        eventually(Duration::from_secs(10), "a refusal in the status", || {
            let status = status(world)?;
            let watch = watch(&status, "Service")?;
            let error = watch.last_error.as_deref().unwrap_or("");
            ensure!(!status.ready && !watch.synced && error.contains("401"), "{watch:?}");
            Ok(())
        })?;
        agent.stop()
    })
}

/// The kubeconfig with a token that nobody has, in `dir`.
fn token_replaced(kubeconfig: &Path, dir: &Path) -> Result<std::path::PathBuf> {
    let token = dir.join("wrong.token");
    std::fs::write(&token, "nobodys")?;
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    *config.pointer_mut("/users/0/user/tokenFile").context("no tokenFile")? = json!(token);
    let path = dir.join("wrong.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
