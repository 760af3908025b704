//! Brings what the cluster and the machine say into tables, devices and routes: level-based, everything each time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portway_datapath::{Addr, DeviceValue};
use portway_model::ipcache::{self, Reach, reach};
use portway_model::k8s::{ObjectKind, Reject};
use portway_model::node::{ClusterView, Prefix};

use super::devices::Devices;
use super::machine::{Machine, MachineError, Netlink};
use super::node_network::node_network;
use super::routes::{self, By};
use super::sysctls::Sysctls;
use super::tunnel::{self, TunnelChange};
use crate::config::{Chaining, Config, Ipam, PodNetwork, Routing};
use crate::endpoints::is_link_name;
use crate::ipcache::Ipcache;
use crate::maps::{MapError, PodTables};
use crate::programs::{InterfaceChange, InterfacePrograms, ProgramError, Side};

/// Comparing the kernel's table of addresses with what it should be takes at most this part of the time.
const COMPARING_IS_ONE_OF: u32 = 100;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NodesError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("serving pods: {0}")]
    Task(#[source] tokio::task::JoinError),
}

/// What is wrong, for status and log. Empty when all is well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Troubles {
    /// What of nodes is not used.
    pub(crate) rejects: Vec<Reject>,
    /// What of this machine is not as it should be.
    pub(crate) lines: Vec<String>,
}

/// What a turn came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) troubles: Troubles,
    /// The MTU of pods, in bytes.
    pub(crate) mtu: u32,
    /// Nothing was refused at the tunnel device or any other, nor of the table of addresses: else the next turn comes soon.
    pub(crate) is_whole: bool,
}

/// The side of the pod network that leads to other nodes and to the world.
pub(crate) struct Nodes {
    config: Arc<Config>,
    network: PodNetwork,
    tables: PodTables,
    programs: Arc<Mutex<InterfacePrograms>>,
    options: ipcache::Options,
    ipcache: Ipcache,
    /// When `pw_ipcache` was compared last, and what it took.
    compared: Option<(Instant, Duration)>,
    sysctls: Sysctls,
    /// Programs may be attached.
    attaches: bool,
}

impl Nodes {
    pub(crate) fn new(
        config: Arc<Config>,
        network: PodNetwork,
        tables: PodTables,
        programs: Arc<Mutex<InterfacePrograms>>,
        ipcache: Ipcache,
    ) -> Self {
        let prefix = |cidr: &crate::config::Cidr| {
            let bits = if cidr.addr().is_ipv4() { cidr.bits() + 96 } else { cidr.bits() };
            Prefix::new(Addr::from(cidr.addr()), bits)
        };
        let options = ipcache::Options {
            tunnel: network.tunnel_port().is_some(),
            ipv4: config.ipv4,
            ipv6: config.ipv6,
            native_cidrs: network.native_cidrs.iter().filter_map(prefix).collect(),
            // Another plugin's addresses are not ours to take one of.
            health_endpoints: network.node_health.is_some_and(|health| health.endpoint)
                && network.chaining == Chaining::None,
            prefixes_of: match network.ipam {
                Ipam::Kubernetes => ObjectKind::Node,
                Ipam::ClusterPool => ObjectKind::CiliumNode,
            },
        };
        let sysctls = Sysctls::new(&config.state_dir);
        let (compared, attaches) = (None, false);
        Self { config, network, tables, programs, options, ipcache, compared, sysctls, attaches }
    }

    /// Programs are attached from the next time on.
    pub(crate) const fn attach(&mut self) {
        self.attaches = true;
    }

    /// Ends what other layout versions have left, now that our programs are everywhere.
    ///
    /// # Errors
    /// The kernel refuses; repeating the call goes on from there.
    pub(crate) fn retire_other_versions(&self) -> Result<(), NodesError> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = programs.retire_other_versions()?;
        if !versions.is_empty() {
            tracing::info!(versions = versions.join(", "), "earlier layout versions are removed");
        }
        Ok(())
    }

    /// Makes everything as the cluster and the machine say. What they do not know yet stays. A device that refuses, or an
    /// entry of the table of addresses, is told among the troubles and holds nothing else up.
    ///
    /// # Errors
    /// The kernel refuses another table; repeating the call goes on from there.
    pub(crate) async fn reconcile(
        &mut self,
        view: &ClusterView,
        machine: &Machine,
        netlink: &Netlink,
    ) -> Result<Outcome, NodesError> {
        let mut troubles = Troubles::default();
        let this = view.this.as_deref();
        let knows = view.knows_nodes && this.is_some();
        let held = self.tables.reader().devices()?;
        let devices = Devices::choose(machine, &self.network, this, &held);
        troubles.lines.extend(devices.unfit.iter().map(|name| {
            format!(
                "{name} leads out of the node and is no Ethernet: what pods send there is not masqueraded"
            )
        }));
        let mtu = devices.pod_mtu(&self.network);
        let mut refused = Vec::new();
        let tunnel = self.tunnel(machine, netlink, mtu, &mut refused).await;
        // Any link may have its routes from routers, also one that is no device.
        let links = machine.links.values().filter(|link| !link.is_loopback && link.name != tunnel::NAME);
        let links = links.map(|link| link.name.as_str());
        match self.sysctls.forward(self.config.ipv4, self.config.ipv6, links) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => {
                tracing::info!(changed = changed.join(" "), "so that packets of pods are forwarded")
            }
            Err(error) => troubles.lines.push(format!("packets of pods may not be forwarded: {error}")),
        }
        let mut reach = reach(view, &self.options);
        troubles.rejects.append(&mut reach.rejects);
        self.tables.set_network(&node_network(&self.config, &self.network, tunnel))?;
        if let Err(error) = self.write_addresses(&reach, machine, knows) {
            refused.push(format!("not every address is known to programs: {error}"));
        }
        self.write_devices(&devices, &held, knows)?;
        let by = match self.network.routing {
            Routing::Tunnel { .. } => tunnel.map_or(By::NoTunnel, |ifindex| By::Tunnel { ifindex }),
            Routing::Native { direct_node_routes: true } => By::Nodes,
            Routing::Native { direct_node_routes: false } => By::Network,
        };
        let ends_here = self.network.chaining == Chaining::None;
        let mut wanted = routes::wanted(&reach, machine, this, by, mtu, ends_here);
        troubles.rejects.append(&mut wanted.rejects);
        let mut changes = netlink.set_routes(machine, &wanted.routes, knows).await;
        troubles.lines.append(&mut changes.failed);
        if changes.added + changes.removed > 0 {
            tracing::debug!(changes.added, changes.removed, "routes to pods of other nodes");
        }
        if self.attaches {
            self.attach_all(&devices, tunnel, knows, &mut refused);
        }
        let is_whole = refused.is_empty();
        troubles.lines.append(&mut refused);
        Ok(Outcome { troubles, mtu, is_whole })
    }

    /// The tunnel device's index, where there is one.
    async fn tunnel(
        &self,
        machine: &Machine,
        netlink: &Netlink,
        mtu: u32,
        refused: &mut Vec<String>,
    ) -> Option<u32> {
        let Some(port) = self.network.tunnel_port() else {
            match netlink.remove_tunnel(machine).await {
                Ok(true) => tracing::info!("the tunnel device of an earlier configuration is removed"),
                Ok(false) => {}
                Err(error) => refused.push(error.to_string()),
            }
            return None;
        };
        match netlink.ensure_tunnel(machine, port, mtu).await {
            Ok(TunnelChange::Nothing) => return machine.link(tunnel::NAME).map(|link| link.index),
            Ok(change @ (TunnelChange::Made | TunnelChange::MadeAnew | TunnelChange::Adjusted)) => {
                tracing::info!(?change, port, mtu, "tunnel device");
            }
            Err(error) => refused.push(format!("pods of other nodes may not be reached: {error}")),
        }
        // One that could not be adjusted goes on as it is.
        match netlink.read().await {
            Ok(machine) => machine.link(tunnel::NAME).map(|link| link.index),
            Err(error) => {
                refused.push(error.to_string());
                None
            }
        }
    }

    /// Who is where. Everything that can be written is; the last refusal.
    fn write_addresses(&mut self, reach: &Reach, machine: &Machine, knows: bool) -> Result<(), NodesError> {
        let mut written = self.ipcache.set_nodes(reach, &own_addresses(machine), knows);
        if self.ipcache.is_behind() {
            written = self.ipcache.retry();
        }
        self.compare()?;
        Ok(written?)
    }

    /// Without `knows` what is there and not known stays.
    fn write_devices(
        &self,
        devices: &Devices,
        held: &BTreeMap<u32, DeviceValue>,
        knows: bool,
    ) -> Result<(), NodesError> {
        let mut table = devices.table();
        if !knows {
            for (index, device) in held {
                table.entry(*index).or_insert(*device);
            }
        }
        self.tables.set_devices(&table)?;
        Ok(())
    }

    /// Somebody else may have changed the table of addresses.
    fn compare(&mut self) -> Result<(), NodesError> {
        let is_due = self.compared.is_none_or(|(at, took)| at.elapsed() >= took * COMPARING_IS_ONE_OF);
        if !is_due {
            return Ok(());
        }
        let began = Instant::now();
        let found = self.ipcache.compare(true)?;
        self.compared = Some((Instant::now(), began.elapsed()));
        let foreign = found.differences.iter().filter(|difference| !difference.is_pending).count();
        if foreign > 0 {
            tracing::warn!(entries = foreign, "pw_ipcache was not as it had been written; it is put right");
        }
        found.refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Programs at devices and tunnel; those at other interfaces but pods' go. What the kernel refuses is `refused`, the
    /// rest is done.
    fn attach_all(&self, devices: &Devices, tunnel: Option<u32>, knows: bool, refused: &mut Vec<String>) {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let tunnel = tunnel.map(|index| (index, tunnel::NAME, Side::Tunnel));
        let devices_and_sides =
            devices.found.values().map(|device| (device.ifindex, device.name.as_str(), Side::Device));
        let all: Vec<_> = tunnel.into_iter().chain(devices_and_sides).collect();
        for (ifindex, name, side) in &all {
            let changes = match programs.attach(*ifindex, name, *side) {
                Ok(changes) => changes,
                Err(error) => {
                    refused.push(format!("{name} has not all its programs: {error}"));
                    continue;
                }
            };
            for change in changes {
                match change {
                    InterfaceChange::Unchanged => {}
                    InterfaceChange::Attached
                    | InterfaceChange::Replaced { .. }
                    | InterfaceChange::Moved { .. } => {
                        tracing::info!(interface = name, ?side, ?change, "a program is in place");
                    }
                }
            }
        }
        // Chained interfaces have names of another plugin, and looking at all of them takes long.
        if !knows || self.network.chaining != Chaining::None {
            return;
        }
        let attached = programs.attached().unwrap_or_else(|error| {
            refused.push(error.to_string());
            Vec::new()
        });
        for attached in attached {
            let name = attached.interface.as_str();
            let is_wanted = all.iter().any(|(_, wanted, _)| *wanted == name);
            if is_wanted || is_link_name(name) {
                continue;
            }
            match programs.detach(name) {
                Ok(_) => tracing::info!(interface = name, "no device any more: its programs are detached"),
                Err(error) => refused.push(error.to_string()),
            }
        }
    }
}

/// Addresses at which this node is reached by its pods and by others: neither loopback's nor those that every link has.
fn own_addresses(machine: &Machine) -> BTreeSet<Addr> {
    let addresses = machine.links.values().flat_map(|link| &link.addresses).map(|own| own.addr);
    let is_of_link = |addr: Addr| match IpAddr::from(addr) {
        IpAddr::V4(_) => false,
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    addresses.filter(|addr| !addr.is_loopback() && !is_of_link(*addr)).collect()
}
