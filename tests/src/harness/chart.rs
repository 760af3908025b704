//! The chart as a user installs it: what helm renders for the sets of values of `tests/chart`, which `cargo xtask check
//! chart` compares with the chart itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

/// Behind the name of a set.
const VALUES: &str = ".values.yaml";

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chart")
}

/// The names of the sets.
pub fn sets() -> Result<Vec<String>> {
    let dir = dir();
    let mut sets = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        sets.extend(name.strip_suffix(VALUES).map(str::to_owned));
    }
    sets.sort();
    ensure!(!sets.is_empty(), "no set of values in {}", dir.display());
    Ok(sets)
}

/// The objects of a set, in the order in which helm applies them.
pub fn objects(set: &str) -> Result<Vec<Value>> {
    let path = dir().join(format!("{set}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(&text) {
        let object = Value::deserialize(document).with_context(|| format!("read {}", path.display()))?;
        objects.extend((!object.is_null()).then_some(object));
    }
    ensure!(!objects.is_empty(), "no object in {}", path.display());
    Ok(objects)
}

/// The object of a set with this kind and name, if it has one.
pub fn object(set: &str, kind: &str, name: &str) -> Result<Option<Value>> {
    let is_it = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
    Ok(objects(set)?.into_iter().find(is_it))
}

/// The configuration of a set: keys and their values.
pub fn config(set: &str) -> Result<BTreeMap<String, String>> {
    let map = object(set, "ConfigMap", "portway-config")?;
    let data = map.and_then(|map| map.get("data").cloned());
    serde_json::from_value(data.with_context(|| format!("{set} has no configuration"))?)
        .with_context(|| format!("read the configuration of {set}"))
}

/// What a set has the API server know of agents and operators before they come: their roles and the policy of the
/// operator's writes, and the bindings of both.
pub fn rules(set: &str) -> Result<Vec<Value>> {
    let groups = ["rbac.authorization.k8s.io/", "admissionregistration.k8s.io/"];
    let is_rule = |object: &Value| {
        object["apiVersion"]
            .as_str()
            .is_some_and(|version| groups.iter().any(|group| version.starts_with(group)))
    };
    let mut rules = objects(set)?;
    rules.retain(is_rule);
    Ok(rules)
}
