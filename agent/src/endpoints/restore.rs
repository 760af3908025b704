//! What an earlier agent left: endpoints whose links are there go on, everything else goes.

use std::collections::BTreeSet;
use std::path::Path;

use super::record::is_link_name;
use super::{Endpoint, EndpointError, Endpoints, Found, State};

/// What a start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub endpoints: usize,
    /// Pods that ended while no agent ran, by name.
    pub ended: Vec<String>,
    /// Links that nobody knows of.
    pub swept: Vec<String>,
}

impl Endpoints {
    /// Takes over what an earlier agent left, and makes the tables hold that and nothing else. `notes`: the directory of what
    /// the plugin was asked to remove meanwhile. Before any request is taken, and once.
    ///
    /// # Errors
    /// The state directory cannot be read, or the kernel refuses what is of all endpoints. Of a single one it is in the log,
    /// and tried again.
    pub fn restore(&self, notes: &Path) -> Result<Restored, EndpointError> {
        let (records, unreadable) = self.shared.store.load()?;
        for record in &unreadable {
            let error = &record.error;
            tracing::warn!(%error, "an endpoint of an earlier agent is not known; what there is of it is left alone");
        }
        let links = self.kernel().links()?;
        let mut restored = Restored::default();
        self.known().notes = notes.to_owned();
        let noted = self.read_notes();
        for mut record in records {
            let is_its = |link: Option<&Found>| {
                link.is_some_and(|link| {
                    link.ifindex == record.link.ifindex && link.mac == record.link.node_mac
                })
            };
            let name = &record.link.name;
            let is_there = is_its(links.get(name))
                || self.kernel().link(name).map_or_else(
                    |error| {
                        tracing::warn!(%error, "an endpoint's link is taken to be there until the kernel says that it is not");
                        true
                    },
                    |link| is_its(link.as_ref()),
                );
            let ended = if noted.iter().any(|(_, id)| *id == record.attachment) {
                Some("the container runtime ended the pod while no agent ran")
            } else if !is_there {
                Some("its interface is gone")
            } else if !matches!(record.state, State::Ready | State::Restoring) {
                Some("it was not finished when the agent ended")
            } else {
                None
            };
            record.enter(State::Restoring, "the agent has started");
            self.remember(record.clone());
            if let Some(reason) = ended {
                self.disconnect_or_warn(&record, reason);
                restored.ended.push(record.name());
            }
        }
        // After the last record that it is about is gone.
        self.follow_notes();
        let known: BTreeSet<_> = self.list().into_iter().map(|endpoint| endpoint.link.name).collect();
        let links = self.kernel().links()?;
        if unreadable.is_empty() {
            self.kernel().set_tables(&self.table(), &self.netns_table())?;
            if let Err(error) = self.kernel().detach_others(&known) {
                tracing::warn!(%error, "programs at a link that no endpoint has cannot be ended");
            }
            for name in links.into_keys().filter(|name| is_link_name(name) && !known.contains(name)) {
                match self.kernel().delete_link(&name) {
                    Ok(()) => restored.swept.push(name),
                    Err(error) => {
                        tracing::warn!(link = name, %error, "a link that no endpoint has cannot be removed");
                    }
                }
            }
        } else {
            // One of what no endpoint has may be a pod's that runs.
            let (mut table, mut netns) = self.keep_unknown(&unreadable, &links)?;
            table.extend(self.table());
            netns.extend(self.netns_table());
            self.kernel().set_tables(&table, &netns)?;
        }
        for endpoint in self.list().iter().filter(|endpoint| is_restoring(endpoint)) {
            self.reinstall(endpoint);
            restored.endpoints += 1;
        }
        Ok(restored)
    }

    /// Programs may be attached from now on: those of every endpoint are, and requests that wait go on.
    pub fn serve(&self) {
        self.known().serves = true;
        self.shared.changed.notify_all();
        for endpoint in self.list().into_iter().filter(is_restoring) {
            self.finish(&endpoint);
        }
        self.attach_unknown();
        // What changed while no agent ran.
        self.follow_annotations();
    }

    /// Tries again what could not be restored or removed. Whether there is anything left. Whom somebody works at has to wait.
    pub fn retry(&self) -> bool {
        let serves = self.known().serves;
        for endpoint in self.list() {
            if !is_unfinished(&endpoint) {
                continue;
            }
            let Some(_claim) = self.try_claim(&endpoint.attachment) else { continue };
            match self.get(endpoint.id) {
                Some(now) if now.state == State::Disconnecting => {
                    let reason = now.log.back().map(|last| last.reason.clone()).unwrap_or_default();
                    self.disconnect_or_warn(&now, &reason);
                }
                Some(now) if serves && is_restoring(&now) => self.finish_claimed(&now),
                Some(_) | None => {}
            }
        }
        self.list().iter().any(is_unfinished)
    }

    /// What cannot be removed now is tried again.
    fn disconnect_or_warn(&self, endpoint: &Endpoint, reason: &str) {
        if let Err(error) = self.disconnect(endpoint.id, reason) {
            tracing::warn!(endpoint = endpoint.id, pod = endpoint.name(), reason, %error, "an endpoint cannot be removed yet");
        }
    }

    fn finish(&self, endpoint: &Endpoint) {
        // One that is being removed needs nothing.
        let Ok(_claim) = self.claim(&endpoint.attachment) else { return };
        if let Some(now) = self.get(endpoint.id).filter(is_restoring) {
            self.finish_claimed(&now);
        }
    }

    fn finish_claimed(&self, endpoint: &Endpoint) {
        if self.reinstall(endpoint) {
            let kept = self.update(endpoint.id, |endpoint| endpoint.enter(State::Ready, "restored"));
            if let Err(error) = kept {
                tracing::warn!(endpoint = endpoint.id, %error, "an endpoint is restored, and that cannot be noted");
            }
        }
    }

    fn reinstall(&self, endpoint: &Endpoint) -> bool {
        match self.install(endpoint) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(endpoint = endpoint.id, pod = endpoint.name(), %error, "an endpoint cannot be restored yet");
                let mut known = self.known();
                if let Some(endpoint) = known.by_id.get_mut(&endpoint.id) {
                    endpoint.enter(State::Restoring, error.to_string());
                }
                false
            }
        }
    }

    fn remember(&self, record: Endpoint) {
        let mut known = self.known();
        for addr in &record.addresses {
            if !known.ipam.restore((*addr).into()) {
                tracing::warn!(endpoint = record.id, %addr, "two endpoints have one address");
            }
        }
        known.last_id = record.id;
        known.by_id.insert(record.id, record);
    }
}

fn is_restoring(endpoint: &Endpoint) -> bool {
    endpoint.state == State::Restoring
}

fn is_unfinished(endpoint: &Endpoint) -> bool {
    is_restoring(endpoint) || endpoint.state == State::Disconnecting
}
