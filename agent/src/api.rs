//! What the agent answers on its unix socket, shared with the command line.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/services` | array of [`Service`], what the kernel's maps hold, in the order of `portway plan` |
//! | `GET /v1/rows` | array of [`Row`]: the same in exactly the shape of `portway plan -o json` |
//! | `GET /v1/config` | array of [`Setting`], by key |
//! | `GET /v1/rejects` | array of [`Reject`]: values that are not used; the rest of their object and file is served |
//! | `GET /v1/clashes` | array of [`Reject`]: who has not got a frontend because another service owns it |
//! | `GET /v1/audit` | [`Audit`]: compares everything with the kernel's side, puts nothing right |
//! | `POST /v1/audit` | [`Audit`]: and puts it right |
//! | `GET /v1/nodes` | array of [`Node`], this one first |
//! | `GET /v1/health` | [`ClusterHealth`]: which nodes answer this one's probes; 404 where nodes are not probed |
//! | `POST /v1/health` | the same after a probe of every node |
//! | `GET /v1/endpoints` | array of [`Endpoint`] without their logs; this and the next ones 404 where there is no pod network |
//! | `GET /v1/endpoints/{id}` | [`Endpoint`] |
//! | `GET /v1/endpoints/{id}/log` | array of [`EndpointChange`], oldest first |
//! | `GET /v1/ipam` | [`Ipam`] |
//! | `GET /v1/identities` | array of [`Identity`], by number; `?labels=k8s:app=x,…`: those with all of these |
//! | `GET /v1/identities/{id}` | [`Identity`] |
//! | `GET /v1/addresses` | array of [`IpcacheEntry`]: who is where, by prefix |
//!
//! Errors have a status code of 4xx or 5xx and an [`Error`] as their body.

mod audit;
mod endpoints;
mod health;
mod identities;
mod pod_network;

use std::collections::BTreeMap;

pub use crate::endpoints::{Change as EndpointChange, Endpoint};
pub use crate::ipcache::IpcacheEntry;
pub use crate::sockets::StaleSockets;
pub use audit::{Audit, AuditStatus, Difference};
pub use endpoints::{Ipam, IpamAddress, IpamPool};
pub use health::{ClusterHealth, Node, NodeHealth, PathHealth};
pub use identities::{IdentitiesStatus, Identity};
pub use pod_network::{AddressPool, Masquerading, PodNetworkStatus, Routing};
pub use portway_model::k8s::Reject;
use portway_model::tables::Row;
use serde::{Deserialize, Serialize};

/// Paths on the socket.
pub mod path {
    pub const STATUS: &str = "/v1/status";
    pub const SERVICES: &str = "/v1/services";
    pub const ROWS: &str = "/v1/rows";
    pub const CONFIG: &str = "/v1/config";
    pub const REJECTS: &str = "/v1/rejects";
    pub const CLASHES: &str = "/v1/clashes";
    pub const AUDIT: &str = "/v1/audit";
    pub const ENDPOINTS: &str = "/v1/endpoints";
    pub const IPAM: &str = "/v1/ipam";
    pub const IDENTITIES: &str = "/v1/identities";
    pub const NODES: &str = "/v1/nodes";
    pub const HEALTH: &str = "/v1/health";
    pub const ADDRESSES: &str = "/v1/addresses";
}

/// The body of an answer that is not 200.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    pub error: String,
}

/// How the agent is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: String,
    /// The node's name, "" where none was given.
    pub node: String,
    pub pid: u32,
    /// Seconds since the agent's start.
    pub uptime_seconds: f64,
    pub ready: bool,
    /// What is missing until the agent is ready, e.g. `first sync of /etc/portway/manifests`.
    pub waiting_for: Vec<String>,
    pub kube_proxy_replacement: KubeProxyReplacement,
    pub kernel: Kernel,
    pub sources: Vec<Source>,
    pub counts: Counts,
    pub maps: Vec<MapUse>,
    pub writes: Writes,
    #[serde(default)]
    pub stale_sockets: StaleSockets,
    #[serde(default)]
    pub audit: AuditStatus,
    /// Absent where the pod network is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_network: Option<PodNetworkStatus>,
    /// The same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<IdentitiesStatus>,
    /// Things a person should look at, most serious first; empty when all is well.
    pub warnings: Vec<String>,
}

/// The block that scripts read; the field's words are Cilium's (`status --verbose`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyReplacement {
    /// `True` or `False`.
    pub status: String,
    /// `Enabled`, `Disabled` or `Host namespace only`.
    pub socket_lb: String,
    /// `TCP, UDP`.
    pub protocols: Vec<String>,
    /// Devices with an address on which NodePorts answer, with those addresses.
    pub devices: Vec<Device>,
    /// `SNAT`.
    pub mode: String,
    /// `Random` or `Maglev (Table Size: N)`.
    pub backend_selection: String,
    pub session_affinity: String,
    pub graceful_termination: String,
    pub nat46x64: String,
    pub xdp_acceleration: String,
    pub services: Vec<ServiceSupport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    pub addresses: Vec<String>,
}

/// A type of service and whether it is served, e.g. `NodePort`, `Enabled (Range: 30000-32767)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSupport {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// What the errno self-test found at start, one line a check.
    pub self_test: Vec<Check>,
    /// What this kernel cannot do and what that means.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

/// Where objects come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// [`Self::DIRECTORY`] or [`Self::API_SERVER`].
    pub kind: String,
    /// The directory's path, or the URL of the API server in use.
    pub path: String,
    /// `synced`, `first sync` or `missing` (the directory is gone; its last objects are kept).
    pub state: String,
    /// Of a directory.
    pub files: u64,
    pub objects: u64,
    /// Seconds since the last change was seen; absent before the first.
    pub last_change_seconds: Option<f64>,
    /// Files that could not be read or parsed.
    pub broken: Vec<BrokenFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<ApiServer>,
}

impl Source {
    pub const DIRECTORY: &'static str = "directory";
    pub const API_SERVER: &'static str = "api-server";
}

/// How the API server is reached, and what is watched there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServer {
    /// Absent before the first request.
    pub reachable: Option<bool>,
    pub requests: u64,
    /// Requests without a useful answer, by HTTP status or `unreachable`, `timeout`, `broken-answer`.
    pub failures: BTreeMap<String, u64>,
    /// Seconds that requests waited for `k8s-client-qps`, added up.
    pub throttled_seconds: f64,
    /// Why credentials that changed cannot be used; the old ones are.
    pub credentials_error: Option<String>,
    pub last_error: Option<String>,
    /// Seconds since the last useful answer; absent before the first.
    pub last_success_seconds: Option<f64>,
    pub watches: Vec<Watch>,
}

/// The watch of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    pub kind: String,
    /// `listing`, `watching`, `quiet` (a kind of which nothing is ever heard), `retrying` or `ended`.
    pub state: String,
    /// A list was read to its end.
    pub synced: bool,
    /// Seconds since the server last showed that this watch lives.
    pub age_seconds: f64,
    /// `resourceVersion` of the last thing that was told.
    pub version: u64,
    pub objects: u64,
    pub events: u64,
    /// Lists after the first one.
    pub relists: u64,
    /// Watches that went on where another had ended.
    pub resumes: u64,
    /// Events that had been told before.
    pub duplicates: u64,
    /// What ended watches and lists, by reason.
    pub errors: BTreeMap<String, u64>,
    pub last_error: Option<String>,
}

impl Watch {
    /// A watch that is silent for longer is taken for dead by now; a quiet one may be.
    pub const STALE_SECONDS: f64 = 65.0;

    /// Whether what it last told may be old.
    pub fn is_stale(&self) -> bool {
        self.state == "ended" || (self.state != "quiet" && self.age_seconds > Self::STALE_SECONDS)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokenFile {
    pub path: String,
    pub reason: String,
    /// Objects of its last good text, which are still served.
    pub kept_objects: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Service ports of one family (a dual-stack port counts twice).
    pub service_ports: u64,
    pub frontends: u64,
    pub backends: u64,
    pub rejects: u64,
    pub clashes: u64,
    pub local_addresses: u64,
    /// Connections and datagrams since the kernel maps were made that the maps had no room to remember.
    pub unremembered: u64,
}

/// A number of things in words: `1 file`, `2 files`.
pub fn counted(number: impl Into<u64>, one: &str, many: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MapUse {
    pub name: String,
    /// Absent for what programs fill and age by themselves.
    pub used: Option<u64>,
    pub size: u64,
    /// Kernel memory in bytes, where the kernel tells it.
    pub bytes: u64,
}

/// How the agent's writes to the kernel go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Writes {
    pub operations: u64,
    pub failures: u64,
    /// Services and frontends that are not as wanted yet; they are tried again.
    pub outstanding: u64,
    pub last_error: Option<String>,
    /// What the last attempt could not program, a thousand at most: its last good version stays.
    #[serde(default)]
    pub refused: Vec<Reject>,
    /// Freed runs, backends and service indices that wait for a grace period.
    pub awaiting_grace: u64,
}

/// A frontend, with the index that its service port has in the maps (0: not programmed).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub id: u32,
    #[serde(flatten)]
    pub row: Row,
}

/// A configuration key and where its value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub key: String,
    pub value: String,
    pub default: String,
    /// `flag`, `environment`, `directory` or `default`.
    pub origin: String,
    /// `honoured`, `retired`, `not-offered`, `dangerous` or `unknown`.
    pub class: String,
    pub help: String,
}
