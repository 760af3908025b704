use std::path::PathBuf;
use std::time::Duration;

use portway_runtime::config::values::{heartbeat, qps, servers};
use portway_runtime::config::{Invalid, Reader};
use portway_runtime::kubernetes::ClientOptions;

/// How the API server is reached.
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
}

impl ApiServer {
    /// How a client reaches it.
    pub fn client_options(&self) -> ClientOptions {
        let Self { kubeconfig, servers, qps, burst, heartbeat } = self.clone();
        let user_agent = concat!("portway-operator/", env!("CARGO_PKG_VERSION")).to_owned();
        ClientOptions { kubeconfig, servers, qps, burst, heartbeat, user_agent }
    }
}

pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> ApiServer {
    let kubeconfig =
        Some(PathBuf::from(reader.text("k8s-kubeconfig-path"))).filter(|path| !path.as_os_str().is_empty());
    let single = reader.parse("k8s-api-server", servers).unwrap_or_default();
    let several = reader.parse("k8s-api-server-urls", servers).unwrap_or_default();
    let servers = if several.is_empty() { single } else { several };
    if kubeconfig.is_none() && servers.is_empty() && !in_pod {
        reader.refuse(
            &["k8s-kubeconfig-path"],
            "a kubeconfig, where this is no pod",
            "set --k8s-kubeconfig-path=FILE, or --k8s-api-server=URL for a server that asks for no credentials",
        );
    }
    ApiServer {
        kubeconfig,
        servers,
        qps: reader.parse("operator-k8s-client-qps", qps).unwrap_or_default(),
        burst: reader.number("operator-k8s-client-burst"),
        heartbeat: reader.parse("k8s-heartbeat-timeout", heartbeat).unwrap_or_default(),
    }
}

/// A DNS label (RFC 1123).
pub(super) fn namespace(value: &str) -> Result<String, Invalid> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=63).contains(&value.len()) && value.bytes().all(allowed);
    let is_name = is_name && !value.starts_with('-') && !value.ends_with('-');
    if is_name { Ok(value.to_owned()) } else { Err(Invalid::new("", "write e.g. kube-system")) }
}
