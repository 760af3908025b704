//! How the agent reaches the API server, if it does.

use std::time::Duration;

use portway_runtime::config::Reader;
use portway_runtime::config::values::patience;
use portway_runtime::kubernetes::ClientOptions;

/// Keys that ask for the API server outside a pod.
const ASKING: [&str; 3] = ["k8s-kubeconfig-path", "k8s-api-server", "k8s-api-server-urls"];

/// The API server as a source of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    pub client: ClientOptions,
    /// How long a first list may take before the status and the log say so; it changes nothing else.
    pub sync_timeout: Duration,
}

/// How many times `k8s-client-qps` and `k8s-client-burst` the requests are that pods' starts wait for.
const FOR_PODS: u32 = 5;

impl ApiServer {
    /// As [`Self::client`], for the requests that pods' starts wait for, of which each pod has its own: a node on
    /// which 20 pods a second begin and 20 end does not wait for its own limit.
    pub fn client_options_for_pods(&self) -> ClientOptions {
        let options = self.client.clone();
        let (qps, burst) = (options.qps.saturating_mul(FOR_PODS), options.burst.saturating_mul(FOR_PODS));
        ClientOptions { qps, burst, ..options }
    }
}

/// `None` where no key asks for the API server; a pod without a directory asks by itself.
pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> Option<ApiServer> {
    let user_agent = concat!("portway-agent/", env!("CARGO_PKG_VERSION"));
    let read = ApiServer {
        client: ClientOptions::read(reader, "k8s-client-qps", "k8s-client-burst", user_agent),
        sync_timeout: reader.parse("k8s-sync-timeout", patience).unwrap_or_default(),
    };
    let asked = ASKING.iter().any(|key| reader.said(key).is_some_and(|said| !said.value.is_empty()));
    let has_directory = reader.said("source-dir").is_some_and(|said| !said.value.is_empty());
    (asked || (in_pod && !has_directory)).then_some(read)
}

/// Warns of an agent that programs the very service it would have to reach the API server by.
pub(super) fn check_way(reader: &mut Reader<'_>, api_server: Option<&ApiServer>, replaces_kube_proxy: bool) {
    let by_environment = |api: &ApiServer| api.client.kubeconfig.is_none() && api.client.servers.is_empty();
    if replaces_kube_proxy && api_server.is_some_and(by_environment) {
        reader.warn(
            "k8s-api-server",
            "is not set, so the API server is reached by the address in the pod's environment, a service that on a \
             fresh node nobody serves before this agent does; set k8s-api-server or k8s-api-server-urls to addresses \
             that need no service",
        );
    }
}
