use std::collections::BTreeMap;
use std::net::IpAddr;

use portway_datapath::{Addr, IpcacheValue, NumericIdentity, layout};
use portway_model::ipcache::Key;
use portway_model::labels::Labels;
use portway_model::node::Prefix;
use serde::{Deserialize, Serialize};

use super::compare::AT_ONCE;
use super::{EntryDifference, Ipcache};
use crate::api::Difference;

/// An entry as people read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpcacheEntry {
    /// `10.0.1.7/32`.
    pub prefix: String,
    /// 0 where it is unknown.
    pub identity: u32,
    /// Sorted; empty where they are not known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The node that the tunnel leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel_endpoint: Option<IpAddr>,
    /// `inside`: what goes there keeps its source address; `node`: of another node; `pods`: of another node's pods.
    pub flags: Vec<String>,
}

impl IpcacheEntry {
    pub fn new(key: Key, value: &IpcacheValue) -> Self {
        let prefix = text_of(key);
        let flags =
            [(IpcacheValue::INSIDE, "inside"), (IpcacheValue::NODE, "node"), (IpcacheValue::PODS, "pods")];
        let flags = flags.into_iter().filter(|(flag, _)| value.is(*flag)).map(|(_, name)| name.to_owned());
        let labels = Labels::of_reserved(value.identity).filter(|_| value.identity.is_known());
        Self {
            prefix,
            identity: value.identity.get(),
            labels: labels.iter().flatten().map(ToString::to_string).collect(),
            tunnel_endpoint: value.tunnel().map(IpAddr::from),
            flags: flags.collect(),
        }
    }

    /// What there is at a prefix, in a line.
    fn text(key: Key, value: Option<&IpcacheValue>) -> String {
        let Some(value) = value else { return "no entry".to_owned() };
        let Self { identity, tunnel_endpoint, flags, .. } = Self::new(key, value);
        let tunnel = tunnel_endpoint.map(|node| format!(" by {node}")).unwrap_or_default();
        let flags = if flags.is_empty() { String::new() } else { format!(", {}", flags.join("+")) };
        format!("identity {identity}{tunnel}{flags}")
    }

    pub const fn identity(&self) -> NumericIdentity {
        NumericIdentity::new(self.identity)
    }
}

impl From<&EntryDifference> for Difference {
    fn from(difference: &EntryDifference) -> Self {
        let EntryDifference { key, held, wanted, is_pending } = difference;
        let later = if *is_pending { " (tried again)" } else { "" };
        Self {
            kind: layout::IPCACHE.to_owned(),
            what: format!("{}{later}", text_of(*key)),
            held: IpcacheEntry::text(*key, held.as_ref()),
            wanted: IpcacheEntry::text(*key, wanted.as_ref()),
        }
    }
}

/// `10.0.1.0/24`. Only prefixes of one family are written.
fn text_of((addr, bits): Key) -> String {
    Prefix::new(addr, bits).map_or_else(|| format!("{addr}/{bits}"), |prefix| prefix.to_string())
}

impl Ipcache {
    /// Every entry that should be there, in order, with the labels that this table itself knows; each as it is when it is
    /// looked at.
    pub fn list(&self) -> Vec<IpcacheEntry> {
        let (keys, local) = {
            let state = self.lock();
            let local: BTreeMap<_, _> =
                state.local.iter().map(|(number, labels)| (number, labels.clone())).collect();
            (state.model.keys(), local)
        };
        let entries = keys.chunks(AT_ONCE).flat_map(|keys| self.values(keys)).map(|(key, value)| {
            let mut entry = IpcacheEntry::new(key, &value);
            if let Some(labels) = local.get(&value.identity) {
                entry.labels = labels.iter().map(ToString::to_string).collect();
            }
            entry
        });
        entries.collect()
    }

    fn values(&self, keys: &[Key]) -> Vec<(Key, IpcacheValue)> {
        let state = self.lock();
        keys.iter().filter_map(|key| Some((*key, state.model.value(*key)?))).collect()
    }

    /// Who an address is: the identity of the longest prefix that holds it.
    pub fn identity_of(&self, addr: Addr) -> Option<NumericIdentity> {
        self.lock().model.lookup(addr).map(|(_, value)| value.identity)
    }
}
