//! What becomes of the pod network's keys.

use super::*;

#[test]
fn native_routing_with_masquerade_needs_the_prefix_of_the_pods() {
    let native = "ipam: kubernetes\nrouting-mode: native\nenable-ipv6: false";
    let error = refused(native);
    assert!(
        error.contains("routing-mode and enable-ipv4-masquerade and ipv4-native-routing-cidr")
            && error.contains("set ipv4-native-routing-cidr to that prefix, or enable-ipv4-masquerade=false"),
        "{error}"
    );
    assert!(refused("ipam: kubernetes\ntunnel: disabled").contains("2 problems"));
    for mend in [
        "ipv4-native-routing-cidr: 10.0.0.0/8",
        "native-routing-cidr: 10.0.0.0/8",
        "enable-ipv4-masquerade: false",
        // Nothing is masqueraded then.
        "enable-pod-network: false",
    ] {
        start(&format!("{native}\n{mend}")).unwrap();
    }
}

/// Who never spoke of pods' addresses has another CNI.
#[test]
fn in_a_pod_the_pod_network_is_on_where_a_source_of_addresses_was_said() {
    let is_on = |lines: &str| start(lines).unwrap().config.pod_network.is_some();
    assert!(!is_on("debug: false") && !is_on("devices: eth0"));
    assert!(is_on("ipam: cluster-pool") && is_on("ipam: kubernetes") && is_on("enable-pod-network: true"));
    assert!(!is_on("ipam: kubernetes\nenable-pod-network: false"));
    // Unless something else asks for one: then that says why there is none.
    assert_eq!(warned("debug: false"), Vec::<String>::new());
    let asked = start("write-cni-conf-when-ready: /c/05-cni.conflist").unwrap().warnings;
    assert!(asked.len() == 1 && asked[0].message.contains("set ipam to cluster-pool"), "{asked:?}");
}

#[test]
fn a_configmap_outside_a_pod_has_no_pod_network_and_says_what_is_missing() {
    for (_, rendered) in RENDERED {
        let dir = tempfile::tempdir().unwrap();
        for line in rendered.lines() {
            let (key, value) = line.split_once(':').unwrap();
            fs::write(dir.path().join(key), value.trim_start()).unwrap();
        }
        let arguments = ["--source-dir=/m".to_owned(), format!("--config-dir={}", dir.path().display())];
        let arguments = arguments.map(OsString::from).into();
        let loaded = load(Invocation { arguments, ..Invocation::default() }).unwrap();
        assert_eq!(loaded.config.pod_network, None);
        let warned: Vec<_> = loaded.warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert!(warned.contains(&"ipam") && warned.contains(&"enable-health-checking"), "{warned:?}");
    }
}

#[test]
fn what_the_pod_network_lacks_is_refused_where_it_is_on_and_ignored_where_it_is_off() {
    for (line, mend) in [
        ("ipam: eni", "set ipam=delegated-plugin"),
        ("tunnel-protocol: geneve", "use vxlan"),
        ("tunnel: geneve", "use vxlan"),
        ("cni-chaining-mode: aws-cni", "generic-veth"),
        ("auto-direct-node-routes: true", "set routing-mode=native"),
    ] {
        let error = refused(&format!("{line}\nenable-pod-network: true"));
        assert!(error.contains("1 problem") && error.contains(mend), "{line}: {error}");
        start(&format!("{line}\nenable-pod-network: false")).unwrap();
    }
    let error = refused("enable-pod-network: true\nipam: delegated-plugin");
    assert!(error.contains("enable-pod-network=false"), "{error}");
    assert_eq!(start("ipam: delegated-plugin").unwrap().config.pod_network, None);
}

/// Of clusters that ran before the pod network was there, or runs beside another CNI.
#[test]
fn what_auto_cannot_switch_on_leaves_it_off_with_a_warning_and_is_refused_where_it_must_be_on() {
    let native = "routing-mode: native\nenable-ip-masq-agent: true";
    for (lines, key, mend) in [
        ("ipam: eni\nrouting-mode: native", "ipam", "cluster-pool or kubernetes"),
        ("ipam: azure", "ipam", "cluster-pool or kubernetes"),
        ("ipam: multi-pool", "ipam", "cluster-pool or kubernetes"),
        ("ipam: crd", "ipam", "cluster-pool or kubernetes"),
        ("ipam: kubernetes\ncni-chaining-mode: portmap", "cni-chaining-mode", "none or generic-veth"),
        ("ipam: cluster-pool\ncni-chaining-mode: aws-cni", "cni-chaining-mode", "none or generic-veth"),
        ("ipam: cluster-pool\ntunnel-protocol: geneve", "tunnel-protocol", "vxlan"),
        ("ipam: cluster-pool\ntunnel: geneve", "tunnel", "vxlan"),
        (
            &format!("ipam: kubernetes\n{native}"),
            "ipv4-native-routing-cidr",
            "set it to the prefix of the pods",
        ),
        (
            &format!("ipam: kubernetes\nenable-ipv4: false\n{native}"),
            "ipv6-native-routing-cidr",
            "set it to the prefix of the pods",
        ),
    ] {
        let loaded = start(lines).unwrap();
        assert_eq!(loaded.config.pod_network, None, "{lines}");
        let why = loaded.warnings.iter().find(|warning| warning.key == key).unwrap();
        assert!(
            why.message.contains("so the pod network is off") && why.message.contains(mend),
            "{lines}: {why}"
        );
        assert!(why.message.contains("enable-pod-network=false"), "{lines}: {why}");
        // Not twice.
        let of_ipam = loaded.warnings.iter().filter(|warning| warning.key == "ipam").count();
        assert_eq!(of_ipam, usize::from(key == "ipam"), "{lines}");
        assert!(refused(&format!("{lines}\nenable-pod-network: true")).contains(key), "{lines}");
    }
    let known = "ipv4-native-routing-cidr: 10.0.0.0/8\nipv6-native-routing-cidr: fd00::/8";
    assert!(start(&format!("ipam: kubernetes\n{native}\n{known}")).unwrap().config.pod_network.is_some());
}

#[test]
fn numbers_that_cilium_takes_are_taken() {
    for (line, read) in [
        ("bpf-ct-global-tcp-max: 16777216", 16_777_216 + 262_144),
        ("bpf-ct-global-any-max: 16777216", 16_777_216 + 524_288),
    ] {
        let network = start(&format!("ipam: kubernetes\n{line}")).unwrap().config.pod_network.unwrap();
        assert_eq!(network.sizes.conntrack, read, "{line}");
    }
    assert!(refused("bpf-ct-global-tcp-max: 16777217").contains("to 16777216"));
    let lines = "ipam: kubernetes\nbpf-nat-global-max: 16777216\nbpf-fragments-map-max: 256\ntunnel-port: 0";
    let network = start(lines).unwrap().config.pod_network.unwrap();
    assert_eq!((network.sizes.nat, network.sizes.fragments), (16_777_216, 256));
    // Of the protocol.
    assert_eq!(network.tunnel_port(), Some(8472));
    start(&format!("{lines}\nenable-pod-network: false")).unwrap();
}
