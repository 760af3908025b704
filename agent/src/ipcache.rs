//! The table of who is where: all sources in, `pw_ipcache` out.
//!
//! ```text
//! network ─── nodes, this node's addresses ─┐
//! identities ─ objects, this node's pods ───┴─► Ipcache ─ model: what becomes another entry ─► pw_ipcache
//! ```
//!
//! What is said before the maps are there is written when they are. What the kernel refuses is tried again; until then an
//! address has the entry that it had.

mod compare;
mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portway_datapath::{Addr, NumericIdentity};
use portway_model::ipcache::{
    self as model, AddressNews, AddressObjects, EndpointAddress, EndpointSource, EntryChange, Key,
    LocalIdentities, NodesView, Reach, Source, api_server_labels, in_order,
};
use portway_model::k8s::{Event, Uid};
use portway_model::labels::Labels;

use crate::maps::{MapError, PodTables};

pub use compare::{Comparison, EntryDifference};
pub use listing::IpcacheEntry;

/// The writer of `pw_ipcache`. Cheap to clone; for any thread.
#[derive(Clone)]
pub struct Ipcache {
    state: Arc<Mutex<State>>,
    /// Held by the one comparison that is under way; taken before `state`.
    comparing: Arc<Mutex<()>>,
}

/// How much was written, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpcacheStatus {
    /// Entries that the map holds.
    pub entries: u64,
    /// Entries written, and taken out.
    pub upserts: u64,
    pub deletes: u64,
    /// Entries that the map had no room for, each time it was tried.
    pub full: u64,
    /// Other refusals of the kernel's.
    pub errors: u64,
    /// Entries that are not as they should be.
    pub outstanding: u64,
    pub last_error: Option<String>,
    /// Differences that comparisons with the kernel found.
    pub healed: u64,
    /// Sources that have not told everything yet: nothing is removed.
    pub missing: Vec<Source>,
    /// Entries of an earlier agent that stay until they have.
    pub kept: u64,
    /// The API server runs on this node.
    pub api_server_is_here: bool,
}

struct State {
    model: model::Ipcache,
    objects: AddressObjects,
    local: LocalIdentities,
    api_server: BTreeSet<Addr>,
    dual_stack: bool,
    /// `None` until the maps are there.
    tables: Option<PodTables>,
    /// What the kernel refused, and whether it has an entry of the key.
    outstanding: BTreeMap<Key, bool>,
    /// What was written, or should have been, since the comparison under way began.
    written: Option<BTreeSet<Key>>,
    status: IpcacheStatus,
}

impl Ipcache {
    /// `tunnel`: pods of other nodes are reached by the tunnel; `dual_stack`: pods have addresses of both families.
    pub fn new(tunnel: bool, dual_stack: bool) -> Self {
        let state = State {
            model: model::Ipcache::new(tunnel, dual_stack),
            objects: AddressObjects::default(),
            local: LocalIdentities::default(),
            api_server: BTreeSet::new(),
            dual_stack,
            tables: None,
            outstanding: BTreeMap::new(),
            written: None,
            status: IpcacheStatus::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), comparing: Arc::default() }
    }

    /// The maps are there: from now on everything is written. What an earlier agent wrote stays until every source has told
    /// everything.
    ///
    /// # Errors
    /// The kernel refuses. What it refused to take is tried again; where it would not be read, call this again.
    pub fn attach(&self, tables: PodTables) -> Result<(), MapError> {
        let found = tables.reader().ipcache_entries()?;
        let mut state = self.lock();
        for (key, value) in &found {
            state.local.restore(*key, value.identity);
        }
        state.model.restore(found.clone());
        state.tables = Some(tables);
        state.status.entries = found.len() as u64;
        let changes = state.model.differences(&found);
        state.write(changes)
    }

    /// What nodes say of prefixes, and `local`, this node's own addresses. With `knows` nodes that are not there are gone.
    ///
    /// # Errors
    /// The kernel refuses an entry; [`Self::retry`] goes on from there.
    pub fn set_nodes(&self, reach: &Reach, local: &BTreeSet<Addr>, knows: bool) -> Result<(), MapError> {
        let mut state = self.lock();
        let changes = state.model.set_nodes(NodesView { reach, local, knows });
        state.write(changes)
    }

    /// What an object of the cluster says: CiliumEndpoints, CiliumEndpointSlices, and the EndpointSlices of the API server's
    /// service. Others say nothing here.
    ///
    /// # Errors
    /// As [`Self::set_nodes`].
    pub fn apply(&self, event: &Event) -> Result<(), MapError> {
        let mut state = self.lock();
        let news = state.objects.apply(event);
        let mut result = Ok(());
        for news in news {
            let changes = match news {
                AddressNews::Told(source, told) => {
                    state.model.set_endpoint(source, &told).into_iter().collect()
                }
                AddressNews::Gone(source, addr, uid) => {
                    state.model.remove_endpoint(source, addr, uid).into_iter().collect()
                }
                AddressNews::ApiServer(addresses) => state.set_api_server(addresses),
            };
            result = result.and(state.write(changes));
        }
        result
    }

    /// A source tells that an endpoint has an address: this node, of its own pods. `Ok` means that the kernel has it, also
    /// when it was told before and refused.
    ///
    /// # Errors
    /// As [`Self::set_nodes`].
    pub fn upsert(&self, source: EndpointSource, told: &EndpointAddress) -> Result<(), MapError> {
        let mut state = self.lock();
        let change = state.model.set_endpoint(source, told).or_else(|| state.refused((told.addr, 128)));
        state.write(change)
    }

    /// A source tells no more that an endpoint has an address.
    ///
    /// # Errors
    /// As [`Self::set_nodes`].
    pub fn remove(&self, source: EndpointSource, addr: Addr, uid: Uid) -> Result<(), MapError> {
        let mut state = self.lock();
        let change = state.model.remove_endpoint(source, addr, uid);
        state.write(change)
    }

    /// A source has told everything there is. With the last one what nobody tells of goes. [`Source::Nodes`] is noted by
    /// [`Self::set_nodes`].
    ///
    /// # Errors
    /// As [`Self::set_nodes`].
    pub fn synced(&self, source: Source) -> Result<(), MapError> {
        let mut state = self.lock();
        let changes = state.model.synced(source);
        state.write(changes)
    }

    /// Whether there is something for [`Self::retry`].
    pub fn is_behind(&self) -> bool {
        !self.lock().outstanding.is_empty()
    }

    /// Writes what the kernel refused before.
    ///
    /// # Errors
    /// It refuses again.
    pub fn retry(&self) -> Result<(), MapError> {
        let mut state = self.lock();
        let keys = std::mem::take(&mut state.outstanding);
        let change = |(key, replaces)| EntryChange { key, value: state.model.value(key), replaces };
        let changes: Vec<_> = keys.into_iter().map(change).collect();
        state.write(changes)
    }

    /// Identities that only this node knows, with their labels.
    pub fn local_identities(&self) -> Vec<(NumericIdentity, Labels)> {
        let state = self.lock();
        state.local.iter().map(|(number, labels)| (number, labels.clone())).collect()
    }

    pub fn status(&self) -> IpcacheStatus {
        let state = self.lock();
        let host = |addr: &Addr| state.model.value((*addr, 128)).map(|value| value.identity);
        IpcacheStatus {
            outstanding: state.outstanding.len() as u64,
            missing: state.model.missing().collect(),
            kept: state.model.kept() as u64,
            api_server_is_here: state.api_server.iter().any(|addr| host(addr) == Some(NumericIdentity::HOST)),
            ..state.status.clone()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn set_api_server(&mut self, addresses: BTreeSet<Addr>) -> Vec<EntryChange> {
        let numbered = self.numbered(&addresses);
        self.api_server = addresses;
        self.model.set_api_server(numbered)
    }

    /// Each address with the number that it has outside the cluster.
    fn numbered(&mut self, addresses: &BTreeSet<Addr>) -> BTreeMap<Addr, NumericIdentity> {
        let numbered = addresses.iter().map(|addr| {
            let labels = api_server_labels(*addr, self.dual_stack);
            // There are 16 million.
            let number = self.local.give((*addr, 128), &labels).unwrap_or(NumericIdentity::UNKNOWN);
            (*addr, number)
        });
        numbered.collect()
    }

    /// What the kernel refused to make of a key.
    fn refused(&self, key: Key) -> Option<EntryChange> {
        let replaces = *self.outstanding.get(&key)?;
        Some(EntryChange { key, value: self.model.value(key), replaces })
    }

    /// Everything that can be written is, so that in between an address has what it had or what it will have; the first
    /// refusal.
    fn write(&mut self, changes: impl IntoIterator<Item = EntryChange>) -> Result<(), MapError> {
        let Some(tables) = self.tables.clone() else { return Ok(()) };
        let mut result = Ok(());
        for change in in_order(changes) {
            result = result.and(self.write_one(&tables, change));
        }
        result
    }

    fn write_one(&mut self, tables: &PodTables, change: EntryChange) -> Result<(), MapError> {
        let EntryChange { key, value, replaces } = change;
        let replaces = self.outstanding.remove(&key).unwrap_or(replaces);
        if let Some(written) = &mut self.written {
            written.insert(key);
        }
        let written = tables.change_ipcache(key, value.as_ref());
        let status = &mut self.status;
        match (&written, value, replaces) {
            (Ok(()), Some(_), false) => {
                (status.upserts, status.entries) = (status.upserts + 1, status.entries + 1)
            }
            (Ok(()), Some(_), true) => status.upserts += 1,
            (Ok(()), None, true) => {
                (status.deletes, status.entries) = (status.deletes + 1, status.entries.saturating_sub(1));
            }
            // It never came to be there.
            (Ok(()), None, false) => {}
            (Err(error), ..) => {
                let counter = match matches!(error, MapError::Full { .. }) {
                    true => &mut status.full,
                    false => &mut status.errors,
                };
                *counter += 1;
                status.last_error = Some(error.to_string());
                self.outstanding.insert(key, replaces);
            }
        }
        written
    }
}

impl fmt::Debug for Ipcache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ipcache").field("status", &self.status()).finish()
    }
}
