use std::fs;
use std::time::Duration;

use super::*;

fn load_with(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Loaded, String> {
    let required = ["--k8s-api-server=http://127.0.0.1:6443"];
    let arguments = required.iter().chain(arguments).map(Into::into).collect();
    let environment = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
    load(Invocation { arguments, environment }).map_err(|problems| problems.to_string())
}

fn load_flags(arguments: &[&str]) -> Result<Loaded, String> {
    load_with(arguments, &[])
}

/// The operator's table of reference/flags.md, with the defaults.
const TABLE: &[(&str, &str)] = &[
    ("leader-election-lease-duration", "15s"),
    ("leader-election-renew-deadline", "10s"),
    ("leader-election-retry-period", "2s"),
    ("identity-gc-interval", "15m"),
    ("identity-heartbeat-timeout", "30m"),
    ("identity-gc-rate-interval", "1m"),
    ("identity-gc-rate-limit", "2500"),
    ("cilium-endpoint-gc-interval", "5m"),
    ("nodes-gc-interval", "5m"),
    ("ces-max-ciliumendpoints-per-ces", "100"),
    ("ces-slice-mode", "cesSliceModeIdentity"),
    ("ces-rate-limits", r#"[{"nodes":0,"limit":10,"burst":20}]"#),
    ("enable-cilium-endpoint-slice", "false"),
    ("ipam", "cluster-pool"),
    ("cluster-pool-ipv4-cidr", "10.0.0.0/8"),
    ("cluster-pool-ipv4-mask-size", "24"),
    ("cluster-pool-ipv6-cidr", ""),
    ("cluster-pool-ipv6-mask-size", "112"),
    ("parallel-alloc-workers", "50"),
    ("limit-ipam-api-qps", "4"),
    ("limit-ipam-api-burst", "20"),
    ("identity-management-mode", "agent"),
    ("unmanaged-pod-watcher-interval", "15"),
    ("pod-restart-selector", "k8s-app=kube-dns"),
    ("remove-cilium-node-taints", "true"),
    ("set-cilium-node-taints", "false"),
    ("set-cilium-is-up-condition", "true"),
    ("taint-sync-workers", "10"),
    ("cilium-pod-labels", "k8s-app=portway"),
    ("cilium-pod-namespace", ""),
    ("skip-crd-creation", "false"),
    ("enable-k8s-api-discovery", "false"),
    ("synchronize-k8s-nodes", "true"),
    ("synchronize-k8s-services", "true"),
    ("operator-api-serve-addr", "localhost:9234"),
    ("enable-metrics", "true"),
    ("operator-prometheus-serve-addr", ":9963"),
    ("operator-k8s-client-qps", "100"),
    ("operator-k8s-client-burst", "200"),
    ("k8s-heartbeat-timeout", "30s"),
    ("cluster-name", "default"),
    ("cluster-id", "0"),
    ("config-dir", ""),
    ("debug", "false"),
    ("k8s-namespace", "kube-system"),
    ("labels", ""),
];

#[test]
fn every_key_of_the_table_is_known_with_its_default() {
    for (name, default) in TABLE {
        let key = KEYS.iter().find(|key| key.name == *name);
        assert_eq!(key.map(|key| key.default), Some(*default), "{name}");
    }
}

#[test]
fn no_key_is_there_twice() {
    let mut names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    names.sort_unstable();
    let number = names.len();
    names.dedup();
    assert_eq!(names.len(), number);
}

#[test]
fn every_key_that_is_honoured_is_read() {
    for key in KEYS.iter().filter(|key| key.class == portway_runtime::config::Class::Honoured) {
        // What no kind of value allows.
        let error = load_flags(&[&format!("--{}=\u{0}", key.name)]);
        let is_free = matches!(key.kind, portway_runtime::config::Kind::Text(_));
        assert!(error.is_err() || is_free, "{} is not looked at", key.name);
    }
}

#[test]
fn without_a_word_everything_is_the_default() {
    let Loaded { config, warnings, .. } = load_flags(&[]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(config.lease.write_limit(), Duration::from_secs(4));
    assert_eq!(config.namespace, "kube-system");
    assert_eq!(config.api_address.unwrap().to_string(), "127.0.0.1:9234");
    assert_eq!(config.metrics_address.unwrap().to_string(), "[::]:9963");
    assert_eq!((config.api_server.qps, config.api_server.burst), (100, 200));
    let Loaded { config, .. } =
        load_flags(&["--enable-metrics=false", "--operator-api-serve-addr="]).unwrap();
    assert_eq!((config.metrics_address, config.api_address), (None, None));
}

#[test]
fn the_times_of_the_lease_are_checked_against_each_other_all_at_once() {
    let lease = |duration: &str, renew: &str, retry: &str| {
        load_flags(&[
            &format!("--leader-election-lease-duration={duration}"),
            &format!("--leader-election-renew-deadline={renew}"),
            &format!("--leader-election-retry-period={retry}"),
        ])
    };
    for (duration, renew, retry) in [("15s", "10s", "2s"), ("4s", "2s", "1s"), ("1h", "30m", "1m")] {
        assert!(lease(duration, renew, retry).is_ok(), "{duration} {renew} {retry}");
    }
    for (duration, renew, retry, problem) in [
        ("11s", "10s", "2s", "at least 2s longer"),
        ("10s", "15s", "2s", "at least 2s longer"),
        ("15s", "10s", "10s", "longer than the retry period"),
        ("15s", "2s", "3s", "longer than the retry period"),
        ("15", "10s", "2s", "at least 1s"),
    ] {
        let error = lease(duration, renew, retry).unwrap_err();
        assert!(error.contains(problem), "{duration} {renew} {retry}: {error}");
    }
    let error = lease("11s", "10s", "10s").unwrap_err();
    assert!(error.starts_with("the configuration has 2 problems"), "{error}");
}

#[test]
fn the_agents_keys_of_the_config_map_are_accepted_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    for (key, value) in [
        ("kube-proxy-replacement", "true"),
        ("enable-pod-network", "true"),
        ("k8s-client-qps", "10"),
        ("cluster-name", "blue"),
        ("bpf-lb-map-max", "65536"),
        ("debug", "true"),
    ] {
        fs::write(dir.path().join(key), value).unwrap();
    }
    let loaded = load_flags(&[&format!("--config-dir={}", dir.path().display())]).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.config.identities.scheme.cluster_name, "blue");
    assert_eq!(loaded.config.log.filter, "debug");
    // A flag is for the operator alone.
    let loaded = load_flags(&["--node-gc-interval=1m"]).unwrap();
    let warning = loaded.config.warnings.concat();
    assert!(warning.contains("did you mean nodes-gc-interval"), "{warning}");
}

#[test]
fn outside_a_pod_somebody_says_where_the_api_server_is() {
    let error = load(Invocation::default()).unwrap_err().to_string();
    assert!(error.contains("k8s-kubeconfig-path") && error.contains("where this is no pod"), "{error}");
    let environment = vec![("KUBERNETES_SERVICE_HOST".into(), "10.96.0.1".into())];
    assert!(load(Invocation { environment, ..Invocation::default() }).is_ok());
}

#[test]
fn the_namespace_is_the_pods_own_unless_told() {
    let namespace = |arguments: &[&str], environment: &[(&str, &str)]| {
        load_with(arguments, environment).unwrap().config.namespace
    };
    let pods = ("K8S_NAMESPACE", "portway");
    assert_eq!(namespace(&[], &[pods]), "portway");
    assert_eq!(namespace(&[], &[("CILIUM_K8S_NAMESPACE", "cilium")]), "cilium");
    assert_eq!(namespace(&["--k8s-namespace=other"], &[pods]), "other");
    assert_eq!(namespace(&[], &[pods, ("PORTWAY_K8S_NAMESPACE", "other")]), "other");
    assert!(load_flags(&["--k8s-namespace=Kube_System"]).unwrap_err().contains("k8s-namespace"));
}

#[test]
fn help_has_every_key_that_is_honoured() {
    let help = help();
    let honoured = KEYS.iter().filter(|key| key.class == portway_runtime::config::Class::Honoured);
    for key in honoured.filter(|key| !key.name.ends_with("-test-only")) {
        assert!(help.contains(&format!("--{}", key.name)), "{}", key.name);
    }
}
