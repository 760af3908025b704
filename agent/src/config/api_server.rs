//! How the agent reaches the API server, if it does.

use std::path::PathBuf;
use std::time::Duration;

use portway_runtime::config::Reader;
use portway_runtime::config::values::{heartbeat, patience, qps, servers};
use portway_runtime::kubernetes::ClientOptions;

/// Keys that ask for the API server outside a pod.
const ASKING: [&str; 3] = ["k8s-kubeconfig-path", "k8s-api-server", "k8s-api-server-urls"];

/// The API server as a source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// `None`: the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// URLs, tried in turn; empty: the kubeconfig's, or the one in the pod's environment.
    pub servers: Vec<String>,
    /// Requests a second.
    pub qps: u32,
    pub burst: u32,
    pub heartbeat: Duration,
    /// How long a first list may take before the status and the log say so; it changes nothing else.
    pub sync_timeout: Duration,
}

/// How many times `k8s-client-qps` and `k8s-client-burst` the requests are that pods' starts wait for.
const FOR_PODS: u32 = 5;

impl ApiServer {
    /// How a client reaches it.
    pub fn client_options(&self) -> ClientOptions {
        let Self { kubeconfig, servers, qps, burst, heartbeat, sync_timeout: _ } = self.clone();
        let user_agent = concat!("portway-agent/", env!("CARGO_PKG_VERSION")).to_owned();
        ClientOptions { kubeconfig, servers, qps, burst, heartbeat, user_agent }
    }

    /// As [`Self::client_options`], for the requests that pods' starts wait for, of which each pod has its own: a node on
    /// which 20 pods a second begin and 20 end does not wait for its own limit.
    pub fn client_options_for_pods(&self) -> ClientOptions {
        let options = self.client_options();
        let (qps, burst) = (options.qps.saturating_mul(FOR_PODS), options.burst.saturating_mul(FOR_PODS));
        ClientOptions { qps, burst, ..options }
    }
}

/// `None` where no key asks for the API server; a pod without a directory asks by itself.
pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> Option<ApiServer> {
    let kubeconfig =
        Some(PathBuf::from(reader.text("k8s-kubeconfig-path"))).filter(|path| !path.as_os_str().is_empty());
    let single = reader.parse("k8s-api-server", servers).unwrap_or_default();
    let several = reader.parse("k8s-api-server-urls", servers).unwrap_or_default();
    let servers = if several.is_empty() { single } else { several };
    let read = ApiServer {
        kubeconfig,
        servers,
        qps: reader.parse("k8s-client-qps", qps).unwrap_or_default(),
        burst: reader.number("k8s-client-burst"),
        heartbeat: reader.parse("k8s-heartbeat-timeout", heartbeat).unwrap_or_default(),
        sync_timeout: reader.parse("k8s-sync-timeout", patience).unwrap_or_default(),
    };
    let asked = ASKING.iter().any(|key| reader.said(key).is_some_and(|said| !said.value.is_empty()));
    let has_directory = reader.said("source-dir").is_some_and(|said| !said.value.is_empty());
    (asked || (in_pod && !has_directory)).then_some(read)
}

/// Warns of an agent that programs the very service it would have to reach the API server by.
pub(super) fn check_way(reader: &mut Reader<'_>, api_server: Option<&ApiServer>, replaces_kube_proxy: bool) {
    let by_environment = |api: &ApiServer| api.kubeconfig.is_none() && api.servers.is_empty();
    if replaces_kube_proxy && api_server.is_some_and(by_environment) {
        reader.warn(
            "k8s-api-server",
            "is not set, so the API server is reached by the address in the pod's environment, a service that on a \
             fresh node nobody serves before this agent does; set k8s-api-server or k8s-api-server-urls to addresses \
             that need no service",
        );
    }
}
