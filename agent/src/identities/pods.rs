//! This node's pods: from their labels to a number, to the ipcache, to the endpoint. Level-based, so that every turn puts
//! right what the one before could not do.

mod known;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portway_claims::{Allocator, Change, News, Place};
use portway_datapath::{EndpointId, NumericIdentity};
use portway_model::ipcache::{EndpointAddress, EndpointSource};
use portway_model::k8s::Pod;
use portway_model::labels::Labels;

use super::endpoint_objects;
use super::follow::{Follow, Who};
use super::writes::{Tried, Writes};
use crate::endpoints::{Endpoint, EndpointIdentity, Endpoints, State};
use crate::ipcache::Ipcache;
use known::{PodIdentity, Published, init};

/// What is said of a pod whose number is on its way.
const CLAIMING: &str = "the number of its labels is being claimed";

/// What is known of the pods of this node.
pub(super) struct Pods {
    endpoints: Endpoints,
    ipcache: Ipcache,
    change_grace: Duration,
    by_id: BTreeMap<u16, PodIdentity>,
    /// Label sets that pods had before, and until when their numbers stay claimed.
    leaving: Vec<(Instant, Labels)>,
    /// Why label sets have no number yet.
    obstacles: BTreeMap<Labels, String>,
    /// What an earlier agent left of pods that have ended is removed.
    is_swept: bool,
}

/// Something of a pod that its Pod is to tell.
pub(super) struct Trouble {
    pub(super) pod: Arc<Pod>,
    pub(super) reason: String,
}

/// What a turn came to.
#[derive(Default)]
pub(super) struct Turn {
    /// The kernel or the state directory refused something: it is to be tried again.
    pub(super) failed: bool,
    pub(super) troubles: Vec<Trouble>,
}

impl Pods {
    pub(super) fn new(endpoints: Endpoints, ipcache: Ipcache, change_grace: Duration) -> Self {
        let (by_id, leaving, obstacles) = Default::default();
        Self { endpoints, ipcache, change_grace, by_id, leaving, obstacles, is_swept: false }
    }

    /// Takes note of what became of a label set.
    pub(super) fn told(&mut self, change: Change) {
        let Change { labels, news } = change;
        match news {
            News::Settled(_) | News::Held(_) => {
                self.obstacles.remove(&labels);
            }
            News::Obstacle(reason) => {
                self.obstacles.insert(labels, reason);
            }
            News::Lost(number) => {
                tracing::warn!(%number, %labels, "another label set has the number too, by somebody's mistake: it is given up");
                self.lose(&labels, number);
            }
        }
    }

    /// Brings every pod to where it should be. O(pods of this node).
    pub(super) fn turn(
        &mut self,
        follow: &mut Follow,
        allocator: &mut Allocator,
        writes: &mut Option<Writes>,
        now: Instant,
    ) -> Turn {
        let mut turn = Turn::default();
        let mut endpoints: BTreeMap<u16, Endpoint> = self
            .endpoints
            .list()
            .into_iter()
            .filter(|endpoint| endpoint.id != EndpointId::HEALTH.get())
            .map(|endpoint| (endpoint.id, endpoint))
            .collect();
        let is_still = |known: &PodIdentity| {
            endpoints.get(&known.endpoint.id).is_some_and(|now| now.attachment == known.endpoint.attachment)
        };
        let gone: Vec<_> =
            self.by_id.iter().filter(|(_, known)| !is_still(known)).map(|(id, _)| *id).collect();
        for id in gone {
            let Some(known) = self.by_id.remove(&id) else { continue };
            turn.failed |= !self.forget(known, allocator, writes);
        }
        for (id, endpoint) in std::mem::take(&mut endpoints) {
            if matches!(endpoint.state, State::Disconnecting | State::Disconnected) {
                continue;
            }
            let mut known =
                self.by_id.remove(&id).unwrap_or_else(|| PodIdentity::restored(&endpoint, allocator));
            known.endpoint = endpoint;
            self.bring(&mut known, follow, allocator, now, &mut turn);
            self.announce(&mut known, writes);
            self.by_id.insert(id, known);
        }
        let (over, leaving) =
            std::mem::take(&mut self.leaving).into_iter().partition(|(until, _)| *until <= now);
        self.leaving = leaving;
        for (_, labels) in over {
            allocator.release(&labels);
        }
        if let Some(writes) = writes.as_mut().filter(|_| follow.synced.pods && follow.synced.endpoints) {
            self.sweep(follow, writes);
        }
        self.obstacles.retain(|labels, _| allocator.place(labels).is_some());
        follow.tidy();
        turn
    }

    /// When the grace of a label set is over.
    pub(super) fn due(&self) -> Option<Instant> {
        self.leaving.iter().map(|(until, _)| *until).min()
    }

    /// How many pods of this node have a number.
    pub(super) fn users(&self) -> BTreeMap<NumericIdentity, u64> {
        let mut users = BTreeMap::new();
        for published in self.by_id.values().filter_map(|known| known.published.as_ref()) {
            *users.entry(published.identity.number()).or_default() += 1;
        }
        users
    }

    /// Pods that have no identity, with the reason.
    pub(super) fn waiting(&self) -> Vec<String> {
        let waiting = self.by_id.values().filter(|known| known.published.is_none());
        let text = |known: &PodIdentity| {
            let reason = known.obstacle.as_deref().unwrap_or(CLAIMING);
            format!("pod {} has no identity yet: {reason}", known.endpoint.name())
        };
        waiting.map(text).collect()
    }

    fn bring(
        &mut self,
        known: &mut PodIdentity,
        follow: &mut Follow,
        allocator: &mut Allocator,
        now: Instant,
        turn: &mut Turn,
    ) {
        let identity = match follow.who(&known.endpoint.pod) {
            Who::Labelled { pod, labels } => {
                known.pod = Some(pod);
                known.pod_is_gone = false;
                known.want(&labels, allocator);
                match allocator.place(&labels) {
                    Some(Place::Settled(number) | Place::Held(number)) => {
                        Ok(Some(EndpointIdentity::new(number, &labels)))
                    }
                    Some(Place::Pending) | None => {
                        Err(self.obstacles.get(&labels).map_or(CLAIMING, String::as_str).to_owned())
                    }
                }
            }
            // Who has an identity keeps it: the Pod may have left the directory before its endpoint goes.
            Who::Init if known.endpoint.identity.is_none() => Ok(Some(init())),
            Who::Init => Ok(known.endpoint.identity.clone()),
            Who::Unknown { has_pod, reason } => {
                known.pod_is_gone = !has_pod && known.pod.is_some() && follow.synced.pods;
                known.endpoint.identity.clone().map(Some).ok_or(reason)
            }
        };
        match identity {
            Ok(Some(identity)) => turn.failed |= !self.publish(known, identity, now),
            Ok(None) => {}
            Err(reason) => {
                self.endpoints.set_obstacle(&known.endpoint, &reason);
                let said = known.obstacle.take();
                // Until there is another number the one from before is used.
                if let Some(identity) = known.endpoint.identity.clone() {
                    turn.failed |= !self.publish(known, identity, now);
                }
                if reason != CLAIMING && said.as_ref() != Some(&reason) {
                    let reason = match &known.endpoint.identity {
                        Some(EndpointIdentity { id, .. }) => {
                            format!("it keeps identity {id} until its labels have a number: {reason}")
                        }
                        None => format!("its network waits for its identity: {reason}"),
                    };
                    turn.troubles.extend(known.pod.clone().map(|pod| Trouble { pod, reason }));
                }
                known.obstacle = Some(reason);
            }
        }
    }

    /// First the ipcache, then the endpoint, which its pod's start waits for. Whether it is done.
    fn publish(&mut self, known: &mut PodIdentity, identity: EndpointIdentity, now: Instant) -> bool {
        let wanted = Published { addresses: known.addresses(identity.number()), identity };
        if wanted.addresses.is_empty() {
            // Of a chained pod they come with its link.
            return true;
        }
        if known.published.as_ref() != Some(&wanted) {
            let gone = known.published.iter().flat_map(|before| &before.addresses).filter(|before| {
                !wanted.addresses.iter().any(|now| (now.addr, now.uid) == (before.addr, before.uid))
            });
            let mut result = Ok(());
            for told in &wanted.addresses {
                result = result.and(self.ipcache.upsert(EndpointSource::Local, told));
            }
            for before in gone {
                result = result.and(self.ipcache.remove(EndpointSource::Local, before.addr, before.uid));
            }
            if let Err(error) = result {
                tracing::warn!(pod = known.endpoint.name(), %error, "a pod's addresses are not in pw_ipcache yet");
                self.endpoints.set_obstacle(&known.endpoint, &error.to_string());
                return false;
            }
            known.published = Some(wanted.clone());
        }
        let before = known.endpoint.identity.as_ref();
        if before != Some(&wanted.identity) || known.is_behind {
            let reason = match before.filter(|before| **before != wanted.identity) {
                Some(before) => format!(
                    "its labels have changed: identity {} instead of {}",
                    wanted.identity.id, before.id
                ),
                None => "its identity is known".to_owned(),
            };
            let set = self.endpoints.set_identity(&known.endpoint, &wanted.identity, &reason);
            known.is_behind = set.is_err();
            match set {
                Ok(_) => tracing::info!(
                    endpoint = known.endpoint.id,
                    pod = known.endpoint.name(),
                    identity = wanted.identity.id,
                    reason,
                    "a pod's identity"
                ),
                Err(error) => {
                    tracing::warn!(pod = known.endpoint.name(), %error, "a pod's identity cannot be published yet");
                    self.endpoints.set_obstacle(&known.endpoint, &error.to_string());
                    return false;
                }
            }
            known.endpoint.identity = Some(wanted.identity.clone());
        }
        known.obstacle = None;
        if known.used != known.wanted
            && known.wanted.as_ref().is_some_and(|labels| wanted.identity.labels() == *labels)
        {
            let until = now + self.change_grace;
            self.leaving.extend(known.used.take().map(|labels| (until, labels)));
            known.used.clone_from(&known.wanted);
        }
        true
    }

    /// Has the other nodes told of a pod, where there is an API server that they hear it from.
    fn announce(&self, known: &mut PodIdentity, writes: &mut Option<Writes>) {
        let Some(published) = &known.published else { return };
        // With the Pod its object goes, and would again.
        if known.pod_is_gone {
            self.endpoints.set_announced(&known.endpoint);
            if let (Some(writes), Some(written)) = (writes, known.written.take()) {
                writes.remove(&written.namespace, &written.pod, &written.pod_uid);
            }
            return;
        }
        // One without a UID is of a file.
        let pod = known.pod.as_ref().filter(|pod| !pod.uid.is_empty());
        let (Some(writes), Some(pod), true) = (writes, pod, known.used.is_some()) else {
            // Of a pod that the API server does not know nobody can be told.
            self.endpoints.set_announced(&known.endpoint);
            return;
        };
        let Some(address) = writes.address() else { return };
        let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
        let wanted = endpoint_objects::Wanted {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            pod_uid: pod.uid.to_string(),
            pod_created: pod.created,
            container: known.endpoint.attachment.container.clone(),
            endpoint_id: known.endpoint.id,
            addresses: known.endpoint.addresses.clone(),
            node: Some(address),
            identity: published.identity.clone(),
        };
        if known.written.as_ref() != Some(&wanted) {
            known.written = Some(wanted.clone());
            writes.set(wanted, known.is_new);
        }
    }

    /// Removes the objects of pods that ended while no agent ran. Those of Pods that are gone go with them.
    fn sweep(&mut self, follow: &Follow, writes: &mut Writes) {
        if std::mem::replace(&mut self.is_swept, true) {
            return;
        }
        let has_endpoint = |name: &str| self.by_id.values().any(|known| known.endpoint.name() == name);
        let left = writes.observed().filter(|seen| follow.has_ended(&seen.name, seen.pod_uid));
        let left: Vec<_> = left.filter(|seen| !has_endpoint(&seen.name)).cloned().collect();
        for seen in left {
            let (namespace, name) = seen.name.split_once('/').unwrap_or(("", &seen.name));
            writes.remove(namespace, name, &seen.pod_uid.to_string());
        }
    }

    /// Takes note of what came of a pod's object.
    pub(super) fn tried(&mut self, tried: &Tried, allocator: &mut Allocator) -> Option<Trouble> {
        let is_its = |known: &&mut PodIdentity| {
            known.written.as_ref().is_some_and(|wanted| {
                tried.pod.split_once('/') == Some((wanted.namespace.as_str(), wanted.pod.as_str()))
            })
        };
        let known = self.by_id.values_mut().find(is_its)?;
        self.endpoints.set_announced(&known.endpoint);
        if let Some(obstacle) = &tried.obstacle {
            let reason = format!("other nodes cannot be told of it: {obstacle}");
            return known.pod.clone().map(|pod| Trouble { pod, reason });
        }
        let number = known.written.as_ref()?.identity.number();
        if known.referred != Some(number)
            && let Some(labels) = &known.used
        {
            known.referred = Some(number);
            allocator.referred(labels, number);
        }
        None
    }

    /// Whether it is done.
    fn forget(&mut self, known: PodIdentity, allocator: &mut Allocator, writes: &mut Option<Writes>) -> bool {
        if let (Some(writes), Some(wanted)) = (writes, &known.written) {
            // The pod may have another endpoint by now, of a sandbox that was made anew.
            let is_same =
                |other: &&mut PodIdentity| other.pod.as_ref().is_some_and(|pod| *pod.uid == *wanted.pod_uid);
            match self.by_id.values_mut().find(is_same) {
                Some(other) => other.written = None,
                None => writes.remove(&wanted.namespace, &wanted.pod, &wanted.pod_uid),
            }
        }
        known.held().for_each(|labels| allocator.release(labels));
        let mut is_done = true;
        for EndpointAddress { addr, uid, .. } in
            known.published.iter().flat_map(|published| &published.addresses)
        {
            if let Err(error) = self.ipcache.remove(EndpointSource::Local, *addr, *uid) {
                tracing::warn!(pod = known.endpoint.name(), %error, "the address of a pod that is gone is still in pw_ipcache");
                is_done = false;
            }
        }
        is_done
    }

    /// Nobody may have a number any more that turned out to be another label set's: until there is another one these pods are
    /// as if nothing were known of them.
    fn lose(&mut self, labels: &Labels, number: NumericIdentity) {
        let users = self.by_id.values_mut().filter(|known| known.used.as_ref() == Some(labels));
        for known in
            users.filter(|known| known.endpoint.identity.as_ref().is_some_and(|id| id.number() == number))
        {
            known.endpoint.identity = Some(init());
            if let Err(error) =
                self.endpoints.set_identity(&known.endpoint, &init(), "its number is another label set's")
            {
                tracing::warn!(pod = known.endpoint.name(), %error, "a pod has a number that is not its own");
                known.is_behind = true;
            }
        }
    }
}

#[cfg(test)]
mod tests;
