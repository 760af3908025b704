//! Pods that run and whose records cannot be read. They keep links, programs, table entries, addresses and numbers, until the
//! runtime ends them or their links vanish.

use std::collections::BTreeMap;
use std::time::Instant;

use portway_datapath::{Addr, EndpointId};

use super::kernel::{Found, Tables};
use super::record::is_link_name;
use super::store::Unreadable;
use super::{EndpointError, Endpoints};

/// What is known of one.
#[derive(Clone, Debug)]
pub(super) struct Unknown {
    ifindex: u32,
    id: u16,
    addresses: Vec<Addr>,
}

impl Endpoints {
    /// What the tables have of pods that nobody knows and whose links are there: nobody else gets their addresses and numbers.
    /// Everything in `pw_netns` may be theirs.
    ///
    /// # Errors
    /// The kernel would not say what the tables hold.
    pub(super) fn keep_unknown(
        &self,
        unreadable: &[Unreadable],
        links: &BTreeMap<String, Found>,
    ) -> Result<Tables, EndpointError> {
        let (mut table, netns) = self.kernel().tables()?;
        let mut known = self.known();
        known.unknown_ids.extend(unreadable.iter().filter_map(|record| record.id));
        let of_known: Vec<_> = known.by_id.values().map(|endpoint| endpoint.link.name.clone()).collect();
        let of_unknown: BTreeMap<_, _> = links
            .iter()
            .filter(|(name, _)| is_link_name(name) && !of_known.contains(name))
            .map(|(name, link)| (link.ifindex, name))
            .collect();
        table.retain(|addr, value| {
            let Some(name) = of_unknown.get(&value.ifindex).filter(|_| value.id != EndpointId::HEALTH.get())
            else {
                return false;
            };
            if !known.ipam.restore(*addr) {
                return false;
            }
            known.unknown_ids.insert(value.id);
            let new = || Unknown { ifindex: value.ifindex, id: value.id, addresses: Vec::new() };
            known.unknown.entry((*name).clone()).or_insert_with(new).addresses.push(*addr);
            true
        });
        Ok((table, netns))
    }

    /// The programs of this agent in the place of the earlier one's.
    pub(super) fn attach_unknown(&self) {
        let all: Vec<_> =
            self.known().unknown.iter().map(|(name, unknown)| (name.clone(), unknown.ifindex)).collect();
        for (name, ifindex) in all {
            if let Err(error) = self.kernel().attach(ifindex, &name) {
                tracing::warn!(link = name, %error, "programs cannot be attached for a pod whose record cannot be read");
            }
        }
    }

    /// Removes those whose links are gone.
    pub(super) fn remove_unknown_gone(&self) {
        let all: Vec<_> =
            self.known().unknown.iter().map(|(name, unknown)| (name.clone(), unknown.ifindex)).collect();
        for (name, ifindex) in all {
            let link = self.kernel().link(&name).map_err(EndpointError::from);
            let removed = link.and_then(|link| match link {
                Some(link) if link.ifindex == ifindex => Ok(()),
                Some(_) | None => self.remove_unknown(&name),
            });
            if let Err(error) = removed {
                tracing::warn!(link = name, %error, "a pod whose record cannot be read cannot be removed yet");
            }
        }
    }

    /// Removes what there is of one, and its record. That there is none of this link is no error.
    pub(super) fn remove_unknown(&self, link: &str) -> Result<(), EndpointError> {
        // Out of what is known first: one alone works at it.
        let Some(unknown) = self.known().unknown.remove(link) else { return Ok(()) };
        if let Err(error) = self.take_apart(link, &unknown) {
            self.known().unknown.insert(link.to_owned(), unknown);
            return Err(error);
        }
        let mut known = self.known();
        let now = Instant::now();
        for addr in &unknown.addresses {
            known.ipam.release(*addr, now);
        }
        known.unknown_ids.remove(&unknown.id);
        drop(known);
        tracing::info!(endpoint = unknown.id, link, "a pod whose record could not be read is gone");
        Ok(())
    }

    fn take_apart(&self, link: &str, unknown: &Unknown) -> Result<(), EndpointError> {
        for addr in &unknown.addresses {
            self.kernel().delete_endpoint(*addr)?;
        }
        self.kernel().delete_link(link)?;
        self.kernel().detach(link)?;
        Ok(self.shared.store.remove(unknown.id)?)
    }
}
