//! Addresses and numbers for new endpoints.

use std::net::IpAddr;
use std::time::Instant;

use portway_cni::failure::{Failure, code};
use portway_datapath::{EndpointId, Family};

use crate::endpoints::{Endpoints, Known};
use crate::ipam::IpamError;

impl Endpoints {
    /// An address of each family that the node has prefixes of.
    pub(super) fn allocate(&self, known: &mut Known) -> Result<Vec<IpAddr>, Failure> {
        let settings = &self.shared.settings;
        let now = Instant::now();
        let mut addresses = Vec::new();
        for (family, is_on) in [(Family::V4, settings.ipv4), (Family::V6, settings.ipv6)] {
            if !is_on || !known.ipam.serves(family) {
                continue;
            }
            match known.ipam.allocate(family, now) {
                Ok(addr) => addresses.push(IpAddr::from(addr)),
                Err(error) => {
                    for addr in addresses {
                        known.ipam.release(addr.into(), now);
                    }
                    return Err(self.no_address(&error));
                }
            }
        }
        if addresses.is_empty() { Err(self.no_address(&IpamError::NoPrefix)) } else { Ok(addresses) }
    }

    fn no_address(&self, error: &IpamError) -> Failure {
        match error {
            IpamError::NoPrefix => Failure::new(
                code::TRY_AGAIN,
                self.no_prefix(),
                "the runtime tries again; `portway ipam` shows the prefixes",
            ),
            IpamError::Exhausted { .. } => Failure::new(
                code::NO_ADDRESS,
                format!("node {}: {error}", self.shared.settings.node_name),
                "delete pods of this node, lower the kubelet's maxPods, or give the node a further pod CIDR; `portway ipam` \
                 shows who has what",
            ),
        }
    }

    pub(super) fn no_prefix(&self) -> String {
        let settings = &self.shared.settings;
        let node = &settings.node_name;
        let source = settings.prefix_source;
        format!(
            "node {node} has no prefix for pods yet: {source} {node} has none of a family that is enabled"
        )
    }
}

impl Known {
    /// The next number that nobody has.
    pub(super) fn free_id(&mut self) -> Option<u16> {
        let first = EndpointId::FIRST.get();
        let id = (self.last_id.saturating_add(1)..=u16::MAX).chain(first..=self.last_id);
        let id = id
            .filter(|id| *id >= first)
            .find(|id| !self.by_id.contains_key(id) && !self.unknown_ids.contains(id))?;
        self.last_id = id;
        Some(id)
    }
}
