//! What runs on a machine of a lab: containerd and kubelet, and the agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::groups::UNIFIED;
use super::{CLUSTER_DNS, Machine};
use crate::harness::cluster::{ControlPlane, binary};
use crate::harness::cluster_net::Routing;
use crate::harness::{Namespace, Process, eventually, process};

const CONTAINERD: &str = "/run/containerd/containerd.sock";
const PLUGINS: &str = "/opt/cni/bin";
const CONFIGURATIONS: &str = "/etc/cni/net.d";
const KUBELET_CONFIG: &str = "/etc/kubernetes/kubelet.json";
/// Where Debian puts plugins. containerd wants `loopback`, for every sandbox.
const DEBIAN_PLUGINS: &str = "/usr/lib/cni";
/// The image of a pod's first container, of `pods.tar`.
const PAUSE: &str = "portway.test/pause:1";
/// Where `/readyz` of the agent is, on its node.
const AGENT_HEALTH: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9879);

/// Of a log, where a test fails.
const LAST_LINES: usize = 60;

/// A machine that is a node of the cluster.
#[derive(Debug)]
pub struct Node {
    // Dropped in this order: who uses, what is used.
    agent: Option<Process>,
    kubelet: Option<Process>,
    containerd: Process,
    machine: Machine,
}

impl Node {
    /// A machine with containerd, which knows the images of `archives`.
    pub(super) fn start(machine: Machine, archives: &[PathBuf]) -> Result<Self> {
        machine.write("/etc/containerd/config.toml", containerd_config())?;
        machine.install(&Path::new(DEBIAN_PLUGINS).join("loopback"), PLUGINS)?;
        let containerd = Process::spawn_logged("containerd", machine.command("containerd")?)?;
        let node = Self { agent: None, kubelet: None, containerd, machine };
        for archive in archives {
            node.import(archive).with_context(|| node.containerd.log())?;
        }
        Ok(node)
    }

    pub fn name(&self) -> &str {
        self.machine.name()
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub fn namespace(&self) -> &Namespace {
        self.machine.namespace()
    }

    /// Waits for containerd and imports the images of `archive`.
    fn import(&self, archive: &Path) -> Result<()> {
        eventually(Duration::from_secs(20), "containerd to take an image", || {
            let mut ctr = self.machine.command("ctr")?;
            ctr.args(["--namespace=k8s.io", "images", "import"]).arg(archive);
            process::output(&mut ctr).map(drop)
        })
    }

    /// The kubelet, which registers the node at `addresses`.
    pub(super) fn start_kubelet(&mut self, control_plane: &ControlPlane, addresses: &[IpAddr]) -> Result<()> {
        let kubeconfig =
            control_plane.identity().kubeconfig(self.name(), &control_plane.url_for_machines())?;
        self.machine.write(KUBELET_CONFIG, kubelet_config().to_string())?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut command = self.machine.command(binary("kubelet")?)?;
        command.arg(format!("--config={KUBELET_CONFIG}"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.arg(format!("--hostname-override={}", self.name()));
        command.arg(format!("--node-ip={}", addresses.join(",")));
        self.kubelet = Some(Process::spawn_logged("kubelet", command)?);
        Ok(())
    }

    /// The agent, with the pod network, which puts its plugin's configuration where containerd looks.
    pub fn start_agent(
        &mut self,
        control_plane: &ControlPlane,
        routing: Routing,
        flags: &[&str],
    ) -> Result<()> {
        let kubeconfig = control_plane.identity().kubeconfig("agent", &control_plane.url_for_machines())?;
        self.machine.install(&process::binary("portway-cni")?, PLUGINS)?;
        let mut command = self.machine.command(process::binary("portway-agent")?)?;
        command.arg(format!("--k8s-kubeconfig-path={}", kubeconfig.display()));
        command.arg(format!("--node-name={}", self.name()));
        command.arg(format!("--cgroup-root={UNIFIED}"));
        command.arg(format!("--write-cni-conf-when-ready={CONFIGURATIONS}/05-portway.conflist"));
        command.args(["--enable-pod-network=true", "--ipam=kubernetes"]);
        command.args(routing.flags()).args(flags);
        // Variables of the harness that look like keys of the agent's.
        command.env_remove("PORTWAY_BIN_DIR").env_remove("PORTWAY_CACHE");
        self.agent = Some(Process::spawn_logged("portway-agent", command)?);
        Ok(())
    }

    /// Until the agent's `/readyz` says yes. An agent that ended is an error at once.
    pub fn wait_agent(&mut self) -> Result<()> {
        let agent = self.agent.as_mut().context("no agent runs")?;
        let namespace = self.machine.namespace();
        let waited = eventually(Duration::from_secs(30), "the agent to be ready", || {
            if let Some(status) = agent.status()? {
                return Ok(Err(status));
            }
            let answer = namespace.http_get(AGENT_HEALTH.into(), "/readyz")?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "/readyz says {answer}");
            Ok(Ok(()))
        });
        match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("the agent ended with {status}"),
            Err(error) => Err(error),
        }
    }

    /// Whether an agent that was started has not ended.
    pub(super) fn agent_lives(&self) -> Result<()> {
        let Some(agent) = &self.agent else { return Ok(()) };
        let stat = format!("/proc/{}/stat", agent.id());
        let stat = std::fs::read_to_string(&stat).with_context(|| format!("read {stat}"))?;
        // pid (name) state: proc_pid_stat(5).
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        ensure!(!state.starts_with('Z'), "the agent of {} has ended", self.name());
        Ok(())
    }

    /// `kill -9`; what it has programmed stays.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.kill()?;
        Ok(())
    }

    /// The output of `portway ARGS`.
    pub fn portway(&self, args: &[&str]) -> Result<String> {
        let mut command = self.machine.command(process::binary("portway")?)?;
        process::output(command.args(args))
    }

    /// The names of its interfaces that lead to pods.
    pub fn pod_links(&self) -> Result<BTreeSet<String>> {
        let mut ip = self.machine.command("ip")?;
        let links: Value = serde_json::from_str(&process::output(ip.args(["-json", "link"]))?)?;
        let names = links.as_array().context("`ip -json link` gives no list")?;
        let names = names.iter().filter_map(|link| link["ifname"].as_str());
        // `pw` and 11 digits of a hash.
        Ok(names.filter(|name| name.len() == 13 && name.starts_with("pw")).map(ToOwned::to_owned).collect())
    }

    /// What its processes have said last; for a failed test.
    pub(super) fn log(&self) -> String {
        let processes = [
            ("containerd", Some(&self.containerd)),
            ("kubelet", self.kubelet.as_ref()),
            ("agent", self.agent.as_ref()),
        ];
        processes
            .map(|(what, process)| {
                let log = process.map_or_else(|| "not running".to_owned(), Process::log);
                let lines: Vec<_> = log.lines().filter(|line| !is_verifiers(line)).collect();
                let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
                format!("--- {what} of {}:\n{last}\n", self.name())
            })
            .concat()
    }
}

/// `4277: (61) r3 = …`: of the kernel's thousands, those that are no instruction say what is wrong.
fn is_verifiers(line: &str) -> bool {
    line.split_once(": (").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

/// Of what Debian's containerd takes. Where the tests have no right to lower a score for the kernel's out-of-memory
/// killer, pause containers would not start.
fn containerd_config() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{CONFIGURATIONS}"
"#
    )
}

/// <https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/>
fn kubelet_config() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [CLUSTER_DNS],
        // That of the machine that runs the tests is nobody's business here.
        "resolvConf": "",
        "failSwapOn": false,
        // The machine's disk and memory are shared: a full one is no reason to evict a test's pods.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
        },
        "localStorageCapacityIsolation": false,
        "imageGCHighThresholdPercent": 100,
        "shutdownGracePeriod": "0s",
    })
}
