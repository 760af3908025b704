//! `portway` on a running and on a killed agent.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_tests::harness::fixture::{NODE_PORT, WEB, node_port_web};
use portway_tests::harness::manifest::{HostPortPod, Service, TCP, endpoints};
use portway_tests::harness::probe::Protocol;
use portway_tests::harness::world::NODE;
use portway_tests::harness::{Probe, World, eventually, process};
use serde_json::{Value, json};

fn plan(world: &World) -> Result<Value> {
    let source = format!("--source-dir={}", world.manifests().path().display());
    Ok(serde_json::from_str(&world.portway(&["plan", &source, "--node", NODE, "-o", "json"])?)?)
}

fn kernel(world: &World) -> Result<Value> {
    Ok(serde_json::from_str(&world.portway(&["bpf", "lb", "list", "-o", "json"])?)?)
}

fn busy_world(world: &mut World) -> Result<Probe> {
    let (a, b) = (world.serving_pod("a")?, world.serving_pod("b")?);
    world.publish(&node_port_web().affinity(60), endpoints(&[&a, &b]))?;
    let shop = Service::new("shop", &["10.96.0.20"])
        .port("http", TCP, 80)
        .external_ips(&["203.0.113.7"])
        .load_balancer(&["203.0.113.20"])
        .with("loadBalancerSourceRanges", vec!["198.51.100.0/24"])
        .with("externalTrafficPolicy", "Local");
    world.publish(&shop, [a.endpoint(), b.endpoint().terminating()])?;
    world.publish(&Service::new("none", &["10.96.0.66"]).port("", TCP, 80), [])?;
    world
        .manifests()
        .put("pods", [HostPortPod::new("host", "uid-host", NODE, a.v4).port(TCP, 8443, 8080)])?;
    world.start_agent(&[])?;
    world.node_client()
}

#[test]
fn the_kernel_holds_what_the_plan_says_also_with_the_agent_killed() -> Result<()> {
    World::test("list", |world| {
        let mut client = busy_world(world)?;
        assert!(client.tcp(WEB[0])?.is_ok());
        let planned = plan(world)?;
        let rows = planned.as_array().context("the plan is no array")?;
        // ClusterIP and NodePort by TCP and UDP in two families, shop's three, none's one, one host port.
        assert_eq!(rows.len(), 8 + 3 + 1 + 1, "{planned:#}");
        assert_eq!(kernel(world)?, planned);
        world.kill_agent()?;
        assert_eq!(kernel(world)?, planned);
        Ok(())
    })
}

#[test]
fn the_status_and_the_service_list_say_what_is_served() -> Result<()> {
    World::test("status", |world| {
        busy_world(world)?;
        let status: Value = serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?;
        assert_eq!(status["ready"], Value::Bool(true), "{status:#}");
        assert_eq!(status["counts"]["frontends"], Value::from(13), "{status:#}");
        assert_eq!(status["kubeProxyReplacement"]["status"], Value::from("True"), "{status:#}");
        let list = world.portway(&["service", "list"])?;
        for text in ["10.96.0.10:80/TCP", "0.0.0.0:30080/UDP", "HostPort", "ExternalIPs", "LoadBalancer"] {
            assert!(list.contains(text), "no {text} in\n{list}");
        }
        let one = world.portway(&["service", "get", "default/shop"])?;
        assert!(one.contains("203.0.113.20:80") && !one.contains("10.96.0.10"), "{one}");
        assert!(list.contains(&NODE_PORT.to_string()));
        Ok(())
    })
}

#[test]
fn without_an_agent_the_status_fails_with_its_own_exit_code() -> Result<()> {
    World::test("noagent", |world| {
        let mut command = portway_tests::harness::agent::cli(&world.places(), &["status"])?;
        assert_eq!(command.output()?.status.code(), Some(3));
        assert!(process::output(&mut command).is_err());
        Ok(())
    })
}

#[test]
fn an_object_that_is_refused_is_named_and_the_rest_is_served() -> Result<()> {
    World::test("refused", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world
            .publish(&Service::new("broken", &["not-an-address"]).port("http", TCP, 80), endpoints(&[&a]))?;
        world.manifests().put_text("half.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: half")?;
        world.start_agent(&[])?;
        let mut client = world.node_client()?;
        assert_eq!(client.tcp(WEB[0])?.unwrap().name, "a");
        let status: Value = serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?;
        assert_ne!(status["counts"]["rejects"], Value::from(0), "{status:#}");
        assert!(status["sources"].to_string().contains("half.yaml"), "{status:#}");
        Ok(())
    })
}

#[test]
fn a_file_that_broke_is_said_to_be_served_as_it_was() -> Result<()> {
    World::test("broke", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&[])?;
        world.manifests().put_text("web.json", "{")?;
        world.manifests().put_text("new.json", "{")?;
        let status =
            || -> Result<Value> { Ok(serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?) };
        eventually(Duration::from_secs(5), "the status to name both files", || {
            let status = status()?;
            let broken = status["sources"][0]["broken"].as_array().context("no broken files")?;
            ensure!(broken.len() == 2, "{status:#}");
            Ok(())
        })?;
        let status = status()?;
        let broken = &status["sources"][0]["broken"];
        assert_eq!(
            (&broken[0]["keptObjects"], &broken[1]["keptObjects"]),
            (&json!(0), &json!(3)),
            "{status:#}"
        );
        let warnings = status["warnings"].to_string();
        assert!(warnings.contains("new.json is not used: "), "{warnings}");
        assert!(warnings.contains("web.json is broken; its 3 objects of before are served: "), "{warnings}");
        assert_eq!(world.node_client()?.tcp(WEB[0])?.unwrap().name, "a");
        Ok(())
    })
}

#[test]
fn sockets_that_the_maps_have_no_room_for_are_warned_of() -> Result<()> {
    World::test("unremembered", |world| {
        let a = world.serving_pod("a")?;
        world.publish(&node_port_web(), endpoints(&[&a]))?;
        world.start_agent(&["--bpf-sock-rev-map-max=1024"])?;
        let status =
            || -> Result<Value> { Ok(serde_json::from_str(&world.portway(&["status", "-o", "json"])?)?) };
        assert_eq!((&status()?["counts"]["unremembered"], &status()?["warnings"]), (&json!(0), &json!([])));
        let mut client = world.node_client()?;
        for _ in 0..1024 + 7 {
            client.connect(Protocol::Udp, WEB[0])?;
        }
        let status = status()?;
        assert_eq!(status["counts"]["unremembered"], json!(7), "{status:#}");
        let warning = status["warnings"][0].as_str().context("no warning")?;
        assert!(warning.starts_with("7 connections were not remembered"), "{warning}");
        assert!(
            warning.contains("1024 entries") && warning.ends_with("raise bpf-sock-rev-map-max"),
            "{warning}"
        );
        Ok(())
    })
}
