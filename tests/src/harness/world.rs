//! A node with pods, clients and the agent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::agent::Places;
use super::judge::{judge, keep_if_asked};
use super::manifest::{Directory, Endpoint, Service, TARGET, node};
use super::mount::BpfMount;
use super::{
    Agent, Cgroup, ControlPlane, Namespace, PREFIX, Probe, Server, complain, eventually, owner_is_dead,
};

/// The name of the node, in manifests and for the agent.
pub const NODE: &str = "node-1";
/// Its zone, where it is an object of a cluster.
pub const ZONE: &str = "zone-a";
/// Addresses of the node on its link `eth0`.
pub const NODE_V4: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 10);
pub const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, 0, 0x10);

/// Everything that a test of the node needs. It goes away with the guard, whatever the test did.
///
/// Make it on the test's own thread: the BPF file system is mounted in that thread's mount namespace, which the
/// processes it starts inherit.
#[derive(Debug)]
pub struct World {
    // Dropped in this order: processes, then what they run in.
    pub agent: Option<Agent>,
    servers: Vec<Server>,
    pods: Vec<Pod>,
    node: Namespace,
    lan: Namespace,
    manifests: Directory,
    kubeconfig: Option<PathBuf>,
    cgroup: Cgroup,
    bpf: BpfMount,
    dir: TempDir,
    /// The mount namespace is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

/// A pod: a namespace, an address of each family, the way out by the node.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    pub namespace: Namespace,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Pod {
    /// Its endpoint in an IPv4 slice.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.v4).on(NODE)
    }

    /// Its endpoint in an IPv6 slice.
    pub fn endpoint_v6(&self) -> Endpoint {
        Endpoint::new(self.v6).on(NODE)
    }

    pub fn socket_v4(&self, port: u16) -> SocketAddr {
        (self.v4, port).into()
    }

    pub fn socket_v6(&self, port: u16) -> SocketAddr {
        (self.v6, port).into()
    }
}

impl World {
    /// Runs `body` in a world of its own. Where it fails or panics, says what the agent said and how to get in.
    pub fn test(name: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        judge(Self::new(name)?, body, Self::report)
    }

    /// As [`Self::test`], with a control plane in the node's namespace that knows the node.
    pub fn cluster(name: &str, body: impl FnOnce(&mut Self, &mut ControlPlane) -> Result<()>) -> Result<()> {
        Self::test(name, |world| {
            let mut control_plane = ControlPlane::start(&world.node)?;
            control_plane.client().apply(&node(NODE, ZONE))?;
            body(world, &mut control_plane)
        })
    }

    pub fn new(name: &str) -> Result<Self> {
        let temp = std::env::temp_dir();
        remove_leftovers(&temp)?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-{name}-", std::process::id()))
            .tempdir()
            .context("make a directory")?;
        for sub in ["bpf", "state"] {
            std::fs::create_dir(dir.path().join(sub)).with_context(|| format!("make the directory {sub}"))?;
        }
        let bpf = BpfMount::new(&dir.path().join("bpf"))?;
        let cgroup = Cgroup::new(name)?;
        let manifests = Directory::new(dir.path())?;
        let node = Namespace::new("node")?;
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            node.sysctl(key, "1")?;
        }
        let lan = Namespace::new("lan")?;
        node.add_veth("eth0", &lan, "eth0")?;
        node.add_address("eth0", NODE_V4.into(), 24)?;
        node.add_address("eth0", NODE_V6.into(), 64)?;
        Ok(Self {
            agent: None,
            servers: Vec::new(),
            pods: Vec::new(),
            node,
            lan,
            manifests,
            kubeconfig: None,
            cgroup,
            bpf,
            dir,
            _not_send: std::marker::PhantomData,
        })
    }

    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// What the node's `eth0` leads to: nobody, with no address and no route.
    pub fn lan(&self) -> &Namespace {
        &self.lan
    }

    pub fn manifests(&self) -> &Directory {
        &self.manifests
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    pub fn bpf_root(&self) -> &Path {
        self.bpf.path()
    }

    /// Where an agent of this world has what.
    pub fn places(&self) -> Places {
        Places {
            namespace: self.node.clone(),
            node_name: NODE.to_owned(),
            manifests: self.manifests.path().to_owned(),
            kubeconfig: self.kubeconfig.clone(),
            cgroup: self.cgroup.path().to_owned(),
            bpf_root: self.bpf.path().to_owned(),
            state: self.state_dir(),
        }
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A new pod on the node.
    pub fn pod(&mut self, name: &str) -> Result<Pod> {
        let number = u8::try_from(self.pods.len() + 1).context("a world has at most 255 pods")?;
        let namespace = Namespace::new(name)?;
        self.node.add_veth(&format!("pod{number}"), &namespace, "eth0")?;
        let (gateway_v4, v4) = (Ipv4Addr::new(10, 244, number, 1), Ipv4Addr::new(10, 244, number, 2));
        let prefix = |host| Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, host);
        let (gateway_v6, v6) = (prefix(1), prefix(2));
        let ends: [(&Namespace, &str, [IpAddr; 2]); 2] = [
            (&self.node, &format!("pod{number}"), [gateway_v4.into(), gateway_v6.into()]),
            (&namespace, "eth0", [v4.into(), v6.into()]),
        ];
        for (end, link, [addr_v4, addr_v6]) in ends {
            end.add_address(link, addr_v4, 24)?;
            end.add_address(link, addr_v6, 64)?;
        }
        namespace.add_default_route(gateway_v4.into())?;
        namespace.add_default_route(gateway_v6.into())?;
        let pod = Pod { name: name.to_owned(), namespace, v4, v6 };
        self.pods.push(pod.clone());
        Ok(pod)
    }

    /// Puts `service` with these endpoints into the agent's directory, in a file of the service's name.
    pub fn publish(&self, service: &Service, endpoints: impl IntoIterator<Item = Endpoint>) -> Result<()> {
        self.manifests.put(service.name(), service.clone().with_endpoints(endpoints))
    }

    /// Lets `pod` answer on `port`, TCP and UDP, with its name.
    pub fn serve(&mut self, pod: &Pod, port: u16) -> Result<()> {
        self.servers.push(Server::start(&pod.namespace, &pod.name, port)?);
        Ok(())
    }

    /// A new pod that answers on [`TARGET`].
    pub fn serving_pod(&mut self, name: &str) -> Result<Pod> {
        let pod = self.pod(name)?;
        self.serve(&pod, TARGET)?;
        Ok(pod)
    }

    /// New pods that answer on [`TARGET`], one for each name.
    pub fn serving_pods(&mut self, names: &[&str]) -> Result<Vec<Pod>> {
        names.iter().map(|name| self.serving_pod(name)).collect()
    }

    /// A client in the node's own namespace, as a pod of the host's network has it.
    pub fn node_client(&self) -> Result<Probe> {
        Probe::start(&self.node, Some(self.cgroup.path()))
    }

    /// A client in a pod.
    pub fn client(&self, pod: &Pod) -> Result<Probe> {
        Probe::start(&pod.namespace, Some(self.cgroup.path()))
    }

    /// A client that no program sees: outside the control group.
    pub fn outside_client(&self, pod: &Pod) -> Result<Probe> {
        Probe::start(&pod.namespace, None)
    }

    /// Agents that are started from now on follow the API server or proxy of `kubeconfig`, not the directory.
    pub fn follow(&mut self, kubeconfig: PathBuf) {
        self.kubeconfig = Some(kubeconfig);
    }

    /// Starts the agent on `control_plane` and waits until it is ready.
    pub fn start_agent_on_cluster(&mut self, control_plane: &ControlPlane, flags: &[&str]) -> Result<()> {
        self.follow(control_plane.kubeconfig()?);
        self.start_agent(flags)
    }

    /// Starts the agent and waits until it is ready.
    pub fn start_agent(&mut self, flags: &[&str]) -> Result<()> {
        self.agent = Some(Agent::start(&self.places(), flags)?);
        Ok(())
    }

    /// `kill -9`; what it has programmed stays.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.kill()?;
        Ok(())
    }

    /// The output of `portway ARGS`.
    pub fn portway(&self, args: &[&str]) -> Result<String> {
        super::process::output(&mut super::agent::cli(&self.places(), args)?)
    }

    /// Waits until the kernel holds what `portway plan` makes of the manifests.
    pub fn wait_programmed(&self) -> Result<()> {
        let source = format!("--source-dir={}", self.manifests.path().display());
        eventually(Duration::from_secs(5), "the kernel to hold what is planned", || {
            let planned = self.portway(&["plan", &source, "--node", NODE, "-o", "json"])?;
            let held = self.portway(&["bpf", "lb", "list", "-o", "json"])?;
            ensure!(planned == held, "planned: {planned}\nheld: {held}");
            Ok(())
        })
    }

    /// How a person gets into the namespaces of this world, one line each.
    pub fn enter_commands(&self) -> Vec<String> {
        [&self.node, &self.lan]
            .into_iter()
            .chain(self.pods.iter().map(|pod| &pod.namespace))
            .map(|namespace| format!("{:<8} {}", namespace.name(), namespace.enter_command()))
            .collect()
    }

    fn report(&self, failure: &str) {
        let agent = self.agent.as_ref().map_or_else(|| "not running\n".to_owned(), Agent::log);
        let enter = self.enter_commands().join("\n  ");
        complain(&format!(
            "failed: {failure}\n--- the agent:\n{agent}--- its world: {}\n  {enter}",
            self.dir.path().display()
        ));
        keep_if_asked();
    }
}

/// Directories of runs whose process is gone.
pub(super) fn remove_leftovers(temp: &Path) -> Result<()> {
    for entry in std::fs::read_dir(temp).with_context(|| format!("list {}", temp.display()))? {
        let entry = entry?;
        if owner_is_dead(&entry.file_name()) {
            match std::fs::remove_dir_all(entry.path()) {
                Ok(()) => {}
                // Another test process may be at the same work.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => complain(&format!("left behind: {}: {error}", entry.path().display())),
            }
        }
    }
    Ok(())
}
