//! What agents and operators have asked of the API servers of a test, by the servers' own record.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use portway_model::k8s::seconds_of;
use serde_json::{Value, json};

use super::identity::{AGENT, OPERATOR};
use super::{ControlPlane, flag};

const POLICY: &str = "audit-policy.json";
const WRITING: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// A request of an agent's or an operator's that changes something, or would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// `ciliumendpoints`.
    pub resource: String,
    /// Empty where the object gets its name from the API server, and in a create.
    pub name: String,
    /// Who it says that it is: its `fieldManager`.
    pub manager: Option<String>,
    /// Of the answer.
    pub code: u64,
    /// The address that asked: of its node, or the one that a proxy says.
    pub from: Option<IpAddr>,
    /// When the request was there, and when it was answered; since 1970, by the API server's clock, which is the test's.
    pub received: Duration,
    pub answered: Duration,
}

impl Write {
    /// Something may have changed.
    pub const fn is_done(&self) -> bool {
        self.code >= 200 && self.code < 300
    }
}

/// Lets an API server record what agents and operators ask for, once it is answered; a watch once it began.
pub(super) fn flags(command: &mut Command, dir: &Path, port: u16) -> Result<()> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "users": [AGENT, OPERATOR]},
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
        for event in self.recorded(user)? {
            let is_dry = event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All"));
            if !is_dry && event["verb"].as_str().is_some_and(|verb| WRITING.contains(&verb)) {
                writes.push(write(&event).with_context(|| format!("read {event}"))?);
            }
        }
        Ok(writes)
    }

    /// What `user` has asked for by now, of each API server the oldest first: events `audit.k8s.io/v1`.
    pub(super) fn recorded(&self, user: &str) -> Result<Vec<Value>> {
        let mut events = Vec::new();
        for server in &self.api_servers {
            let path = record(self.dir.path(), server.port);
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            // The last line may be on its way.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                let event: Value = serde_json::from_str(line).with_context(|| format!("read {line}"))?;
                if event.pointer("/user/username").and_then(Value::as_str) == Some(user) {
                    events.push(event);
                }
            }
        }
        Ok(events)
    }
}

/// In the query of a request.
fn manager(uri: &str) -> Option<String> {
    let pairs = uri.split_once('?').into_iter().flat_map(|(_, query)| query.split('&'));
    let mut named = pairs.filter_map(|pair| pair.strip_prefix("fieldManager="));
    named.next().map(str::to_owned)
}

fn write(event: &Value) -> Result<Write> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Write {
        verb: text("/verb"),
        resource: text("/objectRef/resource"),
        name: text("/objectRef/name"),
        manager: manager(&text("/requestURI")),
        code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default(),
        from: text("/sourceIPs/0").parse().ok(),
        received: time(&text("/requestReceivedTimestamp"))?,
        answered: time(&text("/stageTimestamp"))?,
    })
}

/// `2026-11-30T16:34:39.123456Z`, since 1970.
fn time(text: &str) -> Result<Duration> {
    let seconds = seconds_of(text).with_context(|| format!("{text:?} is no time"))?;
    let fraction = text.split_once('.').map_or("0", |(_, rest)| rest.trim_end_matches('Z'));
    let nanos: u32 = format!("{fraction:0<9}").parse().with_context(|| format!("{text:?} is no time"))?;
    Ok(Duration::new(u64::try_from(seconds)?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_fraction() {
        assert_eq!(time("1970-01-01T00:00:02.000500Z").unwrap(), Duration::new(2, 500_000));
        assert_eq!(time("1970-01-01T00:00:02Z").unwrap(), Duration::from_secs(2));
        assert!(time("").is_err());
    }
}
