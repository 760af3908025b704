//! What agents and operators have written to the API servers of a test, by the servers' own record.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::identity::{AGENT, OPERATOR};
use super::{ControlPlane, flag};

const POLICY: &str = "audit-policy.json";

/// A request of an agent's or an operator's that changes something, or would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// `ciliumendpoints`.
    pub resource: String,
    /// Empty where the object gets its name from the API server, and in a create.
    pub name: String,
    /// Of the answer.
    pub code: u64,
    /// The address that asked: of its node.
    pub from: Option<IpAddr>,
}

/// Lets an API server record what agents and operators write, once it is answered.
pub(super) fn flags(command: &mut Command, dir: &Path, port: u16) -> Result<()> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "Metadata", "users": [AGENT, OPERATOR], "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
            {"level": "None"},
        ],
    });
    let path = dir.join(POLICY);
    std::fs::write(&path, policy.to_string()).with_context(|| format!("write {}", path.display()))?;
    command.arg(flag("audit-policy-file", path.display()));
    command.arg(flag("audit-log-path", record(dir, port).display()));
    Ok(())
}

fn record(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!("audit-{port}.log"))
}

impl ControlPlane {
    /// What agents have written by now, of each API server the oldest first.
    pub fn writes(&self) -> Result<Vec<Write>> {
        self.writes_of(AGENT)
    }

    /// What operators have written by now, of each API server the oldest first.
    pub fn operator_writes(&self) -> Result<Vec<Write>> {
        self.writes_of(OPERATOR)
    }

    fn writes_of(&self, user: &str) -> Result<Vec<Write>> {
        let mut writes = Vec::new();
        for server in &self.api_servers {
            let path = record(self.dir.path(), server.port);
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            // The last line may be on its way.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                let event: Value = serde_json::from_str(line).with_context(|| format!("read {line}"))?;
                if event.pointer("/user/username").and_then(Value::as_str) == Some(user) {
                    writes.push(write(&event));
                }
            }
        }
        Ok(writes)
    }
}

fn write(event: &Value) -> Write {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Write {
        verb: text("/verb"),
        resource: text("/objectRef/resource"),
        name: text("/objectRef/name"),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
        from: text("/sourceIPs/0").parse().ok(),
    }
}
