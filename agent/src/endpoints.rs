//! The pods of this node: their links, addresses and entries in the tables.
//!
//! ```text
//! record       one endpoint, its state and the log of it
//! store        records as files: what the next agent begins with
//! attach       what the CNI plugin asks for: made, removed, checked, collected
//! detach       the end of an endpoint, whoever asks for it
//! restore      what an earlier agent left, at a start
//! notes        what the plugin was asked to remove while it did not reach the agent
//! unknown      pods whose records cannot be read: they keep what they have
//! removal      the end of all of them, by `portway cleanup`
//! identity     who the pods are, and who waits for it
//! health       the endpoint that other nodes probe
//! follow       what the cluster says of node and pods, links that vanish
//! settle       links that have come to rest
//! intact       what somebody else changed of programs and tables, put right
//! kernel       what is needed of the kernel, so that tests can refuse each part of it
//! node_kernel  that, on this node's kernel; link: its netlink side
//! ```
//!
//! An endpoint is installed by one function, whoever asks: the plugin for a new pod or a start for an old one. Every step
//! may be repeated, and what fails in the middle is taken back.

mod attach;
mod detach;
mod follow;
mod health;
mod identity;
mod intact;
mod kernel;
mod link;
mod node_kernel;
mod notes;
mod record;
mod removal;
mod restore;
mod settle;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod unknown;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portway_cni::failure::{Failure, code};
use portway_cni::protocol::AttachmentId;
use portway_datapath::{Addr, EndpointId, EndpointValue, Family, NetnsOptions};
use portway_model::node::ClusterView;
use tokio::sync::watch;

use crate::config::{Config, PodNetwork};
use crate::ipam::{Ipam, PoolUse};

pub use health::HealthLinkError;
pub use kernel::{Found, Kernel, KernelError};
pub use link::{GATEWAY_V4, GATEWAY_V6, LinkError};
pub use node_kernel::NodeKernel;
pub use record::{Change, Endpoint, EndpointIdentity, Link, Mac, State, is_link_name};
pub use removal::{RemovalError, remove, remove_configuration};
pub use restore::Restored;
pub use store::StoreError;

/// `"false"`: the pod's sockets are left alone, its packets are translated.
const SOCKET_LB_ANNOTATION: &str = "portway.io/socket-lb";

/// What endpoints are told of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Links are other plugins'.
    pub is_chained: bool,
    pub ipv4: bool,
    pub ipv6: bool,
    /// Where prefixes come from, for errors: `Node.spec.podCIDRs`.
    pub prefix_source: &'static str,
    /// Pods come by a watch: one that the runtime makes is known in a moment.
    pub pods_are_watched: bool,
    /// The cookie of the node's own network namespace, which is no pod's.
    pub node_netns: u64,
    /// How long a request waits for the agent to serve, and for another one of the same attachment.
    pub patience: Duration,
}

impl Settings {
    pub fn new(config: &Config, network: &PodNetwork, node_netns: u64) -> Self {
        use crate::config::{Chaining, Ipam};
        Self {
            node_name: config.node_name.clone(),
            is_chained: network.chaining == Chaining::GenericVeth,
            ipv4: config.ipv4,
            ipv6: config.ipv6,
            prefix_source: match network.ipam {
                Ipam::Kubernetes => "spec.podCIDRs of the Node",
                Ipam::ClusterPool => "spec.ipam.podCIDRs of the CiliumNode",
            },
            pods_are_watched: config.api_server.is_some(),
            node_netns,
            patience: Duration::from_secs(30),
        }
    }
}

/// The endpoints. Cheap to clone; calls that touch the kernel block, so they are not for a thread that polls futures.
#[derive(Clone)]
pub struct Endpoints {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    kernel: Box<dyn Kernel>,
    store: store::Store,
    known: Mutex<Known>,
    /// Whenever something changes that a request may wait for.
    changed: Condvar,
    /// Counts endpoints that come, go or get addresses.
    changes: watch::Sender<u64>,
    /// Held from a change to its record's end: two of one endpoint are kept in their order.
    keeping: Mutex<()>,
}

/// Held for moments, and never over a call to the kernel.
struct Known {
    by_id: BTreeMap<u16, Endpoint>,
    /// Pods that run and whose records cannot be read, by the names of their links.
    unknown: BTreeMap<String, unknown::Unknown>,
    /// Numbers of records that cannot be read, and what the tables have of them.
    unknown_ids: BTreeSet<u16>,
    /// Endpoints of which other nodes were told, or could not be.
    announced: BTreeSet<u16>,
    /// Why endpoints have no identity yet.
    obstacles: BTreeMap<u16, String>,
    /// Attachments that somebody works at.
    busy: BTreeSet<AttachmentId>,
    /// When a request came last.
    asked: Option<Instant>,
    ipam: Ipam,
    view: Arc<ClusterView>,
    /// The directory of the plugin's notes.
    notes: PathBuf,
    /// Programs may be attached.
    serves: bool,
    /// Bytes, of new links.
    mtu: u32,
    last_id: u16,
}

/// Why something is as it must not be, in a form that a runtime understands.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Endpoints {
    /// No endpoint yet: [`Self::restore`] is next.
    ///
    /// # Errors
    /// The state directory cannot be made.
    pub fn open(state_dir: &Path, settings: Settings, kernel: Box<dyn Kernel>) -> Result<Self, StoreError> {
        let known = Known {
            by_id: BTreeMap::new(),
            unknown: BTreeMap::new(),
            unknown_ids: BTreeSet::new(),
            announced: BTreeSet::new(),
            obstacles: BTreeMap::new(),
            busy: BTreeSet::new(),
            asked: None,
            ipam: Ipam::default(),
            view: Arc::default(),
            notes: PathBuf::new(),
            serves: false,
            mtu: 1500,
            last_id: EndpointId::HEALTH.get(),
        };
        let store = store::Store::open(state_dir)?;
        let shared = Shared {
            settings,
            kernel,
            store,
            known: Mutex::new(known),
            changed: Condvar::new(),
            changes: watch::Sender::new(0),
            keeping: Mutex::new(()),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Every endpoint, by its number.
    pub fn list(&self) -> Vec<Endpoint> {
        self.known().by_id.values().cloned().collect()
    }

    /// One endpoint.
    pub fn get(&self, id: u16) -> Option<Endpoint> {
        self.known().by_id.get(&id).cloned()
    }

    /// What the prefixes of this node have given.
    pub fn pools(&self) -> Vec<PoolUse> {
        self.known().ipam.usage(Instant::now())
    }

    /// Whether a pod can be given a network now.
    pub fn is_ready(&self) -> bool {
        let (known, settings) = (self.known(), &self.shared.settings);
        let can_give = [(Family::V4, settings.ipv4), (Family::V6, settings.ipv6)]
            .into_iter()
            .any(|(family, is_on)| is_on && known.ipam.serves(family));
        known.serves && (settings.is_chained || can_give)
    }

    /// What `pw_endpoints` is to hold of pods.
    pub fn table(&self) -> BTreeMap<Addr, EndpointValue> {
        let known = self.known();
        let installed = known.by_id.values().filter(|endpoint| endpoint.link.ifindex != 0);
        installed.filter(|endpoint| is_installed(endpoint.state)).flat_map(Endpoint::table).collect()
    }

    /// What `pw_netns` is to hold.
    pub fn netns_table(&self) -> BTreeMap<u64, NetnsOptions> {
        let known = self.known();
        let opted_out =
            known.by_id.values().filter(|endpoint| !endpoint.socket_lb && is_installed(endpoint.state));
        opted_out.map(|endpoint| (endpoint.netns_cookie, NetnsOptions::new(false))).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nobody leaves it half changed.
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernel(&self) -> &dyn Kernel {
        &*self.shared.kernel
    }

    /// Waits until `is_so`, at most until a time. `None` past that.
    fn wait<'a>(
        &'a self,
        mut known: MutexGuard<'a, Known>,
        until: Instant,
        is_so: impl Fn(&Known) -> bool,
    ) -> (MutexGuard<'a, Known>, bool) {
        loop {
            if is_so(&known) {
                return (known, true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (known, false);
            }
            let waited = self.shared.changed.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The only one that works at this attachment, until it is dropped.
    fn claim(&self, id: &AttachmentId) -> Result<Claim<'_>, Failure> {
        let until = Instant::now() + self.shared.settings.patience;
        let (mut known, is_free) = self.wait(self.known(), until, |known| !known.busy.contains(id));
        known.asked = Some(Instant::now());
        if !is_free {
            let msg = format!("container {} is being worked at by an earlier request", id.container);
            return Err(Failure::new(
                code::TRY_AGAIN,
                msg,
                "the runtime tries again; the agent's log says what takes so long",
            ));
        }
        known.busy.insert(id.clone());
        Ok(Claim { endpoints: self, id: id.clone() })
    }

    /// Changes an endpoint and keeps it. `None` where there is no such one.
    fn update(&self, id: u16, change: impl FnOnce(&mut Endpoint)) -> Result<Option<Endpoint>, StoreError> {
        let _keeping = self.shared.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = {
            let mut known = self.known();
            let Some(endpoint) = known.by_id.get_mut(&id) else { return Ok(None) };
            change(endpoint);
            endpoint.clone()
        };
        self.shared.store.save(&endpoint)?;
        Ok(Some(endpoint))
    }
}

/// States in which an endpoint has its entries in the tables.
const fn is_installed(state: State) -> bool {
    match state {
        State::Regenerating | State::Ready | State::Restoring => true,
        State::Creating | State::WaitingForIdentity | State::Disconnecting | State::Disconnected => false,
    }
}

struct Claim<'a> {
    endpoints: &'a Endpoints,
    id: AttachmentId,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.endpoints.known().busy.remove(&self.id);
        self.endpoints.shared.changed.notify_all();
    }
}
