//! Keys of Cilium's operator that change nothing here.

use portway_runtime::config::{Class, Key, Kind, Off};

const fn rows<const N: usize>(
    class: Class,
    help: &'static str,
    names: [(&'static str, &'static str); N],
) -> [Key; N] {
    let (kind, off, group) = (Kind::Text("anything"), Off::Default, "Without effect");
    let mut keys = [Key { name: "", aliases: &[], class, kind, default: "", off, help, group }; N];
    let mut at = 0;
    while at < N {
        (keys[at].name, keys[at].default) = names[at];
        at += 1;
    }
    keys
}

/// Of what Portway does without being told, or what nobody has any more.
pub(super) const RETIRED: &[Key] = &rows(
    Class::Retired,
    "without effect",
    [
        ("leader-election-resource-lock-timeout", "0s"),
        ("cnp-node-status-gc-interval", "0s"),
        ("ces-dynamic-rate-limit-nodes", ""),
        ("ces-dynamic-rate-limit-qps-burst", ""),
        ("ces-dynamic-rate-limit-qps-limit", ""),
        ("ces-enable-dynamic-rate-limit", "false"),
        ("enable-k8s", "true"),
        ("enable-k8s-api-discovery", "false"),
        ("enable-k8s-endpoint-slice", "true"),
        ("k8s-client-connection-keep-alive", "30s"),
        ("k8s-client-connection-timeout", "30s"),
        ("k8s-client-qps", "10"),
        ("k8s-client-burst", "20"),
        ("k8s-service-proxy-name", ""),
        ("operator-pprof", "false"),
        ("operator-pprof-address", "localhost"),
        ("operator-pprof-port", "6061"),
        ("operator-pprof-block-profile-rate", "0"),
        ("operator-pprof-mutex-profile-fraction", "0"),
        ("gops-port", "9891"),
        ("log-driver", ""),
        ("log-opt", ""),
        ("version", "false"),
    ],
);

/// Of features that are not there.
pub(super) const NOT_OFFERED: &[Key] = &rows(
    Class::NotOffered,
    "the operator does not do this",
    [
        ("auto-create-cilium-pod-ip-pools", ""),
        ("auto-create-default-pod-ip-pool", ""),
        ("clustermesh-concurrent-service-endpoint-syncs", "5"),
        ("clustermesh-endpoint-updates-batch-period", "500ms"),
        ("clustermesh-endpoints-per-slice", "100"),
        ("clustermesh-enable-endpoint-sync", "false"),
        ("double-write-metric-reporter-interval", "1m"),
        ("enable-gateway-api", "false"),
        ("enable-ingress-controller", "false"),
        ("enable-lb-ipam", "true"),
        ("enable-node-ipam", "false"),
        ("operator-prometheus-enable-tls", "false"),
        ("operator-prometheus-tls-cert-file", ""),
        ("operator-prometheus-tls-key-file", ""),
        ("operator-prometheus-tls-client-ca-files", ""),
        ("synchronize-k8s-services", "true"),
        ("validate-network-policy", "true"),
    ],
);
