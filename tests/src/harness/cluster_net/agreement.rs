//! Whether the nodes of a [`ClusterNet`] know what the API's objects say.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use portway_datapath::Addr;

use super::{ClusterNet, Node};
use crate::harness::eventually;
use crate::harness::identities::Objects;

/// `reserved:host` and `reserved:remote-node`.
const HOST: u32 = 1;
const REMOTE_NODE: u32 = 6;
/// The first and the last number that identities of pods have in a cluster without an id.
const OF_PODS: std::ops::RangeInclusive<u32> = 256..=65_535;

impl ClusterNet {
    /// Waits until the objects agree with each other and every node's ipcache with them.
    pub fn wait_agreement(&self, limit: Duration) -> Result<Objects> {
        let client = self.control_plane()?.client();
        eventually(limit, "all objects and nodes to agree", || {
            let objects = Objects::list(client)?;
            let disagreements = objects.disagreements()?;
            ensure!(disagreements.is_empty(), "{disagreements:#?}");
            let addresses = objects.addresses()?;
            self.nodes().iter().try_for_each(|node| self.compare(node, &addresses))?;
            Ok(objects)
        })
    }

    /// Pods' addresses are exactly these; nodes' are what they are.
    fn compare(&self, node: &Node, pods: &BTreeMap<IpAddr, u32>) -> Result<()> {
        let entries = node.tables()?.ipcache()?;
        let whole = |addr: Addr| {
            let v6 = std::net::Ipv6Addr::from(addr.octets());
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        };
        let held: BTreeMap<IpAddr, u32> = entries
            .iter()
            .filter(|((_, bits), value)| *bits == 128 && OF_PODS.contains(&value.identity.get()))
            .map(|((addr, _), value)| (whole(*addr), value.identity.get()))
            .collect();
        let differ = |a: &BTreeMap<IpAddr, u32>, b: &BTreeMap<IpAddr, u32>| -> Vec<_> {
            a.iter().filter(|(addr, number)| b.get(addr) != Some(number)).map(|(a, n)| (*a, *n)).collect()
        };
        let (more, missing) = (differ(&held, pods), differ(pods, &held));
        ensure!(
            more.is_empty() && missing.is_empty(),
            "{} holds {more:?} that the objects do not say, and not {missing:?}",
            node.name()
        );
        let ipcache = node.ipcache()?;
        for other in self.nodes() {
            let wanted = if other.name() == node.name() { HOST } else { REMOTE_NODE };
            for addr in [IpAddr::from(other.v4()), other.v6().into()] {
                let found = ipcache.identity(addr)?;
                ensure!(found == Some(wanted), "{} has {addr} as {found:?}, not {wanted}", node.name());
            }
        }
        Ok(())
    }
}
