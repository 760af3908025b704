//! What an entry is, of all that its sources say.

use portway_datapath::{Family, IpcacheValue, NumericIdentity};

use super::{HOST_BITS, Ipcache, Source, WORLD};
use crate::ipcache::endpoints::{EndpointSource, Owner};
use crate::ipcache::prefixes::Key;

impl Ipcache {
    /// What an entry is, if there is one.
    pub fn value(&self, key: Key) -> Option<IpcacheValue> {
        let told = self.told(key);
        let Some(restored) = self.restored(key) else { return told.map(|told| told.value) };
        match told {
            None => Some(IpcacheValue { identity: restored.identity, ..self.way(key, restored) }),
            // A source that has not told everything may know better, and so did the earlier agent.
            Some(told) if !told.is_certain && restored.identity.is_known() => {
                Some(IpcacheValue { identity: restored.identity, ..told.value })
            }
            Some(told) => Some(told.value),
        }
    }

    fn restored(&self, key: Key) -> Option<IpcacheValue> {
        let at = self.restored.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.restored.get(at).map(|(_, value)| *value)
    }

    /// What the sources say of a key.
    fn told(&self, key: Key) -> Option<Told> {
        if key.1 == HOST_BITS
            && let Some(told) = self.told_of_address(key)
        {
            return Some(told);
        }
        if let Some(identity) = self.cidrs.get(&key) {
            return Some(self.around(key).with(*identity));
        }
        if let Some(reached) = self.nodes.get(&key) {
            let identity = if reached.of_pods { NumericIdentity::UNKNOWN } else { self.outside(key) };
            let is_certain = self.have_told(&[Source::Nodes]);
            return Some(Told { value: IpcacheValue { identity, ..reached.value }, is_certain });
        }
        (WORLD.contains(&key) && self.have_told(&[Source::Nodes]))
            .then(|| Told { value: IpcacheValue::new(self.world(key), None, 0), is_certain: true })
    }

    fn told_of_address(&self, key: Key) -> Option<Told> {
        let (addr, _) = key;
        let node = self.nodes.get(&key).map_or(NumericIdentity::UNKNOWN, |node| node.value.identity);
        if node == NumericIdentity::HOST || self.local.contains(&addr) {
            return Some(Told { is_certain: true, ..self.around(key).with(NumericIdentity::HOST) });
        }
        if node.is_known() {
            // Until it is told where the API server is, it is where it was.
            let ran_api_server = || {
                let before = self.restored(key).map(|restored| restored.identity);
                before == Some(NumericIdentity::KUBE_APISERVER) && !self.have_told(&[Source::ApiServer])
            };
            let runs_api_server = self.api_server.contains_key(&addr) || ran_api_server();
            let identity = if runs_api_server { NumericIdentity::KUBE_APISERVER } else { node };
            let is_certain = self.have_told(&[Source::Nodes]);
            return Some(Told { is_certain, ..self.around(key).with(identity) });
        }
        // Nodes go before endpoints, and this node's pods before the others'.
        let is_certain = self.have_told(&[Source::Nodes, Source::Endpoints, Source::LocalEndpoints]);
        if let Some(owner) = self.endpoints.owner(addr) {
            let value = IpcacheValue { identity: owner.identity, ..self.way_to(key, &owner) };
            return Some(Told { value, is_certain: is_certain || owner.source == EndpointSource::Local });
        }
        if self.health.contains(&addr) {
            return Some(Told { is_certain, ..self.around(key).with(NumericIdentity::HEALTH) });
        }
        let identity = self.api_server.get(&addr)?;
        Some(Told { is_certain, ..self.around(key).with(*identity) })
    }

    fn have_told(&self, sources: &[Source]) -> bool {
        sources.iter().all(|source| self.synced.contains(source))
    }

    /// The way that nodes say of a prefix, without an identity.
    fn around(&self, key: Key) -> Told {
        let around = self.nodes.covering(key).next().map(|(_, reached)| reached.value);
        let value = around.unwrap_or_else(|| IpcacheValue::new(NumericIdentity::UNKNOWN, None, 0));
        Told { value, is_certain: false }
    }

    /// The way to an endpoint: that of the prefix of pods around it, else its own.
    fn way_to(&self, key: Key, owner: &Owner) -> IpcacheValue {
        if let Some(value) = self.of_pods(key) {
            return value;
        }
        // Which prefix is around it is not known yet.
        if !self.synced.contains(&Source::Nodes)
            && let Some(restored) = self.restored(key)
        {
            return restored;
        }
        let is_here = owner.source == EndpointSource::Local
            || owner.node.is_some_and(|node| {
                self.nodes
                    .get(&(node, HOST_BITS))
                    .is_some_and(|node| node.value.identity == NumericIdentity::HOST)
            });
        let (tunnel, flags) = match is_here {
            true => (None, IpcacheValue::INSIDE),
            false => (owner.node.filter(|_| self.tunnel), IpcacheValue::INSIDE | IpcacheValue::PODS),
        };
        IpcacheValue::new(NumericIdentity::UNKNOWN, tunnel, flags)
    }

    /// The way to what only the earlier agent tells of.
    fn way(&self, key: Key, restored: IpcacheValue) -> IpcacheValue {
        match key.1 {
            HOST_BITS => self.of_pods(key).unwrap_or(restored),
            _ => restored,
        }
    }

    fn of_pods(&self, key: Key) -> Option<IpcacheValue> {
        self.nodes.covering(key).find(|(_, reached)| reached.of_pods).map(|(_, reached)| reached.value)
    }

    /// Who is at addresses of a prefix that is no pods': the CIDR around it, or the world. Before nodes are known they may
    /// be pods'.
    fn outside(&self, key: Key) -> NumericIdentity {
        if !self.synced.contains(&Source::Nodes) {
            return NumericIdentity::UNKNOWN;
        }
        let cidr = self.cidrs.covering(key).next().map(|(_, identity)| *identity);
        cidr.unwrap_or_else(|| self.world(key))
    }

    fn world(&self, (addr, _): Key) -> NumericIdentity {
        match (self.dual_stack, addr.family()) {
            (false, _) => NumericIdentity::WORLD,
            (true, Family::V4) => NumericIdentity::WORLD_IPV4,
            (true, Family::V6) => NumericIdentity::WORLD_IPV6,
        }
    }
}

/// What the sources say of a prefix.
#[derive(Clone, Copy, Debug)]
struct Told {
    value: IpcacheValue,
    /// Nobody knows better, whatever else is to come: those that go before who tells it have told everything.
    is_certain: bool,
}

impl Told {
    fn with(self, identity: NumericIdentity) -> Self {
        Self { value: IpcacheValue { identity, ..self.value }, ..self }
    }
}
