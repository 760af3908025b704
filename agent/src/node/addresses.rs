use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt as _, TryStreamExt as _};
use portway_datapath::{Addr, LocalAddress};
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::task::JoinHandle;

use crate::config::Cidr;

/// How often the addresses are read though no change was told.
const REREAD: Duration = Duration::from_secs(60);

/// The addresses of a namespace, by the interface they are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    pub interfaces: Vec<Interface>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Sorted; loopback addresses are left out.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum AddressesError {
    #[error("cannot open a netlink socket for the node's addresses: {0}")]
    Socket(#[source] std::io::Error),
    #[error("cannot read the node's addresses by netlink: {0}")]
    Read(#[source] Box<rtnetlink::Error>),
    #[error("the netlink connection for the node's addresses ended")]
    Ended,
}

impl LocalAddresses {
    /// What `pw_local_addresses` should hold: `node_ports` are the prefixes on which NodePorts answer, none is all.
    pub fn table(&self, node_ports: &[Cidr]) -> BTreeMap<Addr, LocalAddress> {
        let serves = |addr| node_ports.is_empty() || node_ports.iter().any(|cidr| cidr.contains(addr));
        let all = self.interfaces.iter().flat_map(|interface| &interface.addresses);
        all.map(|addr| (Addr::from(*addr), LocalAddress::new(serves(*addr)))).collect()
    }
}

/// Follows the addresses of the network namespace that it was opened in.
pub struct Addresses {
    handle: Handle,
    changes: Pin<Box<dyn Stream<Item = ()> + Send>>,
    connection: JoinHandle<()>,
}

impl Addresses {
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`AddressesError::Socket`].
    pub fn open() -> Result<Self, AddressesError> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, messages) =
            new_multicast_connection(&groups).map_err(AddressesError::Socket)?;
        let connection = tokio::spawn(connection);
        Ok(Self { handle, changes: Box::pin(messages.map(|_| ())), connection })
    }

    /// The addresses as they are.
    ///
    /// # Errors
    /// The kernel would not say.
    pub async fn read(&self) -> Result<LocalAddresses, AddressesError> {
        let failed = |error| AddressesError::Read(Box::new(error));
        let mut names = BTreeMap::new();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await.map_err(failed)? {
            let name = link.attributes.iter().find_map(interface_name);
            names.insert(link.header.index, name.unwrap_or_default().to_owned());
        }
        let mut found: BTreeMap<u32, BTreeSet<IpAddr>> = BTreeMap::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.map_err(failed)? {
            let addr = own_address(&message.attributes).filter(|addr| !Addr::from(*addr).is_loopback());
            if let Some(addr) = addr {
                found.entry(message.header.index).or_default().insert(addr);
            }
        }
        let interfaces = found.into_iter().map(|(index, addresses)| Interface {
            name: names.get(&index).cloned().unwrap_or_else(|| format!("if{index}")),
            addresses: addresses.into_iter().collect(),
        });
        let mut interfaces: Vec<_> = interfaces.collect();
        interfaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(LocalAddresses { interfaces })
    }

    /// Returns when the addresses may have changed: at each message of the kernel, also at one that says that
    /// messages were lost, and now and then without one. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`AddressesError::Ended`]: open anew.
    pub async fn changed(&mut self) -> Result<(), AddressesError> {
        match tokio::time::timeout(REREAD, self.changes.next()).await {
            Ok(Some(())) => {
                // One reading serves everything that is already there.
                while let Some(Some(())) = futures_util::FutureExt::now_or_never(self.changes.next()) {}
                Ok(())
            }
            Ok(None) => Err(AddressesError::Ended),
            Err(_) => Ok(()),
        }
    }
}

fn interface_name(attribute: &LinkAttribute) -> Option<&str> {
    if let LinkAttribute::IfName(name) = attribute { Some(name) } else { None }
}

/// On a point-to-point link, `Address` is the peer's.
fn own_address(attributes: &[AddressAttribute]) -> Option<IpAddr> {
    let local = attributes
        .iter()
        .find_map(|attribute| if let AddressAttribute::Local(addr) = attribute { Some(*addr) } else { None });
    let address = attributes.iter().find_map(|attribute| {
        if let AddressAttribute::Address(addr) = attribute { Some(*addr) } else { None }
    });
    local.or(address)
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[cfg(test)]
mod tests;
