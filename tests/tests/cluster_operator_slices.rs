//! CiliumEndpointSlices, CiliumEndpoints that nobody has, and the definitions of their kinds, by a real operator at a real
//! API server. What went while no operator ran is in `cluster_operator_pains.rs`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use portway_model::crd::{SCHEMA_VERSION, SCHEMA_VERSION_LABEL, definitions};
use portway_tests::harness::operator::Places;
use portway_tests::harness::operator::agreement::of_slices;
use portway_tests::harness::operator::objects::{endpoint, named, node, pod};
use portway_tests::harness::operator::replicas::SHORT_LEASE;
use portway_tests::harness::{ControlPlane, Namespace, Operator, Replicas, eventually};
use serde_json::{Value, json};

const BEGIN: Duration = Duration::from_secs(20);
const SLICES: &str = "/apis/cilium.io/v2alpha1/ciliumendpointslices";
const ENDPOINTS: &str = "/apis/cilium.io/v2/ciliumendpoints";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Slices alone, one write a second: what is between two writes can be seen.
const SLOWLY: [&str; 5] = [
    "--enable-cilium-endpoint-slice=true",
    r#"--ces-rate-limits=[{"nodes":0,"limit":1,"burst":1}]"#,
    "--cilium-endpoint-gc-interval=0",
    "--ipam=kubernetes",
    "--nodes-gc-interval=0",
];
const QUICKLY: [&str; 5] = [
    "--enable-cilium-endpoint-slice=true",
    r#"--ces-rate-limits=[{"nodes":0,"limit":50,"burst":100}]"#,
    "--cilium-endpoint-gc-interval=0",
    "--ipam=kubernetes",
    "--nodes-gc-interval=0",
];

fn with(flags: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [flags, &SHORT_LEASE, more].concat()
}

/// The identities that slices tell of an endpoint of `default`, by the slice.
fn told(all: &Replicas, name: &str) -> Result<BTreeMap<String, i64>> {
    let mut told = BTreeMap::new();
    for slice in all.client().list(SLICES)? {
        let elements = slice["endpoints"].as_array().into_iter().flatten();
        for element in elements.filter(|element| element["name"] == name) {
            let slice = slice["metadata"]["name"].as_str().context("a slice without name")?;
            told.insert(slice.to_owned(), element["id"].as_i64().context("an element without number")?);
        }
    }
    Ok(told)
}

fn slices_agree(all: &Replicas) -> Result<()> {
    eventually(BEGIN, "slices to be what the endpoints are", || {
        let wrong = of_slices(all.client())?;
        ensure!(wrong.is_empty(), "{wrong:#?}");
        Ok(())
    })
}

fn make(all: &Replicas, number: u32, identity: u32) -> Result<()> {
    let pod = all.client().create(&pod("default", &format!("p{number}"), 1, number, &[("app", "web")]))?;
    all.client().create(&endpoint(&pod, identity, &["k8s:app=web".to_owned()])?).map(drop)
}

/// Writes of slices, and of whatever else `resource` says.
fn writes(control_plane: &ControlPlane, resource: &str) -> Result<Vec<String>> {
    let writes = control_plane.operator_writes()?.into_iter();
    Ok(writes
        .filter(|w| w.resource == resource)
        .map(|w| format!("{} {} {}", w.verb, w.name, w.code))
        .collect())
}

/// <https://github.com/cilium/cilium/issues/24581>: killed between insert and remove.
#[test]
fn pain_71_an_operator_that_is_killed_while_an_endpoint_moves_leaves_it_in_no_two_slices_for_good()
-> Result<()> {
    Replicas::test("pain71-move", 1, |all| {
        all.client().create(&node(1))?;
        for (number, identity) in [(1, 300), (2, 300), (3, 300), (4, 301)] {
            make(all, number, identity)?;
        }
        all.start(1, &with(&SLOWLY, &[]))?;
        slices_agree(all)?;
        let before = told(all, "p3")?;
        // In every moment it is told, and the new identity is told before the old one goes.
        let patch = json!({"status": {"identity": {"id": 301}}});
        all.client().patch(&named("cilium.io/v2", "CiliumEndpoint", "default", "p3"), &patch)?;
        let between = eventually(BEGIN, "it to be in two slices", || {
            let told = told(all, "p3")?;
            ensure!(!told.is_empty(), "it is in no slice");
            ensure!(told.len() == 2, "{told:?}");
            Ok(told)
        })?;
        all.kill(1)?;
        ensure!(between.keys().any(|slice| before.contains_key(slice)), "{before:?} {between:?}");
        all.start(1, &with(&SLOWLY, &[]))?;
        eventually(BEGIN, "it to be in one slice", || {
            let told = told(all, "p3")?;
            ensure!(!told.is_empty(), "it is in no slice");
            ensure!(told.len() == 1 && told.values().eq([&301]), "{told:?}");
            Ok(())
        })?;
        slices_agree(all)
    })
}

/// <https://github.com/cilium/cilium/issues/31564>, with slices that Cilium's operator has made and where Cilium's
/// definition is installed, which knows less than ours: what is left out of what is written must not be missed.
#[test]
fn pain_72_where_ciliums_definition_drops_fields_a_restart_writes_nothing() -> Result<()> {
    let namespace = Namespace::new("pain72-others")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let mut all = Vec::new();
    for (file, mut definition) in definitions() {
        definition["metadata"]["labels"][SCHEMA_VERSION_LABEL] = json!("1.26.9");
        if file.starts_with("ciliumendpointslices") {
            let items = "/spec/versions/0/schema/openAPIV3Schema/properties/endpoints/items";
            let items = definition.pointer_mut(items).and_then(Value::as_object_mut).context("no items")?;
            items.remove("x-kubernetes-preserve-unknown-fields");
            let fields = items["properties"].as_object_mut().context("no fields")?;
            ensure!(fields.remove("created").is_some() && fields.remove("service-account").is_some());
        }
        all.push(definition);
    }
    control_plane.install(&all)?;
    let client = control_plane.client();
    client.create(&node(1))?;
    let (mut elements, mut first) = (Vec::new(), Vec::new());
    for number in 0..30 {
        let pod = client.create(&pod("default", &format!("p{number}"), 1, number, &[]))?;
        let mut endpoint = endpoint(&pod, 300 + number % 3, &["k8s:app=web".to_owned()])?;
        endpoint["status"]["named-ports"] = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        elements.push(json!({
            "name": endpoint["metadata"]["name"], "id": endpoint["status"]["identity"]["id"],
            "networking": endpoint["status"]["networking"], "named-ports": endpoint["status"]["named-ports"],
            "encryption": {}, "service-account": "default",
        }));
        first.push(endpoint);
    }
    client.create_all(first)?;
    elements.truncate(20);
    client.create(&json!({
        "apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice",
        "metadata": {"name": "ces-of-cilium"}, "namespace": "default", "endpoints": elements,
    }))?;
    let places = Places {
        namespace: namespace.clone(),
        number: 1,
        kubeconfig: control_plane.kubeconfig_of("operator")?,
    };
    let agree = || {
        eventually(BEGIN, "slices to be what the endpoints are", || {
            let wrong = of_slices(client)?;
            ensure!(wrong.is_empty(), "{wrong:#?}");
            Ok(())
        })
    };
    let mut counts = Vec::new();
    for round in 0..3 {
        let mut operator = Operator::spawn(&places, &with(&QUICKLY, &["--ces-slice-mode=cesSliceModeFCFS"]))?;
        operator.wait_up()?;
        agree()?;
        eventually(BEGIN, "two plans", || {
            let status = operator.status()?;
            let plans = status["controllers"][0]["plans"].as_u64().context("no plans")?;
            ensure!(plans >= 1, "{status}");
            Ok(())
        })?;
        counts.push(writes(&control_plane, "ciliumendpointslices")?.len());
        let dropped = client.list(SLICES)?.iter().any(|slice| !slice["endpoints"][0]["created"].is_null());
        ensure!(!dropped, "round {round}: the definition keeps everything");
        operator.stop()?;
    }
    // One that gathers the ten that nobody has gathered.
    assert_eq!(counts, [1, 1, 1], "{:#?}", writes(&control_plane, "ciliumendpointslices")?);
    let definitions = writes(&control_plane, "customresourcedefinitions")?;
    ensure!(definitions.is_empty(), "{definitions:#?}");
    Ok(())
}

#[test]
fn endpoints_whose_pod_is_gone_or_over_or_another_one_go_and_others_stay() -> Result<()> {
    Replicas::test("endpoint-gc", 1, |all| {
        let client = all.client();
        client.create(&node(1))?;
        let labels = ["k8s:app=web".to_owned()];
        let mut endpoints = Vec::new();
        for (number, name) in ["runs", "over", "replaced", "gone"].into_iter().enumerate() {
            let pod = client.create(&pod("default", name, 1, number as u32, &[]))?;
            endpoints.push(endpoint(&pod, 300, &labels)?);
        }
        let mut node_s = endpoints[0].clone();
        node_s["metadata"]["name"] = json!("of-a-node");
        node_s["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "name": "node-1", "uid": "1"}]);
        endpoints.push(node_s);
        client.create_all(endpoints)?;
        client.set_status(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "over", "namespace": "default"},
            "status": {"phase": "Succeeded"},
        }))?;
        for name in ["replaced", "gone"] {
            client.delete(&named("v1", "Pod", "default", name))?;
        }
        client.create(&pod("default", "replaced", 1, 9, &[]))?;
        all.start(1, &with(&["--ipam=kubernetes", "--cilium-endpoint-gc-interval=1s"], &[]))?;
        let left = || -> Result<Vec<String>> {
            let names = all.client().list(ENDPOINTS)?.into_iter();
            Ok(names.filter_map(|object| Some(object["metadata"]["name"].as_str()?.to_owned())).collect())
        };
        eventually(BEGIN, "those to be gone that no pod has", || {
            let left = left()?;
            ensure!(left == ["of-a-node", "runs"], "{left:?}");
            Ok(())
        })?;
        let deleted = all.operator(1)?.metric("cilium_operator_endpoint_gc_objects")?;
        assert_eq!(deleted, [("outcome=\"success\"".to_owned(), 3.0)]);
        let mut writes = writes(all.control_plane(), "ciliumendpoints")?;
        writes.sort();
        assert_eq!(writes, ["delete gone 200", "delete over 200", "delete replaced 200"]);
        Ok(())
    })
}

/// Whether `whole` has everything that `part` has.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

/// Starts an operator, waits until its definitions are served, and gives what it has done to each.
fn defined(places: &Places) -> Result<(Operator, BTreeMap<String, Value>)> {
    let mut operator = Operator::spawn(places, &with(&QUICKLY, &[]))?;
    operator.wait_up()?;
    let done = eventually(BEGIN * 2, "definitions to be served", || {
        let status = operator.status()?;
        let rows = status["definitions"].as_array().filter(|rows| rows.len() == 4).context("none yet")?;
        let is_well = |row: &&Value| row["is_established"] == true && row["problem"].is_null();
        ensure!(rows.iter().all(|row| is_well(&row)), "{rows:#?}");
        let done =
            rows.iter().filter_map(|row| Some((row["name"].as_str()?.to_owned(), row["done"].clone())));
        Ok(done.collect())
    })?;
    Ok((operator, done))
}

#[test]
fn definitions_are_made_from_nothing_replaced_where_older_and_left_where_newer() -> Result<()> {
    let namespace = Namespace::new("definitions")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let client = control_plane.client();
    let places = Places {
        namespace: namespace.clone(),
        number: 1,
        kubeconfig: control_plane.kubeconfig_of("operator")?,
    };
    let plan = || -> Result<String> {
        let output = places.command(&["plan"])?.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let planned = plan()?;
    assert_eq!(planned.matches("create CustomResourceDefinition").count(), 4, "{planned}");
    let (operator, done) = defined(&places)?;
    assert_eq!(done.len(), 4);
    ensure!(done.values().all(|done| *done == json!("created")), "{done:?}");
    let name = |file: &str| file.trim_end_matches(".yaml").to_owned();
    for (file, wanted) in definitions() {
        let installed = client.get(&format!("{DEFINITIONS}/{}", name(&file)))?;
        ensure!(contains(&installed, &wanted), "{file}: {installed:#}");
    }
    // Their kinds work at once.
    client.create(&node(1))?;
    let pod = client.create(&pod("default", "p0", 1, 0, &[]))?;
    client.create(&endpoint(&pod, 300, &["k8s:app=web".to_owned()])?)?;
    eventually(BEGIN, "a slice", || {
        let wrong = of_slices(client)?;
        ensure!(wrong.is_empty() && client.list(SLICES)?.len() == 1, "{wrong:#?}");
        Ok(())
    })?;
    operator.stop()?;
    let (operator, done) = defined(&places)?;
    ensure!(done.values().all(Value::is_null), "{done:?}");
    operator.stop()?;
    assert_eq!(writes(&control_plane, "customresourcedefinitions")?.len(), 4);

    // One is older, one has no version, one is newer, one is ours.
    let change = |name: &str, version: Value| {
        let path = format!("{DEFINITIONS}/{name}");
        let columns =
            json!([{"op": "add", "path": "/spec/versions/0/additionalPrinterColumns", "value": []}]);
        client.request(Method::PATCH, &path, "application/json-patch+json", Some(&columns))?;
        let patch = json!({"metadata": {"labels": {SCHEMA_VERSION_LABEL: version, "team": "net"}}});
        client.request(Method::PATCH, &path, "application/merge-patch+json", Some(&patch)).map(drop)
    };
    change("ciliumendpoints.cilium.io", json!("0.0.9"))?;
    change("ciliumidentities.cilium.io", Value::Null)?;
    change("ciliumnodes.cilium.io", json!("1.33.11"))?;
    let newer = client.get(&format!("{DEFINITIONS}/ciliumnodes.cilium.io"))?;
    let planned = plan()?;
    assert_eq!(planned.matches("replace CustomResourceDefinition").count(), 2, "{planned}");
    let (operator, done) = defined(&places)?;
    assert_eq!(done["ciliumendpoints.cilium.io"], json!({"replaced": {"was": "0.0.9"}}));
    assert_eq!(done["ciliumidentities.cilium.io"], json!({"replaced": {"was": ""}}));
    ensure!(done["ciliumnodes.cilium.io"].is_null() && done["ciliumendpointslices.cilium.io"].is_null());
    for (file, wanted) in definitions() {
        let name = name(&file);
        let installed = client.get(&format!("{DEFINITIONS}/{name}"))?;
        if name == "ciliumnodes.cilium.io" {
            assert_eq!(installed, newer);
            continue;
        }
        ensure!(contains(&installed, &wanted), "{name}: {installed:#}");
        let labels = &installed["metadata"]["labels"];
        assert_eq!(labels[SCHEMA_VERSION_LABEL], SCHEMA_VERSION);
        assert_eq!(labels["team"].is_null(), name == "ciliumendpointslices.cilium.io");
    }
    // Objects are as they were, once their storage is open again.
    eventually(BEGIN, "the slice and its endpoint", || {
        let wrong = of_slices(client)?;
        ensure!(wrong.is_empty() && client.list(SLICES)?.len() == 1, "{wrong:#?}");
        Ok(())
    })?;
    operator.stop().map(drop)
}

/// Neither a role that forbids it nor a definition that is being deleted ends the operator.
#[test]
fn definitions_that_may_not_be_made_yet_are_named_and_made_when_they_may() -> Result<()> {
    let namespace = Namespace::new("forbidden")?;
    let control_plane = ControlPlane::start(&namespace)?;
    let client = control_plane.client();
    let bindings = client.list("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")?;
    let is_operators = |binding: &&Value| binding["subjects"][0]["name"] == "portway-operator";
    let binding = bindings.iter().find(is_operators).context("the operator has no role")?;
    let mut binding = binding.clone();
    binding["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    binding["kind"] = json!("ClusterRoleBinding");
    client.delete(&binding)?;
    let places = Places {
        namespace: namespace.clone(),
        number: 1,
        kubeconfig: control_plane.kubeconfig_of("operator")?,
    };
    let mut operator = Operator::spawn(&places, &with(&QUICKLY, &[]))?;
    operator.wait_up()?;
    let begin = Instant::now();
    eventually(BEGIN, "the operator to say what it may not", || {
        let status = operator.status()?;
        let problem = status["definitions"][0]["problem"].as_str().context("it says nothing")?;
        ensure!(problem.contains("403"), "{problem}");
        Ok(())
    })?;
    let named = begin.elapsed();
    client.create(&binding)?;
    let begin = Instant::now();
    eventually(BEGIN * 2, "definitions to be served", || {
        let status = operator.status()?;
        let rows = status["definitions"].as_array().context("none")?;
        ensure!(
            rows.iter().all(|row| row["is_established"] == true && row["problem"].is_null()),
            "{rows:#?}"
        );
        Ok(())
    })?;
    println!("named after {named:?}, made {:?} after it may", begin.elapsed());
    operator.ensure_running()
}
