//! What the objects of a cluster say of identities, read naively: who agrees with whom.
//!
//! Of pods with labels that every filter lets through: which ones those are is for the filter's own tests.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cluster::ApiClient;

/// The default of `cluster-name`.
const CLUSTER: &str = "default";

/// Security labels, as a CiliumIdentity holds them: source and key to value.
pub type Labels = BTreeMap<String, String>;

/// Objects of one moment.
#[derive(Debug)]
pub struct Objects {
    pub(super) pods: Vec<Value>,
    namespaces: Vec<Value>,
    pub(super) endpoints: Vec<Value>,
    pub(super) identities: Vec<Value>,
}

impl Objects {
    pub fn list(client: &ApiClient) -> Result<Self> {
        Ok(Self {
            pods: client.list("/api/v1/pods")?,
            namespaces: client.list("/api/v1/namespaces")?,
            endpoints: client.list("/apis/cilium.io/v2/ciliumendpoints")?,
            identities: client.list("/apis/cilium.io/v2/ciliumidentities")?,
        })
    }

    /// The labels of each identity, by its number.
    pub fn identities(&self) -> Result<BTreeMap<u32, Labels>> {
        self.identities
            .iter()
            .map(|object| {
                let number =
                    text(object, "/metadata/name")?.parse().context("an identity without a number")?;
                Ok((number, serde_json::from_value(object["security-labels"].clone())?))
            })
            .collect()
    }

    /// The identity of each pod's address, as its CiliumEndpoint has it.
    pub fn addresses(&self) -> Result<BTreeMap<IpAddr, u32>> {
        let mut addresses = BTreeMap::new();
        for endpoint in &self.endpoints {
            let number = number(endpoint)?;
            for addr in endpoint_addresses(endpoint)? {
                addresses.insert(addr, number);
            }
        }
        Ok(addresses)
    }

    /// The number of the pod `name` of the namespace `namespace`, as its CiliumEndpoint has it.
    pub fn of_pod(&self, namespace: &str, name: &str) -> Result<u32> {
        let endpoint = self.endpoints.iter().find(|object| is(object, namespace, name));
        number(endpoint.with_context(|| format!("no CiliumEndpoint {namespace}/{name}"))?)
    }

    /// Everything in which the objects do not agree; nothing once all agents have done what there is to do.
    pub fn disagreements(&self) -> Result<Vec<String>> {
        let identities = self.identities()?;
        let mut found = Vec::new();
        let mut by_labels: BTreeMap<&Labels, u32> = BTreeMap::new();
        for (&number, labels) in &identities {
            if let Some(other) = by_labels.insert(labels, number) {
                found.push(format!("{other} and {number} are both of {labels:?}"));
            }
        }
        for pod in &self.pods {
            let (namespace, name) = (text(pod, "/metadata/namespace")?, text(pod, "/metadata/name")?);
            let addresses = pod_addresses(pod)?;
            let endpoint = self.endpoints.iter().find(|object| is(object, namespace, name));
            let Some(endpoint) = endpoint else {
                if !addresses.is_empty() {
                    found.push(format!("{namespace}/{name} has no CiliumEndpoint"));
                }
                continue;
            };
            let owner = endpoint.pointer("/metadata/ownerReferences/0/uid").and_then(Value::as_str);
            if owner != Some(text(pod, "/metadata/uid")?) {
                found.push(format!("the CiliumEndpoint {namespace}/{name} is of {owner:?}, another pod"));
            }
            let said = endpoint_addresses(endpoint)?;
            if !addresses.is_empty() && said != addresses {
                found.push(format!("{namespace}/{name} is at {addresses:?}, its CiliumEndpoint at {said:?}"));
            }
            let (number, wanted) = (number(endpoint)?, self.labels(pod)?);
            match identities.get(&number) {
                None => found.push(format!("{namespace}/{name} has {number}, which is nobody's")),
                Some(labels) if *labels != wanted => {
                    found.push(format!("{namespace}/{name} has {number} of {labels:?}, it is {wanted:?}"));
                }
                Some(_) => {}
            }
            let listed: Vec<String> =
                serde_json::from_value(endpoint["status"]["identity"]["labels"].clone())?;
            let whole: Vec<String> = wanted.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if listed != whole {
                found.push(format!("the CiliumEndpoint {namespace}/{name} says {listed:?}, it is {whole:?}"));
            }
        }
        for endpoint in &self.endpoints {
            let (namespace, name) =
                (text(endpoint, "/metadata/namespace")?, text(endpoint, "/metadata/name")?);
            if !self.pods.iter().any(|pod| is(pod, namespace, name)) {
                found.push(format!("the CiliumEndpoint {namespace}/{name} is of no pod"));
            }
        }
        Ok(found)
    }

    /// Of a pod, its namespace, its account and its cluster.
    pub(super) fn labels(&self, pod: &Value) -> Result<Labels> {
        let namespace = text(pod, "/metadata/namespace")?;
        let mut labels = Labels::new();
        for (key, value) in strings(&pod["metadata"]["labels"]) {
            labels.insert(format!("k8s:{key}"), value);
        }
        labels.insert("k8s:io.kubernetes.pod.namespace".to_owned(), namespace.to_owned());
        labels.insert("k8s:io.cilium.k8s.policy.cluster".to_owned(), CLUSTER.to_owned());
        let account = text(pod, "/spec/serviceAccountName")?;
        labels.insert("k8s:io.cilium.k8s.policy.serviceaccount".to_owned(), account.to_owned());
        let object = self.namespaces.iter().find(|object| object["metadata"]["name"] == namespace);
        let object = object.with_context(|| format!("no namespace {namespace}"))?;
        for (key, value) in strings(&object["metadata"]["labels"]) {
            labels.insert(format!("k8s:io.cilium.k8s.namespace.labels.{key}"), value);
        }
        Ok(labels)
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer}: {object}"))
}

fn is(object: &Value, namespace: &str, name: &str) -> bool {
    object["metadata"]["namespace"] == namespace && object["metadata"]["name"] == name
}

fn strings(value: &Value) -> impl Iterator<Item = (&str, String)> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default().to_owned()))
}

fn number(endpoint: &Value) -> Result<u32> {
    let number = endpoint.pointer("/status/identity/id").and_then(Value::as_u64);
    Ok(u32::try_from(number.with_context(|| format!("no identity: {endpoint}"))?)?)
}

/// In the order of addresses, as all lists of addresses here.
fn pod_addresses(pod: &Value) -> Result<Vec<IpAddr>> {
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    sorted(ips.filter_map(|ip| ip["ip"].as_str()))
}

fn endpoint_addresses(endpoint: &Value) -> Result<Vec<IpAddr>> {
    let pairs = endpoint["status"]["networking"]["addressing"].as_array().into_iter().flatten();
    sorted(pairs.flat_map(|pair| ["ipv4", "ipv6"].map(|family| pair[family].as_str())).flatten())
}

fn sorted<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = texts.map(str::parse).collect::<Result<_, _>>()?;
    addresses.sort_unstable();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects() -> Objects {
        let labels = json!({
            "k8s:app": "web",
            "k8s:io.cilium.k8s.namespace.labels.team": "red",
            "k8s:io.cilium.k8s.policy.cluster": "default",
            "k8s:io.cilium.k8s.policy.serviceaccount": "web",
            "k8s:io.kubernetes.pod.namespace": "shop",
        });
        let listed: Vec<String> = strings(&labels).map(|(key, value)| format!("{key}={value}")).collect();
        let metadata = |owner: Value| json!({"namespace": "shop", "name": "web-1", "uid": "1", "labels": {"app": "web"}, "ownerReferences": owner});
        Objects {
            pods: vec![json!({
                "metadata": metadata(json!([])),
                "spec": {"serviceAccountName": "web"},
                "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
            })],
            namespaces: vec![json!({"metadata": {"name": "shop", "labels": {"team": "red"}}})],
            endpoints: vec![json!({
                "metadata": metadata(json!([{"uid": "1"}])),
                "status": {
                    "identity": {"id": 300, "labels": listed},
                    "networking": {"addressing": [{"ipv4": "10.0.0.1", "ipv6": "fd00::1"}]},
                },
            })],
            identities: vec![json!({"metadata": {"name": "300"}, "security-labels": labels})],
        }
    }

    #[test]
    fn objects_that_agree_agree() {
        assert_eq!(objects().disagreements().unwrap(), Vec::<String>::new());
        assert_eq!(objects().of_pod("shop", "web-1").unwrap(), 300);
        assert_eq!(objects().addresses().unwrap()[&"fd00::1".parse().unwrap()], 300);
    }

    #[test]
    fn each_disagreement_is_found() {
        type Breaks = fn(&mut Objects);
        let broken: [(&str, Breaks); 7] = [
            ("are both of", |all| {
                let mut twin = all.identities[0].clone();
                twin["metadata"]["name"] = "301".into();
                all.identities.push(twin);
            }),
            ("has no CiliumEndpoint", |all| all.endpoints.clear()),
            ("another pod", |all| all.pods[0]["metadata"]["uid"] = "2".into()),
            ("is at", |all| all.pods[0]["status"]["podIPs"][0]["ip"] = "10.0.0.2".into()),
            ("nobody's", |all| all.endpoints[0]["status"]["identity"]["id"] = 301.into()),
            ("it is {", |all| all.pods[0]["metadata"]["labels"]["app"] = "db".into()),
            ("is of no pod", |all| all.pods.clear()),
        ];
        for (said, breaks) in broken {
            let mut all = objects();
            breaks(&mut all);
            let found = all.disagreements().unwrap();
            assert!(found.iter().any(|found| found.contains(said)), "{said}: {found:?}");
        }
    }
}
