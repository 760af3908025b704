use portway_datapath::layout::PodSizes;
use portway_runtime::config::Class;

use super::*;

fn invocation(arguments: &[&str], environment: &[(&str, &str)]) -> Invocation {
    Invocation {
        arguments: arguments.iter().map(OsString::from).collect(),
        environment: environment.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect(),
        host_name: "machine".to_owned(),
    }
}

/// With the two keys that have no default outside a pod.
fn with(arguments: &[&str]) -> Result<Config, Problems> {
    let required = ["--source-dir=/m", "--cgroup-root=/c"];
    load(invocation(&[&required, arguments].concat(), &[])).map(|loaded| loaded.config)
}

fn problems(arguments: &[&str]) -> Vec<String> {
    with(arguments).unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_those_of_the_table() {
    let config = with(&[]).unwrap();
    assert_eq!(config.node_name, "machine");
    assert_eq!(config.sizes, Sizes::DEFAULT);
    assert!(config.sizes_are_default && config.maglev.is_none());
    assert_eq!(config.node_port_range, PortRange { first: 30_000, last: 32_767 });
    assert_eq!(config.health_address, Some("127.0.0.1:9879".parse().unwrap()));
    assert_eq!((config.metrics_address, config.proxy_health_address), (None, None));
    let settings = config.node_settings();
    assert!(
        settings.protects(30_000) && settings.guards_external_ips() && !settings.is_host_namespace_only()
    );
    assert!(settings.serves_node_ports_on_loopback());
}

#[test]
fn every_default_is_allowed() {
    // The getters would record a problem.
    with(&[]).unwrap();
    let mut names = std::collections::BTreeSet::new();
    for key in KEYS {
        for name in key.aliases.iter().chain([&key.name]) {
            assert!(names.insert(*name), "{name} is there twice");
        }
        assert!(!key.help.is_empty() && !key.help.ends_with('.'), "{}", key.name);
    }
}

#[test]
fn every_honoured_key_is_read() {
    // A value that no key allows must be a problem for each: a key that nobody parses would be accepted.
    for key in KEYS.iter().filter(|key| {
        key.class == Class::Honoured
            && !matches!(key.name, "node-name" | "k8s-service-proxy-name" | "log-filter" | "config-dir")
    }) {
        let problems = problems(&[&format!("--{}=\u{1}bad", key.name)]);
        assert!(problems.iter().any(|problem| problem.starts_with(key.name)), "{} {problems:?}", key.name);
    }
}

#[test]
fn what_has_no_default_outside_a_pod_is_asked_for() {
    let problems = load(invocation(&[], &[])).unwrap_err().to_string();
    assert!(problems.contains("2 problems") && problems.contains("--source-dir=DIR"), "{problems}");
    assert!(problems.contains("--cgroup-root=DIR"), "{problems}");
    // What is wrong is not missing, too.
    let problems = load(invocation(&["--source-dir=here", "--cgroup-root=/c"], &[])).unwrap_err().to_string();
    assert!(problems.contains("1 problem:") && problems.contains("an absolute path"), "{problems}");
    let pod = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("K8S_NODE_NAME", "node-1")];
    let config = load(invocation(&["--source-dir=/m"], &pod)).unwrap().config;
    assert_eq!(config.cgroup_root, PathBuf::from("/run/portway/cgroupv2"));
    assert_eq!((config.node_name.as_str(), config.allow_root_cgroup), ("node-1", true));
}

#[test]
fn a_directory_or_an_api_server_is_needed_and_both_may_be_there() {
    let config = with(&[]).unwrap();
    assert_eq!((config.source_dir, config.api_server), (Some("/m".into()), None));
    let kubeconfig = ["--k8s-kubeconfig-path=/k", "--cgroup-root=/c"];
    let loaded = load(invocation(&kubeconfig, &[])).unwrap();
    let client = loaded.config.api_server.unwrap().client;
    assert_eq!((loaded.config.source_dir, loaded.warnings), (None, Vec::new()));
    assert_eq!((client.kubeconfig, client.servers), (Some("/k".into()), Vec::new()));
    let both = with(&["--k8s-api-server=192.0.2.1:6443", "--k8s-client-qps=7"]).unwrap();
    let client = both.api_server.unwrap().client;
    assert_eq!((both.source_dir, client.servers[0].as_str()), (Some("/m".into()), "https://192.0.2.1:6443"));
    assert_eq!((client.qps, client.burst), (7, 20));
    // A rate alone asks for nothing.
    assert_eq!(with(&["--k8s-client-qps=7"]).unwrap().api_server, None);
}

#[test]
fn a_pod_that_would_reach_the_api_server_by_a_service_is_warned() {
    let pod = [("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
    let warnings = |arguments: &[&str]| load(invocation(arguments, &pod)).unwrap().warnings;
    let by_service = warnings(&[]);
    assert!(
        by_service.len() == 1 && by_service[0].to_string().contains("k8s-api-server-urls"),
        "{by_service:?}"
    );
    for way in [
        "--k8s-api-server=https://192.0.2.1:6443",
        "--k8s-api-server-urls=https://192.0.2.1:6443",
        "--k8s-kubeconfig-path=/k",
        // Then kube-proxy serves that service.
        "--kube-proxy-replacement=false",
    ] {
        assert_eq!(warnings(&[way]), [], "{way}");
    }
}

#[test]
fn servers_of_the_api_are_urls() {
    let servers = |value: &str| {
        with(&["--k8s-api-server=https://single", &format!("--k8s-api-server-urls={value}")])
            .map(|config| config.api_server.unwrap().client.servers)
    };
    let several = servers("https://192.0.2.1:6443, http://[2001:db8::1]:8080 api.example/cluster").unwrap();
    assert_eq!(
        several,
        ["https://192.0.2.1:6443", "http://[2001:db8::1]:8080", "https://api.example/cluster"]
    );
    assert_eq!(servers("").unwrap(), ["https://single"]);
    for bad in [
        "https://",
        "ftp://a",
        "https://a:b",
        "https://a:0",
        "https://a:65536",
        "https://a?b",
        "https://a b://",
    ] {
        let problems = servers(bad).unwrap_err().to_string();
        assert!(problems.contains("write e.g. https://192.0.2.1:6443"), "{bad}: {problems}");
    }
}

#[test]
fn every_problem_of_the_api_servers_keys_is_named_at_once() {
    let problems = problems(&[
        "--k8s-client-qps=0",
        "--k8s-heartbeat-timeout=30",
        "--k8s-sync-timeout=0s",
        "--k8s-kubeconfig-path=config",
    ]);
    let keys = ["k8s-client-qps", "k8s-heartbeat-timeout", "k8s-kubeconfig-path", "k8s-sync-timeout"];
    assert_eq!(problems.len(), keys.len(), "{problems:?}");
    assert!(keys.iter().zip(&problems).all(|(key, problem)| problem.starts_with(key)), "{problems:?}");
    let config =
        with(&["--k8s-api-server=a", "--k8s-heartbeat-timeout=1m30s", "--k8s-sync-timeout=2h"]).unwrap();
    let api_server = config.api_server.unwrap();
    assert_eq!((api_server.client.heartbeat.as_secs(), api_server.sync_timeout.as_secs()), (90, 7200));
    // As Cilium's: a floating-point number, and 0 is off.
    let carried = ["--k8s-api-server=a", "--k8s-client-qps=7.5", "--k8s-heartbeat-timeout=0"];
    let client = with(&carried).unwrap().api_server.unwrap().client;
    assert_eq!((client.qps, client.heartbeat.as_secs()), (8, 0));
}

#[test]
fn the_nodes_name_is_taken_from_the_strongest_place() {
    let environment = [("K8S_NODE_NAME", "b"), ("PORTWAY_NODE_NAME", "a")];
    let required = ["--source-dir=/m", "--cgroup-root=/c"];
    let name = |arguments: &[&str], environment: &[(&str, &str)]| {
        load(invocation(&[&required, arguments].concat(), environment)).unwrap().config.node_name
    };
    assert_eq!(name(&["--node-name=f"], &environment), "f");
    assert_eq!(name(&[], &environment), "a");
    assert_eq!(name(&[], &environment[..1]), "b");
}

#[test]
fn what_is_not_offered_yet_is_a_problem_that_says_so() {
    for argument in [
        "--bpf-lb-mode=dsr",
        "--node-port-mode=hybrid",
        "--bpf-lb-acceleration=native",
        "--service-no-backend-response=drop",
    ] {
        let problems = problems(&[argument]);
        assert!(problems.len() == 1 && problems[0].contains("not offered yet"), "{argument}: {problems:?}");
    }
}

#[test]
fn combinations_are_checked() {
    assert!(
        problems(&["--enable-ipv4=false", "--enable-ipv6=false"])[0].contains("enable-ipv4 and enable-ipv6")
    );
    let required =
        ["--source-dir=/m", "--cgroup-root=/c", "--bpf-lb-sock=false", "--kube-proxy-replacement=strict"];
    let loaded = load(invocation(&required, &[])).unwrap();
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert!(loaded.config.kube_proxy_replacement);
}

#[test]
fn values_are_parsed_as_cilium_writes_them() {
    let config = with(&[
        "--node-port-range=31000,31999",
        "--nodeport-addresses=10.0.0.0/8,fd00::/8",
        "--prometheus-serve-addr=:9962",
        "--kube-proxy-replacement-healthz-bind-address=0.0.0.0:10256",
        "--bpf-lb-algorithm=maglev",
        "--bpf-lb-maglev-table-size=65521",
        "--kube-proxy-replacement=disabled",
        "--disable-external-ip-mitigation",
        "--bpf-lb-sock-hostns-only=true",
        "--agent-health-port=0",
    ])
    .unwrap();
    assert_eq!(config.node_port_range.to_string(), "31000-31999");
    let covers =
        |addr: &str| config.node_port_addresses.iter().any(|cidr| cidr.contains(addr.parse().unwrap()));
    assert!(covers("10.9.8.7") && covers("fd12::1") && !covers("11.0.0.1") && !covers("fe80::1"));
    assert_eq!(config.metrics_address, Some("[::]:9962".parse().unwrap()));
    assert_eq!(config.proxy_health_address, Some("0.0.0.0:10256".parse().unwrap()));
    let maglev = config.maglev.unwrap();
    assert_eq!(maglev.table_size, 65_521);
    assert_eq!(maglev.seed.0, [0x24, 0xb7, 0xef, 0x82, 0x71, 0xdc, 0xda, 0x46, 0x92, 0x50, 0x56, 0x88]);
    assert_eq!(config.sizes.maglev, 32 * 1024 * 1024);
    assert!(!config.kube_proxy_replacement && !config.external_ip_guard && config.host_namespace_only);
    assert_eq!(config.health_address, None);
}

#[test]
fn the_pod_network_is_read_as_cilium_writes_it() {
    assert_eq!(with(&[]).unwrap().pod_network, None);
    let network = with(&["--enable-pod-network=true"]).unwrap().pod_network.unwrap();
    assert_eq!(network.sizes, PodSizes::DEFAULT);
    assert_eq!(network.timeouts.tcp.as_secs(), 8_000);
    assert!(network.devices.is_auto() && network.masquerade_v4 && network.verify_source);
    assert_eq!(network.node_health, Some(NodeHealth { port: 4240, endpoint: true }));
    let network = with(&[
        "--enable-pod-network=true",
        "--ipam=kubernetes",
        "--tunnel=disabled",
        "--auto-direct-node-routes",
        "--native-routing-cidr=10.0.0.0/8",
        "--ipv6-native-routing-cidr=fd00::/48",
        "--devices=eth+ bond0,!eth9",
        "--mtu=9000",
        "--bpf-ct-global-tcp-max=100000",
        "--bpf-ct-timeout-service-any=30s",
        "--enable-health-checking=false",
        "--write-cni-conf-when-ready=/c/05.conflist",
    ])
    .unwrap()
    .pod_network
    .unwrap();
    assert_eq!((network.ipam, network.mtu), (Ipam::Kubernetes, Some(9000)));
    assert_eq!(network.routing, Routing::Native { direct_node_routes: true });
    assert_eq!(network.native_cidrs.len(), 2);
    let devices = ["eth0", "eth9", "bond0", "bond1"].map(|name| network.devices.covers(name));
    assert_eq!(devices, [true, false, true, false]);
    assert_eq!((network.sizes.conntrack, network.node_health), (362_144, None));
    assert_eq!(network.timeouts.service_any.as_secs(), 30);
    assert_eq!(network.cni_conf, Some("/c/05.conflist".into()));
}

#[test]
fn bad_values_are_named_with_what_is_allowed() {
    for (argument, allowed) in [
        ("--mtu=1000", "1280"),
        ("--ipv4-native-routing-cidr=fd00::/48", "of that family"),
        ("--devices=a/b", "no name of an interface"),
        ("--bpf-ct-timeout-regular-any=0s", "at least 1s"),
        ("--ipv4-service-loopback-address=::1", "169.254.42.1"),
        ("--node-port-range=32767,30000", "put the smaller port first"),
        ("--node-port-range=0,10", "two ports"),
        ("--nodeport-addresses=10.0.0.0/33", "is no prefix"),
        ("--prometheus-serve-addr=9962", "write e.g. :9962"),
        ("--bpf-lb-maglev-table-size=16384", "a prime from 251 to 131071"),
        ("--bpf-lb-maglev-hash-seed=short", "12 bytes in base64"),
        ("--bpf-lb-map-max=5", "at least 256"),
        ("--agent-health-port=70000", "from 0 to 65535"),
        ("--bpf-root=bpf", "an absolute path"),
    ] {
        let problems = problems(&[argument]);
        assert!(problems.len() == 1 && problems[0].contains(allowed), "{argument}: {problems:?}");
    }
}

#[test]
fn sizes_follow_the_general_key_and_its_overrides() {
    let sizes = with(&["--bpf-lb-map-max=1000", "--bpf-lb-service-backend-map-max=5000"]).unwrap().sizes;
    assert_eq!((sizes.frontends, sizes.services, sizes.backends), (1000, 1000, 5000));
    assert_eq!((sizes.runs, sizes.affinity, sizes.source_ranges), (14_000, 1000, 1000));
    assert_eq!(with(&["--bpf-sock-rev-map-max=4096"]).unwrap().sizes.exchanges, 2048);
    assert!(!with(&["--bpf-lb-map-max=1000"]).unwrap().sizes_are_default);
}

#[test]
fn a_zero_prefix_covers_everything_of_its_family() {
    let any = with(&["--nodeport-addresses=0.0.0.0/0"]).unwrap().node_port_addresses;
    assert!(any[0].contains("255.1.2.3".parse().unwrap()) && !any[0].contains("::1".parse().unwrap()));
}

#[test]
fn the_help_names_every_honoured_key() {
    let help = help();
    for key in KEYS {
        let is_there =
            help.contains(&format!("  --{}\n", key.name)) || help.contains(&format!("  --{} ", key.name));
        assert_eq!(is_there, key.class == Class::Honoured, "{}", key.name);
    }
}
