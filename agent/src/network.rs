//! The pod network: a thread of its own that gives pods their links and addresses and carries their traffic.
//!
//! ```text
//! owner ── ClusterView, "serves" ──► network ─► pw_ipcache, pw_devices, pw_network, routes, the tunnel device
//!                                       │
//!                                       ├─ endpoints, IPAM, CNI server ─► links of pods, pw_endpoints
//!                                       ├─ identities
//!                                       └─ probes between nodes
//! ```

mod devices;
mod machine;
mod node_network;
mod nodes;
mod removal;
mod routes;
mod sysctls;
#[cfg(test)]
mod tests;
mod tunnel;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use portway_model::node::ClusterView;
use portway_runtime::readiness::Guard;
use portway_runtime::shutdown::Drain;
use tokio::sync::{oneshot, watch};

use crate::cni::Pods;
use crate::config::{Config, PodNetwork};
use crate::conntrack::Conntrack;
use crate::endpoints::{Endpoints, NodeKernel};
use crate::identities;
use crate::ipcache::Ipcache;
use crate::maps::{EarlierFlows, MapReader, PodOpening, PodReader, PodTables};
use crate::programs::InterfacePrograms;
use crate::thread;
use machine::{Machine, MachineError, Netlink};
pub(crate) use nodes::Troubles;
use nodes::{Nodes, NodesError, Outcome};
pub(crate) use removal::forget;
pub use removal::{NodesRemovalError, remove, remove_routes};
pub use sysctls::SysctlError;

/// When what the kernel refused is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// When tables, routes and programs are compared anew though nothing was told.
const AGAIN: Duration = Duration::from_secs(25);

/// The owner tag of everything that the pod network has in the kernel's tables of routes, rules and neighbours (their
/// `protocol`).
pub(crate) const OWNER: u8 = 80;

/// What the owner of services tells.
pub(crate) struct FromOwner {
    /// The cluster as it is known; empty at first.
    pub(crate) cluster: watch::Receiver<Arc<ClusterView>>,
    /// The services' programs are in place.
    pub(crate) serves: watch::Receiver<bool>,
    /// The maps of the pod network, as soon as they are there.
    pub(crate) tables: oneshot::Receiver<(PodTables, PodOpening)>,
    /// What is wrong: told back.
    pub(crate) troubles: Arc<Mutex<Troubles>>,
}

/// What the programs have counted and remembered, for those who show it.
pub(crate) struct Flows {
    pub(crate) reader: PodReader,
    pub(crate) conntrack: Conntrack,
    pub(crate) ipcache: Ipcache,
}

/// What the thread is given.
pub(crate) struct Inputs {
    pub(crate) config: Arc<Config>,
    pub(crate) network: PodNetwork,
    pub(crate) owner: FromOwner,
    pub(crate) identities: identities::FromOwner,
    pub(crate) ipcache: Ipcache,
    /// Where the API finds the endpoints, as soon as they are known.
    pub(crate) endpoints: Arc<OnceLock<Endpoints>>,
    /// The same of flows.
    pub(crate) flows: Arc<OnceLock<Flows>>,
    /// Open until pods are served.
    pub(crate) starting: Guard,
    pub(crate) drain: Drain,
}

/// Starts the thread, which ends when draining begins.
///
/// # Errors
/// There can be no thread.
pub(crate) fn spawn(inputs: Inputs) -> anyhow::Result<thread::Ended> {
    let mut drain = inputs.drain.clone();
    thread::spawn("network", || async move {
        tokio::select! {
            result = follow(inputs) => result,
            () = drain.begun() => Ok(()),
        }
    })
}

/// Until an error that no retry mends.
async fn follow(inputs: Inputs) -> anyhow::Result<()> {
    let Inputs { config, network, owner, identities, ipcache, endpoints, flows, starting, drain } = inputs;
    let FromOwner { cluster, serves, tables, troubles } = owner;
    let Ok((tables, PodOpening { origins, earlier })) = tables.await else {
        // The owner ended, and with it the agent.
        return std::future::pending().await;
    };
    removal::note(&config.state_dir).context("cannot write to state-dir")?;
    ipcache.attach(tables.clone()).context("taking over pw_ipcache")?;
    // While the services' first sync is under way; attached after it.
    let programs = InterfacePrograms::load(&config.bpf_root)?;
    tracing::info!(
        ipam = ?network.ipam,
        routing = ?network.routing,
        maps = origins.len(),
        programs = programs.loaded().len(),
        "the pod network is on"
    );
    let programs = Arc::new(Mutex::new(programs));
    let services = MapReader::open(&config.bpf_root).context("reading the maps of services")?;
    let conntrack = Conntrack::start(tables.clone(), services, network.timeouts)
        .context("cannot start to collect flows that are over")?;
    let kernel = NodeKernel::new(&config.bpf_root, tables.clone(), Arc::clone(&programs), conntrack.clone());
    let pods = Pods::start(&config, &network, kernel).await?;
    endpoints.get_or_init(|| pods.endpoints().clone());
    let identities_ended = identities::spawn(identities::Inputs {
        config: Arc::clone(&config),
        network: network.clone(),
        owner: identities,
        cluster: cluster.clone(),
        endpoints: pods.endpoints().clone(),
        ipcache: ipcache.clone(),
        drain,
    })?;
    flows.get_or_init(|| Flows {
        reader: tables.reader(),
        conntrack: conntrack.clone(),
        ipcache: ipcache.clone(),
    });
    let (ready, pods_may_be_served) = watch::channel(false);
    let nodes = NodeSide {
        nodes: Nodes::new(Arc::clone(&config), network.clone(), tables.clone(), programs, ipcache),
        tables,
        endpoints: pods.endpoints().clone(),
        conntrack,
        earlier: Some(earlier),
        is_alone: false,
        troubles,
        ready,
    };
    let pods = pods.run(cluster.clone(), pods_may_be_served, starting);
    tokio::select! {
        ended = pods => ended,
        ended = nodes.follow(cluster, serves) => ended,
        ended = identities_ended => ended.unwrap_or_else(|_| Err(anyhow!("the thread of identities panicked"))),
    }
}

/// What leads to other nodes and to the world, and who waits for it.
struct NodeSide {
    nodes: Nodes,
    tables: PodTables,
    endpoints: Endpoints,
    conntrack: Conntrack,
    /// Flows in maps of other sizes; gone once our programs are everywhere.
    earlier: Option<EarlierFlows>,
    /// What earlier agents left is gone.
    is_alone: bool,
    /// What was said to be wrong.
    troubles: Arc<Mutex<Troubles>>,
    /// Tables, devices and routes are there: pods may be served.
    ready: watch::Sender<bool>,
}

impl NodeSide {
    /// Until an error that no retry mends.
    async fn follow(
        mut self,
        mut cluster: watch::Receiver<Arc<ClusterView>>,
        mut serves: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let mut netlink = Netlink::open()?;
        let mut machine = netlink.read_after(&Machine::default()).await?;
        let mut done: Option<Done> = None;
        loop {
            let view = Arc::clone(&cluster.borrow_and_update());
            let may_attach = *serves.borrow_and_update();
            let failed = match &done {
                Some(done) if done.holds(&view, &machine, may_attach) => false,
                Some(_) | None => match self.reconcile(&view, &machine, &netlink, may_attach).await {
                    Ok(true) => {
                        let machine = machine.clone();
                        done = Some(Done { view, machine, attached: may_attach, at: Instant::now() });
                        false
                    }
                    Ok(false) => {
                        done = None;
                        true
                    }
                    Err(error) => {
                        done = None;
                        self.fail(error.to_string());
                        true
                    }
                },
            };
            let retry = async {
                match failed {
                    true => tokio::time::sleep(RETRY).await,
                    false => std::future::pending().await,
                }
            };
            let changed = tokio::select! {
                changed = netlink.changed() => changed,
                Ok(()) = cluster.changed() => {
                    // Pods come and go: the machine need not be read for them.
                    let news = Arc::clone(&cluster.borrow());
                    match &done {
                        Some(done) if done.holds(&news, &machine, may_attach) => continue,
                        Some(_) | None => Ok(()),
                    }
                }
                Ok(()) = serves.changed(), if !may_attach => Ok(()),
                () = retry => Ok(()),
            };
            machine = match read(&mut netlink, &machine, changed).await {
                Ok(machine) => machine,
                Err(error) => {
                    tracing::warn!(%error, "trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
        }
    }

    /// Whether everything is as it should be.
    async fn reconcile(
        &mut self,
        view: &ClusterView,
        machine: &Machine,
        netlink: &Netlink,
        may_attach: bool,
    ) -> Result<bool, NodesError> {
        if may_attach && !*self.ready.borrow() {
            // Before our programs are in place, and once more after: they then fill our maps alone.
            self.adopt()?;
            self.nodes.attach();
        }
        let Outcome { troubles, mtu, is_whole } = self.nodes.reconcile(view, machine, netlink).await?;
        self.endpoints.set_mtu(mtu);
        self.tell(troubles);
        if may_attach && !*self.ready.borrow() {
            let endpoints = self.endpoints.clone();
            // A panic of it ends in the same way as one here.
            tokio::task::spawn_blocking(move || endpoints.serve()).await.map_err(NodesError::Task)?;
            self.adopt()?;
            self.conntrack.services_are_known();
            self.conntrack.endpoints_are_known();
            self.ready.send_replace(true);
            tracing::info!("pods are served");
        }
        // An interface that refused our programs keeps those of an earlier agent, and these their maps. So does one that is
        // known for a device only with the nodes.
        let knows = view.knows_nodes && view.this.is_some();
        if may_attach && knows && is_whole && !self.is_alone {
            if let Some(earlier) = self.earlier.take() {
                earlier.forget()?;
            }
            self.nodes.retire_other_versions()?;
            self.is_alone = true;
        }
        Ok(is_whole)
    }

    fn adopt(&self) -> Result<(), NodesError> {
        let Some(earlier) = self.earlier.as_ref().filter(|earlier| !earlier.is_empty()) else {
            return Ok(());
        };
        let adopted = earlier.adopt(&self.tables)?;
        tracing::info!(?adopted, "flows of an earlier agent's maps");
        Ok(())
    }

    /// What was wrong still is, and everything stays as it is until it is tried again.
    fn fail(&self, line: String) {
        let rejects = self.troubles.lock().unwrap_or_else(PoisonError::into_inner).rejects.clone();
        self.tell(Troubles { rejects, lines: vec![line] });
    }

    /// Says what is wrong that was not before.
    fn tell(&self, now: Troubles) {
        let mut told = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        for line in now.lines.iter().filter(|line| !told.lines.contains(line)) {
            tracing::warn!("{line}");
        }
        for reject in now.rejects.iter().filter(|reject| !told.rejects.contains(reject)) {
            tracing::warn!(
                kind = reject.kind,
                name = reject.name,
                field = reject.field,
                value = reject.value,
                reason = reject.reason,
                "not used"
            );
        }
        *told = now;
    }
}

/// What everything was made of.
struct Done {
    view: Arc<ClusterView>,
    machine: Machine,
    attached: bool,
    at: Instant,
}

impl Done {
    /// Whether everything would be made of the same, and was a short while ago: somebody else may have changed a table.
    fn holds(&self, view: &ClusterView, machine: &Machine, may_attach: bool) -> bool {
        // The pods are of no matter here.
        let nodes = (&self.view.this, &self.view.remote, self.view.knows_nodes)
            == (&view.this, &view.remote, view.knows_nodes);
        nodes && self.machine == *machine && self.attached == may_attach && self.at.elapsed() < AGAIN
    }
}

/// The machine after a change; by a new connection where the old one ended.
async fn read(
    netlink: &mut Netlink,
    before: &Machine,
    changed: Result<(), MachineError>,
) -> Result<Machine, MachineError> {
    if let Err(error) = changed {
        tracing::warn!(%error, "opening it again");
        *netlink = Netlink::open()?;
    }
    netlink.read_after(before).await
}
