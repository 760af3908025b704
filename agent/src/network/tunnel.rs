//! The VXLAN device: one for all other nodes, each packet says by its metadata which.
//!
//! Every node's has the same MAC and answers no ARP, so that nobody needs to know neighbours behind it.

use std::path::Path;

use portway_datapath::NodeNetwork;
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVxlan};

use super::machine::{Link, Machine, MachineError, Netlink, Vxlan};

/// The device's name.
pub(crate) const NAME: &str = "pw_vxlan";

/// What is done so that the device is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelChange {
    Nothing,
    Made,
    /// It was there for another port or was no tunnel of ours.
    MadeAnew,
    /// Its MTU or a flag.
    Adjusted,
}

impl Netlink {
    /// Makes the device, or puts right what differs. Level-based.
    ///
    /// # Errors
    /// The kernel refuses: above all where another VXLAN device has the port.
    pub(crate) async fn ensure_tunnel(
        &self,
        machine: &Machine,
        port: u16,
        mtu: u32,
    ) -> Result<TunnelChange, MachineError> {
        let failed = |action: &str| {
            MachineError::netlink(format!("{action} the tunnel device {NAME} (UDP port {port})"))
        };
        let found = machine.link(NAME);
        let fits = |link: &Link| link.vxlan == Some(Vxlan { port, collects_metadata: true });
        if let Some(link) = found.filter(|link| fits(link)) {
            let is_right =
                link.mtu == mtu && link.is_up && link.is_noarp && link.mac == Some(NodeNetwork::TUNNEL_MAC);
            if is_right {
                return Ok(TunnelChange::Nothing);
            }
            let message = LinkUnspec::new_with_index(link.index)
                .mtu(mtu)
                .address(NodeNetwork::TUNNEL_MAC.to_vec())
                .arp(false)
                .up()
                .build();
            self.handle.link().set(message).execute().await.map_err(failed("adjust"))?;
            return Ok(TunnelChange::Adjusted);
        }
        if let Some(link) = found {
            self.handle
                .link()
                .del(link.index)
                .execute()
                .await
                .map_err(failed("remove the earlier form of"))?;
        }
        let message = LinkMessageBuilder::<LinkVxlan>::new(NAME)
            .collect_metadata(true)
            .learning(false)
            .port(port)
            .mtu(mtu)
            .address(NodeNetwork::TUNNEL_MAC.to_vec())
            .arp(false)
            .build();
        self.handle.link().add(message).execute().await.map_err(failed("make"))?;
        // An address of its own would only be noise: MLD, router solicitations.
        let without_address =
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(
                In6AddrGenMode::None,
            )])]);
        // Before the device is up, for then it has one.
        let quiet = LinkUnspec::new_with_name(NAME).append_extra_attribute(without_address).build();
        let up = LinkUnspec::new_with_name(NAME).up().build();
        // A kernel without IPv6 does not know the first.
        let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        for message in has_ipv6.then_some(quiet).into_iter().chain([up]) {
            self.handle.link().set(message).execute().await.map_err(failed("put up"))?;
        }
        Ok(if found.is_some() { TunnelChange::MadeAnew } else { TunnelChange::Made })
    }

    /// Takes the device away. Whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) async fn remove_tunnel(&self, machine: &Machine) -> Result<bool, MachineError> {
        let Some(link) = machine.link(NAME) else { return Ok(false) };
        let failed = MachineError::netlink(format!("remove the tunnel device {NAME}"));
        self.handle.link().del(link.index).execute().await.map_err(failed)?;
        Ok(true)
    }
}
