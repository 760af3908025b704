//! The interfaces, addresses and routes of the node's namespace, as netlink tells them.
#![expect(clippy::wildcard_enum_match_arm, reason = "of the kernel's many attributes few matter here")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::stream::{Stream, StreamExt as _, TryStreamExt as _};
use portway_datapath::{Addr, Family};
use portway_model::node::Prefix;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::sys::AsyncSocket as _;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::task::JoinHandle;

use super::OWNER;
use crate::endpoints::is_link_name;

/// Reading takes no more than this part of the time, however many routes there are and however often they change.
const READING_IS_ONE_OF: u32 = 20;
/// How often everything is read though no change was told.
const REREAD: Duration = Duration::from_secs(30);
/// Changes closer together than this are one.
const GATHER: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error("cannot open a netlink socket for the node's interfaces: {0}")]
    Socket(#[source] std::io::Error),
    #[error("cannot {action} by netlink: {source}")]
    Netlink {
        action: String,
        #[source]
        source: Box<rtnetlink::Error>,
    },
    #[error("the netlink connection for the node's interfaces ended")]
    Ended,
}

impl MachineError {
    pub(super) fn netlink(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let action = action.into();
        move |source| Self::Netlink { action, source: Box::new(source) }
    }
}

/// What there is at one time, without the links of pods and what is theirs: who makes those has them, and a pod that comes
/// or goes changes nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// By index.
    pub(crate) links: BTreeMap<u32, Link>,
    /// Interfaces that a default route leads out of, of either family.
    pub(crate) default_devices: BTreeSet<u32>,
    /// Those of the pod network's owner tag in the main table.
    pub(crate) own_routes: BTreeSet<Route>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    /// It answers no ARP.
    pub(crate) is_noarp: bool,
    pub(crate) is_loopback: bool,
    /// `None` where it is no Ethernet.
    pub(crate) mac: Option<[u8; 6]>,
    /// It belongs to a bridge, a bond or the like.
    pub(crate) is_port: bool,
    /// In the order in which the kernel has them: the first one of a prefix is primary.
    pub(crate) addresses: Vec<LinkAddress>,
    /// Of a VXLAN device: its UDP port, where it takes tunnels from packets' metadata.
    pub(crate) vxlan: Option<Vxlan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vxlan {
    /// In host order.
    pub(crate) port: u16,
    /// Each packet says its own tunnel.
    pub(crate) collects_metadata: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    pub(crate) addr: Addr,
    /// As the family counts them.
    pub(crate) bits: u8,
    /// Reached from elsewhere, primary and not about to go.
    pub(crate) is_usable: bool,
}

/// A route of ours. What is not in here we never set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) prefix: Prefix,
    pub(crate) way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Out of an interface.
    Device { ifindex: u32, gateway: Option<Addr>, source: Option<Addr>, mtu: Option<u32> },
    /// The sender is told that nobody is there.
    Unreachable,
}

impl Machine {
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|link| link.name == name)
    }

    /// The interface that has an address.
    pub(crate) fn link_of(&self, addr: Addr) -> Option<&Link> {
        self.links.values().find(|link| link.addresses.iter().any(|own| own.addr == addr))
    }
}

/// Follows the namespace that it was opened in.
pub(crate) struct Netlink {
    pub(super) handle: Handle,
    changes: Pin<Box<dyn Stream<Item = ()> + Send>>,
    connection: JoinHandle<()>,
    /// Something changed since the last reading.
    is_stale: bool,
    /// When the last reading ended, and how long it took.
    pub(super) last_read: (Instant, Duration),
}

impl Netlink {
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`MachineError::Socket`].
    pub(crate) fn open() -> Result<Self, MachineError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (mut connection, handle, messages) =
            new_multicast_connection(&groups).map_err(MachineError::Socket)?;
        // The kernel itself leaves out what is not asked for: other tables' routes.
        let socket = connection.socket_mut().socket_mut();
        socket.set_netlink_get_strict_chk(true).map_err(MachineError::Socket)?;
        let connection = tokio::spawn(connection);
        let (changes, last_read) = (Box::pin(messages.map(|_| ())), (Instant::now(), Duration::ZERO));
        Ok(Self { handle, changes, connection, is_stale: false, last_read })
    }

    /// Returns when something may have changed and it is time to [`Self::read`]: a while after a message of the kernel, also of
    /// one that says that messages were lost, and now and then without one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`MachineError::Ended`]: open anew.
    pub(crate) async fn changed(&mut self) -> Result<(), MachineError> {
        let (ended, took) = self.last_read;
        if !self.is_stale {
            let told = tokio::time::timeout_at((ended + REREAD).into(), self.changes.next()).await;
            if told == Ok(None) {
                return Err(MachineError::Ended);
            }
            self.is_stale = true;
        }
        let time = (ended + took * READING_IS_ONE_OF).max(Instant::now() + GATHER);
        tokio::time::sleep_until(time.into()).await;
        while let Some(Some(())) = futures_util::FutureExt::now_or_never(self.changes.next()) {}
        Ok(())
    }

    /// As [`Self::read`], of which [`Self::changed`] then knows. Where an interface of `before` seems gone it is read twice:
    /// the kernel may leave something out of a list that changes meanwhile.
    ///
    /// # Errors
    /// The kernel would not say.
    pub(crate) async fn read_after(&mut self, before: &Machine) -> Result<Machine, MachineError> {
        let began = Instant::now();
        let mut machine = self.read().await?;
        if before.links.keys().any(|index| !machine.links.contains_key(index)) {
            machine = self.read().await?;
        }
        self.last_read = (Instant::now(), began.elapsed());
        self.is_stale = false;
        Ok(machine)
    }

    /// Everything as it is.
    ///
    /// # Errors
    /// The kernel would not say.
    pub(crate) async fn read(&self) -> Result<Machine, MachineError> {
        let failed = |what: &str| MachineError::netlink(format!("read the node's {what}"));
        let mut machine = Machine::default();
        let mut links = self.handle.link().get().execute();
        while let Some(message) = links.try_next().await.map_err(failed("interfaces"))? {
            let link = link(&message);
            machine.links.insert(link.index, link);
        }
        let mut addresses = self.handle.address().get().execute();
        while let Some(message) = addresses.try_next().await.map_err(failed("addresses"))? {
            let link = machine.links.get_mut(&message.header.index);
            if let (Some(link), Some(addr)) = (link, link_address(&message)) {
                link.addresses.push(addr);
            }
        }
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut main = RouteMessage::default();
            main.header.address_family = family;
            main.header.table = RouteHeader::RT_TABLE_MAIN;
            let mut routes = self.handle.route().get(main).execute();
            loop {
                match routes.try_next().await {
                    Ok(Some(message)) => machine.note_route(&message),
                    Ok(None) => break,
                    // There is no table before its first route.
                    Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -libc::ENOENT => {
                        break;
                    }
                    Err(error) => return Err(failed("routes")(error)),
                }
            }
        }
        machine.leave_pods_out();
        Ok(machine)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Machine {
    fn note_route(&mut self, message: &RouteMessage) {
        let header = &message.header;
        if header.table != RouteHeader::RT_TABLE_MAIN {
            return;
        }
        let is_ours = header.protocol == RouteProtocol::from(OWNER);
        if header.destination_prefix_length == 0 && header.kind == RouteType::Unicast && !is_ours {
            self.default_devices.extend(oifs(message));
        }
        if is_ours && let Some(route) = route(message) {
            self.own_routes.insert(route);
        }
    }

    fn leave_pods_out(&mut self) {
        let Self { links, own_routes, default_devices: _ } = self;
        own_routes.retain(|route| match route.way {
            Way::Device { ifindex, .. } => links.get(&ifindex).is_some_and(|link| !is_link_name(&link.name)),
            Way::Unreachable => true,
        });
        links.retain(|_, link| !is_link_name(&link.name));
    }
}

fn oifs(message: &RouteMessage) -> Vec<u32> {
    message
        .attributes
        .iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
            _ => Vec::new(),
        })
        .collect()
}

fn route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let find = |of: fn(&RouteAttribute) -> Option<&RouteAddress>| {
        message.attributes.iter().find_map(of).and_then(ip)
    };
    let destination = find(|a| if let RouteAttribute::Destination(addr) = a { Some(addr) } else { None });
    let family = if header.address_family == AddressFamily::Inet { Family::V4 } else { Family::V6 };
    let any = if family == Family::V4 { Addr::ANY_V4 } else { Addr::ANY_V6 };
    let shift = if family == Family::V4 { 96 } else { 0 };
    let prefix = Prefix::new(destination.unwrap_or(any), header.destination_prefix_length + shift)?;
    let way = match header.kind {
        RouteType::Unreachable => Way::Unreachable,
        _ => Way::Device {
            ifindex: oifs(message).first().copied()?,
            gateway: find(|a| if let RouteAttribute::Gateway(addr) = a { Some(addr) } else { None }),
            source: find(|a| if let RouteAttribute::PrefSource(addr) = a { Some(addr) } else { None }),
            mtu: message.attributes.iter().find_map(mtu),
        },
    };
    Some(Route { prefix, way })
}

fn mtu(attribute: &RouteAttribute) -> Option<u32> {
    use rtnetlink::packet_route::route::RouteMetric;
    let RouteAttribute::Metrics(metrics) = attribute else { return None };
    metrics.iter().find_map(|metric| if let RouteMetric::Mtu(mtu) = metric { Some(*mtu) } else { None })
}

fn ip(addr: &RouteAddress) -> Option<Addr> {
    match addr {
        RouteAddress::Inet(addr) => Some(Addr::from(IpAddr::from(*addr))),
        RouteAddress::Inet6(addr) => Some(Addr::from(IpAddr::from(*addr))),
        _ => None,
    }
}

fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let is_ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    let mut link = Link {
        index: message.header.index,
        is_up: flags.contains(LinkFlags::Up),
        is_noarp: flags.contains(LinkFlags::Noarp),
        is_loopback: flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(mac) if is_ethernet => link.mac = mac.as_slice().try_into().ok(),
            LinkAttribute::Controller(index) => link.is_port = *index != 0,
            LinkAttribute::LinkInfo(infos) => link.vxlan = vxlan(infos),
            _ => {}
        }
    }
    link
}

fn vxlan(infos: &[LinkInfo]) -> Option<Vxlan> {
    if !infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Vxlan))) {
        return None;
    }
    let data = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    })?;
    let mut vxlan = Vxlan { port: 0, collects_metadata: false };
    for info in data {
        match info {
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::CollectMetadata(collects) => vxlan.collects_metadata = *collects,
            _ => {}
        }
    }
    Some(vxlan)
}

fn link_address(message: &AddressMessage) -> Option<LinkAddress> {
    let find = |of: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(of);
    // On a point-to-point link `Address` is the peer's.
    let local = find(|a| if let AddressAttribute::Local(addr) = a { Some(*addr) } else { None });
    let address = find(|a| if let AddressAttribute::Address(addr) = a { Some(*addr) } else { None });
    let gone = AddressHeaderFlags::Deprecated
        | AddressHeaderFlags::Dadfailed
        | AddressHeaderFlags::Tentative
        // Of IPv6 it is called temporary.
        | AddressHeaderFlags::Secondary;
    let is_global = matches!(message.header.scope, AddressScope::Universe | AddressScope::Site);
    Some(LinkAddress {
        addr: Addr::from(local.or(address)?),
        bits: message.header.prefix_len,
        is_usable: is_global && !message.header.flags.intersects(gone),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_pods_links_is_left_out() {
        let link = |index: u32, name: &str| (index, Link { index, name: name.to_owned(), ..Link::default() });
        let route = |text: &str, ifindex| Route {
            prefix: Prefix::parse(text).unwrap(),
            way: Way::Device { ifindex, gateway: None, source: None, mtu: None },
        };
        let unreachable = Route { way: Way::Unreachable, ..route("10.0.1.0/24", 0) };
        let mut machine = Machine {
            links: [link(2, "eth0"), link(5, "pw0123456789a")].into(),
            own_routes: [route("10.0.1.5/32", 5), route("10.0.2.0/24", 2), unreachable].into(),
            ..Machine::default()
        };
        machine.leave_pods_out();
        assert_eq!(machine.links.keys().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(machine.own_routes, [route("10.0.2.0/24", 2), unreachable].into());
    }
}
