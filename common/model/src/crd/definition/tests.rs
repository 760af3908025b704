use std::collections::BTreeMap;

use super::*;

fn definition(name: &str) -> Value {
    let found = definitions().into_iter().find(|(file, _)| file == name);
    found.unwrap_or_else(|| panic!("no {name}")).1
}

/// Every object of a schema below `path`, with its path.
fn each(schema: &Value, path: &str, seen: &mut Vec<(String, Value)>) {
    seen.push((path.to_owned(), schema.clone()));
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, inner) in properties {
            each(inner, &format!("{path}.{name}"), seen);
        }
    }
    for field in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(field) {
            each(inner, &format!("{path}.{field}"), seen);
        }
    }
}

#[test]
fn every_schema_is_structural() {
    for (file, definition) in definitions() {
        let mut seen = Vec::new();
        each(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut seen);
        for (path, schema) in seen {
            assert!(schema["type"].is_string(), "{file} {path}: {schema}");
            for word in ["$ref", "default", "title", "anyOf", "oneOf", "allOf", "$schema"] {
                assert!(schema.get(word).is_none(), "{file} {path} has {word}");
            }
            // The API server warns of formats that it does not know.
            let format = schema.get("format").and_then(Value::as_str).unwrap_or("int64");
            assert_eq!(format, "int64", "{file} {path}");
        }
    }
}

#[test]
fn names_and_columns_are_ciliums() {
    let endpoint = definition("ciliumendpoints.cilium.io.yaml");
    assert_eq!(endpoint["spec"]["scope"], "Namespaced");
    assert_eq!(endpoint["spec"]["names"]["shortNames"], json!(["cep", "ciliumep"]));
    let columns = endpoint["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
    let columns: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    let expected =
        ["Security Identity", "Ingress Enforcement", "Egress Enforcement", "Endpoint State", "IPv4", "IPv6"];
    assert_eq!(columns, expected);
    // Written together with the rest: `status` of a CiliumEndpoint is no subresource.
    assert!(endpoint["spec"]["versions"][0].get("subresources").is_none());
    let node = definition("ciliumnodes.cilium.io.yaml");
    assert_eq!(node["spec"]["versions"][0]["subresources"], json!({"status": {}}));
    let identity = definition("ciliumidentities.cilium.io.yaml");
    let schema = &identity["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(schema["required"], json!(["security-labels"]));
    assert_eq!(schema["properties"]["security-labels"]["additionalProperties"], json!({"type": "string"}));
    let slice = definition("ciliumendpointslices.cilium.io.yaml");
    assert_eq!(slice["spec"]["versions"][0]["name"], "v2alpha1");
}

#[test]
fn what_others_write_is_not_pruned() {
    let schema = |file: &str| definition(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let preserves = |schema: &Value| schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
    assert!(preserves(&schema("ciliumendpoints.cilium.io.yaml")["properties"]["status"]));
    let node = schema("ciliumnodes.cilium.io.yaml");
    assert!(preserves(&node["properties"]["spec"]) && preserves(&node["properties"]["status"]));
    assert!(preserves(&node["properties"]["spec"]["properties"]["ipam"]));
}

#[test]
fn paths_are_the_api_servers() {
    let of = CiliumEndpoint::DEFINITION;
    assert_eq!(of.path_of("shop", "web-0"), "/apis/cilium.io/v2/namespaces/shop/ciliumendpoints/web-0");
    assert_eq!(CiliumIdentity::DEFINITION.path_of("", "300"), "/apis/cilium.io/v2/ciliumidentities/300");
}

/// FNV-1a of 64 bits, of JSON whose keys are sorted.
fn hash(value: &Value) -> u64 {
    fn sorted(value: &Value) -> String {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<_, _> = fields.iter().map(|(key, value)| (key, sorted(value))).collect();
                format!("{fields:?}")
            }
            Value::Array(items) => format!("{:?}", items.iter().map(sorted).collect::<Vec<_>>()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        }
    }
    let fold = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    sorted(value).bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// An installed definition is replaced by one whose version is higher, and by no other.
#[test]
fn a_definition_changes_with_its_version_alone() {
    let semver = |version: &str| -> Vec<u64> {
        version.split('.').map(|part| part.parse().unwrap_or_else(|_| panic!("{version}"))).collect()
    };
    let all: Vec<_> = definitions().into_iter().map(|(_, definition)| definition).collect();
    for definition in &all {
        assert_eq!(definition["metadata"]["labels"][SCHEMA_VERSION_LABEL], SCHEMA_VERSION);
    }
    let of_spec: Vec<_> = all.iter().map(|definition| definition["spec"].clone()).collect();
    let now = format!("{SCHEMA_VERSION} {:016x}", hash(&Value::Array(of_spec)));
    let known: Vec<_> = include_str!("versions.txt").lines().filter(|line| !line.starts_with('#')).collect();
    assert!(
        known.last() == Some(&now.as_str()),
        "the definitions are not those of the last line of versions.txt: raise SCHEMA_VERSION and add `{now}`"
    );
    let versions: Vec<_> = known.iter().map(|line| semver(line.split(' ').next().unwrap_or(""))).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "versions.txt is not in order: {versions:?}");
}
