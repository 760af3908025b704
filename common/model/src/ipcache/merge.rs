//! One table of all that is known of addresses, and what of it a change changes.

mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use portway_datapath::{Addr, IpcacheValue, NumericIdentity};

use super::endpoints::{EndpointAddress, EndpointSource, Endpoints};
use super::prefixes::{Key, Prefixes, V4_BITS, addresses, keys};
use super::reach::Reach;
use crate::k8s::Uid;

/// What an entry of `pw_ipcache` becomes; `None`: it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryChange {
    pub key: Key,
    pub value: Option<IpcacheValue>,
    /// There is an entry that it takes the place of.
    pub replaces: bool,
}

/// Who tells of addresses. Until all have told everything, what an earlier agent wrote stays where nobody tells of it, and
/// where one that has not told everything may know better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Nodes, their prefixes and this node's own addresses.
    Nodes,
    /// CiliumEndpoints or CiliumEndpointSlices of all nodes.
    Endpoints,
    /// This node's pods.
    LocalEndpoints,
    /// Addresses of the API server.
    ApiServer,
}

impl Source {
    pub const ALL: [Self; 4] = [Self::Nodes, Self::Endpoints, Self::LocalEndpoints, Self::ApiServer];
}

/// As a status names it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Endpoints => "CiliumEndpoints",
            Self::LocalEndpoints => "this node's pods",
            Self::ApiServer => "the API server's addresses",
        })
    }
}

/// What nodes say.
#[derive(Clone, Copy, Debug)]
pub struct NodesView<'a> {
    pub reach: &'a Reach,
    /// This node's addresses on its links: all of them, also without `knows`.
    pub local: &'a BTreeSet<Addr>,
    /// Everything is known: what is not in `reach` is gone.
    pub knows: bool,
}

/// The content of `pw_ipcache`, made of its sources.
///
/// Of an address, the first of these says who it is: this node; another node (one that runs the API server is that); the
/// endpoint that has it; a node's health endpoint; an API server outside the cluster; a CIDR; then the prefix around it.
/// Addresses of pods without an entry of their own are of nobody that is known, never of the world.
///
/// What is changed is returned by each call: the caller writes it. A value is computed when it is asked for, so that an
/// address costs what its sources hold.
#[derive(Clone, Debug, Default)]
pub struct Ipcache {
    /// Nodes have both families: the world has a number for each.
    dual_stack: bool,
    /// Other nodes' pods are reached by the tunnel.
    tunnel: bool,
    nodes: Prefixes<Reached>,
    local: BTreeSet<Addr>,
    health: BTreeSet<Addr>,
    endpoints: Endpoints,
    /// With the number that each has where it is outside the cluster.
    api_server: BTreeMap<Addr, NumericIdentity>,
    cidrs: Prefixes<NumericIdentity>,
    /// What an earlier agent wrote, sorted; empty once all sources have told everything.
    restored: Vec<(Key, IpcacheValue)>,
    synced: BTreeSet<Source>,
}

/// What nodes make of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    value: IpcacheValue,
    /// It is a prefix of pods.
    of_pods: bool,
}

/// `::/0` and `0.0.0.0/0`.
const WORLD: [Key; 2] = [(Addr::ANY_V6, 0), (Addr::ANY_V4, V4_BITS)];
const HOST_BITS: u8 = 128;

impl Ipcache {
    pub fn new(tunnel: bool, dual_stack: bool) -> Self {
        Self { dual_stack, tunnel, ..Self::default() }
    }

    /// What an earlier agent wrote: it stays until all sources have told everything.
    pub fn restore(&mut self, mut found: Vec<(Key, IpcacheValue)>) {
        if self.missing().next().is_some() {
            found.sort_unstable_by_key(|(key, _)| *key);
            self.restored = found;
        }
    }

    /// What makes a table that holds `found`, sorted, hold what it should. O(entries).
    pub fn differences(&self, found: &[(Key, IpcacheValue)]) -> Vec<EntryChange> {
        let is_found = |key: &Key| found.binary_search_by_key(key, |(key, _)| *key).is_ok();
        let missing = self.keys().into_iter().filter(|key| !is_found(key));
        let missing = missing.map(|key| EntryChange { key, value: self.value(key), replaces: false });
        let held = found
            .iter()
            .map(|(key, held)| (EntryChange { key: *key, value: self.value(*key), replaces: true }, held));
        let others = held.filter(|(change, held)| change.value != Some(**held)).map(|(change, _)| change);
        missing.chain(others).collect()
    }

    /// What nodes say now.
    pub fn set_nodes(&mut self, view: NodesView<'_>) -> Vec<EntryChange> {
        let pods: BTreeSet<Key> =
            view.reach.pod_prefixes().map(|prefix| (prefix.addr(), prefix.bits())).collect();
        let reached = |(key, value): (&Key, &IpcacheValue)| {
            (*key, Reached { value: *value, of_pods: pods.contains(key) })
        };
        let mut news: Vec<(Key, Option<Reached>)> = view
            .reach
            .ipcache
            .iter()
            .map(reached)
            .filter(|(key, reached)| self.nodes.get(key) != Some(reached))
            .map(|(key, reached)| (key, Some(reached)))
            .collect();
        let host = |addr: &Addr| (*addr, HOST_BITS);
        let mut dirty: Vec<Key> = self.local.symmetric_difference(view.local).map(host).collect();
        if view.knows {
            let gone = self.nodes.iter().filter(|(key, _)| !view.reach.ipcache.contains_key(key));
            news.extend(gone.map(|(key, _)| (*key, None)));
            dirty.extend(self.health.symmetric_difference(&view.reach.health).map(host));
        } else {
            dirty.extend(view.reach.health.difference(&self.health).map(host));
        }
        let is_here = |reached: Option<&Reached>| {
            reached.is_some_and(|reached| reached.value.identity == NumericIdentity::HOST)
        };
        for (key, reached) in &news {
            dirty.push(*key);
            self.keys_in(*key, &mut dirty);
            // Which endpoints are this node's depends on its addresses.
            if is_here(reached.as_ref()) != is_here(self.nodes.get(key)) {
                dirty.extend(self.endpoints.addresses().map(|addr| host(&addr)));
            }
        }
        let first = view.knows && !self.synced.contains(&Source::Nodes);
        if first {
            self.keys_that_wait(&mut dirty);
        }
        self.change(dirty, |ipcache| {
            for (key, reached) in news {
                match reached {
                    Some(reached) => drop(ipcache.nodes.insert(key, reached)),
                    None => drop(ipcache.nodes.remove(&key)),
                }
            }
            ipcache.local.clone_from(view.local);
            if view.knows {
                ipcache.health.clone_from(&view.reach.health);
                ipcache.note_synced(Source::Nodes);
            } else {
                ipcache.health.extend(&view.reach.health);
            }
        })
    }

    /// A source tells that an endpoint has an address.
    pub fn set_endpoint(&mut self, source: EndpointSource, told: &EndpointAddress) -> Option<EntryChange> {
        self.change_one((told.addr, HOST_BITS), |ipcache| ipcache.endpoints.set(source, told))
    }

    /// A source tells no more that an endpoint has an address.
    pub fn remove_endpoint(&mut self, source: EndpointSource, addr: Addr, uid: Uid) -> Option<EntryChange> {
        self.change_one((addr, HOST_BITS), |ipcache| ipcache.endpoints.remove(source, addr, uid))
    }

    /// The addresses of the API server, each with the number that it has where it is outside the cluster.
    pub fn set_api_server(&mut self, addresses: BTreeMap<Addr, NumericIdentity>) -> Vec<EntryChange> {
        let differs = |of: &BTreeMap<Addr, NumericIdentity>, addr: &Addr, number: &NumericIdentity| {
            of.get(addr) != Some(number)
        };
        let news = addresses.iter().filter(|(addr, number)| differs(&self.api_server, addr, number));
        let gone = self.api_server.iter().filter(|(addr, number)| differs(&addresses, addr, number));
        let dirty = news.chain(gone).map(|(addr, _)| (*addr, HOST_BITS)).collect();
        self.change(dirty, |ipcache| ipcache.api_server = addresses)
    }

    /// Gives a prefix outside the cluster an identity, or takes it.
    pub fn set_cidr(&mut self, key: Key, identity: Option<NumericIdentity>) -> Vec<EntryChange> {
        let mut dirty = vec![key];
        // Prefixes that nodes tell of within it are of nobody else.
        self.keys_in(key, &mut dirty);
        self.change(dirty, |ipcache| match identity {
            Some(identity) => drop(ipcache.cidrs.insert(key, identity)),
            None => drop(ipcache.cidrs.remove(&key)),
        })
    }

    /// A source has told everything there is. With the last one what an earlier agent wrote and nobody tells of goes.
    pub fn synced(&mut self, source: Source) -> Vec<EntryChange> {
        if self.synced.contains(&source) {
            return Vec::new();
        }
        let mut dirty = Vec::new();
        self.keys_that_wait(&mut dirty);
        self.change(dirty, |ipcache| ipcache.note_synced(source))
    }

    /// Sources that have not told everything yet.
    pub fn missing(&self) -> impl Iterator<Item = Source> {
        Source::ALL.into_iter().filter(|source| !self.synced.contains(source))
    }

    /// How many entries of an earlier agent are kept until all sources have told everything.
    pub fn kept(&self) -> usize {
        self.restored.len()
    }

    /// The value that programs find for an address: that of the longest prefix.
    pub fn lookup(&self, addr: Addr) -> Option<(Key, IpcacheValue)> {
        let lengths = (0..=HOST_BITS).rev();
        let key = |bits| (*addresses((addr, bits)).start(), bits);
        let of_family = |bits: &u8| addr.family() == portway_datapath::Family::V6 || *bits >= V4_BITS;
        lengths.filter(of_family).map(key).find_map(|key| Some((key, self.value(key)?)))
    }

    /// Every entry's key, sorted. O(entries).
    pub fn keys(&self) -> Vec<Key> {
        let host = |addr: Addr| (addr, HOST_BITS);
        let mut keys: Vec<Key> = self.endpoints.addresses().map(host).collect();
        keys.extend(self.nodes.iter().map(|(key, _)| *key));
        keys.extend(self.local.iter().chain(&self.health).chain(self.api_server.keys()).copied().map(host));
        keys.extend(self.cidrs.iter().map(|(key, _)| *key));
        keys.extend(self.restored.iter().map(|(key, _)| *key));
        keys.extend(WORLD.into_iter().filter(|key| self.value(*key).is_some()));
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Everything, in order. O(entries).
    pub fn entries(&self) -> impl Iterator<Item = (Key, IpcacheValue)> {
        self.keys().into_iter().filter_map(|key| Some((key, self.value(key)?)))
    }

    /// Does a change; what became another one among `dirty`.
    fn change(&mut self, mut dirty: Vec<Key>, change: impl FnOnce(&mut Self)) -> Vec<EntryChange> {
        dirty.sort_unstable();
        dirty.dedup();
        let before: Vec<_> = dirty.into_iter().map(|key| (key, self.value(key))).collect();
        change(self);
        let changed = before.into_iter().filter_map(|(key, before)| {
            let value = self.value(key);
            (value != before).then_some(EntryChange { key, value, replaces: before.is_some() })
        });
        changed.collect()
    }

    fn change_one(&mut self, key: Key, change: impl FnOnce(&mut Self)) -> Option<EntryChange> {
        let before = self.value(key);
        change(self);
        let value = self.value(key);
        (value != before).then_some(EntryChange { key, value, replaces: before.is_some() })
    }

    fn note_synced(&mut self, source: Source) {
        self.synced.insert(source);
        if self.missing().next().is_none() {
            self.restored = Vec::new();
        }
    }

    /// Keys whose values may be other ones when sources have told everything.
    fn keys_that_wait(&self, dirty: &mut Vec<Key>) {
        dirty.extend(self.restored.iter().map(|(key, _)| *key));
        dirty.extend(self.nodes.iter().filter(|(key, _)| key.1 < HOST_BITS).map(|(key, _)| *key));
        dirty.extend(WORLD);
    }

    /// Keys of all sources that begin within a prefix.
    fn keys_in(&self, key: Key, dirty: &mut Vec<Key>) {
        let host = |addr: Addr| (addr, HOST_BITS);
        dirty.extend(self.nodes.beginning_in(key).map(|(key, _)| *key));
        dirty.extend(self.cidrs.beginning_in(key).map(|(key, _)| *key));
        dirty.extend(self.endpoints.within(key).map(host));
        for addrs in [&self.local, &self.health] {
            dirty.extend(addrs.range(addresses(key)).copied().map(host));
        }
        dirty.extend(self.api_server.range(addresses(key)).map(|(addr, _)| host(*addr)));
        let within = keys(key);
        let first = self.restored.partition_point(|(key, _)| key < within.start());
        let restored = self.restored.iter().skip(first).map(|(key, _)| *key);
        dirty.extend(restored.take_while(|key| within.contains(key)));
    }
}

#[cfg(test)]
mod tests;
