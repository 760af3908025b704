//! The kinds that Portway adds to a cluster, as a user installs them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::ControlPlane;
use crate::harness::eventually;

/// Where `cargo xtask crds` writes them.
fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("deploy").join("crds")
}

/// The definitions of `deploy/crds`, in the order of the files' names.
pub fn definitions() -> Result<Vec<Value>> {
    let dir = dir();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path)?;
        serde_yaml_ng::from_str(&text).with_context(|| format!("read {}", path.display()))
    };
    let definitions: Vec<Value> = paths.iter().map(read).collect::<Result<_>>()?;
    ensure!(!definitions.is_empty(), "no definition in {}: `cargo xtask crds` writes them", dir.display());
    Ok(definitions)
}

impl ControlPlane {
    /// Creates `definitions` and waits until their objects can be listed.
    pub fn install(&self, definitions: &[Value]) -> Result<()> {
        for definition in definitions {
            self.client.create(definition)?;
        }
        for definition in definitions {
            let path = list_of(definition)?;
            // They are served some time after the API server says that they are.
            eventually(Duration::from_secs(30), &format!("{path} to be served"), || {
                self.client.get(&path).map(drop)
            })?;
        }
        Ok(())
    }

    /// As a user does it: all of `deploy/crds`.
    pub fn install_crds(&self) -> Result<()> {
        self.install(&definitions()?)
    }
}

/// `/apis/cilium.io/v2/ciliumidentities`.
fn list_of(definition: &Value) -> Result<String> {
    let text = |pointer: &str| {
        definition
            .pointer(pointer)
            .and_then(Value::as_str)
            .with_context(|| format!("no {pointer}: {definition}"))
    };
    Ok(format!(
        "/apis/{}/{}/{}",
        text("/spec/group")?,
        text("/spec/versions/0/name")?,
        text("/spec/names/plural")?
    ))
}
