//! CoreDNS as a pod of the cluster, which finds the API server as any pod does: by `kubernetes.default`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLUSTER_DNS, Lab, SLOWLY};
use crate::harness::eventually;

/// Its image is big: one node has it.
pub const NODE: &str = "node-1";
const IMAGE: &str = "portway.test/coredns:1";
const NAMESPACE: &str = "kube-system";
const NAME: &str = "coredns";

const COREFILE: &str = "\
.:53 {
  errors
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    pods insecure
    ttl 5
  }
}
";

impl Lab {
    /// CoreDNS and its service, without waiting for them.
    pub fn start_dns(&self) -> Result<()> {
        objects().iter().try_for_each(|object| self.control_plane().client().apply(object).map(drop))
    }

    /// Until CoreDNS has read the cluster's services.
    pub fn wait_dns(&self) -> Result<()> {
        let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}");
        eventually(SLOWLY, "CoreDNS to be ready", || {
            let deployment = self.control_plane().client().get(&path)?;
            let ready = deployment["status"]["readyReplicas"].as_u64().context("none is ready")?;
            ensure!(ready == 1, "{ready} are ready");
            Ok(())
        })
    }
}

fn objects() -> Vec<Value> {
    let metadata = json!({"name": NAME, "namespace": NAMESPACE});
    let rbac = "rbac.authorization.k8s.io";
    let labels = json!({"k8s-app": "kube-dns"});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": NAME},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        }),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"Corefile": COREFILE}}),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": NAMESPACE},
            "spec": {
                "clusterIP": CLUSTER_DNS,
                "selector": labels,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
                ],
            },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod()},
            },
        }),
    ]
}

fn pod() -> Value {
    json!({
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": NAME,
            "image": IMAGE,
            "args": ["-conf", "/etc/coredns/Corefile"],
            "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        }],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    })
}
