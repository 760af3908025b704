//! A node on a real API server, for benchmarks: services by the thousand, changes one by one, processor time.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::objects;
use super::resources::Node;
use crate::harness::ControlPlane;
use crate::harness::world::{NODE, NODE_V4};

/// Where the agent of a benchmark says its metrics.
pub const METRICS: &str = "127.0.0.1:9962";

/// A node whose API server is on its loopback.
#[derive(Debug)]
pub struct Lab {
    // Dropped first: who asks the API server.
    pub node: Node,
    pub control_plane: ControlPlane,
}

impl Lab {
    /// Without services and without an agent.
    pub fn start(name: &str) -> Result<Self> {
        let node = Node::without_agent(name)?;
        let control_plane = ControlPlane::start(node.world.node())?;
        let client = control_plane.client();
        client.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bench"}}))?;
        let address = json!([{"type": "InternalIP", "address": NODE_V4.to_string()}]);
        client.create(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": {"addresses": address},
        }))?;
        Ok(Self { node, control_plane })
    }

    /// Services `from..to` of [`objects`], each with one slice of one endpoint, [`objects::endpoint`] of its number.
    /// Number 0 has the address of the API server's own service: begin with 1.
    pub fn create_services(&self, from: u32, to: u32) -> Result<()> {
        let mut all = Vec::new();
        for n in from..to {
            all.push(serde_json::from_str(&objects::one_service(n))?);
            all.push(slice(n, objects::endpoint(n))?);
        }
        self.control_plane.client().create_all(all)
    }

    /// Starts the agent on the API server, and waits until it serves.
    pub fn start_agent(&mut self) -> Result<()> {
        let kubeconfig = format!("--k8s-kubeconfig-path={}", self.control_plane.kubeconfig()?.display());
        self.node.world.start_agent(&[&kubeconfig, &format!("--prometheus-serve-addr={METRICS}")])
    }

    /// Gives service `n` the one endpoint `addr`, and returns when the API server has acknowledged it.
    pub fn change(&self, n: u32, addr: Ipv4Addr) -> Result<()> {
        let slice = slice(n, addr)?;
        let endpoints = json!({"endpoints": slice["endpoints"]});
        self.control_plane.client().patch(&slice, &endpoints).map(drop)
    }

    /// The process id of the agent.
    pub fn agent(&self) -> Result<u32> {
        Ok(self.node.world.agent.as_ref().context("no agent")?.id())
    }
}

/// Slice `b` of service `n` with one endpoint.
fn slice(n: u32, addr: Ipv4Addr) -> Result<Value> {
    Ok(serde_json::from_str(&objects::one_endpoint(n, addr))?)
}

/// Nanoseconds that all threads of a process that still live have run.
pub fn thread_time(pid: u32) -> Result<u64> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let mut total = 0;
    for task in std::fs::read_dir(&tasks).with_context(|| format!("list {}", tasks.display()))? {
        let path = task?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        total += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).context("no run time")?;
    }
    Ok(total)
}

/// Processor seconds of a process and of its children that have ended, such as the `nft` that kube-proxy runs.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // After the name in brackets, which may hold anything: state is field 3, utime 14, stime, cutime, cstime 17.
    let (_, rest) = text.rsplit_once(')').context("no name")?;
    let ticks: Vec<u64> =
        rest.split_whitespace().skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    let second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no clock tick")?;
    Ok(ticks.iter().sum::<u64>() as f64 / second as f64)
}

/// The agent's own count of map operations, from its metrics.
pub fn map_writes(node: &Node) -> Result<u64> {
    let text = node.world.node().http_get(METRICS.parse()?, "/metrics")?;
    let ops = text.lines().filter(|line| line.starts_with("cilium_bpf_map_ops_total{"));
    let counts: Vec<f64> = ops.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    anyhow::ensure!(!counts.is_empty(), "no cilium_bpf_map_ops_total in the metrics:\n{text}");
    Ok(counts.iter().sum::<f64>() as u64)
}
