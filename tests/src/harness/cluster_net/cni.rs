//! The plugin as container runtimes call it: <https://www.cni.dev/docs/spec/>, sections 2 and 3.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Pod, PodSpec};
use crate::harness::Namespace;
use crate::harness::process::binary;

/// The interface that a pod has.
pub const INTERFACE: &str = "eth0";

/// Of the specification.
const NEWEST: &str = "1.1.0";

/// A network configuration list, as the agent writes it.
#[derive(Clone, Debug)]
pub struct Conf {
    plugin: PathBuf,
    /// What the plugin gets on standard input.
    stdin: Value,
}

impl Conf {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let list: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        let mut stdin = list["plugins"][0].clone();
        let kind = stdin["type"].as_str().with_context(|| format!("no plugin in {list}"))?;
        let plugin = binary(kind)?;
        stdin["name"] = list["name"].clone();
        // A runtime of version 1.1 takes the newest of a list that it speaks.
        let versions = list["cniVersions"].as_array();
        let newest = versions.and_then(|all| all.iter().find(|version| *version == NEWEST));
        stdin["cniVersion"] = newest.unwrap_or(&list["cniVersion"]).clone();
        Ok(Self { plugin, stdin })
    }

    /// With what an earlier plugin of the list has answered, or an earlier ADD.
    #[must_use]
    pub fn after(mut self, result: &Value) -> Self {
        self.stdin["prevResult"] = result.clone();
        self
    }

    /// As an older or newer runtime speaks.
    #[must_use]
    pub fn speaking(mut self, version: &str) -> Self {
        self.stdin["cniVersion"] = version.into();
        self
    }

    /// For GC: what is in use.
    #[must_use]
    pub fn valid<'a>(mut self, pods: impl IntoIterator<Item = &'a PodSpec>) -> Self {
        let pods: Vec<Value> = pods
            .into_iter()
            .map(|pod| json!({"containerID": pod.container_id, "ifname": INTERFACE}))
            .collect();
        self.stdin["cni.dev/valid-attachments"] = pods.into();
        self
    }
}

/// What the plugin said: a result (of ADD), nothing, or an error.
pub type Answer = std::result::Result<Value, Refused>;

/// The plugin's error.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refused {
    pub code: u32,
    pub msg: String,
    #[serde(default)]
    pub details: String,
}

impl Refused {
    /// "Try again later", of the specification's list of errors.
    pub const TRY_AGAIN: u32 = 11;
    /// No address is left: Portway's own.
    pub const NO_ADDRESS: u32 = 100;

    pub fn into_error(self) -> anyhow::Error {
        anyhow::anyhow!("the plugin refused: {self:?}")
    }
}

/// A container runtime of a node: it reads what the agent wrote and calls the plugin in the node's namespace. Cheap to
/// clone, and for any thread.
#[derive(Clone, Debug)]
pub struct Runtime {
    node: Namespace,
    conf: PathBuf,
}

impl Runtime {
    pub(super) fn new(node: &Namespace, conf: &Path) -> Self {
        Self { node: node.clone(), conf: conf.to_owned() }
    }

    /// What it finds.
    pub fn conf(&self) -> Result<Conf> {
        Conf::read(&self.conf)
    }

    /// Makes a sandbox for `spec` and calls the plugin's ADD on it.
    pub fn add(&self, spec: &PodSpec) -> Result<Result<Pod, Refused>> {
        self.add_to(spec, &Namespace::as_a_runtime_makes_it(&spec.name)?)
    }

    /// Calls the plugin's ADD on a sandbox that is there.
    pub fn add_to(&self, spec: &PodSpec, sandbox: &Namespace) -> Result<Result<Pod, Refused>> {
        match self.call("ADD", spec, Some(sandbox))? {
            Ok(result) => Ok(Ok(Pod::new(spec, self.node.name(), sandbox.clone(), &result)?)),
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// The plugin's DEL. The sandbox is there still.
    pub fn delete(&self, pod: &Pod) -> Result<Result<(), Refused>> {
        Ok(self.call("DEL", &pod.spec, Some(&pod.namespace))?.map(drop))
    }

    pub fn call(&self, command: &str, spec: &PodSpec, sandbox: Option<&Namespace>) -> Result<Answer> {
        self.call_with(&self.conf()?, command, spec, sandbox)
    }

    /// With another configuration than the agent wrote.
    pub fn call_with(
        &self,
        conf: &Conf,
        command: &str,
        spec: &PodSpec,
        sandbox: Option<&Namespace>,
    ) -> Result<Answer> {
        call(&self.node, conf, command, spec, sandbox)
    }
}

fn call(
    node: &Namespace,
    conf: &Conf,
    command: &str,
    spec: &PodSpec,
    sandbox: Option<&Namespace>,
) -> Result<Answer> {
    let mut process = node.command(&conf.plugin);
    process
        .env_clear()
        .env("CNI_COMMAND", command)
        .env("CNI_PATH", conf.plugin.parent().unwrap_or(Path::new("/")));
    process.env("CNI_CONTAINERID", &spec.container_id).env("CNI_IFNAME", INTERFACE);
    process.env(
        "CNI_ARGS",
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            spec.kube_namespace, spec.name, spec.container_id, spec.uid
        ),
    );
    if let Some(sandbox) = sandbox {
        process.env("CNI_NETNS", sandbox.path());
    }
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process.spawn().with_context(|| format!("start {}", conf.plugin.display()))?;
    let mut stdin = child.stdin.take().context("the plugin has no input")?;
    stdin.write_all(conf.stdin.to_string().as_bytes()).context("speak to the plugin")?;
    drop(stdin);
    let output = child.wait_with_output().context("wait for the plugin")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = || {
        format!(
            "{command} {}: {}, {said:?}, {:?}",
            spec.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    };
    if output.status.success() {
        let value = if said.trim().is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&said).with_context(complaint)?
        };
        return Ok(Ok(value));
    }
    match serde_json::from_str(&said) {
        Ok(refused) => Ok(Err(refused)),
        Err(_) => bail!("the plugin failed without a word that the specification knows: {}", complaint()),
    }
}
