//! A pod's link: a veth pair between the node's namespace and the pod's.
//!
//! The pod has its addresses as single hosts and one way out, by gateways that exist on its own link alone
//! ([`GATEWAY_V4`], [`GATEWAY_V6`]) and whose neighbours are entered for good: no pod ever asks for an Ethernet address.
//! The node has a route to each address, and its neighbour.

mod carrier;
mod inspect;
mod netlink;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::{RouteProtocol, RouteScope};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::{Endpoint, Link, Mac};
use crate::network::OWNER;
use inspect::leads_elsewhere;
pub(super) use inspect::{adopt, differences, find, links};
pub(super) use netlink::netns_cookie;
use netlink::{index_of, inside, netlink};

/// What a pod's IPv4 default route leads to: on its own link alone, and nobody's address.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The same for IPv6.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// What could not be done with a pod's link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot {action} {what}: {source}")]
    Netlink {
        action: &'static str,
        what: String,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("cannot {action}: {source}")]
    Io {
        action: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "the pod's namespace has an interface {name} already; the container runtime asked for it a second time"
    )]
    Exists { name: String },
    #[error("{0} is no end of a veth pair whose other end is in the node's namespace")]
    NotVeth(String),
    #[error("the kernel has not answered by netlink within {} s", waited.as_secs())]
    Silent { waited: Duration },
    #[error("a thread in the pod's namespace panicked")]
    Panicked,
}

/// Makes the pair, both ends down. The number of the node's end.
pub(super) fn create(link: &Link, netns: BorrowedFd<'_>, interface: &str) -> Result<u32, LinkError> {
    let pod_end = LinkMessageBuilder::<LinkUnspec>::new()
        .name(interface.to_owned())
        .address(link.pod_mac.0.to_vec())
        .mtu(link.mtu)
        .setns_by_fd(netns.as_raw_fd())
        .build();
    let pair = LinkVeth::new(&link.name, interface)
        .address(link.node_mac.0.to_vec())
        .mtu(link.mtu)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(pod_end)))
        .build();
    let index = netlink(async |handle| {
        handle.link().add(pair).execute().await.map_err(|source| match errno(&source) {
            Some(libc::EEXIST) => LinkError::Exists { name: interface.to_owned() },
            _ => LinkError::Netlink { action: "create the link", what: link.name.clone(), source },
        })?;
        index_of(handle, &link.name).await
    })?;
    // No address of its own: the pod's gateway is none, and looking for doubles of one takes a second.
    without_ipv6(sysctl("ipv6", &link.name, "addr_gen_mode", "1"))?;
    Ok(index)
}

/// Brings the node's end up, and makes the pod's addresses lead there. May be repeated.
pub(super) fn route(endpoint: &Endpoint) -> Result<(), LinkError> {
    let link = &endpoint.link;
    netlink(async |handle| {
        let up = LinkUnspec::new_with_index(link.ifindex).up().build();
        let result = handle.link().change(up).execute().await;
        result.map_err(failed("bring up", &link.name))?;
        for addr in &endpoint.addresses {
            neighbour(handle, link.ifindex, *addr, link.pod_mac).await?;
            let (protocol, scope) = (RouteProtocol::Other(OWNER), RouteScope::Link);
            let message = match addr {
                IpAddr::V4(addr) => RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(*addr, 32)
                    .output_interface(link.ifindex)
                    .protocol(protocol)
                    .scope(scope)
                    .build(),
                IpAddr::V6(addr) => RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(*addr, 128)
                    .output_interface(link.ifindex)
                    .protocol(protocol)
                    .build(),
            };
            let result = handle.route().add(message).replace().execute().await;
            result.map_err(|source| LinkError::Netlink {
                action: "add the route to",
                what: format!("{addr} by {}", link.name),
                source,
            })?;
        }
        Ok(())
    })
}

/// Gives the pod's end its addresses, and the way out where no other interface has it. Both ends carry packets from then on.
pub(super) fn configure_pod(endpoint: &Endpoint, netns: BorrowedFd<'_>) -> Result<(), LinkError> {
    let interface = endpoint.attachment.interface.as_str();
    inside(netns, || {
        if endpoint.addresses.iter().any(IpAddr::is_ipv6) {
            // Some runtimes switch it off for all of a new namespace.
            sysctl("ipv6", interface, "disable_ipv6", "0")?;
            // The way out is known; nobody on this link has to say.
            sysctl("ipv6", interface, "accept_ra", "0")?;
        }
        netlink(async |handle| {
            let index = index_of(handle, interface).await?;
            for addr in &endpoint.addresses {
                let bits = if addr.is_ipv4() { 32 } else { 128 };
                let mut request = handle.address().add(index, *addr, bits);
                // The node gave the address to this pod alone, so nobody is asked for a second owner.
                request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
                let result = request.execute().await;
                result.map_err(failed("give the pod's interface the address", &addr.to_string()))?;
            }
            let up = LinkUnspec::new_with_index(index).up().build();
            let result = handle.link().change(up).execute().await;
            result.map_err(failed("bring up the pod's interface", interface))?;
            let mut own_v6 = endpoint
                .addresses
                .iter()
                .find_map(|addr| if let IpAddr::V6(v6) = addr { Some(*v6) } else { None });
            for gateway in gateways(endpoint) {
                neighbour(handle, index, gateway, endpoint.link.node_mac).await?;
                if leads_elsewhere(handle, index, gateway).await? {
                    // A second interface is there for what is reached by it, and takes nothing from the first.
                    own_v6 = own_v6.filter(|_| gateway.is_ipv4());
                    continue;
                }
                let message = match gateway {
                    IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new()
                        .gateway(gateway)
                        .output_interface(index)
                        .onlink()
                        .build(),
                    IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new()
                        .gateway(gateway)
                        .output_interface(index)
                        .onlink()
                        .build(),
                };
                let result = handle.route().add(message).replace().execute().await;
                result.map_err(failed("add the pod's default route by", &gateway.to_string()))?;
            }
            match own_v6 {
                Some(own) => answers_come_from(handle, index, own).await,
                None => Ok(()),
            }
        })?;
        carrier::settle(interface)
    })?;
    carrier::settle(&endpoint.link.name)
}

/// What a pod answers to [`GATEWAY_V6`] comes from its own address. That is also who a pod that reaches itself by a service
/// sees (`ipv6-service-loopback-address`), and an answer without a connection would come from a link-local address, since
/// the destination is one.
async fn answers_come_from(handle: &Handle, index: u32, own: Ipv6Addr) -> Result<(), LinkError> {
    let message = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(GATEWAY_V6, 128)
        .pref_source(own)
        .output_interface(index)
        .build();
    let result = handle.route().add(message).replace().execute().await;
    result.map_err(failed("add the pod's route to", &GATEWAY_V6.to_string()))
}

/// That there is none is no error.
pub(super) fn delete(name: &str) -> Result<(), LinkError> {
    netlink(async |handle| {
        let message = LinkUnspec::new_with_name(name).build();
        match handle.link().del_with_message(message).execute().await {
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(()),
            other => other.map_err(failed("delete the link", name)),
        }
    })
}

/// The gateways that a pod with these addresses has.
pub(super) fn gateways(endpoint: &Endpoint) -> impl Iterator<Item = IpAddr> {
    let v4 = endpoint.addresses.iter().any(IpAddr::is_ipv4).then_some(GATEWAY_V4.into());
    let v6 = endpoint.addresses.iter().any(IpAddr::is_ipv6).then_some(GATEWAY_V6.into());
    v4.into_iter().chain(v6)
}

async fn neighbour(handle: &Handle, index: u32, addr: IpAddr, mac: Mac) -> Result<(), LinkError> {
    let request = handle.neighbours().add(index, addr).link_layer_address(&mac.0);
    let result = request.state(NeighbourState::Permanent).replace().execute().await;
    result.map_err(failed("enter the neighbour", &addr.to_string()))
}

/// Sets a value of one interface of the thread's namespace.
fn sysctl(family: &str, interface: &str, key: &str, value: &str) -> Result<(), LinkError> {
    let path = format!("/proc/sys/net/{family}/conf/{interface}/{key}");
    std::fs::write(&path, value)
        .map_err(|source| LinkError::Io { action: format!("write {value} to {path}"), source })
}

/// A kernel without IPv6 has nothing to set.
fn without_ipv6(result: Result<(), LinkError>) -> Result<(), LinkError> {
    match result {
        Err(LinkError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn failed(action: &'static str, what: &str) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |source| LinkError::Netlink { action, what: what.to_owned(), source }
}

/// What the kernel answered, if it did.
fn errno(error: &rtnetlink::Error) -> Option<i32> {
    if let rtnetlink::Error::NetlinkError(message) = error { Some(-message.raw_code()) } else { None }
}
