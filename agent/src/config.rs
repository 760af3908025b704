//! The agent's configuration: the keys it honours, and what they mean as values of its own types.
//!
//! [`load`] validates everything before anything is touched and names every problem at once. Nobody else reads the
//! environment.

mod api_server;
#[cfg(test)]
mod carried_over;
mod catalogue;
mod combinations;
mod identities;
mod keys;
mod parse;
mod pods;
mod sizes;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use portway_datapath::Settings as NodeSettings;
use portway_datapath::layout::Sizes;
use portway_datapath::maglev::Seed;
use portway_model::{loadbalancer, plan};
use portway_runtime::config::{Problems, Reader, Settings, Sources, Warning, values};
use portway_runtime::logging::LogOptions;

pub use api_server::ApiServer;
pub use catalogue::KEYS;
pub use identities::Identities;
pub use parse::{Cidr, PortRange};
pub use pods::{
    Chaining, DevicePattern, DevicePatterns, FlowTimeouts, Ipam, NodeHealth, PodNetwork, Routing,
};

use crate::api;

/// The directory that a pod mounts the host's cgroup hierarchy at, unless told otherwise.
const CGROUP_ROOT_IN_POD: &str = "/run/portway/cgroupv2";
/// The same of Cilium's chart, as its ConfigMap has it.
const CGROUP_ROOT_OF_CILIUM: &str = "/run/cilium/cgroupv2";

/// Everything that was configured, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whose node this is: objects that name a node are compared with it.
    pub node_name: String,
    /// A directory of manifests. `None` only beside an API server.
    pub source_dir: Option<PathBuf>,
    /// `None` only beside a directory.
    pub api_server: Option<ApiServer>,
    /// A bpf file system.
    pub bpf_root: PathBuf,
    pub cgroup_root: PathBuf,
    /// Whether programs may be attached to the root of a cgroup hierarchy.
    pub allow_root_cgroup: bool,
    pub state_dir: PathBuf,
    pub socket_path: PathBuf,
    /// Whether services are programmed at all.
    pub kube_proxy_replacement: bool,
    pub host_namespace_only: bool,
    pub ipv4: bool,
    pub ipv6: bool,
    /// `None` chooses backends at random.
    pub maglev: Option<Maglev>,
    pub sizes: Sizes,
    /// No size was set, so the maps may grow with what they must hold.
    pub sizes_are_default: bool,
    pub services: ServiceSwitches,
    pub node_port_range: PortRange,
    pub node_port_bind_protection: bool,
    pub auto_protect_node_port_range: bool,
    /// Where NodePorts answer; empty is on every address of the node.
    pub node_port_addresses: Vec<Cidr>,
    pub external_ip_guard: bool,
    /// `None`: pods have another CNI's network, or none.
    pub pod_network: Option<PodNetwork>,
    /// Serves `/healthz`; `None` is off.
    pub health_address: Option<SocketAddr>,
    /// Serves kube-proxy's `/healthz` and `/livez`; `None` is off.
    pub proxy_health_address: Option<SocketAddr>,
    /// Serves `/metrics`; `None` is off.
    pub metrics_address: Option<SocketAddr>,
    pub log: LogOptions,
    /// What a person should know of the configuration, for as long as the agent runs with it.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maglev {
    /// A prime.
    pub table_size: u32,
    pub seed: Seed,
}

/// What of a Service is honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSwitches {
    pub external_ips: bool,
    pub host_ports: bool,
    pub session_affinity: bool,
    pub topology: bool,
    pub terminating_endpoints: bool,
    pub source_ranges: bool,
    pub source_ranges_for_all_types: bool,
    /// `service.kubernetes.io/service-proxy-name` that this agent answers to; "" is services without the label.
    pub proxy_name: String,
}

impl Config {
    /// What the model is told.
    pub fn load_balancer(&self) -> loadbalancer::Config {
        let ServiceSwitches {
            external_ips,
            host_ports,
            session_affinity,
            topology,
            terminating_endpoints,
            source_ranges,
            source_ranges_for_all_types,
            proxy_name,
        } = &self.services;
        loadbalancer::Config {
            node_name: self.node_name.as_str().into(),
            enable_ipv4: self.ipv4,
            enable_ipv6: self.ipv6,
            service_proxy_name: proxy_name.clone(),
            source_range_check: *source_ranges,
            source_range_all_types: *source_ranges_for_all_types,
            // No traffic from outside is served yet.
            external_cluster_ip: false,
            external_ips: *external_ips,
            host_port: *host_ports,
            session_affinity: *session_affinity,
            topology: *topology,
            terminating_endpoint: *terminating_endpoints,
        }
    }

    /// What the planner is told. `sizes` are those that the maps really have.
    pub fn planner(&self, sizes: Sizes) -> plan::Options {
        let maglev = self.maglev.map(|Maglev { table_size, seed }| plan::MaglevOptions { table_size, seed });
        plan::Options { sizes, maglev }
    }

    /// What the programs are told.
    pub fn node_settings(&self) -> NodeSettings {
        let mut settings = NodeSettings::new().serve_node_ports_on_loopback();
        if self.node_port_bind_protection {
            settings = settings.protect_node_ports(self.node_port_range.first, self.node_port_range.last);
        }
        if self.external_ip_guard {
            settings = settings.guard_external_ips();
        }
        if self.host_namespace_only {
            settings = settings.host_namespace_only();
        }
        if self.pod_network.is_some() {
            settings = settings.allow_opt_outs();
        }
        settings
    }
}

/// What the process was started with.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// Without the program's name.
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
    /// The machine's name, where nobody named the node.
    pub host_name: String,
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
    let Invocation { arguments, mut environment, host_name } = invocation;
    let variable = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == OsStr::new(name));
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    // The chart fills this one from `spec.nodeName`, as Cilium's does.
    let node_name = variable("K8S_NODE_NAME").filter(|_| variable("PORTWAY_NODE_NAME").is_none());
    let in_pod = variable("KUBERNETES_SERVICE_HOST").is_some();
    environment.extend(node_name.map(|name| (OsString::from("PORTWAY_NODE_NAME"), name)));
    let settings = Sources { arguments, environment }.read(KEYS);
    let mut reader = settings.reader();
    let config = read(&mut reader, &host_name, in_pod);
    let (mut config, warnings) = reader.finish(config)?;
    config.warnings = warnings.iter().map(ToString::to_string).collect();
    Ok(Loaded { config, warnings, settings })
}

/// The text of `--help`.
pub fn help() -> String {
    portway_runtime::config::help(
        "portway-agent: Kubernetes services by eBPF socket load balancing, without kube-proxy\n\n\
         usage: portway-agent {--source-dir=DIR | --k8s-kubeconfig-path=FILE} --cgroup-root=DIR [--key=value]...",
        KEYS,
    )
}

/// Every key that was read and what was said about it, for `portway config`.
pub fn settings(settings: &Settings) -> Vec<api::Setting> {
    let known = settings.keys().iter().map(|key| {
        let said = settings.said(key);
        api::Setting {
            key: key.name.to_owned(),
            value: said.value,
            default: key.default.to_owned(),
            origin: said.origin.name().to_owned(),
            class: key.class.name().to_owned(),
            help: key.help.to_owned(),
        }
    });
    let unknown = settings.unknown().iter().map(|said| api::Setting {
        key: said.key.clone(),
        value: said.value.clone(),
        default: String::new(),
        origin: said.origin.name().to_owned(),
        class: "unknown".to_owned(),
        help: String::new(),
    });
    let mut all: Vec<_> = known.chain(unknown).collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

fn read(reader: &mut Reader<'_>, host_name: &str, in_pod: bool) -> Config {
    let kube_proxy_replacement = read_replacement(reader);
    let (sizes, sizes_are_default) = sizes::read(reader);
    let maglev = read_maglev(reader);
    let node_port_range = reader
        .parse("node-port-range", parse::port_range)
        .unwrap_or(PortRange { first: 30_000, last: 32_767 });
    let node_name = match reader.text("node-name") {
        name if name.is_empty() => host_name.to_owned(),
        name => name,
    };
    let (ipv4, ipv6) = (reader.bool("enable-ipv4"), reader.bool("enable-ipv6"));
    if !ipv4 && !ipv6 {
        reader.refuse(
            &["enable-ipv4", "enable-ipv6"],
            "at least one of them true",
            "set one of them to true",
        );
    }
    let source_dir =
        Some(PathBuf::from(reader.text("source-dir"))).filter(|path| !path.as_os_str().is_empty());
    let api_server = api_server::read(reader, in_pod);
    if source_dir.is_none() && api_server.is_none() {
        let mend = "set --source-dir=DIR, or --k8s-kubeconfig-path=FILE for an API server";
        reader.refuse(&["source-dir"], "a directory of manifests where no API server is given", mend);
    }
    api_server::check_way(reader, api_server.as_ref(), kube_proxy_replacement);
    let cgroup_root = read_cgroup_root(reader, in_pod);
    let pod_network = pods::read(reader, in_pod);
    combinations::check(reader);
    // What is accepted with one value only for the time being.
    for name in ["bpf-lb-mode", "bpf-lb-acceleration", "service-no-backend-response"] {
        let default = KEYS.iter().find(|key| key.name == name).map_or("", |key| key.default);
        reader.parse(name, |value| parse::only(default, value));
    }
    reader.text("config-dir");
    Config {
        node_name,
        source_dir,
        api_server,
        bpf_root: reader.text("bpf-root").into(),
        cgroup_root: cgroup_root.into(),
        // A pod's cgroup hierarchy is mounted for the very purpose.
        allow_root_cgroup: reader.bool("allow-root-cgroup") || in_pod,
        state_dir: reader.text("state-dir").into(),
        socket_path: reader.text("socket-path").into(),
        kube_proxy_replacement,
        host_namespace_only: reader.bool("bpf-lb-sock-hostns-only"),
        ipv4,
        ipv6,
        maglev,
        sizes,
        sizes_are_default,
        services: ServiceSwitches {
            external_ips: reader.bool("enable-external-ips"),
            host_ports: reader.bool("enable-host-port"),
            session_affinity: reader.bool("enable-session-affinity"),
            topology: reader.bool("enable-service-topology"),
            terminating_endpoints: reader.bool("enable-k8s-terminating-endpoint"),
            source_ranges: reader.bool("enable-svc-source-range-check"),
            source_ranges_for_all_types: reader.bool("bpf-lb-source-range-all-types"),
            proxy_name: reader.text("k8s-service-proxy-name"),
        },
        node_port_range,
        node_port_bind_protection: reader.bool("node-port-bind-protection"),
        auto_protect_node_port_range: reader.bool("enable-auto-protect-node-port-range"),
        node_port_addresses: reader.parse("nodeport-addresses", parse::cidrs).unwrap_or_default(),
        external_ip_guard: !reader.bool("disable-external-ip-mitigation"),
        pod_network,
        health_address: match reader.number::<u16>("agent-health-port") {
            0 => None,
            port => Some(SocketAddr::from(([127, 0, 0, 1], port))),
        },
        proxy_health_address: reader
            .parse("kube-proxy-replacement-healthz-bind-address", values::serve_address)
            .unwrap_or_default(),
        metrics_address: reader.parse("prometheus-serve-addr", values::serve_address).unwrap_or_default(),
        log: LogOptions::read(reader),
        warnings: Vec::new(),
    }
}

fn read_cgroup_root(reader: &mut Reader<'_>, in_pod: bool) -> String {
    match reader.text("cgroup-root") {
        // Cilium's chart names its own mount; a pod that has it too was given it on purpose.
        root if root == CGROUP_ROOT_OF_CILIUM && in_pod && !Path::new(&root).exists() => {
            reader.warn(
                "cgroup-root",
                format!("there is no {root} in this pod; {CGROUP_ROOT_IN_POD} is taken, where Portway's own mount is"),
            );
            CGROUP_ROOT_IN_POD.to_owned()
        }
        root if !root.is_empty() => root,
        _ if in_pod => CGROUP_ROOT_IN_POD.to_owned(),
        _ => {
            let mend = "set --cgroup-root=DIR to the cgroup whose processes shall reach services";
            reader.refuse(
                &["cgroup-root"],
                "a cgroup v2 directory (outside a pod there is no default)",
                mend,
            );
            String::new()
        }
    }
}

/// `kube-proxy-replacement` and the switch that it forces.
fn read_replacement(reader: &mut Reader<'_>) -> bool {
    let word = reader.text("kube-proxy-replacement");
    if let Some(meaning) = parse::older_replacement(&word) {
        reader.warn("kube-proxy-replacement", format!("{word} is an older word; it is taken for {meaning}"));
    }
    let on = reader.parse("kube-proxy-replacement", parse::replacement).unwrap_or(true);
    if !reader.bool("bpf-lb-sock") && on {
        reader.warn("bpf-lb-sock", "kube-proxy-replacement=true needs it, so it is taken for true");
    }
    on
}

fn read_maglev(reader: &mut Reader<'_>) -> Option<Maglev> {
    let table_size = reader.parse("bpf-lb-maglev-table-size", parse::maglev_size)?;
    let seed = reader.parse("bpf-lb-maglev-hash-seed", parse::seed)?;
    (reader.text("bpf-lb-algorithm") == "maglev").then_some(Maglev { table_size, seed })
}
