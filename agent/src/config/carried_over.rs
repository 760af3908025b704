//! ConfigMaps as Cilium's chart renders them by default, and each class of key by itself.

mod pods;

use std::ffi::OsString;
use std::fs;

use portway_runtime::config::Class;

use super::*;

/// A line a key, `key: value`. 1.19 with its replacement of kube-proxy.
const RENDERED: [(&str, &str); 4] = [
    ("1.12", include_str!("carried_over/1.12.txt")),
    ("1.15", include_str!("carried_over/1.15.txt")),
    ("1.18", include_str!("carried_over/1.18.txt")),
    ("1.19", include_str!("carried_over/1.19.txt")),
];

/// The agent's table of reference/flags.md: names, aliases apart, with the default.
const TABLE: &[(&str, &str)] = &[
    ("kube-proxy-replacement", "true"),
    ("bpf-lb-sock", "true"),
    ("bpf-lb-sock-hostns-only", "false"),
    ("bpf-lb-mode", "snat"),
    ("node-port-mode", "snat"),
    ("bpf-lb-dsr-dispatch", "opt"),
    ("bpf-lb-algorithm", "random"),
    ("node-port-algorithm", "random"),
    ("bpf-lb-maglev-table-size", "16381"),
    ("bpf-lb-maglev-hash-seed", "JLfvgnHc2kaSUFaI"),
    ("bpf-lb-acceleration", "disabled"),
    ("node-port-acceleration", "disabled"),
    ("bpf-lb-map-max", "0"),
    ("bpf-lb-service-map-max", "0"),
    ("bpf-lb-service-backend-map-max", "0"),
    ("bpf-lb-rev-nat-map-max", "0"),
    ("bpf-lb-affinity-map-max", "0"),
    ("bpf-lb-source-range-map-max", "0"),
    ("bpf-lb-maglev-map-max", "0"),
    ("bpf-lb-external-clusterip", "false"),
    ("bpf-lb-source-range-all-types", "false"),
    ("enable-svc-source-range-check", "true"),
    ("node-port-range", "30000,32767"),
    ("node-port-bind-protection", "true"),
    ("enable-auto-protect-node-port-range", "true"),
    ("nodeport-addresses", "auto"),
    ("devices", "auto"),
    ("direct-routing-device", "auto"),
    ("disable-external-ip-mitigation", "false"),
    ("enable-external-ips", "true"),
    ("enable-host-port", "true"),
    ("enable-session-affinity", "true"),
    ("enable-service-topology", "true"),
    ("enable-k8s-terminating-endpoint", "true"),
    ("enable-health-check-nodeport", "true"),
    ("service-no-backend-response", "reject"),
    ("kube-proxy-replacement-healthz-bind-address", ""),
    ("kube-proxy-replacement-healthz-bind-address", ""),
    ("k8s-service-proxy-name", ""),
    ("k8s-api-server", ""),
    ("k8s-api-server-urls", ""),
    ("k8s-kubeconfig-path", ""),
    ("k8s-client-qps", "10"),
    ("k8s-client-burst", "20"),
    ("k8s-heartbeat-timeout", "30s"),
    ("k8s-sync-timeout", "3m"),
    ("k8s-kubeconfig-path", ""),
    ("k8s-api-server", ""),
    ("k8s-api-server-urls", ""),
    ("k8s-client-qps", "10"),
    ("k8s-client-burst", "20"),
    ("k8s-heartbeat-timeout", "30s"),
    ("k8s-sync-timeout", "3m"),
    ("bpf-ct-global-tcp-max", "524288"),
    ("bpf-ct-global-any-max", "262144"),
    ("bpf-nat-global-max", "524288"),
    ("bpf-neigh-global-max", "524288"),
    // 6h before 1.17.
    ("bpf-ct-timeout-regular-tcp", "2h13m20s"),
    ("bpf-ct-timeout-regular-tcp-syn", "60s"),
    ("bpf-ct-timeout-regular-tcp-fin", "10s"),
    ("bpf-ct-timeout-regular-any", "60s"),
    ("bpf-ct-timeout-service-tcp", "6h"),
    ("bpf-ct-timeout-service-tcp-grace", "60s"),
    ("bpf-ct-timeout-service-any", "60s"),
    ("bpf-policy-map-max", "16384"),
    ("bpf-sock-rev-map-max", "262144"),
    ("bpf-fragments-map-max", "8192"),
    ("bpf-map-dynamic-size-ratio", "0.0025"),
    ("preallocate-bpf-maps", "false"),
    ("bpf-root", "/sys/fs/bpf"),
    ("cgroup-root", ""),
    ("state-dir", "/var/run/portway"),
    ("socket-path", "/var/run/portway/portway.sock"),
    ("lib-dir", ""),
    ("enable-ipv4", "true"),
    ("enable-ipv6", "true"),
    ("tunnel", "vxlan"),
    ("routing-mode", "tunnel"),
    ("tunnel-protocol", "vxlan"),
    ("tunnel-port", "8472"),
    ("mtu", "0"),
    ("auto-direct-node-routes", "false"),
    ("ipv4-native-routing-cidr", ""),
    ("ipv6-native-routing-cidr", ""),
    ("enable-ipv4-masquerade", "true"),
    ("enable-ipv6-masquerade", "true"),
    ("ipam", "cluster-pool"),
    ("cni-chaining-mode", "none"),
    ("write-cni-conf-when-ready", ""),
    ("enable-policy", "default"),
    ("policy-audit-mode", "false"),
    ("allow-localhost", "auto"),
    ("policy-cidr-match-mode", ""),
    ("enable-icmp-rules", "true"),
    ("allow-icmp-frag-needed", "true"),
    ("enable-host-firewall", "false"),
    ("identity-allocation-mode", "crd"),
    ("identity-management-mode", "agent"),
    ("identity-change-grace-period", "5s"),
    ("identity-restore-grace-period", "30s"),
    ("labels", ""),
    ("label-prefix-file", ""),
    ("node-labels", ""),
    ("cluster-name", "default"),
    ("cluster-id", "0"),
    ("enable-cilium-endpoint-slice", "false"),
    ("endpoint-gc-interval", "5m"),
    ("enable-health-checking", "true"),
    ("enable-endpoint-health-checking", "true"),
    ("agent-health-port", "9879"),
    ("cluster-health-port", "4240"),
    ("prometheus-serve-addr", ""),
    ("metrics", ""),
    ("enable-monitor", "true"),
    ("monitor-aggregation", "medium"),
    ("agent-not-ready-taint-key", "node.cilium.io/agent-not-ready"),
    ("annotate-k8s-node", "false"),
    ("restore", "true"),
    ("debug", "false"),
    ("config-dir", ""),
];

/// Starts in a pod with the ConfigMap mounted and nothing else but where objects come from.
fn start(rendered: &str) -> Result<Loaded, Problems> {
    let dir = tempfile::tempdir().unwrap();
    for line in rendered.lines() {
        let (key, value) = line.split_once(':').unwrap();
        fs::write(dir.path().join(key), value.trim_start()).unwrap();
    }
    let flags = [
        "--source-dir=/m".to_owned(),
        "--k8s-api-server=https://192.0.2.1:6443".to_owned(),
        format!("--config-dir={}", dir.path().display()),
    ];
    load(Invocation {
        arguments: flags.map(OsString::from).into(),
        environment: vec![("KUBERNETES_SERVICE_HOST".into(), "10.96.0.1".into())],
        host_name: "node-1".to_owned(),
    })
}

fn warned(rendered: &str) -> Vec<String> {
    start(rendered).unwrap().warnings.into_iter().map(|warning| warning.key).collect()
}

fn refused(line: &str) -> String {
    start(line).unwrap_err().to_string()
}

#[test]
fn a_default_configmap_of_cilium_starts_with_a_warning_for_each_feature_that_is_missing() {
    let always = [
        "agent-not-ready-taint-key",
        "cgroup-root",
        "enable-health-check-nodeport",
        "enable-hubble",
        "enable-l7-proxy",
        "enable-policy",
    ];
    let more = |version| -> &[&str] {
        match version {
            // `disabled` is an older word.
            "1.12" => &["kube-proxy-replacement"],
            "1.15" => &["mesh-auth-enabled"],
            "1.18" => &["enable-lb-ipam", "mesh-auth-enabled"],
            // bpf-lb-sock=false does not go with kube-proxy-replacement=true.
            _ => &["bpf-lb-sock", "enable-lb-ipam"],
        }
    };
    for (version, rendered) in RENDERED {
        let mut expected: Vec<&str> = [&always, more(version)].concat();
        expected.sort_unstable();
        let mut warned = warned(rendered);
        warned.sort_unstable();
        assert_eq!(warned, expected, "{version}");
        let config = start(rendered).unwrap().config;
        assert_eq!(config.kube_proxy_replacement, version == "1.19");
        assert_eq!(config.cgroup_root, Path::new("/run/portway/cgroupv2"));
        assert_eq!(config.sizes.backends, 65_536);
        let network = config.pod_network.as_ref().unwrap();
        assert_eq!((network.ipam, network.tunnel_port()), (Ipam::ClusterPool, Some(8472)), "{version}");
        // The status says the same.
        assert!(
            config.warnings.iter().any(|line| line.contains("policies are not enforced yet")),
            "{version}"
        );
    }
}

#[test]
fn every_key_of_the_table_is_known_with_its_default() {
    for (name, default) in TABLE {
        let key = KEYS.iter().find(|key| key.name == *name || key.aliases.contains(name));
        assert_eq!(key.map(|key| key.default), Some(*default), "{name}");
    }
}

#[test]
fn what_must_not_be_missing_unnoticed_is_an_error_with_its_way_out() {
    for name in [
        "enable-ipsec",
        "enable-wireguard",
        "enable-egress-gateway",
        "enable-ipv4-egress-gateway",
        "enable-bgp-control-plane",
        "enable-srv6",
        "enable-vtep",
        "enable-local-redirect-policy",
        "enable-host-firewall",
        "enable-l2-announcements",
    ] {
        let error = refused(&format!("{name}: true"));
        assert!(error.contains("1 problem") && error.contains(&format!("{name}=\"true\"")), "{error}");
        assert!(
            error.contains("Portway does not offer this") && error.contains("set it to false"),
            "{error}"
        );
        assert_eq!(warned(&format!("{name}: false")), Vec::<String>::new(), "{name}");
    }
    for line in ["kvstore: etcd", "clustermesh-config: /var/lib/cilium/clustermesh/"] {
        assert!(refused(line).contains("leave"), "{line}");
    }
    // A way out is a sentence, and says what to do.
    for key in KEYS.iter().filter(|key| key.class == Class::Dangerous) {
        assert!(key.help.contains(": ") && key.asks("true"), "{}", key.name);
        assert!(!key.asks(key.default), "{}", key.name);
    }
}

#[test]
fn what_has_no_effect_is_accepted_with_a_debug_line_and_the_operators_keys_without() {
    for (line, is_said) in [
        ("sockops-enable: true", true),
        ("log-driver: syslog", true),
        ("hubble-metrics: dns drop", true),
        ("bpf-neigh-global-max: 1000000", true),
        ("nodes-gc-interval: 1m", false),
        ("cluster-pool-ipv4-cidr: 10.1.0.0/16", false),
    ] {
        let loaded = start(line).unwrap();
        assert_eq!(loaded.warnings, [], "{line}");
        assert_eq!(loaded.settings.without_effect().len(), usize::from(is_said), "{line}");
    }
}

#[test]
fn an_unknown_key_names_its_neighbour_of_any_class() {
    let said = |line| start(line).unwrap().warnings.remove(0).message;
    assert!(said("enable-ipsek: true").contains("did you mean enable-ipsec?"));
    assert!(said("identity-gc-intervall: 1m").contains("did you mean identity-gc-interval?"));
}

#[test]
fn identities_in_a_store_become_objects_with_a_warning() {
    assert_eq!(warned("identity-allocation-mode: crd"), Vec::<String>::new());
    for mode in ["kvstore", "doublewrite-readkvstore"] {
        let warnings = start(&format!("identity-allocation-mode: {mode}")).unwrap().warnings;
        assert!(warnings[0].message.contains("taken for crd"), "{warnings:?}");
    }
    assert!(refused("identity-allocation-mode: paper").contains("use crd"));
}

#[test]
fn a_policy_mode_that_denies_by_default_is_not_taken_for_one_that_allows() {
    assert!(refused("enable-policy: always").contains("policies are not enforced yet"));
    assert_eq!(warned("enable-policy: default"), ["enable-policy"]);
    assert_eq!(warned("enable-policy: never"), Vec::<String>::new());
}

#[test]
fn a_switch_that_kube_proxy_replacement_overrules_is_named() {
    assert_eq!(warned("kube-proxy-replacement: false\nenable-node-port: true"), ["enable-node-port"]);
    assert_eq!(warned("kube-proxy-replacement: false\nenable-node-port: false"), Vec::<String>::new());
}
