//! Who the pods are. The thread of identities says it; a new pod waits for it.

use std::sync::MutexGuard;
use std::time::Instant;

use portway_cni::failure::{Failure, code};
use portway_datapath::NumericIdentity;
use portway_model::labels::{Label, Labels};
use tokio::sync::watch;

use super::attach::answer::gone;
use super::{Endpoint, EndpointError, EndpointIdentity, Endpoints, Known, State};

/// What is said of a pod that waits and about which nothing was said yet.
const NOTHING_SAID: &str = "the agent has not looked at it yet";

impl EndpointIdentity {
    pub fn new(number: NumericIdentity, labels: &Labels) -> Self {
        Self { id: number.get(), labels: labels.iter().map(Label::to_string).collect() }
    }

    /// One that has a number everywhere.
    pub(super) fn reserved(number: NumericIdentity) -> Self {
        Self::new(number, &Labels::of_reserved(number).unwrap_or_default())
    }

    /// The labels that the number stands for.
    pub fn labels(&self) -> Labels {
        self.labels.iter().filter_map(|label| Label::parse(label)).collect()
    }
}

impl Endpoints {
    /// Changes whenever an endpoint comes, goes or gets addresses.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Says who an endpoint is, from now on: its number is in this node's tables already. Publishes it to the programs, and lets
    /// the pod's start go on. False where the endpoint is not the one that was `seen` any more, or is being removed.
    ///
    /// # Errors
    /// The kernel or the state directory refuses; the call may be repeated.
    pub fn set_identity(
        &self,
        seen: &Endpoint,
        identity: &EndpointIdentity,
        reason: &str,
    ) -> Result<bool, EndpointError> {
        let Some(now) = self.get(seen.id).filter(|now| is_still(now, seen)) else { return Ok(false) };
        self.kernel().set_identity(seen.id, Some(identity.number()))?;
        if is_being_made(now.state) {
            // Who makes it keeps it.
            let mut known = self.known();
            let endpoint = known.by_id.get_mut(&seen.id).filter(|now| is_still(now, seen));
            let Some(endpoint) = endpoint else { return Ok(false) };
            endpoint.identity = Some(identity.clone());
            known.obstacles.remove(&seen.id);
            drop(known);
            self.shared.changed.notify_all();
            return Ok(true);
        }
        let kept = self.update(seen.id, |endpoint| {
            if is_still(endpoint, seen) && endpoint.identity.as_ref() != Some(identity) {
                endpoint.identity = Some(identity.clone());
                let before = endpoint.state;
                endpoint.enter(State::Regenerating, reason);
                endpoint.enter(before, format!("its identity is {}", identity.id));
            }
        })?;
        self.known().obstacles.remove(&seen.id);
        Ok(kept.is_some_and(|now| is_still(&now, seen)))
    }

    /// Other nodes were told of the endpoint, or that failed and is tried again.
    pub fn set_announced(&self, seen: &Endpoint) {
        let mut known = self.known();
        if known.by_id.get(&seen.id).is_some_and(|now| now.attachment == seen.attachment) {
            known.announced.insert(seen.id);
        }
        drop(known);
        self.shared.changed.notify_all();
    }

    /// Why an endpoint has no identity yet: for people, and for the runtime where the wait is over before.
    pub fn set_obstacle(&self, seen: &Endpoint, reason: &str) {
        let mut known = self.known();
        let Some(endpoint) = known.by_id.get_mut(&seen.id).filter(|now| now.attachment == seen.attachment)
        else {
            return;
        };
        if endpoint.state == State::WaitingForIdentity
            && endpoint.log.back().is_none_or(|last| last.reason != reason)
        {
            endpoint.enter(State::WaitingForIdentity, reason);
        }
        known.obstacles.insert(seen.id, reason.to_owned());
    }

    /// Says that endpoints have changed.
    pub(super) fn touch(&self) {
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Waits until an endpoint's identity is known and in this node's tables.
    pub(super) fn wait_for_identity(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        self.touch();
        let known = self.wait_for(endpoint, |known| {
            known.by_id.get(&endpoint.id).is_some_and(|now| now.identity.is_some())
        })?;
        let Some(known) = known else { return Ok(()) };
        let reason = known.obstacles.get(&endpoint.id).map_or(NOTHING_SAID, String::as_str);
        let msg = format!("pod {} has no identity yet: {reason}", endpoint.name());
        Err(Failure::new(
            code::TRY_AGAIN,
            msg,
            "the runtime tries again; `portway status` says what the agent waits for",
        ))
    }

    /// Waits until other nodes were told of an endpoint. That they could not be is no reason for its pod to wait longer: it
    /// is tried for ever.
    pub(super) fn wait_announced(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        let late = self.wait_for(endpoint, |known| known.announced.contains(&endpoint.id))?.is_some();
        if late {
            tracing::warn!(
                endpoint = endpoint.id,
                pod = endpoint.name(),
                "its pod starts, and other nodes could not be told of it yet"
            );
        }
        Ok(())
    }

    /// `None` once `is_so`; what is known where the patience is over before.
    fn wait_for(
        &self,
        endpoint: &Endpoint,
        is_so: impl Fn(&Known) -> bool,
    ) -> Result<Option<MutexGuard<'_, Known>>, Failure> {
        let is_gone =
            |known: &Known| known.by_id.get(&endpoint.id).is_none_or(|now| !is_still(now, endpoint));
        let until = Instant::now() + self.shared.settings.patience;
        let (known, _) = self.wait(self.known(), until, |known| is_gone(known) || is_so(known));
        if is_gone(&known) {
            return Err(gone(&endpoint.attachment));
        }
        Ok((!is_so(&known)).then_some(known))
    }
}

/// Whether an endpoint is the one that was seen before, and is to stay.
fn is_still(now: &Endpoint, seen: &Endpoint) -> bool {
    let is_leaving = matches!(now.state, State::Disconnecting | State::Disconnected);
    now.attachment == seen.attachment && !is_leaving
}

/// Whether a request is making the endpoint.
const fn is_being_made(state: State) -> bool {
    match state {
        State::Creating | State::WaitingForIdentity => true,
        State::Regenerating
        | State::Ready
        | State::Restoring
        | State::Disconnecting
        | State::Disconnected => false,
    }
}
