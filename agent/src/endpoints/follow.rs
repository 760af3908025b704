//! What changes without a request: what the cluster says of the node and its pods, and links that vanish.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use portway_cni::protocol::AttachmentId;
use portway_datapath::NetnsOptions;
use portway_model::node::ClusterView;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::{MulticastGroup, new_multicast_connection};

use super::attach::socket_lb;
use super::{Claim, Endpoint, EndpointError, Endpoints, Found, KernelError, Known, State, is_installed};

/// How often links are looked at though none was told to be gone, and whether programs and tables are as they were made: half
/// of what a repair may take.
const LOOK: Duration = Duration::from_secs(5);
/// How long is waited for more links to go once one is gone: the pods of a node that is drained go together.
const GATHER: Duration = Duration::from_millis(100);

impl Endpoints {
    /// The cluster is so from now on. A node that nobody tells of keeps its prefixes.
    pub fn follow(&self, view: Arc<ClusterView>) {
        {
            let mut known = self.known();
            if let Some(this) = &view.this {
                known.ipam.set_prefixes(&this.pod_cidrs);
            }
            known.view = view;
        }
        self.shared.changed.notify_all();
        self.follow_annotations();
    }

    /// The MTU of links that are made from now on, in bytes.
    pub fn set_mtu(&self, mtu: u32) {
        self.known().mtu = mtu;
    }

    /// Does for each pod's sockets what its annotations say. Of an endpoint that somebody works at by the next
    /// [`Self::look`].
    pub(super) fn follow_annotations(&self) {
        let differing: Vec<_> = {
            let known = self.known();
            known.by_id.values().filter(|endpoint| known.differing(endpoint).is_some()).cloned().collect()
        };
        for endpoint in differing {
            let Some(_claim) = self.try_claim(&endpoint.attachment) else { continue };
            if let Err(error) = self.follow_annotation(&endpoint) {
                tracing::warn!(endpoint = endpoint.id, pod = endpoint.name(), %error, "a pod's annotation cannot be followed");
            }
        }
    }

    /// Of one endpoint, for who has claimed it: what is so of it and its pod by then.
    pub(super) fn follow_annotation(&self, endpoint: &Endpoint) -> Result<(), EndpointError> {
        let (now, wanted) = {
            let known = self.known();
            let now = known.by_id.get(&endpoint.id).filter(|now| now.attachment == endpoint.attachment);
            let Some((now, wanted)) = now.and_then(|now| Some((now, known.differing(now)?))) else {
                return Ok(());
            };
            (now.clone(), wanted)
        };
        let what = if wanted {
            self.translate_sockets(&now)?;
            "its sockets are translated from now on"
        } else {
            self.kernel().set_netns(now.netns_cookie, Some(NetnsOptions::new(false)))?;
            "its sockets are left alone from now on"
        };
        self.update(now.id, |endpoint| {
            endpoint.socket_lb = wanted;
            endpoint.enter(State::Ready, what);
        })?;
        Ok(())
    }

    /// Ends that the sockets of an endpoint's namespace are left alone, unless another endpoint in it wants that too.
    pub(super) fn translate_sockets(&self, endpoint: &Endpoint) -> Result<(), KernelError> {
        let is_wanted = self.known().by_id.values().any(|other| {
            other.id != endpoint.id
                && other.netns_cookie == endpoint.netns_cookie
                && !other.socket_lb
                && is_installed(other.state)
        });
        if is_wanted { Ok(()) } else { self.kernel().set_netns(endpoint.netns_cookie, None) }
    }

    /// Removes every endpoint whose link is gone. Their number. One that cannot be removed is in the log, and tried again by
    /// the look.
    ///
    /// # Errors
    /// The kernel would not say which links there are.
    pub fn remove_gone(&self) -> Result<usize, EndpointError> {
        // Endpoints before links: one that is made in between has a link that the list does not.
        let whole: Vec<_> = self.list().into_iter().filter(|endpoint| has_link(endpoint.state)).collect();
        let links = self.kernel().links()?;
        let is_gone = |endpoint: &Endpoint, link: Option<&Found>| {
            link.is_none_or(|link| link.ifindex != endpoint.link.ifindex)
        };
        let mut gone = 0;
        for endpoint in whole.into_iter().filter(|it| is_gone(it, links.get(&it.link.name))) {
            let Some(_claim) = self.try_claim(&endpoint.attachment) else { continue };
            // It may have been made anew since the links were listed.
            if self.get(endpoint.id).is_none_or(|now| now.link != endpoint.link || !has_link(now.state)) {
                continue;
            }
            let link = self.kernel().link(&endpoint.link.name).map_err(EndpointError::from);
            let removed = link.and_then(|link| {
                let is_gone = is_gone(&endpoint, link.as_ref());
                if is_gone {
                    self.disconnect(endpoint.id, "its interface is gone")?;
                }
                Ok(usize::from(is_gone))
            });
            match removed {
                Ok(removed) => gone += removed,
                Err(error) => tracing::warn!(
                    endpoint = endpoint.id,
                    pod = endpoint.name(),
                    %error,
                    "an endpoint whose interface is gone cannot be removed yet"
                ),
            }
        }
        Ok(gone)
    }

    /// What is done every so often: goes on with what failed, and puts right what is not as it should be.
    pub(super) fn look(&self) {
        self.follow_notes();
        self.retry();
        self.remove_unknown_gone();
        self.follow_annotations();
        if let Err(error) = self.put_right() {
            tracing::warn!(%error, "cannot look whether pods' programs and tables are as they were made");
        }
        if let Err(error) = self.remove_gone() {
            tracing::warn!(%error, "cannot look whether pods' links are there");
        }
        let settled = self.settle();
        if settled > 0 {
            tracing::debug!(settled, "links have their programs by tcx");
        }
    }

    /// Removes endpoints as their links vanish, and tries again what could not be restored. Ends only with an error: the
    /// kernel tells of links no longer.
    ///
    /// # Errors
    /// As said.
    pub async fn watch_links(&self) -> std::io::Result<()> {
        let (connection, _handle, mut messages) = new_multicast_connection(&[MulticastGroup::Link])?;
        let connection = tokio::spawn(connection);
        let mut look = tokio::time::interval(LOOK);
        let result = loop {
            let is_gone = |payload: &NetlinkPayload<RouteNetlinkMessage>| {
                matches!(
                    payload,
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(_))
                        | NetlinkPayload::Overrun(_)
                )
            };
            let is_time = tokio::select! {
                message = messages.next() => match message {
                    Some((message, _)) if is_gone(&message.payload) => false,
                    Some(_) => continue,
                    None => break Err(std::io::Error::other("the netlink connection for links ended")),
                },
                _ = look.tick() => true,
            };
            if !is_time {
                tokio::time::sleep(GATHER).await;
                // What has come by now is seen by the one look.
                while let Some(Some(_)) = messages.next().now_or_never() {}
            }
            let endpoints = self.clone();
            let looked = tokio::task::spawn_blocking(move || {
                if is_time {
                    endpoints.look();
                    return Ok(0);
                }
                endpoints.remove_gone()
            });
            match looked.await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot look whether pods' links are there"),
                Err(error) => break Err(std::io::Error::other(error)),
            }
        };
        connection.abort();
        result
    }

    /// As [`Self::claim`], without waiting.
    pub(super) fn try_claim(&self, id: &AttachmentId) -> Option<Claim<'_>> {
        let is_free = self.known().busy.insert(id.clone());
        is_free.then(|| Claim { endpoints: self, id: id.clone() })
    }
}

impl Known {
    /// Whether the sockets of an endpoint that is ready are to be translated, where they are not as its pod says.
    fn differing(&self, endpoint: &Endpoint) -> Option<bool> {
        let wanted = socket_lb(&self.view, &endpoint.pod)?;
        (endpoint.state == State::Ready && wanted != endpoint.socket_lb).then_some(wanted)
    }
}

/// States of an endpoint that is not being made and not being removed.
fn has_link(state: State) -> bool {
    matches!(state, State::Ready | State::Restoring)
}
