//! Whether the pod network is on, and what is said where it is off.

use portway_runtime::config::{Origin, Reader};

use super::super::parse;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
    /// Off, for what was asked for is not offered, and that has a warning.
    Lacking,
}

/// Unless told to, only in a Kubernetes pod where someone said which addresses pods get, as a ConfigMap of Cilium's always
/// does: an agent that serves services beside another CNI must not take over the node's pods. Nor does one fail for a pod
/// network that nobody told it to have.
pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> Switch {
    match reader.text("enable-pod-network").as_str() {
        "true" => return Switch::On,
        "false" => return Switch::Off,
        _ => {}
    }
    if !in_pod || !is_said(reader, "ipam") || reader.text("ipam") == "delegated-plugin" {
        return Switch::Off;
    }
    let Some((name, why, mend)) = lacking(reader) else { return Switch::On };
    reader.warn(
        name,
        format!(
            "{why}, so the pod network is off and pods are not given addresses or interfaces: {mend}, or keep the CNI that \
             does it (enable-pod-network=false says that you do)"
        ),
    );
    Switch::Lacking
}

fn is_said(reader: &Reader<'_>, name: &'static str) -> bool {
    reader.said(name).is_some_and(|said| said.origin != Origin::Default)
}

/// The first key that asks for what is not offered, why it cannot be had, and what can.
fn lacking(reader: &mut Reader<'_>) -> Option<(&'static str, String, &'static str)> {
    let offered: [(_, &[&str], _); 2] = [
        ("ipam", &["cluster-pool", "kubernetes"], "set it to cluster-pool or kubernetes"),
        ("cni-chaining-mode", &["none", "generic-veth"], "set it to none or generic-veth"),
    ];
    for (name, modes, mend) in offered {
        let mode = reader.text(name);
        if !modes.contains(&mode.as_str()) {
            return Some((name, format!("{mode} is not offered"), mend));
        }
    }
    match tunnel(reader) {
        Some((name, protocol)) if protocol == "geneve" => {
            Some((name, format!("{protocol} is not offered"), "set it to vxlan, or routing-mode to native"))
        }
        Some(_) => None,
        // Without that agent it is an error, as it is one of Cilium's.
        None if !parse::is_on(&reader.text("enable-ip-masq-agent")) => None,
        None => unknown_inside(reader).first().map(|(_, cidr)| {
            let why = "the list of ip-masq-agent is not read and nothing else says what not to masquerade";
            (*cidr, why.to_owned(), "set it to the prefix of the pods")
        }),
    }
}

/// The key that says the tunnel's protocol, and the protocol; `None` with native routing. The older `tunnel` counts where
/// `routing-mode` or `tunnel-protocol` does not say.
pub(super) fn tunnel(reader: &mut Reader<'_>) -> Option<(&'static str, String)> {
    let (mode, older) = (reader.text("routing-mode"), reader.text("tunnel"));
    let protocol = reader.text("tunnel-protocol");
    if mode == "native" || (older == "disabled" && !is_said(reader, "routing-mode")) {
        return None;
    }
    Some(if is_said(reader, "tunnel-protocol") { ("tunnel-protocol", protocol) } else { ("tunnel", older) })
}

/// The keys of families that are masqueraded although nothing says what is inside.
fn unknown_inside(reader: &mut Reader<'_>) -> Vec<(&'static str, &'static str)> {
    let mut unknown = Vec::new();
    for (family, masquerade, cidr) in [
        ("enable-ipv4", "enable-ipv4-masquerade", "ipv4-native-routing-cidr"),
        ("enable-ipv6", "enable-ipv6-masquerade", "ipv6-native-routing-cidr"),
    ] {
        let on = |reader: &mut Reader<'_>, name| parse::is_on(&reader.text(name));
        if on(reader, family) && on(reader, masquerade) && reader.text(cidr).is_empty() {
            unknown.push((masquerade, cidr));
        }
    }
    unknown
}

/// Native routing must know what is inside, or it masquerades traffic between pods.
pub(super) fn check_native(reader: &mut Reader<'_>) {
    for (masquerade, cidr) in unknown_inside(reader) {
        reader.refuse(
            &["routing-mode", masquerade, cidr],
            "native routing with masquerade only where the prefix of the pods is known",
            format!("set {cidr} to that prefix, or {masquerade}=false"),
        );
    }
}

/// What asks for a pod network where there is none.
pub(super) fn warn_of_no_effect(reader: &mut Reader<'_>, switch: Switch) {
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
        // Why it is off was said.
        if name == "ipam" && switch == Switch::Lacking {
            continue;
        }
        let is_off = |off: &&str| *off == said.value || (*off == "false" && !parse::is_on(&said.value));
        if !off.iter().any(is_off) {
            reader.warn(name, missing);
        }
    }
}
