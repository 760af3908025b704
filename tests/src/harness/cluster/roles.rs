//! What the users [`AGENT`] and [`OPERATOR`] may do, and nothing else.

use serde_json::{Value, json};

use super::identity::{AGENT, OPERATOR};

const RBAC: &str = "rbac.authorization.k8s.io";
/// The operator's namespace: its lease and its pool of pod CIDRs are there.
const NAMESPACE: &str = "kube-system";

/// Roles and their bindings.
pub fn roles() -> Vec<Value> {
    let mut objects = agent();
    objects.extend(operator());
    objects
}

fn agent() -> Vec<Value> {
    let rules = json!([
        read("", &["namespaces", "nodes", "pods", "services"]),
        read("discovery.k8s.io", &["endpointslices"]),
        read("apiextensions.k8s.io", &["customresourcedefinitions"]),
        read("cilium.io", &["ciliumendpointslices"]),
        {
            "apiGroups": ["cilium.io"],
            "resources": ["ciliumidentities", "ciliumendpoints", "ciliumnodes"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {"apiGroups": ["cilium.io"], "resources": ["ciliumnodes/status"], "verbs": ["update", "patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]);
    let [role, binding] = role_of("ClusterRole", AGENT, &rules);
    vec![role, binding]
}

fn operator() -> Vec<Value> {
    let rules = json!([
        read("", &["namespaces"]),
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["apiextensions.k8s.io"],
            "resources": ["customresourcedefinitions"],
            "verbs": ["get", "list", "watch", "create", "update", "patch"],
        },
        {
            "apiGroups": ["cilium.io"],
            "resources": ["ciliumidentities", "ciliumendpoints", "ciliumendpointslices", "ciliumnodes"],
            "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
        },
        {"apiGroups": ["cilium.io"], "resources": ["ciliumnodes/status"], "verbs": ["update", "patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]);
    let in_namespace = json!([
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "list", "watch", "create", "update", "patch"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "update", "patch"]},
    ]);
    let mut objects = Vec::from(role_of("ClusterRole", OPERATOR, &rules));
    objects.extend(role_of("Role", OPERATOR, &in_namespace));
    objects
}

fn read(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]})
}

/// A role of `user`'s name and its binding; a `Role` is in [`NAMESPACE`].
fn role_of(kind: &str, user: &str, rules: &Value) -> [Value; 2] {
    let mut metadata = json!({"name": user});
    if kind == "Role" {
        metadata["namespace"] = Value::from(NAMESPACE);
    }
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": kind,
        "metadata": metadata,
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": format!("{kind}Binding"),
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    });
    [role, binding]
}
