//! Which interfaces lead out of the node, the addresses that masquerading takes there, and what fits through them.

use std::collections::BTreeMap;

use portway_datapath::{Addr, DeviceValue, Family};
use portway_model::node::ClusterNode;

use super::machine::{Link, Machine};
use crate::config::PodNetwork;
use crate::endpoints::is_link_name;

/// Bytes that VXLAN over IPv4 adds: outer IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 (RFC 7348, section 4.3).
pub(crate) const TUNNEL_OVERHEAD: u32 = 50;
/// An interface that says nothing useful of itself is taken for Ethernet.
const ETHERNET_MTU: u32 = 1500;
/// The least MTU of an interface that carries IPv6 (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

/// An interface that leads out of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// What masquerading takes.
    pub(crate) addresses: DeviceValue,
}

/// The devices, and what was asked for and cannot be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices {
    /// By index.
    pub(crate) found: BTreeMap<u32, Device>,
    pub(crate) unfit: Vec<String>,
}

impl Devices {
    /// Those that `devices` names; where it names none, those with a default route and the one with the node's
    /// address, but none of pods, tunnels and bridge ports.
    ///
    /// `held` is what `pw_devices` holds. One of those stays a device while the interface is there and nothing excepts it:
    /// with a default route that flaps, neither programs nor the MTU of pods come and go. Before the node is known it keeps
    /// its addresses, too.
    pub(crate) fn choose(
        machine: &Machine,
        network: &PodNetwork,
        this: Option<&ClusterNode>,
        held: &BTreeMap<u32, DeviceValue>,
    ) -> Self {
        let patterns = &network.devices;
        let direct = network.direct_routing_device.as_ref();
        let node_addresses = this.map_or(&[][..], |node| &node.addresses);
        let has_node_address =
            |link: &Link| link.addresses.iter().any(|own| node_addresses.contains(&own.addr));
        let mut devices = Self::default();
        for link in machine.links.values() {
            let is_named =
                patterns.covers(&link.name) || direct.is_some_and(|direct| direct.covers(&link.name));
            let is_meant = match patterns.is_auto() {
                true => {
                    let leads_out = machine.default_devices.contains(&link.index)
                        || has_node_address(link)
                        || held.contains_key(&link.index);
                    is_named
                        || (leads_out && !link.is_loopback && !link.is_port && !patterns.excepts(&link.name))
                }
                false => is_named,
            };
            // The agent's own are never devices, whatever a pattern covers.
            if !is_meant || is_link_name(&link.name) || link.name == super::tunnel::NAME {
                continue;
            }
            if link.mac.is_none() {
                devices.unfit.push(link.name.clone());
                continue;
            }
            let anew = DeviceValue {
                v4: masquerade_address(link, Family::V4, node_addresses),
                v6: masquerade_address(link, Family::V6, node_addresses),
            };
            let earlier = held.get(&link.index).filter(|_| this.is_none());
            let addresses = earlier.copied().unwrap_or(anew);
            let device = Device { ifindex: link.index, name: link.name.clone(), mtu: link.mtu, addresses };
            devices.found.insert(link.index, device);
        }
        devices
    }

    /// What `pw_devices` should hold.
    pub(crate) fn table(&self) -> BTreeMap<u32, DeviceValue> {
        self.found.iter().map(|(index, device)| (*index, device.addresses)).collect()
    }

    /// What fits into a packet between pods: `mtu`, or the least of the devices', without what a tunnel adds.
    pub(crate) fn pod_mtu(&self, network: &PodNetwork) -> u32 {
        let least = self.found.values().map(|device| device.mtu).filter(|mtu| *mtu >= LEAST_MTU).min();
        let outer = network.mtu.map(u32::from).or(least).unwrap_or(ETHERNET_MTU);
        let overhead = if network.tunnel_port().is_some() { TUNNEL_OVERHEAD } else { 0 };
        (outer - overhead.min(outer)).max(LEAST_MTU - TUNNEL_OVERHEAD)
    }
}

/// The node's own address if the link has it, be it a secondary one, else the link's first; for want of one the node's,
/// wherever it is.
fn masquerade_address(link: &Link, family: Family, node: &[Addr]) -> Addr {
    let own = || link.addresses.iter().filter(|own| own.addr.family() == family);
    let named = own().map(|own| own.addr).find(|addr| node.contains(addr));
    let first = || own().find(|own| own.is_usable).map(|own| own.addr);
    let elsewhere = || node.iter().copied().find(|addr| addr.family() == family);
    named.or_else(first).or_else(elsewhere).unwrap_or(Addr::ANY_V6)
}

#[cfg(test)]
mod tests;
