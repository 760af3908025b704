use portway_model::crd::{SCHEMA_VERSION, definitions};
use serde_json::{Value, json};

use super::*;

fn wanted(name: &str) -> Value {
    definitions().into_iter().find(|(file, _)| file.starts_with(name)).unwrap().1
}

/// As the API server has it, of this version.
fn installed(name: &str, version: Option<&str>) -> Value {
    let mut definition = wanted(name);
    definition["metadata"] = json!({
        "name": name, "uid": "u", "resourceVersion": "7", "labels": {"team": "net"},
        "annotations": {"a": "b"}, "managedFields": [{}],
    });
    if let Some(version) = version {
        definition["metadata"]["labels"][SCHEMA_VERSION_LABEL] = json!(version);
    }
    definition["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    definition
}

#[test]
fn a_definition_that_is_missing_is_created_as_it_is_generated() {
    for (_, definition) in definitions() {
        assert_eq!(plan(&definition, None), Step::Create(definition));
    }
}

#[test]
fn a_definition_is_replaced_by_a_newer_one_and_by_no_other() {
    let wanted = wanted("ciliumnodes");
    let step = |version: Option<&str>| plan(&wanted, Some(&installed("ciliumnodes", version)));
    for kept in [SCHEMA_VERSION, "1.33.11", "v1.2", "99.0.0-rc.1"] {
        assert_eq!(step(Some(kept)), Step::Keep, "{kept}");
    }
    for older in [None, Some("0.0.1"), Some("0.1.0-rc.1"), Some("none")] {
        assert!(matches!(step(older), Step::Replace { .. }), "{older:?}");
    }
    let mut going = installed("ciliumnodes", None);
    going["metadata"]["deletionTimestamp"] = json!("2026-11-30T10:00:00Z");
    assert_eq!(plan(&wanted, Some(&going)), Step::Wait);
}

#[test]
fn what_others_have_put_on_a_definition_stays_when_it_is_replaced() {
    let wanted = wanted("ciliumendpointslices");
    let mut installed = installed("ciliumendpointslices", Some("0.0.1"));
    let other = json!({"name": "v2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let versions = installed["spec"]["versions"].as_array_mut().unwrap();
    versions[0]["storage"] = json!(false);
    versions[0]["schema"] = json!({});
    versions.insert(0, other);
    installed["spec"]["conversion"] = json!({"strategy": "None"});
    installed["spec"]["preserveUnknownFields"] = json!(true);
    let Step::Replace { body, was } = plan(&wanted, Some(&installed)) else { panic!("kept") };
    assert_eq!(was, "0.0.1");
    let expected = json!({
        "name": "ciliumendpointslices", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"},
        "labels": {"team": "net", SCHEMA_VERSION_LABEL: SCHEMA_VERSION},
    });
    assert_eq!(body["metadata"], expected);
    assert_eq!(body["spec"]["versions"][0], wanted["spec"]["versions"][0]);
    let stored: Vec<_> = body["spec"]["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version| (version["name"].as_str().unwrap(), version["storage"] == json!(true)))
        .collect();
    assert_eq!(stored, [("v2alpha1", true), ("v2", false)]);
    assert_eq!(body["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(body["spec"]["preserveUnknownFields"], json!(false));
    assert!(body.get("status").is_none());
}

#[test]
fn a_newer_definition_that_does_not_serve_our_version_is_named_and_left_alone() {
    let mut newer = installed("ciliumendpointslices", Some("3.0.0"));
    newer["spec"]["versions"][0]["name"] = json!("v2");
    let Step::TooNew { problem } = plan(&wanted("ciliumendpointslices"), Some(&newer)) else {
        panic!("kept")
    };
    assert!(problem.contains("3.0.0") && problem.contains("v2alpha1"), "{problem}");
}

#[test]
fn a_definition_whose_names_are_taken_says_so() {
    let mut definition = installed("ciliumnodes", None);
    assert_eq!(plan::established(&definition), Ok(true));
    definition["status"] = json!({"conditions": [
        {"type": "NamesAccepted", "status": "False", "reason": "ShortNamesConflict", "message": "\"cn\" is already in use"},
        {"type": "Established", "status": "False"},
    ]});
    assert!(plan::established(&definition).unwrap_err().contains("already in use"));
    definition["status"] = Value::Null;
    assert_eq!(plan::established(&definition), Ok(false));
}
