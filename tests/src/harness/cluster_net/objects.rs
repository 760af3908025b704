//! Objects of a [`ClusterNet`], in the directory or in the API server, whichever its agents follow.

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::{ClusterNet, Pod, PodSpec};
use crate::harness::ControlPlane;

impl ClusterNet {
    /// That of [`Self::on_api`].
    pub fn control_plane(&self) -> Result<&ControlPlane> {
        self.control_plane.as_ref().context("this network has no control plane")
    }

    /// To end and start API servers.
    pub fn control_plane_mut(&mut self) -> Result<&mut ControlPlane> {
        self.control_plane.as_mut().context("this network has no control plane")
    }

    /// Creates `object` or puts it in the place of what is there; `file` is where it stands in the directory.
    pub(super) fn put(&self, file: &str, object: &Value) -> Result<()> {
        match &self.control_plane {
            Some(control_plane) => control_plane.client().apply(object).map(drop),
            None => self.manifests.put(file, [object.clone()]),
        }
    }

    /// Creates the namespace `name`, or gives it these labels instead of those that it has.
    pub fn namespace(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        self.put(&format!("namespace-{name}"), &namespace(name, labels))
    }

    /// What kubelet knows before it makes a sandbox: the pod's object on node `number`. The spec has the uid that the
    /// object has.
    pub fn announce(&self, number: u8, spec: &PodSpec) -> Result<PodSpec> {
        let node = self.node(number).name();
        let object = spec.object(node, &[]);
        let mut spec = spec.clone();
        match &self.control_plane {
            Some(control_plane) => spec.uid = create_pod(control_plane.client(), object)?,
            None => self.manifests.put(&spec.file(), [object])?,
        }
        Ok(spec)
    }

    /// What kubelet tells after the plugin has answered: the pod runs and has these addresses.
    pub fn report_addresses(&self, pod: &Pod) -> Result<()> {
        let object = pod.spec.object(&pod.node, &[pod.v4.into(), pod.v6.into()]);
        match &self.control_plane {
            Some(control_plane) => control_plane.client().set_status(&object),
            None => self.manifests.put(&pod.spec.file(), [object]),
        }
    }

    /// Gives the pod's object these labels instead of those that it has.
    pub fn relabel(&self, pod: &mut Pod, labels: &[(&str, &str)]) -> Result<()> {
        let before = std::mem::take(&mut pod.spec.labels);
        pod.spec.labels = pairs(labels);
        let object = pod.spec.object(&pod.node, &[pod.v4.into(), pod.v6.into()]);
        match &self.control_plane {
            Some(control_plane) => {
                // In a merge patch what is not named stays.
                let mut labels: Map<String, Value> =
                    before.into_iter().map(|(name, _)| (name, Value::Null)).collect();
                labels.extend(pod.spec.labels.clone());
                control_plane.client().patch(&object, &json!({"metadata": {"labels": labels}})).map(drop)
            }
            None => self.manifests.put(&pod.spec.file(), [object]),
        }
    }

    /// Removes the pod's object alone.
    pub fn forget(&self, pod: &Pod) -> Result<()> {
        match &self.control_plane {
            Some(control_plane) => control_plane.client().delete(&pod.spec.object(&pod.node, &[])),
            None => self.manifests.remove(&pod.spec.file()),
        }
    }
}

/// Creates a pod that has no addresses yet, and gives its uid.
pub fn create_pod(client: &crate::harness::cluster::ApiClient, mut object: Value) -> Result<String> {
    if let Some(fields) = object.as_object_mut() {
        // `Pending` is what the API server says itself.
        fields.remove("status");
    }
    let created = client.create(&object)?;
    let uid = created.pointer("/metadata/uid").and_then(Value::as_str);
    Ok(uid.with_context(|| format!("no uid: {created}"))?.to_owned())
}

/// A Namespace, with the label that the API server gives each.
pub fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    let mut labels = pairs(labels);
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "uid": format!("uid-of-namespace-{name}"), "labels": labels},
    })
}

fn pairs(labels: &[(&str, &str)]) -> Map<String, Value> {
    labels.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect()
}
