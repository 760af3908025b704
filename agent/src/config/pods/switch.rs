//! Whether the pod network is on, and what is said where it is off.

use portway_runtime::config::{Origin, Reader};

use super::super::parse;

/// Unless told to, only in a Kubernetes pod where someone said which addresses pods get, as a ConfigMap of Cilium's always
/// does: an agent that serves services beside another CNI must not take over the node's pods.
pub(super) fn is_on(reader: &mut Reader<'_>, in_pod: bool) -> bool {
    match reader.text("enable-pod-network").as_str() {
        "true" => true,
        "false" => false,
        _ => in_pod && is_said(reader, "ipam") && reader.text("ipam") != "delegated-plugin",
    }
}

pub(super) fn is_said(reader: &Reader<'_>, name: &'static str) -> bool {
    reader.said(name).is_some_and(|said| said.origin != Origin::Default)
}

/// Native routing must know what is inside, or it masquerades traffic between pods.
pub(super) fn check_native(reader: &mut Reader<'_>) {
    for (family, masquerade, cidr) in [
        ("enable-ipv4", "enable-ipv4-masquerade", "ipv4-native-routing-cidr"),
        ("enable-ipv6", "enable-ipv6-masquerade", "ipv6-native-routing-cidr"),
    ] {
        let on = |reader: &mut Reader<'_>, name| parse::is_on(&reader.text(name));
        if on(reader, family) && on(reader, masquerade) && reader.text(cidr).is_empty() {
            reader.refuse(
                &["routing-mode", masquerade, cidr],
                "native routing with masquerade only where the prefix of the pods is known",
                format!("set {cidr} to that prefix, or {masquerade}=false"),
            );
        }
    }
}

/// What asks for a pod network where there is none.
pub(super) fn warn_of_no_effect(reader: &mut Reader<'_>) {
    for (name, off, missing) in [
        (
            "ipam",
            &["delegated-plugin"][..],
            "the pod network is off, so pods are not given addresses or interfaces: set enable-pod-network=true, or run \
             another CNI; delegated-plugin says that you do",
        ),
        (
            "write-cni-conf-when-ready",
            &[""],
            "the pod network is off, so no CNI configuration is written: set ipam to cluster-pool or kubernetes, or \
             enable-pod-network=true, to have one",
        ),
        (
            "enable-source-ip-verification",
            &["false"],
            "the pod network is off, so whether a pod sends with an address of its own is not checked; the CNI may do that",
        ),
        (
            "devices",
            &["", "auto"],
            "the pod network is off, so nothing is attached to interfaces, and NodePorts answer on all of them; \
             nodeport-addresses limits that",
        ),
        ("enable-health-checking", &["false"], "the pod network is off, so nodes do not probe each other"),
    ] {
        let Some(said) = reader.said(name).filter(|_| is_said(reader, name)) else { continue };
        let is_off = |off: &&str| *off == said.value || (*off == "false" && !parse::is_on(&said.value));
        if !off.iter().any(is_off) {
            reader.warn(name, missing);
        }
    }
}
