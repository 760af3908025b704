use std::sync::Arc;

/// What the node is and which of the services' features are on; each field is the flag of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Decides which endpoints are local, which pods' host ports are served and whose zone counts.
    pub node_name: Arc<str>,
    /// `enable-ipv4`.
    pub enable_ipv4: bool,
    /// `enable-ipv6`.
    pub enable_ipv6: bool,
    /// `k8s-service-proxy-name`: services and slices whose label `service.kubernetes.io/service-proxy-name` is this
    /// are served; "" serves those without the label.
    pub service_proxy_name: String,
    /// `enable-svc-source-range-check`.
    pub source_range_check: bool,
    /// `bpf-lb-source-range-all-types`.
    pub source_range_all_types: bool,
    /// `bpf-lb-external-clusterip`: traffic from outside reaches cluster IPs too.
    pub external_cluster_ip: bool,
    /// `enable-external-ips`.
    pub external_ips: bool,
    /// `enable-host-port`.
    pub host_port: bool,
    /// `enable-session-affinity`.
    pub session_affinity: bool,
    /// `enable-service-topology`: hints count.
    pub topology: bool,
    /// `enable-k8s-terminating-endpoint`: endpoints that are going serve where nothing else is ready.
    pub terminating_endpoint: bool,
}

impl Config {
    /// The flags' defaults.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            enable_ipv4: true,
            enable_ipv6: true,
            service_proxy_name: String::new(),
            source_range_check: true,
            source_range_all_types: false,
            external_cluster_ip: false,
            external_ips: true,
            host_port: true,
            session_affinity: true,
            topology: true,
            terminating_endpoint: true,
        }
    }
}
