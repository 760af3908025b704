//! A cluster as a network: nodes on one link, each with its own agent and pods made by the CNI plugin, and a router
//! with the world behind it.
//!
//! ```text
//!  pod ── node-1 ──┐
//!  pod ── node-2 ──┼── lan: the router's bridge, 172.18.0.0/24 ── world, 198.51.100.2
//!  pod ── node-3 ──┘
//! ```
//!
//! What there is stands in a directory that all agents follow, or in the API server of a control plane at the router.
//!
//! The world routes everything by the router, which knows the links alone: what a pod's address would have to reach
//! goes nowhere. No namespace has a link to another one that a test did not make.

pub mod agreement;
pub mod arrivals;
pub mod churn;
pub mod cni;
pub mod ipcache;
pub mod node;
pub mod objects;
pub mod pod;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::cluster::Clients;
use super::judge::{judge, keep_if_asked};
use super::manifest::{Directory, Endpoint, Service, TARGET};
use super::{Agent, ControlPlane, Namespace, PREFIX, Probe, Server, complain, process};

pub use node::Node;
pub use pod::{Pod, PodSpec};

/// The router on the nodes' link.
pub const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 1);
/// The world, of the documentation's prefixes.
pub const WORLD_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 2);
/// The router on the world's link.
const GATE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const GATE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 1);
/// The router's link to the world.
const GATE: &str = "world";
/// The router's bridge that the nodes are on.
const LAN: &str = "lan";
/// What the world's server says.
pub const WORLD: &str = "world";

/// How pods of different nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Routing {
    Native,
    Tunnel,
}

impl Routing {
    pub const BOTH: [Self; 2] = [Self::Native, Self::Tunnel];

    /// What an agent is told.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Native => &[
                "--routing-mode=native",
                "--auto-direct-node-routes=true",
                "--ipv4-native-routing-cidr=10.244.0.0/16",
                "--ipv6-native-routing-cidr=fd00:10:244::/48",
            ],
            Self::Tunnel => &["--routing-mode=tunnel"],
        }
    }
}

/// The network and everything on it. It goes away with the guard, whatever the test did.
///
/// Make it on the test's own thread, as a [`super::World`].
#[derive(Debug)]
pub struct ClusterNet {
    // Dropped in this order: processes, then what they run in.
    nodes: Vec<Node>,
    servers: Vec<Server>,
    control_plane: Option<ControlPlane>,
    router: Namespace,
    world: Namespace,
    manifests: Directory,
    dir: TempDir,
    strangers: u8,
    /// The mount namespace is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ClusterNet {
    /// Runs `body` on a network of its own with `nodes` nodes, whose agents do not run yet. Where it fails or panics,
    /// says what the agents said.
    pub fn test(name: &str, nodes: u8, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        judge(Self::new(name, nodes)?, body, Self::report)
    }

    /// As [`Self::test`], with a control plane instead of the directory.
    pub fn test_on_api(name: &str, nodes: u8, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        judge(Self::on_api(name, nodes)?, body, Self::report)
    }

    /// Its agents follow one directory.
    pub fn new(name: &str, nodes: u8) -> Result<Self> {
        let mut net = Self::without_nodes(name)?;
        // Every cluster has it.
        net.namespace("default", &[])?;
        net.join_all(nodes, name)?;
        Ok(net)
    }

    /// With an API server at the router, which has Portway's kinds and the nodes, and no controllers.
    pub fn on_api(name: &str, nodes: u8) -> Result<Self> {
        let net = Self::without_kinds(name, nodes)?;
        net.control_plane()?.install_crds()?;
        Ok(net)
    }

    /// As [`Self::on_api`], before somebody has installed Portway's kinds.
    pub fn without_kinds(name: &str, nodes: u8) -> Result<Self> {
        let mut net = Self::without_nodes(name)?;
        net.control_plane = Some(ControlPlane::start_for(&net.router, Clients::Agents)?);
        net.join_all(nodes, name)?;
        Ok(net)
    }

    fn without_nodes(name: &str) -> Result<Self> {
        super::world::remove_leftovers(&std::env::temp_dir())?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{name}-", std::process::id()))
            .tempdir()
            .context("make a directory")?;
        let manifests = Directory::new(dir.path())?;
        let (router, world) = (Namespace::new("router")?, Namespace::new(WORLD)?);
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            router.sysctl(key, "1")?;
        }
        router.add_bridge(LAN)?;
        router.add_address(LAN, ROUTER_V4.into(), 24)?;
        router.add_address(LAN, ROUTER_V6.into(), 64)?;
        router.add_veth(GATE, &world, "eth0")?;
        for (end, link, v4, v6) in [(&router, GATE, GATE_V4, GATE_V6), (&world, "eth0", WORLD_V4, WORLD_V6)] {
            end.add_address(link, v4.into(), 24)?;
            end.add_address(link, v6.into(), 64)?;
        }
        world.add_default_route(GATE_V4.into())?;
        world.add_default_route(GATE_V6.into())?;
        let servers = vec![Server::start(&world, WORLD, TARGET)?];
        Ok(Self {
            nodes: Vec::new(),
            servers,
            control_plane: None,
            router,
            world,
            manifests,
            dir,
            strangers: 0,
            _not_send: std::marker::PhantomData,
        })
    }

    fn join_all(&mut self, nodes: u8, test: &str) -> Result<()> {
        (1..=nodes).try_for_each(|number| self.join(number, test))
    }

    /// A node more on the link, and its object.
    fn join(&mut self, number: u8, test: &str) -> Result<()> {
        let kubeconfig = self.control_plane.as_ref().map(|control_plane| {
            control_plane.identity().kubeconfig("agent", &control_plane.url_for_machines())
        });
        let node = Node::new(number, test, self.dir.path(), self.manifests.path(), kubeconfig.transpose()?)?;
        self.plug(node.namespace(), node.name(), &[(node.v4().into(), 24), (node.v6().into(), 64)])?;
        node.namespace().add_default_route(ROUTER_V4.into())?;
        node.namespace().add_default_route(ROUTER_V6.into())?;
        self.put(node.name(), &node.object())?;
        self.nodes.push(node);
        Ok(())
    }

    /// Joins `namespace` to the nodes' link by its `eth0`; `port` is the router's end.
    fn plug(&self, namespace: &Namespace, port: &str, addresses: &[(IpAddr, u8)]) -> Result<()> {
        self.router.add_veth(port, namespace, "eth0")?;
        self.router.enslave(port, LAN)?;
        addresses.iter().try_for_each(|&(addr, prefix)| namespace.add_address("eth0", addr, prefix))
    }

    /// Another machine on the nodes' link, which is no node: 172.18.0.`100 + n` and fd00:172:18::`100 + n` (hex).
    pub fn stranger(&mut self, name: &str) -> Result<Namespace> {
        self.strangers += 1;
        let host = 0x100 + u16::from(self.strangers);
        let v6 = Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, host);
        let namespace = Namespace::new(name)?;
        let v4 = Ipv4Addr::new(172, 18, 0, 100 + self.strangers);
        self.plug(&namespace, &format!("stranger{}", self.strangers), &[(v4.into(), 24), (v6.into(), 64)])?;
        Ok(namespace)
    }

    /// The node with this number, from 1.
    pub fn node(&self, number: u8) -> &Node {
        &self.nodes[usize::from(number) - 1]
    }

    pub fn node_mut(&mut self, number: u8) -> &mut Node {
        &mut self.nodes[usize::from(number) - 1]
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn router(&self) -> &Namespace {
        &self.router
    }

    /// Answers on [`TARGET`] as [`WORLD`].
    pub fn world(&self) -> &Namespace {
        &self.world
    }

    pub fn manifests(&self) -> &Directory {
        &self.manifests
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// From now on the way to the world takes packets of at most `mtu` bytes; the router says so to who sends more. The
    /// world does not know, or its TCP would say it from the start.
    pub fn narrow(&self, mtu: u32) -> Result<()> {
        for (family, prefix, more) in
            [("-4", "198.51.100.0/24", "scope link"), ("-6", "2001:db8:100::/64", "metric 256")]
        {
            let mut command = self.router.command("ip");
            command.args([family, "route", "change", prefix, "dev", GATE, "proto", "kernel"]);
            command.args(more.split(' ')).args(["mtu", "lock", &mtu.to_string()]);
            process::output(&mut command).with_context(|| format!("narrow the way to {prefix}"))?;
        }
        Ok(())
    }

    /// Starts the agents of all nodes and waits until each is ready.
    pub fn start_agents(&mut self, routing: Routing, flags: &[&str]) -> Result<()> {
        for node in &mut self.nodes {
            node.spawn_agent(routing, flags)?;
        }
        self.nodes.iter_mut().try_for_each(Node::wait_ready)
    }

    /// A new pod on node `number`, by the plugin.
    pub fn pod(&self, number: u8, name: &str) -> Result<Pod> {
        self.make(number, &PodSpec::new(name))
    }

    /// A new pod on node `number`: its object appears, then its sandbox is made and the plugin called, then the object
    /// has the addresses, as kubelet does it.
    pub fn make(&self, number: u8, spec: &PodSpec) -> Result<Pod> {
        let node = self.node(number);
        let pod = node.add(&self.announce(number, spec)?)?;
        self.report_addresses(&pod)?;
        Ok(pod)
    }

    /// Removes a pod by the plugin, and its object.
    pub fn remove(&self, pod: &Pod) -> Result<()> {
        let node = self.nodes.iter().find(|node| node.name() == pod.node).context("no such node")?;
        node.delete(pod)?;
        self.forget(pod)
    }

    /// Lets `pod` answer on [`TARGET`], TCP and UDP, with its name.
    pub fn serve(&mut self, pod: &Pod) -> Result<()> {
        self.servers.push(Server::start(&pod.namespace, pod.name(), TARGET)?);
        Ok(())
    }

    /// A new pod that answers on [`TARGET`].
    pub fn serving_pod(&mut self, number: u8, name: &str) -> Result<Pod> {
        let pod = self.pod(number, name)?;
        self.serve(&pod)?;
        Ok(pod)
    }

    /// Puts `service` with these endpoints where all agents look.
    pub fn publish(&self, service: &Service, endpoints: impl IntoIterator<Item = Endpoint>) -> Result<()> {
        match &self.control_plane {
            Some(control_plane) => control_plane.publish(service, endpoints),
            None => self.manifests.put(service.name(), service.clone().with_endpoints(endpoints)),
        }
    }

    /// A client in a pod.
    pub fn client(&self, pod: &Pod) -> Result<Probe> {
        let node = self.nodes.iter().find(|node| node.name() == pod.node).context("no such node")?;
        Probe::start(&pod.namespace, Some(node.cgroup()))
    }

    fn report(&self, failure: &str) {
        if let Some(control_plane) = &self.control_plane {
            complain(&format!("--- the control plane:\n{}", control_plane.log()));
        }
        complain(&format!("failed: {failure}"));
        for node in &self.nodes {
            let said = node.agent.as_ref().map_or_else(|| "not running\n".to_owned(), Agent::log);
            complain(&format!(
                "--- the agent of {}:\n{said}--- in {}: {}",
                node.name(),
                node.dir().display(),
                node.namespace().enter_command()
            ));
        }
        keep_if_asked();
    }
}
