//! What a container runtime asks for, by the plugin.

mod allocation;
pub(super) mod answer;

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use portway_cni::failure::{Failure, code};
use portway_cni::protocol::{Attachment, AttachmentId, PodName};
use portway_cni::result::Attached;
use portway_datapath::{EndpointId, NetnsOptions};
use portway_model::node::ClusterView;

use super::record::{link_name, now};
use super::{Endpoint, Endpoints, Known, Link, Mac, SOCKET_LB_ANNOTATION, State};
use answer::{answer, failure, gone, kernel_failure, no_network, not_chained, unsettled};

/// How long a new pod that the runtime knows may take to come by our watch. Past that it starts with the defaults, and what
/// its annotations say holds from when they are known.
const POD_PATIENCE: Duration = Duration::from_secs(1);

impl Endpoints {
    /// Gives a pod its network. A second ADD of the same attachment begins anew: the first one's answer was lost.
    ///
    /// # Errors
    /// It has none, and nothing is left of the attempt.
    pub fn add(&self, request: &Attachment, netns: &OwnedFd) -> Result<Attached, Failure> {
        let attached = self.add_claimed(request, netns)?;
        // What its annotations say may have become known in between.
        self.follow_annotations();
        Ok(attached)
    }

    fn add_claimed(&self, request: &Attachment, netns: &OwnedFd) -> Result<Attached, Failure> {
        let began = Instant::now();
        let _claim = self.claim(&request.id)?;
        self.wait_serving()?;
        let cookie = self.kernel().netns_cookie(netns.as_fd()).map_err(|error| kernel_failure(&error))?;
        if cookie == self.shared.settings.node_netns {
            let msg = format!("CNI_NETNS {} is the node's own network namespace", request.netns);
            return Err(Failure::new(
                code::INVALID_ENVIRONMENT,
                msg,
                "pods of the host's network are no matter of CNI",
            ));
        }
        self.forget_note(&request.id)?;
        self.remove_attachment(&request.id, "the container runtime asked for it anew")
            .map_err(|error| failure(&error))?;
        let mut endpoint = self.create(request, cookie)?;
        let made = self.make(&mut endpoint, request, netns.as_fd());
        match made {
            Ok(attached) => {
                tracing::info!(
                    endpoint = endpoint.id,
                    pod = endpoint.name(),
                    interface = endpoint.link.name,
                    took = ?began.elapsed(),
                    "a pod has its network"
                );
                Ok(attached)
            }
            Err(failure) => {
                tracing::warn!(endpoint = endpoint.id, pod = endpoint.name(), %failure, "a pod cannot be given a network");
                if let Err(error) = self.disconnect(endpoint.id, "it could not be made") {
                    // What is left goes with the next ADD or DEL of the attachment, or at the next start.
                    tracing::warn!(endpoint = endpoint.id, %error, "and what there was of it cannot be removed");
                }
                Err(failure)
            }
        }
    }

    /// Takes a pod's network away. That it has none is no error.
    ///
    /// # Errors
    /// The kernel refuses a part; repeating the request goes on from there.
    pub fn delete(&self, id: &AttachmentId) -> Result<(), Failure> {
        let _claim = self.claim(id)?;
        self.remove_attachment(id, "the container runtime has ended the pod").map_err(|error| failure(&error))
    }

    /// Whether a pod's network is as ADD left it.
    ///
    /// # Errors
    /// What is not, in words.
    pub fn check(&self, request: &Attachment, netns: &OwnedFd) -> Result<(), Failure> {
        let endpoint = self.settled(&request.id)?;
        let _claim = self.claim(&request.id)?;
        let is_same = |now: &Endpoint| now.state == State::Ready && now.link == endpoint.link;
        let endpoint = self.get(endpoint.id).filter(is_same).ok_or_else(|| unsettled(&request.id))?;
        let differences = self.kernel().differences(&endpoint, netns.as_fd());
        let mut differences = differences.map_err(|error| kernel_failure(&error))?;
        let interface = &request.id.interface;
        let told = request.previous.iter().flat_map(|previous| previous.addresses_of(interface));
        let strange: Vec<_> = told.filter(|addr| !endpoint.addresses.contains(addr)).collect();
        differences
            .extend(strange.iter().map(|addr| format!("prevResult has {addr}, which is not the pod's")));
        if differences.is_empty() {
            return Ok(());
        }
        let msg = format!("the network of {} has changed: {}", endpoint.name(), differences.join(", "));
        Err(Failure::new(code::CHANGED, msg, "delete the pod, so that it is made anew"))
    }

    /// The endpoint of an attachment once it is ready, which is waited for: an agent that starts has yet to restore it.
    fn settled(&self, id: &AttachmentId) -> Result<Endpoint, Failure> {
        let of = |known: &Known| known.by_id.values().find(|endpoint| endpoint.attachment == *id).cloned();
        let until = Instant::now() + self.shared.settings.patience;
        let is_settled = |known: &Known| of(known).is_none_or(|endpoint| endpoint.state == State::Ready);
        let (known, is_settled) = self.wait(self.known(), until, is_settled);
        match of(&known) {
            Some(endpoint) if is_settled => Ok(endpoint),
            None if !known.unknown.contains_key(&link_name(id)) => Err(no_network(id)),
            Some(_) | None => Err(unsettled(id)),
        }
    }

    /// Takes the network from every attachment of a network that is not valid any more. One that is worked at is left: it
    /// is being made, and newer than the list, or being removed.
    ///
    /// # Errors
    /// The kernel refuses a part, or one was left; the others are gone, and repeating the request goes on from there.
    pub fn collect(&self, network: &str, valid: &[AttachmentId]) -> Result<(), Failure> {
        let valid: BTreeSet<_> = valid.iter().collect();
        // The health endpoint is of no network, whatever that is called.
        let of_network = self
            .list()
            .into_iter()
            .filter(|endpoint| endpoint.id != EndpointId::HEALTH.get() && endpoint.network == network);
        let (mut failed, mut busy) = (None, Vec::new());
        for endpoint in of_network.filter(|endpoint| !valid.contains(&endpoint.attachment)) {
            let Some(_claim) = self.try_claim(&endpoint.attachment) else {
                busy.push(endpoint.attachment.container);
                continue;
            };
            let removed =
                self.remove_attachment(&endpoint.attachment, "the container runtime does not know it");
            failed = failed.or(removed.err());
        }
        if let Some(error) = failed {
            return Err(failure(&error));
        }
        if !busy.is_empty() {
            let msg = format!("left, since earlier requests work at them: {}", busy.join(", "));
            return Err(Failure::new(
                code::TRY_AGAIN,
                msg,
                "the runtime's next GC removes what is not valid then",
            ));
        }
        Ok(())
    }

    /// Whether an ADD would be served now.
    ///
    /// # Errors
    /// What is missing.
    pub fn status(&self) -> Result<(), Failure> {
        if self.is_ready() {
            return Ok(());
        }
        let missing = if self.known().serves { self.no_prefix() } else { "the agent is starting".to_owned() };
        Err(Failure::new(code::NOT_AVAILABLE, missing, "`portway status` says what the agent waits for"))
    }

    /// The endpoint of an attachment.
    pub(super) fn find(&self, id: &AttachmentId) -> Option<Endpoint> {
        self.known().by_id.values().find(|endpoint| endpoint.attachment == *id).cloned()
    }

    /// A new endpoint with addresses, known from now on; the kernel has nothing of it yet.
    fn create(&self, request: &Attachment, netns_cookie: u64) -> Result<Endpoint, Failure> {
        let Attachment { id, network, netns, pod, previous: _ } = request;
        let mut random = [0; 16];
        let read = std::fs::File::open("/dev/urandom")
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut random));
        read.map_err(|error| Failure::new(code::IO, format!("cannot read /dev/urandom: {error}"), ""))?;
        let [node_mac, pod_mac] = [&random[..8], &random[8..]]
            .map(|half| Mac::local(half.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))));
        let is_chained = self.shared.settings.is_chained;
        let mut known = self.known();
        let Some(number) = known.free_id() else {
            let msg = format!(
                "node {} has 65534 endpoints; there is no number for another",
                self.shared.settings.node_name
            );
            return Err(Failure::new(code::NO_ADDRESS, msg, "delete pods of this node"));
        };
        let link = Link { name: link_name(id), ifindex: 0, node_mac, pod_mac, mtu: known.mtu, is_chained };
        let mut endpoint = Endpoint {
            id: number,
            attachment: id.clone(),
            network: network.clone(),
            pod: pod.clone(),
            netns: netns.clone(),
            netns_cookie,
            link,
            addresses: Vec::new(),
            socket_lb: true,
            identity: None,
            created: now(),
            state: State::Creating,
            log: Default::default(),
        };
        endpoint.enter(State::Creating, "the container runtime asked for it");
        if !is_chained {
            endpoint.addresses = self.allocate(&mut known)?;
        }
        known.by_id.insert(number, endpoint.clone());
        drop(known);
        self.touch();
        Ok(endpoint)
    }

    /// Everything after an endpoint is known, up to the answer.
    fn make(
        &self,
        endpoint: &mut Endpoint,
        request: &Attachment,
        netns: BorrowedFd<'_>,
    ) -> Result<Attached, Failure> {
        let kernel = self.kernel();
        let refused = |error| kernel_failure(&error);
        if self.shared.settings.is_chained {
            let previous = request.previous.as_ref().ok_or_else(not_chained)?;
            endpoint.addresses = previous.addresses_of(&request.id.interface).collect();
            if endpoint.addresses.is_empty() {
                return Err(not_chained());
            }
            endpoint.link = kernel.adopt_link(netns, &request.id.interface).map_err(refused)?;
            let mut known = self.known();
            for addr in &endpoint.addresses {
                known.ipam.restore((*addr).into());
            }
        } else {
            // One that an attempt left which was killed in the middle.
            kernel.delete_link(&endpoint.link.name).map_err(refused)?;
            endpoint.link.ifindex =
                kernel.create_link(&endpoint.link, netns, &request.id.interface).map_err(refused)?;
        }
        self.remember_link(endpoint);
        let socket_lb = self.wait_for_pod(&request.pod);
        self.wait_for_identity(endpoint)?;
        let kept = self.update(endpoint.id, |endpoint| {
            endpoint.socket_lb = socket_lb;
            endpoint.enter(State::Regenerating, "its link is there, and its identity is known");
        });
        *endpoint = kept.map_err(|error| failure(&error.into()))?.ok_or_else(|| gone(&request.id))?;
        self.install(endpoint).map_err(refused)?;
        if !endpoint.link.is_chained {
            kernel.configure_pod(endpoint, netns).map_err(refused)?;
        }
        self.wait_announced(endpoint)?;
        let kept = self.update(endpoint.id, |endpoint| endpoint.enter(State::Ready, "its pod can start"));
        *endpoint = kept.map_err(|error| failure(&error.into()))?.ok_or_else(|| gone(&request.id))?;
        Ok(match &request.previous {
            Some(previous) if endpoint.link.is_chained => previous.clone(),
            Some(_) | None => answer(endpoint),
        })
    }

    /// Puts an endpoint into the kernel: programs, tables, the node's end. The same for a new one and at a start.
    pub(super) fn install(&self, endpoint: &Endpoint) -> Result<(), super::KernelError> {
        let kernel = self.kernel();
        // Programs first: what a pod sends is looked at from its first packet on.
        if self.known().serves {
            kernel.attach(endpoint.link.ifindex, &endpoint.link.name)?;
        }
        // Who it is before it can be found.
        if let Some(identity) = &endpoint.identity {
            kernel.set_identity(endpoint.id, Some(identity.number()))?;
        }
        for (addr, value) in endpoint.table() {
            kernel.set_endpoint(addr, value)?;
        }
        if !endpoint.socket_lb {
            kernel.set_netns(endpoint.netns_cookie, Some(NetnsOptions::new(false)))?;
        }
        if !endpoint.link.is_chained {
            kernel.route(endpoint)?;
        }
        Ok(())
    }

    /// The link and the addresses of an endpoint whose identity is waited for.
    fn remember_link(&self, endpoint: &Endpoint) {
        let mut known = self.known();
        if let Some(now) = known.by_id.get_mut(&endpoint.id) {
            now.link = endpoint.link.clone();
            now.addresses.clone_from(&endpoint.addresses);
            if now.identity.is_none() {
                now.enter(State::WaitingForIdentity, "its link is there");
            }
        }
    }

    fn wait_serving(&self) -> Result<(), Failure> {
        let until = Instant::now() + self.shared.settings.patience;
        if self.wait(self.known(), until, |known| known.serves).1 {
            return Ok(());
        }
        let msg = "the agent is starting and does not serve yet";
        Err(Failure::new(
            code::TRY_AGAIN,
            msg,
            "`portway status` says what it waits for; the runtime tries again",
        ))
    }

    /// What the pod's annotations say, waiting for them where they are on their way. A directory of manifests may have no
    /// Pods at all, so what it says of this one is not waited for: it holds from when it is known.
    fn wait_for_pod(&self, pod: &PodName) -> bool {
        let known = self.known();
        if pod.uid.is_empty()
            || !self.shared.settings.pods_are_watched
            || known.view.pods.contains_key(pod.uid.as_str())
        {
            return socket_lb(&known.view, pod).unwrap_or(true);
        }
        let until = Instant::now() + POD_PATIENCE;
        let (known, _) = self.wait(known, until, |known| known.view.pods.contains_key(pod.uid.as_str()));
        socket_lb(&known.view, pod).unwrap_or(true)
    }
}

/// Whether the sockets of a pod are translated; `None` where nobody has told of the pod. A static pod has another UID in the
/// API than at its runtime, so its name counts too.
pub(super) fn socket_lb(view: &ClusterView, pod: &PodName) -> Option<bool> {
    let by_name = || {
        let mut all = view.pods.values();
        all.find(|known| *known.namespace == *pod.namespace && *known.name == *pod.name)
    };
    let known = view.pods.get(pod.uid.as_str()).or_else(by_name)?;
    Some(known.annotations.get(SOCKET_LB_ANNOTATION).is_none_or(|value| &**value != "false"))
}
