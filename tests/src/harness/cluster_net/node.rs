//! A node of a [`super::ClusterNet`].

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portway_agent::maps::PodReader;
use portway_datapath::Reason;
use serde_json::{Value, json};

use super::cni::{Refused, Runtime};
use super::{Pod, PodSpec, Routing};
use crate::harness::agent::{Places, cli};
use crate::harness::mount::BpfMount;
use crate::harness::{Agent, Cgroup, Namespace, Probe, eventually, process};

/// A namespace with the node's `eth0`, a control group, a BPF file system, and the agent on them.
#[derive(Debug)]
pub struct Node {
    // Dropped in this order: the agent, then what it runs in.
    pub agent: Option<Agent>,
    number: u8,
    name: String,
    namespace: Namespace,
    cgroup: Cgroup,
    bpf: BpfMount,
    dir: PathBuf,
    manifests: PathBuf,
    kubeconfig: Option<PathBuf>,
}

impl Node {
    /// `node-<number>`, joined to nothing.
    pub(super) fn new(
        number: u8,
        test: &str,
        inside: &Path,
        manifests: &Path,
        kubeconfig: Option<PathBuf>,
    ) -> Result<Self> {
        let name = format!("node-{number}");
        let dir = inside.join(&name);
        for sub in ["bpf", "state", "cni"] {
            let path = dir.join(sub);
            std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        }
        Ok(Self {
            agent: None,
            number,
            namespace: Namespace::new(&name)?,
            cgroup: Cgroup::new(&format!("{test}-{name}"))?,
            bpf: BpfMount::new(&dir.join("bpf"))?,
            name,
            dir,
            manifests: manifests.to_owned(),
            kubeconfig,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    pub fn bpf_root(&self) -> &Path {
        self.bpf.path()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its address on the nodes' link.
    pub fn v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 18, 0, 10 + self.number)
    }

    pub fn v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0x10 + u16::from(self.number))
    }

    /// 10.244.`number`.0/24 and fd00:10:244:`number`::/64.
    pub fn pod_cidrs(&self) -> [String; 2] {
        [format!("10.244.{}.0/24", self.number), format!("fd00:10:244:{:x}::/64", self.number)]
    }

    /// Its Node.
    pub fn object(&self) -> Value {
        self.object_with(&self.pod_cidrs())
    }

    /// Its Node with other pod CIDRs.
    pub fn object_with(&self, pod_cidrs: &[String]) -> Value {
        let address = |kind: &str, address: String| json!({"type": kind, "address": address});
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "uid": format!("uid-of-{}", self.name),
                "labels": {"kubernetes.io/hostname": self.name},
            },
            "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
            "status": {"addresses": [
                address("InternalIP", self.v4().to_string()),
                address("InternalIP", self.v6().to_string()),
                address("Hostname", self.name.clone()),
            ]},
        })
    }

    pub fn places(&self) -> Places {
        Places {
            namespace: self.namespace.clone(),
            node_name: self.name.clone(),
            manifests: self.manifests.clone(),
            kubeconfig: self.kubeconfig.clone(),
            cgroup: self.cgroup.path().to_owned(),
            bpf_root: self.bpf.path().to_owned(),
            state: self.dir.join("state"),
        }
    }

    /// Where the agent writes what a container runtime reads.
    pub fn conf_path(&self) -> PathBuf {
        self.dir.join("cni/05-portway.conflist")
    }

    /// Starts the agent with the pod network and does not wait.
    pub fn spawn_agent(&mut self, routing: Routing, flags: &[&str]) -> Result<()> {
        let conf = format!("--write-cni-conf-when-ready={}", self.conf_path().display());
        let mut all = vec!["--enable-pod-network=true", &conf];
        if !flags.iter().any(|flag| flag.starts_with("--ipam=")) {
            all.push("--ipam=kubernetes");
        }
        all.extend(routing.flags());
        all.extend(flags);
        self.agent = Some(Agent::spawn(&self.places(), &all)?);
        Ok(())
    }

    /// Until the agent is ready, and pods can be made.
    pub fn wait_ready(&mut self) -> Result<()> {
        let name = &self.name;
        self.agent.as_mut().context("no agent runs")?.wait_ready().with_context(|| format!("on {name}"))?;
        let conf = self.conf_path();
        eventually(Duration::from_secs(20), "the CNI configuration to be there", || {
            std::fs::metadata(&conf).map(drop).with_context(|| format!("look for {}", conf.display()))
        })
    }

    pub fn start_agent(&mut self, routing: Routing, flags: &[&str]) -> Result<()> {
        self.spawn_agent(routing, flags)?;
        self.wait_ready()
    }

    /// SIGTERM; what it has programmed stays.
    pub fn stop_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.stop()
    }

    /// `kill -9`; what it has programmed stays.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.kill()?;
        Ok(())
    }

    pub fn runtime(&self) -> Runtime {
        Runtime::new(&self.namespace, &self.conf_path())
    }

    /// Makes a sandbox for `spec` and calls the plugin's ADD on it.
    pub fn add(&self, spec: &PodSpec) -> Result<Pod> {
        self.runtime().add(spec)?.map_err(Refused::into_error)
    }

    /// The plugin's DEL. The sandbox is there still.
    pub fn delete(&self, pod: &Pod) -> Result<()> {
        self.runtime().delete(pod)?.map_err(Refused::into_error)
    }

    /// The maps of its pod network, also with the agent down.
    pub fn tables(&self) -> Result<PodReader> {
        PodReader::open(self.bpf.path()).with_context(|| format!("open the maps of {}", self.name))
    }

    /// Packets that its programs have dropped for `reason`.
    pub fn dropped(&self, reason: Reason) -> Result<u64> {
        let traffic = self.tables()?.traffic()?;
        Ok(traffic.iter().filter(|((why, _), _)| *why == reason).map(|(_, counted)| counted.packets).sum())
    }

    /// A client in the node's own namespace, as a pod of the host's network has it.
    pub fn client(&self) -> Result<Probe> {
        Probe::start(&self.namespace, Some(self.cgroup.path()))
    }

    /// The output of `portway ARGS` on this node.
    pub fn portway(&self, args: &[&str]) -> Result<String> {
        process::output(&mut cli(&self.places(), args)?)
    }

    /// Waits until the kernel holds what `portway plan` makes of the manifests.
    pub fn wait_programmed(&self) -> Result<()> {
        let source = format!("--source-dir={}", self.manifests.display());
        eventually(Duration::from_secs(5), "the kernel to hold what is planned", || {
            let planned = self.portway(&["plan", &source, "--node", &self.name, "-o", "json"])?;
            let held = self.portway(&["bpf", "lb", "list", "-o", "json"])?;
            ensure!(planned == held, "{}: planned: {planned}\nheld: {held}", self.name);
            Ok(())
        })
    }

    /// The output of `ip ARGS` in its namespace.
    pub fn ip(&self, args: &[&str]) -> Result<String> {
        process::output(self.namespace.command("ip").args(args))
    }
}
