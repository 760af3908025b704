//! The node's addresses and ports.

use super::{ADDRESS_RETRY, Owner};
use crate::config::Config;
use crate::node::{Addresses, AddressesError, ReservedPorts};

impl Owner {
    pub(super) async fn follow_addresses(
        &mut self,
        changed: Result<(), AddressesError>,
    ) -> anyhow::Result<()> {
        if let Err(error) = changed {
            tracing::warn!(%error, "opening it again");
            self.addresses = Addresses::open()?;
        }
        self.reread_addresses().await
    }

    pub(super) async fn reread_addresses(&mut self) -> anyhow::Result<()> {
        match self.addresses.read().await {
            Ok(found) if found == self.local_addresses && self.addresses_retry.is_none() => {}
            Ok(found) => {
                self.local_addresses = found;
                self.addresses_retry = None;
                if self.serves {
                    self.program_addresses();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "trying again");
                self.addresses_retry = Some(tokio::time::Instant::now() + ADDRESS_RETRY);
            }
        }
        Ok(())
    }

    pub(super) fn program_addresses(&mut self) {
        let done = self.datapath.set_addresses(&self.local_addresses, &self.config);
        self.addresses_retry = (!done).then(|| tokio::time::Instant::now() + ADDRESS_RETRY);
    }

    pub(super) fn protect_node_ports(&self) {
        let Config {
            auto_protect_node_port_range, kube_proxy_replacement, node_port_range, state_dir, ..
        } = &*self.config;
        if !auto_protect_node_port_range || !kube_proxy_replacement {
            return;
        }
        match ReservedPorts::new(state_dir).protect(*node_port_range) {
            Ok(added) if added.is_empty() => {}
            Ok(added) => tracing::info!(%added, "added to ip_local_reserved_ports"),
            Err(error) => tracing::warn!(
                %error,
                "NodePorts may be taken by outgoing connections; reserve them yourself and set \
                 enable-auto-protect-node-port-range=false"
            ),
        }
    }
}
