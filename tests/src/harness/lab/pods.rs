//! Pods of a lab that answer and ask: `tests/cluster/images/pod`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Lab, SLOWLY};
use crate::harness::{Namespace, eventually};

/// The port that every pod answers on, HTTP and UDP.
pub const PORT: u16 = 8080;
const IMAGE: &str = "portway.test/pod:1";

/// A pod that runs.
#[derive(Clone, Debug)]
pub struct LabPod {
    pub name: String,
    pub uid: String,
    /// Of its node.
    pub node: String,
    pub addresses: Vec<IpAddr>,
}

impl LabPod {
    fn read(pod: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned).context("a field is no text");
        let addresses = pod["status"]["podIPs"].as_array().context("it has no address")?;
        let addresses = addresses.iter().map(|ip| Ok(text(&ip["ip"])?.parse()?)).collect::<Result<_>>()?;
        Ok(Self {
            name: text(&pod["metadata"]["name"])?,
            uid: text(&pod["metadata"]["uid"])?,
            node: text(&pod["spec"]["nodeName"])?,
            addresses,
        })
    }

    /// Where it answers, in the family of `v6`.
    pub fn socket(&self, v6: bool) -> Result<SocketAddr> {
        let address = self.addresses.iter().find(|address| address.is_ipv6() == v6);
        Ok((
            *address.with_context(|| format!("{} has no such address: {:?}", self.name, self.addresses))?,
            PORT,
        )
            .into())
    }
}

impl Lab {
    /// The pods of the app `app` that are ready and not about to end, by the names of their nodes.
    pub fn pods(&self, app: &str) -> Result<BTreeMap<String, LabPod>> {
        let path = format!("/api/v1/namespaces/default/pods?labelSelector=app%3D{app}");
        let mut ready = BTreeMap::new();
        for pod in self.control_plane().client().list(&path)? {
            let is_ready = super::condition(&pod, "Ready").is_some_and(|ready| ready["status"] == "True");
            if is_ready && pod["metadata"]["deletionTimestamp"].is_null() {
                let pod = LabPod::read(&pod)?;
                ready.insert(pod.node.clone(), pod);
            }
        }
        Ok(ready)
    }

    /// Until the DaemonSet `app` has a ready pod on each node.
    pub fn wait_pods(&self, app: &str) -> Result<BTreeMap<String, LabPod>> {
        eventually(SLOWLY, "a ready pod on each node", || {
            let pods = self.pods(app)?;
            ensure!(pods.len() == self.nodes().len(), "ready: {:?}\n{}", pods.keys(), self.pods_events()?);
            Ok(pods)
        })
    }

    /// What kubelets have said of pods.
    fn pods_events(&self) -> Result<String> {
        let events = self.control_plane().client().list("/api/v1/events")?;
        Ok(events
            .iter()
            .filter(|event| event["type"] == "Warning")
            .map(|event| format!("{}: {}\n", event["involvedObject"]["name"], event["message"]))
            .collect())
    }

    /// Deletes a pod as `kubectl delete` does: kubelet ends it.
    pub fn delete_pod(&self, pod: &LabPod) -> Result<()> {
        let path = format!("/api/v1/namespaces/default/pods/{}", pod.name);
        self.control_plane().client().request(Method::DELETE, &path, "", None).map(drop)
    }

    /// What `pod` says when it is asked, from inside, to ask `target` (`host:port`); the test asks from its node.
    pub fn ask(&self, pod: &LabPod, protocol: &str, target: &str) -> Result<String> {
        let node = self.nodes().iter().find(|node| node.name() == pod.node).context("no such node")?;
        get(node.namespace(), pod.socket(false)?, &format!("/ask?{protocol}={target}"))
    }
}

/// What an HTTP server says to a client of `namespace`; anything but success is an error.
pub fn get(namespace: &Namespace, server: SocketAddr, path: &str) -> Result<String> {
    // More than a pod's own patience, so that its error is seen.
    const PATIENCE: Duration = Duration::from_secs(5);
    let answer = namespace.run(|| {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)
            .with_context(|| format!("connect to {server} for {path}"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        std::io::read_to_string(stream).with_context(|| format!("read {path} of {server}"))
    })?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => bail!("{server} answers to {path}: {answer}"),
    }
}

/// A DaemonSet `app` whose pods have these annotations and this port on their node.
pub fn daemon_set(app: &str, annotations: &Value, host_port: Option<u16>) -> Value {
    let ports: Vec<_> =
        host_port.iter().map(|port| json!({"containerPort": PORT, "hostPort": port})).collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}, "annotations": annotations},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "pod",
                        "image": IMAGE,
                        "ports": ports,
                        "readinessProbe": {"httpGet": {"path": "/who", "port": PORT}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}
