//! Links as they are found.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use futures_util::stream::{StreamExt as _, TryStreamExt as _};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressScope};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::netlink::{inside, link_named, netlink};
use super::{LinkError, failed, gateways};
use crate::endpoints::kernel::Found;
use crate::endpoints::{Endpoint, Link, Mac};

/// Every interface of the thread's namespace.
pub(in crate::endpoints) fn links() -> Result<BTreeMap<String, Found>, LinkError> {
    netlink(async |handle| {
        let mut found = BTreeMap::new();
        let mut messages = handle.link().get().execute();
        let failed = failed("list", "the node's interfaces");
        loop {
            match messages.try_next().await {
                Ok(Some(message)) => {
                    let link = Found { ifindex: message.header.index, mac: mac(&message) };
                    found.insert(name(&message).to_owned(), link);
                }
                Ok(None) => return Ok(found),
                Err(error) => return Err(failed(error)),
            }
        }
    })
}

/// The interface of that name in the thread's namespace, if there is one.
pub(in crate::endpoints) fn find(name: &str) -> Result<Option<Found>, LinkError> {
    netlink(async |handle| {
        let message = link_named(handle, name).await?;
        Ok(message.map(|message| Found { ifindex: message.header.index, mac: mac(&message) }))
    })
}

/// The link of a pod that another plugin made.
pub(in crate::endpoints) fn adopt(netns: BorrowedFd<'_>, interface: &str) -> Result<Link, LinkError> {
    let not_veth = || LinkError::NotVeth(interface.to_owned());
    let pod_end = inside(netns, || netlink(async |handle| link_named(handle, interface).await))?;
    let pod_end = pod_end.filter(is_veth).ok_or_else(not_veth)?;
    let index = peer(&pod_end).ok_or_else(not_veth)?;
    let (node_end, pod_number) = netlink(async |handle| {
        let mut found = handle.link().get().match_index(index).execute();
        // An index that nobody has is an error of the kernel's; so is everything else that it may say.
        let found = found.try_next().await.ok().flatten();
        // After that: telling of a link gives its other end's namespace a number.
        Ok((found, number_of(handle, netns).await?))
    })?;
    // The other end may be in a third namespace, where the number means something else: both must name each other.
    let names_pod_end = |link: &LinkMessage| {
        let number = link.attributes.iter().find_map(|attribute| {
            if let LinkAttribute::LinkNetNsId(number) = attribute { Some(*number) } else { None }
        });
        peer(link) == Some(pod_end.header.index) && number.is_some() && number == pod_number
    };
    let node_end = node_end.filter(|link| is_veth(link) && names_pod_end(link));
    let node_end = node_end.ok_or_else(not_veth)?;
    Ok(Link {
        name: name(&node_end).to_owned(),
        ifindex: index,
        node_mac: mac(&node_end),
        pod_mac: mac(&pod_end),
        mtu: mtu(&pod_end),
        is_chained: true,
    })
}

/// What of a pod's link is not as it was made, in words.
pub(in crate::endpoints) fn differences(
    endpoint: &Endpoint,
    netns: BorrowedFd<'_>,
) -> Result<Vec<String>, LinkError> {
    let link = &endpoint.link;
    let mut found = Vec::new();
    let node_end = netlink(async |handle| link_named(handle, &link.name).await)?;
    match node_end {
        None => found.push(format!("{} is gone", link.name)),
        Some(end) if end.header.index != link.ifindex => found.push(format!("{} was made anew", link.name)),
        Some(end) if !end.header.flags.contains(LinkFlags::Up) => {
            found.push(format!("{} is down", link.name))
        }
        Some(_) => {}
    }
    let interface = endpoint.attachment.interface.as_str();
    let in_pod = inside(netns, || {
        netlink(async |handle| {
            let Some(end) = link_named(handle, interface).await? else {
                return Ok(vec![format!("the pod's {interface} is gone")]);
            };
            let mut found = Vec::new();
            if !end.header.flags.contains(LinkFlags::Up) {
                found.push(format!("the pod's {interface} is down"));
            }
            if mac(&end) != link.pod_mac {
                found.push(format!("the pod's {interface} has {}, not {}", mac(&end), link.pod_mac));
            }
            let held = addresses(handle, end.header.index).await?;
            let missing = endpoint.addresses.iter().filter(|addr| !held.contains(addr));
            found.extend(missing.map(|addr| format!("the pod's {interface} has lost {addr}")));
            if !link.is_chained {
                for gateway in gateways(endpoint) {
                    if !has_default_route(handle, end.header.index, gateway).await? {
                        found.push(format!("the pod has lost its default route by {gateway}"));
                    }
                }
            }
            Ok(found)
        })
    })?;
    found.extend(in_pod);
    Ok(found)
}

async fn addresses(handle: &Handle, index: u32) -> Result<BTreeSet<IpAddr>, LinkError> {
    let messages = handle.address().get().set_link_index_filter(index).execute();
    let messages: Vec<_> = messages.try_collect().await.map_err(failed("list", "the pod's addresses"))?;
    let of_link = messages.into_iter().filter(|message| message.header.scope == AddressScope::Universe);
    let addr = |attribute: &AddressAttribute| {
        if let AddressAttribute::Address(addr) = attribute { Some(*addr) } else { None }
    };
    Ok(of_link.filter_map(|message| message.attributes.iter().find_map(addr)).collect())
}

/// Whether the namespace has a way out of a gateway's family by another interface.
pub(super) async fn leads_elsewhere(handle: &Handle, index: u32, gateway: IpAddr) -> Result<bool, LinkError> {
    let by_index = |route: &RouteMessage| route.attributes.contains(&RouteAttribute::Oif(index));
    Ok(default_routes(handle, gateway).await?.iter().any(|route| !by_index(route)))
}

/// A second interface has none as long as the first one has.
async fn has_default_route(handle: &Handle, index: u32, gateway: IpAddr) -> Result<bool, LinkError> {
    let by = match gateway {
        IpAddr::V4(gateway) => RouteAttribute::Gateway(RouteAddress::Inet(gateway)),
        IpAddr::V6(gateway) => RouteAttribute::Gateway(RouteAddress::Inet6(gateway)),
    };
    let leads = |route: &RouteMessage| {
        let by_index = route.attributes.contains(&RouteAttribute::Oif(index));
        !by_index || route.attributes.contains(&by)
    };
    Ok(default_routes(handle, gateway).await?.iter().any(leads))
}

/// Those of the main table, of the family of `gateway`.
async fn default_routes(handle: &Handle, gateway: IpAddr) -> Result<Vec<RouteMessage>, LinkError> {
    let all = match gateway {
        IpAddr::V4(_) => RouteMessageBuilder::<std::net::Ipv4Addr>::new().build(),
        IpAddr::V6(_) => RouteMessageBuilder::<std::net::Ipv6Addr>::new().build(),
    };
    let mut routes: Vec<_> =
        handle.route().get(all).execute().try_collect().await.map_err(failed("list", "the pod's routes"))?;
    routes.retain(|route| {
        route.header.destination_prefix_length == 0
            && route.header.table == RouteHeader::RT_TABLE_MAIN
            && route.header.kind == RouteType::Unicast
    });
    Ok(routes)
}

/// The number that the thread's namespace has for another one; `None` where it has none.
async fn number_of(handle: &Handle, netns: BorrowedFd<'_>) -> Result<Option<i32>, LinkError> {
    let failed = |source| LinkError::Netlink {
        action: "look up the number of",
        what: "the pod's network namespace".to_owned(),
        source,
    };
    let mut question = NsidMessage::default();
    question.attributes.push(NsidAttribute::Fd(netns.as_raw_fd().unsigned_abs()));
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetNsId(question));
    message.header.flags = NLM_F_REQUEST;
    let mut answers = handle.clone().request(message).map_err(failed)?;
    match answers.next().await.map(|answer| answer.payload) {
        Some(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNsId(answer))) => {
            let number = answer.attributes.iter().find_map(|attribute| {
                if let NsidAttribute::Id(number) = attribute { Some(*number) } else { None }
            });
            // -1: it has none.
            Ok(number.filter(|number| *number >= 0))
        }
        Some(NetlinkPayload::Error(error)) => Err(failed(rtnetlink::Error::NetlinkError(error))),
        Some(_) | None => Err(failed(rtnetlink::Error::RequestFailed)),
    }
}

fn name(message: &LinkMessage) -> &str {
    let name = |attribute: &'_ LinkAttribute| matches!(attribute, LinkAttribute::IfName(_));
    match message.attributes.iter().find(|attribute| name(attribute)) {
        Some(LinkAttribute::IfName(name)) => name,
        Some(_) | None => "",
    }
}

fn mac(message: &LinkMessage) -> Mac {
    let mac = message.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::Address(mac) = attribute {
            <[u8; 6]>::try_from(mac.as_slice()).ok()
        } else {
            None
        }
    });
    Mac(mac.unwrap_or_default())
}

fn mtu(message: &LinkMessage) -> u32 {
    let mtu = message
        .attributes
        .iter()
        .find_map(|attribute| if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None });
    mtu.unwrap_or_default()
}

/// The number of the other end, in its namespace.
fn peer(message: &LinkMessage) -> Option<u32> {
    message
        .attributes
        .iter()
        .find_map(|attribute| if let LinkAttribute::Link(index) = attribute { Some(*index) } else { None })
}

fn is_veth(message: &LinkMessage) -> bool {
    message.attributes.iter().any(|attribute| {
        let LinkAttribute::LinkInfo(infos) = attribute else { return false };
        infos.contains(&LinkInfo::Kind(InfoKind::Veth))
    })
}
