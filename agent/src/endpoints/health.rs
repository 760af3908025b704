//! The endpoint that other nodes probe. It has a link as pods have, and no record: it ends with the agent.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use portway_cni::failure::Failure;
use portway_cni::protocol::AttachmentId;
use portway_datapath::{Addr, EndpointId, NumericIdentity};

use super::record::{link_name, now};
use super::{Endpoint, EndpointError, EndpointIdentity, Endpoints, KernelError, Link, Mac, State};

/// In the place of a CONTAINERID, none of which has such a character.
const CONTAINER: &str = "@health";

/// Why the health endpoint has no link.
#[derive(Debug, thiserror::Error)]
pub enum HealthLinkError {
    #[error("the agent is starting and does not serve yet")]
    NotServing,
    /// Another attempt is under way.
    #[error("{0}")]
    Busy(Failure),
    /// It has it from a prefix that the node had before.
    #[error("a pod of this node has its address {addr}; it can have that once the pod is gone")]
    Taken { addr: IpAddr },
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl From<KernelError> for HealthLinkError {
    fn from(error: KernelError) -> Self {
        Self::Endpoint(error.into())
    }
}

impl Endpoints {
    /// Gives the health endpoint its link into `netns`, in place of the one before. Blocks.
    ///
    /// # Errors
    /// It has none; what there is of the attempt goes with the next one.
    pub fn connect_health(&self, netns: &OwnedFd, addresses: &[Addr]) -> Result<(), HealthLinkError> {
        let id = AttachmentId { container: CONTAINER.to_owned(), interface: "eth0".to_owned() };
        let _claim = self.claim(&id).map_err(HealthLinkError::Busy)?;
        let (serves, mtu) = {
            let known = self.known();
            (known.serves, known.mtu)
        };
        if !serves {
            return Err(HealthLinkError::NotServing);
        }
        if self.find(&id).is_some() {
            self.disconnect(EndpointId::HEALTH.get(), "it is made anew")?;
        }
        let reserved = self.known().ipam.reserve(addresses);
        reserved.map_err(|addr| HealthLinkError::Taken { addr: addr.into() })?;
        let kernel = self.kernel();
        let mac = || Mac::local(RandomState::new().hash_one(EndpointId::HEALTH));
        let link = Link {
            name: link_name(&id),
            ifindex: 0,
            node_mac: mac(),
            pod_mac: mac(),
            mtu,
            is_chained: false,
        };
        // That of an agent that was killed goes with its namespace, in a while.
        kernel.delete_link(&link.name)?;
        let ifindex = kernel.create_link(&link, netns.as_fd(), &id.interface)?;
        let mut endpoint = Endpoint {
            id: EndpointId::HEALTH.get(),
            attachment: id,
            network: String::new(),
            pod: Default::default(),
            netns: String::new(),
            netns_cookie: kernel.netns_cookie(netns.as_fd())?,
            link: Link { ifindex, ..link },
            addresses: addresses.iter().copied().map(IpAddr::from).collect(),
            socket_lb: true,
            identity: Some(EndpointIdentity::reserved(NumericIdentity::HEALTH)),
            created: now(),
            state: State::Creating,
            log: Default::default(),
        };
        endpoint.enter(State::Regenerating, "its link is there");
        self.known().by_id.insert(endpoint.id, endpoint.clone());
        self.install(&endpoint)?;
        kernel.configure_pod(&endpoint, netns.as_fd())?;
        endpoint.enter(State::Ready, "it can be probed");
        self.known().by_id.insert(endpoint.id, endpoint);
        Ok(())
    }
}
