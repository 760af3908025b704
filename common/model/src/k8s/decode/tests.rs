use crate::k8s::{Decoded, Format, Names, Object, decode};

fn decoded(text: &str, format: Format) -> Decoded {
    decode(text.as_bytes(), format, &mut Names::default()).unwrap()
}

fn names(decoded: &Decoded) -> Vec<&str> {
    decoded.objects.iter().map(|object| &**object.name()).collect()
}

const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"n"},
    "spec":{"clusterIPs":["10.96.0.1"],"ports":[{"port":80}]}}"#;

#[test]
fn both_formats_give_the_same_objects() {
    let json = decoded(SERVICE, Format::Json);
    for format in [Format::Yaml, Format::Detect] {
        assert_eq!(decoded(SERVICE, format).objects, json.objects);
    }
    let with_mark = format!("\u{feff}{SERVICE}\n{SERVICE}");
    assert_eq!(names(&decoded(&with_mark, Format::Detect)), ["n/a", "n/a"]);
    assert_eq!(names(&decoded("{apiVersion: v1, kind: Node, metadata: {name: x}}", Format::Detect)), ["x"]);
}

#[test]
fn what_is_no_text_of_its_format_is_an_error() {
    let mut names = Names::default();
    assert!(decode(b"\xff", Format::Detect, &mut names).unwrap_err().to_string().contains("byte 0"));
    assert!(decode(b"a: 1", Format::Json, &mut names).unwrap_err().to_string().starts_with("not JSON"));
    assert!(
        decode(b"a: [", Format::Detect, &mut names).unwrap_err().to_string().starts_with("not YAML: line")
    );
    assert!(
        decode(b"{\"a\": [", Format::Detect, &mut names).unwrap_err().to_string().starts_with("not JSON")
    );
    assert!(decode(b"", Format::Detect, &mut names).unwrap().objects.is_empty());
}

#[test]
fn a_field_that_is_there_twice_is_named_and_the_last_one_counts() {
    let text = SERVICE.replace(r#""ports":"#, r#""ports":[{"port":1}],"ports":"#);
    let decoded = decoded(&text, Format::Json);
    let Object::Service(service) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
    assert_eq!(service.ports[0].port.get(), 80);
    assert!(decoded.rejects[0].reason.contains("duplicate field `ports`"), "{:?}", decoded.rejects);
}

#[test]
fn an_annotation_keeps_stale_sockets_and_a_bad_one_refuses_no_more_than_itself() {
    let annotated = |annotations: &str| {
        let metadata = format!(r#""name":"a","annotations":{annotations},"#);
        let decoded = decoded(&SERVICE.replace(r#""name":"a","#, &metadata), Format::Json);
        let Object::Service(service) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        assert_eq!(service.ports.len(), 1);
        let rejects: Vec<String> = decoded.rejects.iter().map(|r| r.field.clone()).collect();
        (service.keep_stale_sockets, rejects)
    };
    assert_eq!(annotated("{}"), (false, vec![]));
    assert_eq!(annotated(r#"{"portway.io/keep-stale-sockets":"true","other":"x"}"#), (true, vec![]));
    assert_eq!(annotated(r#"{"portway.io/keep-stale-sockets":"false"}"#), (false, vec![]));
    let named = vec!["metadata.annotations[portway.io/keep-stale-sockets]".to_owned()];
    assert_eq!(annotated(r#"{"portway.io/keep-stale-sockets":"yes"}"#), (false, named));
    let (kept, rejects) = annotated(r#"{"portway.io/keep-stale-sockets":true}"#);
    assert!(!kept && rejects.len() == 1 && rejects[0].starts_with("metadata.annotations"), "{rejects:?}");
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        // Refused or skipped, by whichever limit comes first; the point is to come back.
        let _ = decode(deep.as_bytes(), Format::Detect, &mut Names::default());
        let inside = SERVICE.replace("\"n\"", &deep);
        let _ = decode(inside.as_bytes(), Format::Json, &mut Names::default());
    }
}

#[test]
fn damaged_text_never_panics() {
    let text = include_str!("../../../../../tests/golden/bad-values-service.txt");
    let (_, text) = text.split_once(">>> apply a.yaml\n").unwrap();
    let (text, _) = text.split_once(">>> expect").unwrap();
    let mut random = 1u64;
    let mut pick = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for _ in 0..1000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=pick(4) {
            let at = pick(bytes.len());
            match pick(3) {
                0 => bytes[at] = b"{}[]:-,'\"\n &*!|>#%0a"[pick(20)],
                1 => bytes.truncate(at.max(1)),
                _ => {
                    bytes.remove(at);
                }
            }
            bytes.push(b'\n');
        }
        let _ = decode(&bytes, Format::Detect, &mut Names::default());
    }
}

/// Whoever writes a manifest by hand mends all of a port at once, not one field after each reload.
#[test]
fn every_bad_field_of_a_port_is_named() {
    let fields = |text: &str| -> Vec<String> {
        decoded(text, Format::Yaml).rejects.into_iter().map(|reject| reject.field).collect()
    };
    let long = "x".repeat(64);
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec:\n  type: NodePort\n  clusterIPs: [10.96.0.1]\n  \
         ports: [{{name: {long}, protocol: tcp, port: 0, nodePort: 70000}}]\n"
    );
    let of_port = ["name", "protocol", "port", "nodePort"].map(|name| format!("spec.ports[0].{name}"));
    assert_eq!(fields(&service), of_port);
    let slice = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata:\n  name: a\n  \
         labels: {{kubernetes.io/service-name: a}}\nports: [{{name: {long}, protocol: tcp}}]\n"
    );
    assert_eq!(fields(&slice), ["ports[0].name", "ports[0].protocol", "ports[0].port"]);
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{ports: [{{name: {long}, \
         protocol: tcp, hostPort: 70000, containerPort: 0, hostIP: x}}]}}]}}\n"
    );
    let of_port = ["name", "protocol", "hostPort", "containerPort", "hostIP"];
    assert_eq!(fields(&pod), of_port.map(|name| format!("spec.containers[0].ports[0].{name}")));
}

/// Values of the wrong type don't hide other bad values of their port.
#[test]
fn a_port_with_fields_of_wrong_types_is_read_to_its_end() {
    let fields = |decoded: &Decoded| -> Vec<String> {
        let mut fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.clone()).collect();
        fields.sort();
        fields
    };
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  type: NodePort\n  clusterIPs: [10.96.0.1]\n  \
                   ports:\n  - {name: [], protocol: tcp, port: http, nodePort: {}}\n  - {port: 80, protocol: 6}\n  - {port: 81}\n";
    let found = decoded(service, Format::Yaml);
    let bad = ["[0].name", "[0].nodePort", "[0].port", "[0].protocol", "[1].protocol"];
    assert_eq!(fields(&found), bad.map(|at| format!("spec.ports{at}")));
    let Object::Service(service) = &found.objects[0] else { panic!("no Service") };
    assert_eq!(service.ports.iter().map(|port| port.port.get()).collect::<Vec<_>>(), [81]);
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata: {name: a, labels: \
                 {kubernetes.io/service-name: a}}\nports: [{name: 7, protocol: tcp, port: []}, {port: 80}]\n";
    let found = decoded(slice, Format::Yaml);
    assert_eq!(fields(&found), ["ports[0].name", "ports[0].port", "ports[0].protocol"]);
    let Object::EndpointSlice(slice) = &found.objects[0] else { panic!("no EndpointSlice") };
    assert_eq!(slice.ports.len(), 1);
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{ports: [{protocol: tcp, hostPort: x, \
               containerPort: [], hostIP: x}, {hostPort: 80, containerPort: 80}]}]}\n";
    let found = decoded(pod, Format::Yaml);
    let bad = ["containerPort", "hostIP", "hostPort", "protocol"];
    assert_eq!(fields(&found), bad.map(|name| format!("spec.containers[0].ports[0].{name}")));
    let Object::Pod(pod) = &found.objects[0] else { panic!("no Pod") };
    assert_eq!(pod.host_ports.len(), 1);
    let no_host_port = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{ports: [{containerPort: []}]}]}\n";
    assert_eq!(fields(&decoded(no_host_port, Format::Yaml)), ["spec.containers[0].ports[0].containerPort"]);
}

/// By it one of two pods of a name is the newer one, whether it has host ports or not.
#[test]
fn when_a_pod_was_made_is_read_of_every_pod_and_refused_of_none_that_has_no_host_port() {
    let created = |time: &str| {
        let text = format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "a", "creationTimestamp": "{time}"}}}}"#
        );
        let found = decoded(&text, Format::Json);
        let Object::Pod(pod) = &found.objects[0] else { panic!("no Pod") };
        (pod.created, found.rejects.len())
    };
    assert_eq!(created("1970-01-01T00:00:07Z"), (Some(7), 0));
    assert_eq!(created("yesterday"), (None, 0));
}
