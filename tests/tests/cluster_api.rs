//! The control plane of the tests itself: it starts, takes objects, ends and comes back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Method;
use portway_tests::harness::cluster::api::has_code;
use portway_tests::harness::fixture::web;
use portway_tests::harness::manifest::{Endpoint, HostPortPod, Service, TCP, node};
use portway_tests::harness::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};

/// Without the service that the API server makes of itself, some time after its start.
const SERVICES: &str = "/api/v1/services?fieldSelector=metadata.name%21%3Dkubernetes";

#[test]
fn objects_live_over_a_restart_of_the_api_server() -> Result<()> {
    let namespace = Namespace::new("cluster")?;
    let begin = Instant::now();
    let mut control_plane = ControlPlane::start(&namespace)?;
    println!("API server ready after {:.1} s", begin.elapsed().as_secs_f64());
    let mut objects = web().with_endpoints([Endpoint::new([10, 244, 1, 2])]);
    objects.push(node("node-1", "a"));
    objects.push(HostPortPod::new("web-1", "u", "node-1", [10, 244, 1, 2]).port(TCP, 8080, 80).into());
    for object in &objects {
        // Once to create it, once to put it in its own place.
        control_plane.client().apply(object)?;
        control_plane.client().apply(object)?;
    }
    control_plane.stop_api_server()?;
    assert!(control_plane.client().get("/api/v1/services").is_err());
    control_plane.start_api_server()?;
    let services = control_plane.client().list(SERVICES)?;
    let names: Vec<&str> = services.iter().filter_map(|s| s.pointer("/metadata/name")?.as_str()).collect();
    assert_eq!(names, ["web"]);
    let pods = control_plane.client().list("/api/v1/pods")?;
    assert_eq!(pods[0].pointer("/status/podIP"), Some(&Value::from("10.244.1.2")));
    control_plane.client().delete(&objects[0])?;
    assert_eq!(control_plane.client().list("/apis/discovery.k8s.io/v1/endpointslices")?, [Value::Null; 0]);
    Ok(())
}

#[test]
fn thousands_of_objects_are_made_in_seconds() -> Result<()> {
    let namespace = Namespace::new("cluster")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let begin = Instant::now();
    let objects = (0..1_000u32).flat_map(|n| {
        let address = format!("10.96.{}.{}", 1 + n / 250, n % 250);
        Service::new(&format!("s{n}"), &[&address])
            .port("http", TCP, 80)
            .with_endpoints([Endpoint::new([10, 244, 1, 2])])
    });
    control_plane.client().create_all(objects.collect())?;
    println!("2,000 objects after {:.1} s", begin.elapsed().as_secs_f64());
    assert_eq!(control_plane.client().list(SERVICES)?.len(), 1_000);
    Ok(())
}

#[test]
fn the_agents_user_may_read_and_write_its_own_kinds_and_nothing_else_and_its_writes_are_recorded()
-> Result<()> {
    let namespace = Namespace::new("cluster")?;
    let control_plane = ControlPlane::start(&namespace)?;
    control_plane.install_crds()?;
    let agent = control_plane.agent_client()?;
    for path in [
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/services",
        "/apis/cilium.io/v2/ciliumendpoints",
        "/apis/cilium.io/v2/ciliumidentities",
        "/apis/cilium.io/v2/ciliumnodes",
        "/apis/cilium.io/v2alpha1/ciliumendpointslices",
        "/apis/discovery.k8s.io/v1/endpointslices",
    ] {
        agent.list(path)?;
    }
    for (method, path) in [
        (Method::GET, "/api/v1/secrets"),
        (Method::GET, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        (Method::DELETE, "/api/v1/nodes/node-1"),
    ] {
        let error = agent.request(method, path, "", None).unwrap_err();
        assert!(has_code(&error, 403), "{path}: {error:#}");
    }
    let identity = |number: u32| {
        json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumIdentity",
            "metadata": {"name": number.to_string()},
            "security-labels": {"k8s:app": "web"},
        })
    };
    control_plane.client().create(&identity(300))?;
    agent.create(&identity(301))?;
    agent.create(&identity(301)).unwrap_err();
    agent.delete(&identity(301))?;
    // Not the administrator's, and no reads.
    let wanted = [("delete", "nodes", 403), ("create", "ciliumidentities", 201)];
    let wanted =
        wanted.into_iter().chain([("create", "ciliumidentities", 409), ("delete", "ciliumidentities", 200)]);
    let wanted: Vec<_> =
        wanted.map(|(verb, resource, code)| (verb.to_owned(), resource.to_owned(), code)).collect();
    // Written after the answer.
    eventually(Duration::from_secs(5), "the record", || {
        let writes = control_plane.writes()?.into_iter();
        let writes: Vec<_> = writes.map(|write| (write.verb, write.resource, write.code)).collect();
        ensure!(writes == wanted, "{writes:?}");
        Ok(())
    })
}

#[test]
fn a_second_api_server_has_the_same_objects_and_controllers_make_slices() -> Result<()> {
    let namespace = Namespace::new("cluster")?;
    let mut control_plane = ControlPlane::start(&namespace)?;
    let second = control_plane.add_api_server()?;
    assert_ne!(second, control_plane.url());
    control_plane.start_controllers()?;
    let service = Service::new("web", &["10.96.0.10"]).port("http", TCP, 80);
    let service = service.with("selector", serde_json::json!({"app": "web"}));
    control_plane.client().apply(&service.into())?;
    eventually(Duration::from_secs(10), "a slice of the service", || {
        let slices = control_plane.client().list("/apis/discovery.k8s.io/v1/endpointslices")?;
        ensure!(!slices.is_empty(), "none");
        Ok(())
    })
}
