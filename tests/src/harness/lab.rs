//! A lab: a real cluster in namespaces of this machine, with kubelets, containerd, CoreDNS, and no kube-proxy.
//!
//! ```text
//!   control plane 172.18.0.1 ── bridge ──┬── eth0 172.18.0.11 node-1: containerd, kubelet, agent; pods by its plugin
//!   (etcd, API server, controllers,      └── eth0 172.18.0.12 node-2: the same
//!    scheduler)
//! ```
//!
//! Nothing in it has a route out. It needs Debian's containerd and runc, and what `tests/cluster/build.sh nodes` builds.

pub mod dns;
pub mod groups;
pub mod machine;
pub mod node;
pub mod pods;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use super::cluster::{Clients, binary, identity};
use super::cluster_net::Routing;
use super::judge::{judge, keep_if_asked};
use super::{ControlPlane, Namespace, PREFIX, complain, eventually};
pub use groups::Groups;
pub use machine::Machine;
pub use node::Node;
pub use pods::LabPod;

/// Where pods find CoreDNS.
pub const CLUSTER_DNS: &str = "10.96.0.10";
const FOR_MACHINES_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 1);
const BRIDGE: &str = "lan";
/// kubelet looks after its runtime every five seconds, and the machine may be busy with other tests.
pub const SLOWLY: Duration = Duration::from_secs(90);

/// The cluster. It goes away with the guard, whatever the test did.
#[derive(Debug)]
pub struct Lab {
    // Dropped in this order: who asks, who answers, what they run in.
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    wire: Namespace,
    dir: TempDir,
}

impl Lab {
    /// Runs `body` in a lab of its own, whose nodes' agents do not run yet. Where it fails or panics, says what was
    /// said last on the nodes and how to get in.
    pub fn test(name: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        judge(Self::start(name)?, body, Self::report)
    }

    fn start(name: &str) -> Result<Self> {
        super::world::remove_leftovers(&std::env::temp_dir())?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{name}-", std::process::id()))
            .tempdir()
            .context("make a directory")?;
        let wire = Namespace::new("wire")?;
        wire.add_bridge(BRIDGE)?;
        wire.add_address(BRIDGE, identity::FOR_MACHINES.into(), 24)?;
        wire.add_address(BRIDGE, FOR_MACHINES_V6.into(), 64)?;
        wire.set_up(BRIDGE)?;
        let mut control_plane = ControlPlane::start_for(&wire, Clients::Machines)?;
        control_plane.install_crds()?;
        control_plane.start_scheduler()?;
        control_plane.start_controllers()?;
        let mut lab = Self { nodes: Vec::new(), control_plane, wire, dir };
        for number in 1..=identity::MACHINES.len() {
            lab.join(name, u8::try_from(number)?)?;
        }
        Ok(lab)
    }

    /// A machine more, whose kubelet registers it as a node.
    fn join(&mut self, test: &str, number: u8) -> Result<()> {
        let name = format!("node-{number}");
        let (v4, v6) = addresses(number);
        let namespace = Namespace::new(&name)?;
        self.wire.add_veth(&name, &namespace, "eth0")?;
        self.wire.enslave(&name, BRIDGE)?;
        namespace.add_address("eth0", v4.into(), 24)?;
        namespace.add_address("eth0", v6.into(), 64)?;
        namespace.add_default_route(identity::FOR_MACHINES.into())?;
        namespace.add_default_route(FOR_MACHINES_V6.into())?;
        let machine = Machine::start(test, &name, &namespace, &self.dir.path().join(&name))?;
        let mut archives = vec![binary("pods.tar")?];
        if name == dns::NODE {
            archives.push(binary("coredns.tar")?);
        }
        let mut node = Node::start(machine, &archives)?;
        node.start_kubelet(&self.control_plane, &[v4.into(), v6.into()])?;
        self.nodes.push(node);
        Ok(())
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number, from 1.
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number - 1]
    }

    /// Starts the agents of all nodes and waits until each is ready.
    pub fn start_agents(&mut self, routing: Routing, flags: &[&str]) -> Result<()> {
        for node in &mut self.nodes {
            node.start_agent(&self.control_plane, routing, flags)?;
        }
        self.nodes.iter_mut().try_for_each(Node::wait_agent)
    }

    /// Starts the agent of the node with this number and waits until it is ready.
    pub fn start_agent(&mut self, number: usize, routing: Routing, flags: &[&str]) -> Result<()> {
        let node = &mut self.nodes[number - 1];
        node.start_agent(&self.control_plane, routing, flags)?;
        node.wait_agent()
    }

    /// `kill -9` of a node's agent; what it has programmed stays.
    pub fn kill_agent(&mut self, number: usize) -> Result<()> {
        self.nodes[number - 1].kill_agent()
    }

    /// Until every node is ready for pods. An agent that ended is an error at once.
    pub fn wait_nodes_ready(&self) -> Result<()> {
        eventually(SLOWLY, "all nodes to be ready", || {
            if let Err(ended) = self.nodes.iter().try_for_each(Node::agent_lives) {
                return Ok(Err(ended));
            }
            for node in self.control_plane.client().list("/api/v1/nodes")? {
                let ready = condition(&node, "Ready").context("it does not say")?;
                ensure!(ready["status"] == "True", "{}: {}", node["metadata"]["name"], ready["message"]);
            }
            Ok(Ok(()))
        })?
    }

    fn report(&self, failure: &str) {
        complain(&format!("failed: {failure}"));
        for node in &self.nodes {
            complain(&format!("{}--- enter: {}", node.log(), node.machine().enter_command()));
        }
        complain(&format!("--- control plane: {}", self.wire.enter_command()));
        keep_if_asked();
    }
}

/// The addresses of the node with this number.
pub fn addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    let host = 10 + number;
    (Ipv4Addr::new(172, 18, 0, host), Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, u16::from(host)))
}

/// The condition `kind` of an object's status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
