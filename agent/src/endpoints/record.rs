use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use portway_cni::protocol::{AttachmentId, PodName};
use portway_datapath::{Addr, EndpointValue, NumericIdentity};
use serde::{Deserialize, Serialize};

/// Changes of its state that an endpoint remembers.
const LOG: usize = 64;

/// One interface of one pod, as it is kept in the state directory and shown by `portway endpoint`.
///
/// An agent of an earlier or a later version reads it too: what it does not know of it is left out, and a field that comes
/// later has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub id: u16,
    pub attachment: AttachmentId,
    #[serde(default)]
    /// The network's name in the runtime's configuration.
    pub network: String,
    #[serde(default)]
    pub pod: PodName,
    #[serde(default)]
    /// The path of the pod's network namespace when it was made.
    pub netns: String,
    /// `SO_NETNS_COOKIE` of its sockets.
    pub netns_cookie: u64,
    pub link: Link,
    pub addresses: Vec<IpAddr>,
    /// Whether the socket programs translate for the pod.
    #[serde(default = "translated")]
    pub socket_lb: bool,
    /// Who its pod is; absent until that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<EndpointIdentity>,
    #[serde(default)]
    /// Milliseconds since 1970.
    pub created: u64,
    pub state: State,
    /// The last changes of `state`, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub log: VecDeque<Change>,
}

/// Who a pod is, for policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointIdentity {
    /// [`NumericIdentity`].
    pub id: u32,
    /// The labels that the number stands for, as `k8s:app=x`, sorted.
    pub labels: Vec<String>,
}

impl EndpointIdentity {
    pub const fn number(&self) -> NumericIdentity {
        NumericIdentity::new(self.id)
    }
}

/// The pod's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Of the node's end.
    pub name: String,
    /// Of the node's end; 0 while there is none yet.
    pub ifindex: u32,
    /// Of the node's end.
    pub node_mac: Mac,
    /// Of the pod's end.
    pub pod_mac: Mac,
    /// Bytes; of a link that another plugin made as it was found.
    pub mtu: u32,
    /// Another plugin made it, and removes it.
    pub is_chained: bool,
}

/// The states of Cilium's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The container runtime has asked for it.
    Creating,
    /// Its pod's labels are not known yet, or their number.
    WaitingForIdentity,
    /// Its programs and table entries are being made.
    Regenerating,
    Ready,
    Disconnecting,
    Disconnected,
    /// Of an earlier agent, and not looked at yet. So is what a later version calls in a way that is not known here.
    #[serde(other)]
    Restoring,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Milliseconds since 1970.
    pub at: u64,
    pub state: State,
    pub reason: String,
}

/// What most pods' sockets are.
const fn translated() -> bool {
    true
}

impl State {
    pub const ALL: [Self; 7] = [
        Self::Creating,
        Self::WaitingForIdentity,
        Self::Regenerating,
        Self::Ready,
        Self::Disconnecting,
        Self::Disconnected,
        Self::Restoring,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::WaitingForIdentity => "waiting-for-identity",
            Self::Regenerating => "regenerating",
            Self::Ready => "ready",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
            Self::Restoring => "restoring",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Endpoint {
    /// Notes a change of the state, or another reason for the same.
    pub(super) fn enter(&mut self, state: State, reason: impl Into<String>) {
        self.state = state;
        if self.log.len() >= LOG {
            self.log.pop_front();
        }
        self.log.push_back(Change { at: now(), state, reason: reason.into() });
    }

    /// `namespace/name`, or the container where the runtime named no pod.
    pub fn name(&self) -> String {
        let PodName { namespace, name, .. } = &self.pod;
        if name.is_empty() { self.attachment.container.clone() } else { format!("{namespace}/{name}") }
    }

    /// What `pw_endpoints` holds of it, for each of its addresses.
    pub(super) fn table(&self) -> impl Iterator<Item = (Addr, EndpointValue)> {
        let value = EndpointValue {
            ifindex: self.link.ifindex,
            id: self.id,
            flags: 0,
            mac: self.link.pod_mac.0,
            node_mac: self.link.node_mac.0,
        };
        self.addresses.iter().map(move |addr| (Addr::from(*addr), value))
    }
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

#[derive(Debug, thiserror::Error)]
#[error("{0} is no Ethernet address, such as 02:00:00:00:00:01")]
pub struct NotMac(String);

impl Mac {
    /// One that is nobody's: locally administered, of one station.
    pub(super) fn local(random: u64) -> Self {
        let [a, b, c, d, e, f, ..] = random.to_le_bytes();
        Self([(a & 0xfc) | 0x02, b, c, d, e, f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = NotMac;

    fn from_str(text: &str) -> Result<Self, NotMac> {
        let bytes: Result<Vec<_>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
        let mac = bytes.ok().and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        mac.map(Self).ok_or_else(|| NotMac(text.to_owned()))
    }
}

impl TryFrom<String> for Mac {
    type Error = NotMac;

    fn try_from(text: String) -> Result<Self, NotMac> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// The name of the node's end: the same for the same attachment, so that what an agent left that was killed in the middle
/// is found again.
pub(super) fn link_name(id: &AttachmentId) -> String {
    // FNV-1a; 44 of its bits are in the name, and the kernel refuses a second link of one name.
    let bytes = id.container.bytes().chain([0]).chain(id.interface.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("pw{:011x}", hash >> 20)
}

/// Whether an interface has a name that only `link_name` gives.
pub fn is_link_name(name: &str) -> bool {
    let digits = name.strip_prefix("pw").unwrap_or_default();
    digits.len() == 11 && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_links_name_is_told_from_other_names_and_depends_on_the_whole_attachment() {
        let id = |container: &str, interface: &str| AttachmentId {
            container: container.to_owned(),
            interface: interface.to_owned(),
        };
        let names =
            [id("c1", "eth0"), id("c2", "eth0"), id("c1", "eth1"), id("c1e", "th0")].map(|id| link_name(&id));
        assert!(names.iter().all(|name| is_link_name(name) && name.len() == 13), "{names:?}");
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert!(
            !["pw_vxlan", "pw0123456789", "pw0123456789g", "eth0", "pw0123456789AB"]
                .map(is_link_name)
                .contains(&true)
        );
    }

    #[test]
    fn a_record_of_another_version_is_read() {
        let text = r#"{"id": 2, "attachment": {"containerID": "c", "ifname": "eth0", "new": 1}, "netnsCookie": 7,
            "link": {"name": "pw0123456789a", "ifindex": 3, "nodeMac": "02:00:00:00:00:01",
                "podMac": "02:00:00:00:00:02", "mtu": 1500, "isChained": false, "new": {}},
            "addresses": ["10.0.0.2"], "state": "hibernating", "new": [1],
            "log": [{"at": 1, "state": "hibernating", "reason": "", "new": 1}]}"#;
        let endpoint: Endpoint = serde_json::from_str(text).unwrap();
        assert_eq!((endpoint.state, endpoint.socket_lb, endpoint.id), (State::Restoring, true, 2));
        assert_eq!(endpoint.log[0].state, State::Restoring);
    }

    #[test]
    fn an_ethernet_address_reads_as_it_is_written() {
        let mac = Mac::local(u64::MAX);
        assert_eq!(mac.to_string(), "fe:ff:ff:ff:ff:ff");
        assert_eq!(mac.to_string().parse::<Mac>().unwrap(), mac);
        for bad in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:zz"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
