//! The operator's configuration: the keys it honours, and what they mean as values of its own types.
//!
//! [`load`] validates everything before anything is touched and names every problem at once. Nobody else reads the
//! environment. The ConfigMap is the agents' too, who tell of keys that nobody knows.

mod api_server;
mod endpoints;
mod identities;
mod ipam;
mod keys;
mod lease;
mod nodes;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;

use portway_runtime::config::{Problems, Reader, Settings, Sources, Warning, values};
use portway_runtime::kubernetes::{ClientOptions, LeaseTimes};
use portway_runtime::logging::LogOptions;

pub use endpoints::Endpoints;
pub use identities::Identities;
pub use ipam::Ipam;
pub use keys::KEYS;
pub use nodes::Nodes;

/// Everything that was configured, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the API server is reached.
    pub api_server: ClientOptions,
    /// Where the lease and the pools' ConfigMap are.
    pub namespace: String,
    pub lease: LeaseTimes,
    /// CustomResourceDefinitions are somebody else's.
    pub skip_crds: bool,
    pub identities: Identities,
    pub endpoints: Endpoints,
    pub nodes: Nodes,
    pub ipam: Ipam,
    /// Serves `/healthz`, `/v1/status` and `/v1/dump`; `None` is off.
    pub api_address: Option<SocketAddr>,
    /// Serves `/metrics`; `None` is off.
    pub metrics_address: Option<SocketAddr>,
    pub log: LogOptions,
    /// What a person should know of the configuration, for as long as the operator runs with it.
    pub warnings: Vec<String>,
}

/// What the process was started with.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// Without the program's name and a verb.
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    pub warnings: Vec<Warning>,
    pub settings: Settings,
}

/// Reads and checks the configuration.
///
/// # Errors
/// Every problem that was found.
pub fn load(invocation: Invocation) -> Result<Loaded, Problems> {
    let Invocation { arguments, mut environment } = invocation;
    let variable = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    // The chart fills this one from `metadata.namespace`, as Cilium's does.
    let namespace = variable("K8S_NAMESPACE").or_else(|| variable("CILIUM_K8S_NAMESPACE"));
    let namespace = namespace.filter(|_| variable("PORTWAY_K8S_NAMESPACE").is_none());
    let in_pod = variable("KUBERNETES_SERVICE_HOST").is_some();
    environment.extend(namespace.map(|name| (OsString::from("PORTWAY_K8S_NAMESPACE"), name)));
    let settings = Sources { arguments, environment }.read_shared(KEYS);
    let mut reader = settings.reader();
    let config = read(&mut reader, in_pod);
    let (mut config, warnings) = reader.finish(config)?;
    config.warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(Loaded { config, warnings, settings })
}

/// The text of `--help`.
pub fn help() -> String {
    portway_runtime::config::help(
        "portway-operator: what agents should not each do for themselves\n\n\
         usage: portway-operator [--key=value]...          runs until SIGTERM\n       \
         portway-operator plan [-o json] [--key=value]...  prints what it would write, and writes nothing",
        KEYS,
    )
}

fn read(reader: &mut Reader<'_>, in_pod: bool) -> Config {
    // Read by the sources themselves.
    reader.text("config-dir");
    let metrics_address =
        reader.parse("operator-prometheus-serve-addr", values::serve_address).unwrap_or_default();
    let has_metrics = reader.bool("enable-metrics");
    let namespace = reader.parse("k8s-namespace", api_server::namespace).unwrap_or_default();
    let ipam = ipam::read(reader, &namespace);
    Config {
        api_server: api_server::read(reader, in_pod),
        lease: lease::read(reader),
        skip_crds: reader.bool("skip-crd-creation"),
        identities: identities::read(reader),
        endpoints: endpoints::read(reader),
        nodes: nodes::read(reader, &ipam, &namespace),
        ipam,
        namespace,
        api_address: reader.parse("operator-api-serve-addr", values::serve_address).unwrap_or_default(),
        metrics_address: metrics_address.filter(|_| has_metrics),
        log: LogOptions::read(reader),
        warnings: Vec::new(),
    }
}
