//! What a role allows, and what was asked for of it.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result};
use serde_json::Value;

use super::ControlPlane;

/// One permission of a role, or one request that needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// `get`, `list`, `watch`, `create`, …
    pub verb: String,
    /// `cilium.io`; "" is the core group.
    pub group: String,
    /// `ciliumnodes`, or `ciliumnodes/status`.
    pub resource: String,
    /// The one object that it is for; `None`: any.
    pub name: Option<String>,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, name } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        name.as_ref().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// A request, and how it was answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// `name` is that of its object, where it is of one.
    pub permission: Permission,
    pub code: u64,
}

/// Every permission of these roles, each by itself.
pub fn permissions<'a>(roles: impl IntoIterator<Item = &'a Value>) -> BTreeSet<Permission> {
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut permissions = BTreeSet::new();
    for rule in roles.into_iter().filter_map(|role| role["rules"].as_array()).flatten() {
        let names = texts(&rule["resourceNames"]);
        let names = if names.is_empty() { vec![None] } else { names.into_iter().map(Some).collect() };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    permissions.extend(names.iter().map(|name| Permission {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                    }));
                }
            }
        }
    }
    permissions
}

impl ControlPlane {
    /// What `user` (a name of [`super::identity`]) has asked for by now, each sort once.
    pub fn asked(&self, user: &str) -> Result<BTreeSet<Asked>> {
        let mut asked = BTreeSet::new();
        for event in self.recorded(user)? {
            // Others ask for no object, but which kinds there are.
            let Some(object) = event.get("objectRef") else { continue };
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let resource = match (text("resource"), text("subresource")) {
                (resource, sub) if sub.is_empty() => resource,
                (resource, sub) => format!("{resource}/{sub}"),
            };
            let verb = event["verb"].as_str().with_context(|| format!("no verb: {event}"))?.to_owned();
            let name = Some(text("name")).filter(|name| !name.is_empty());
            let permission = Permission { verb, group: text("apiGroup"), resource, name };
            let code = event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
            asked.insert(Asked { permission, code });
        }
        Ok(asked)
    }
}
