//! Routes to pods of other nodes, and the end of the way to pods of this one that are not there.
//!
//! Level-based: what should be there is made of the whole cluster, compared with what has our owner tag, and the difference
//! is done. Routes of pods' own links are not looked at: who makes those links has them.

use std::collections::{BTreeMap, BTreeSet};

use portway_datapath::{Addr, Family};
use portway_model::ipcache::{Reach, RemotePrefix};
use portway_model::k8s::{ObjectKind, Reject};
use portway_model::node::{ClusterNode, Prefix};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};

use super::OWNER;
use super::machine::{Machine, MachineError, Netlink, Route, Way};

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Tunnel {
        ifindex: u32,
    },
    /// The tunnel device could not be made: who sends there is told that nobody is.
    NoTunnel,
    /// Direct routes to nodes on the same link.
    Nodes,
    /// The network's own routes: none are made.
    Network,
}

/// The routes that should be there, and nodes whose pods have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) routes: BTreeSet<Route>,
    pub(crate) rejects: Vec<Reject>,
}

/// What was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteChanges {
    pub(crate) added: usize,
    pub(crate) removed: usize,
    /// What the kernel refused, in words; the rest is done.
    pub(crate) failed: Vec<String>,
}

/// `mtu` is that of packets between pods. With `ends_here` an address of this node's prefixes that no pod has is answered
/// with an error; not where another CNI has its own routes for them.
pub(crate) fn wanted(
    reach: &Reach,
    machine: &Machine,
    this: Option<&ClusterNode>,
    by: By,
    mtu: u32,
    ends_here: bool,
) -> Wanted {
    let mut wanted = Wanted::default();
    // Of one prefix there is one route: that of the node which has it by the rules of `reach`.
    let mut by_prefix: BTreeMap<Prefix, Way> = BTreeMap::new();
    for remote in &reach.remote {
        match by {
            By::Network => {}
            By::NoTunnel => drop(by_prefix.entry(remote.prefix).or_insert(Way::Unreachable)),
            By::Tunnel { ifindex } => {
                let source = this.and_then(|this| this.address(remote.prefix.family()));
                let source = source.filter(|source| machine.link_of(*source).is_some());
                let way = Way::Device { ifindex, gateway: None, source, mtu: Some(mtu) };
                by_prefix.entry(remote.prefix).or_insert(way);
            }
            By::Nodes => match direct(remote, machine, this) {
                Ok(way) => drop(by_prefix.entry(remote.prefix).or_insert(way)),
                Err(reason) => wanted.rejects.push(Reject {
                    kind: ObjectKind::Node.name().to_owned(),
                    name: remote.node.to_string(),
                    field: "status.addresses".to_owned(),
                    value: remote.address.map(|addr| addr.to_string()).unwrap_or_default(),
                    reason: format!("{reason}: there is no direct route to its pods in {}", remote.prefix),
                }),
            },
        }
    }
    for prefix in reach.local.iter().filter(|_| ends_here) {
        by_prefix.entry(*prefix).or_insert(Way::Unreachable);
    }
    wanted.routes = by_prefix.into_iter().map(|(prefix, way)| Route { prefix, way }).collect();
    wanted
}

/// The way to a node on the same link as this one.
fn direct(remote: &RemotePrefix, machine: &Machine, this: Option<&ClusterNode>) -> Result<Way, String> {
    let family = remote.prefix.family();
    let name = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    let address = remote.address.ok_or_else(|| format!("it has no {name} address"))?;
    let is_near = |bits: u8, own: Addr| {
        let bits = if family == Family::V4 { bits + 96 } else { bits };
        own.family() == family && Prefix::new(own, bits).is_some_and(|link| link.contains(address))
    };
    let links = machine.links.values().filter(|link| !link.is_loopback && link.is_up);
    let near = links.flat_map(|link| link.addresses.iter().map(move |own| (link, own)));
    // Of several links the one with the longest prefix, as the kernel would take it.
    let near = near.filter(|(_, own)| is_near(own.bits, own.addr)).max_by_key(|(_, own)| own.bits);
    let (link, _) = near.ok_or_else(|| format!("{address} is on no link of this node"))?;
    let source = this.and_then(|this| this.address(family));
    let source = source.filter(|source| link.addresses.iter().any(|own| own.addr == *source));
    Ok(Way::Device { ifindex: link.index, gateway: Some(address), source, mtu: None })
}

impl Netlink {
    /// Makes our routes those of `wanted`. With `sweeps` others of ours go; a prefix that gets another way is replaced in one
    /// step, so that no packet finds none.
    pub(crate) async fn set_routes(
        &self,
        machine: &Machine,
        wanted: &BTreeSet<Route>,
        sweeps: bool,
    ) -> RouteChanges {
        let present = &machine.own_routes;
        let mut changes = RouteChanges::default();
        for route in wanted.difference(present) {
            // Only what is ours is replaced: somebody else's route to the same prefix stays, and is named.
            let mut request = self.handle.route().add(message(route));
            if present.iter().any(|old| old.prefix == route.prefix) {
                request = request.replace();
            }
            let done = request.execute().await;
            match done.map_err(MachineError::netlink(format!("set the route to {}", route.prefix))) {
                Ok(()) => changes.added += 1,
                Err(error) => changes.failed.push(error.to_string()),
            }
        }
        // What was replaced just now is gone; were it not, the next reading would show both.
        let is_left =
            |old: &&Route| wanted.iter().all(|new| new.prefix != old.prefix || present.contains(new));
        for route in present.difference(wanted).filter(|_| sweeps).filter(is_left) {
            match self.remove_route(route).await {
                Ok(was_there) => changes.removed += usize::from(was_there),
                Err(error) => changes.failed.push(error.to_string()),
            }
        }
        changes
    }

    /// Whether it was there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) async fn remove_route(&self, route: &Route) -> Result<bool, MachineError> {
        let done = self.handle.route().del(message(route)).execute().await;
        match done.map_err(MachineError::netlink(format!("remove the route to {}", route.prefix))) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// No such route, or its device is gone.
fn is_gone(error: &MachineError) -> bool {
    let MachineError::Netlink { source, .. } = error else { return false };
    matches!(&**source, rtnetlink::Error::NetlinkError(message)
        if matches!(message.raw_code(), code if code == -libc::ESRCH || code == -libc::ENODEV || code == -libc::ENOENT))
}

fn message(route: &Route) -> RouteMessage {
    let mut message = match std::net::IpAddr::from(route.prefix.addr()) {
        std::net::IpAddr::V4(addr) => {
            let builder = RouteMessageBuilder::<std::net::Ipv4Addr>::new();
            builder.destination_prefix(addr, route.prefix.family_bits()).build()
        }
        std::net::IpAddr::V6(addr) => {
            let builder = RouteMessageBuilder::<std::net::Ipv6Addr>::new();
            builder.destination_prefix(addr, route.prefix.family_bits()).build()
        }
    };
    message.header.protocol = RouteProtocol::from(OWNER);
    message.header.scope = RouteScope::Universe;
    let addr = |addr: Addr| std::net::IpAddr::from(addr).into();
    match route.way {
        Way::Unreachable => message.header.kind = RouteType::Unreachable,
        Way::Device { ifindex, gateway, source, mtu } => {
            message.header.kind = RouteType::Unicast;
            message.attributes.push(RouteAttribute::Oif(ifindex));
            message.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(addr(gateway))));
            message.attributes.extend(source.map(|source| RouteAttribute::PrefSource(addr(source))));
            message.attributes.extend(mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
        }
    }
    message
}

#[cfg(test)]
mod tests;
