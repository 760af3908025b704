//! The end of an endpoint, whoever asks for it.

use std::time::Instant;

use portway_cni::protocol::AttachmentId;

use super::record::link_name;
use super::{EndpointError, Endpoints, State};

impl Endpoints {
    /// Removes what an attachment has, and a link that nobody knows of.
    pub(super) fn remove_attachment(&self, id: &AttachmentId, reason: &str) -> Result<(), EndpointError> {
        match self.find(id) {
            Some(endpoint) => self.disconnect(endpoint.id, reason),
            None if self.shared.settings.is_chained => Ok(()),
            None => {
                let link = link_name(id);
                self.remove_unknown(&link)?;
                Ok(self.kernel().delete_link(&link)?)
            }
        }
    }

    /// Takes an endpoint out of the kernel, and then from what is known. Nobody finds it before its link goes, nobody gets its
    /// addresses before that is gone, and the programs look at what it sends for as long as it can.
    pub(super) fn disconnect(&self, id: u16, reason: &str) -> Result<(), EndpointError> {
        let Some(endpoint) = ({
            let mut known = self.known();
            let endpoint = known.by_id.get_mut(&id);
            endpoint.map(|endpoint| {
                endpoint.enter(State::Disconnecting, reason);
                endpoint.clone()
            })
        }) else {
            return Ok(());
        };
        let kernel = self.kernel();
        for addr in &endpoint.addresses {
            kernel.delete_endpoint((*addr).into())?;
        }
        if !endpoint.link.is_chained {
            kernel.delete_link(&endpoint.link.name)?;
        }
        if endpoint.link.ifindex != 0 {
            kernel.detach(&endpoint.link.name)?;
        }
        if !endpoint.socket_lb {
            self.translate_sockets(&endpoint)?;
        }
        kernel.set_identity(id, None)?;
        self.shared.store.remove(id)?;
        let mut known = self.known();
        known.by_id.remove(&id);
        known.announced.remove(&id);
        known.obstacles.remove(&id);
        let now = Instant::now();
        for addr in &endpoint.addresses {
            known.ipam.release((*addr).into(), now);
        }
        drop(known);
        self.touch();
        tracing::info!(
            endpoint = id,
            pod = endpoint.name(),
            reason,
            "an endpoint is {}",
            State::Disconnected
        );
        Ok(())
    }
}
