//! The pod network, if it is on.

mod switch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use portway_datapath::layout::PodSizes;
use portway_runtime::config::{Invalid, Reader, parse_duration};

use self::switch::Switch;
use super::identities::{self, Identities};
use super::parse::{self, Cidr};

/// The least MTU of an interface that carries IPv6 (RFC 8200, section 5).
const LEAST_MTU: u16 = 1280;
/// Cilium's port of VXLAN, from before there was one of IANA's.
const VXLAN_PORT: u16 = 8472;
/// Half-open flows that there is room for: one for so many established ones, and no fewer than [`LEAST_NEW_FLOWS`].
const FLOWS_A_NEW_ONE: u32 = 12;
const NATS_A_NEW_ONE: u32 = 8;
const LEAST_NEW_FLOWS: u32 = 4_096;

/// How pods get a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    pub ipam: Ipam,
    pub routing: Routing,
    /// Of the network between nodes, in bytes; `None` is the least of the devices'.
    pub mtu: Option<u16>,
    /// What is inside beside pods and nodes; at most one of each family.
    pub native_cidrs: Vec<Cidr>,
    pub masquerade_v4: bool,
    pub masquerade_v6: bool,
    pub devices: DevicePatterns,
    /// `None` is the device of the node's address.
    pub direct_routing_device: Option<DevicePattern>,
    pub chaining: Chaining,
    /// Where the CNI configuration is written when pods can be given a network.
    pub cni_conf: Option<PathBuf>,
    pub sizes: PodSizes,
    pub timeouts: FlowTimeouts,
    /// Whether a pod may send from its own addresses alone.
    pub verify_source: bool,
    /// `None`: nodes are not probed.
    pub node_health: Option<NodeHealth>,
    pub identities: Identities,
    /// What a pod that reaches itself by a service sees as its client.
    pub hairpin_v4: Ipv4Addr,
    pub hairpin_v6: Ipv6Addr,
}

/// Where this node's addresses for pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipam {
    /// `Node.spec.podCIDRs`.
    Kubernetes,
    /// `CiliumNode.spec.ipam.podCIDRs`.
    ClusterPool,
}

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// VXLAN to this UDP port, in host order.
    Tunnel { port: u16 },
    /// By the network's routes. `direct_node_routes`: routes to nodes on the same link are installed.
    Native { direct_node_routes: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chaining {
    None,
    /// Interfaces that another plugin made are taken over.
    GenericVeth,
}

/// When a flow without a packet is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTimeouts {
    pub tcp: Duration,
    pub tcp_syn: Duration,
    pub tcp_fin: Duration,
    pub any: Duration,
    pub service_tcp: Duration,
    pub service_tcp_grace: Duration,
    pub service_any: Duration,
}

/// Probes between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// TCP, in host order.
    pub port: u16,
    /// An endpoint of each node is probed too.
    pub endpoint: bool,
}

/// Names of interfaces; empty is automatic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePatterns(Vec<(bool, DevicePattern)>);

/// A name, or with `+` at its end all that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePattern(String);

impl DevicePattern {
    pub fn covers(&self, name: &str) -> bool {
        match self.0.strip_suffix('+') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.0,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl DevicePatterns {
    /// Nothing says which devices; exceptions may still say which not.
    pub fn is_auto(&self) -> bool {
        self.0.iter().all(|(takes, _)| !takes)
    }

    /// Whether a device is named, and by no exception.
    pub fn covers(&self, name: &str) -> bool {
        self.0.iter().any(|(takes, pattern)| *takes && pattern.covers(name)) && !self.excepts(name)
    }

    /// Whether a device is named as one that is not meant.
    pub fn excepts(&self, name: &str) -> bool {
        self.0.iter().any(|(takes, pattern)| !takes && pattern.covers(name))
    }
}

impl PodNetwork {
    /// The tunnel's UDP port, where there is one.
    pub const fn tunnel_port(&self) -> Option<u16> {
        match self.routing {
            Routing::Tunnel { port } => Some(port),
            Routing::Native { .. } => None,
        }
    }
}

/// `None` where the pod network is off: what was said for it then has a warning.
pub(super) fn read(reader: &mut Reader<'_>, in_pod: bool) -> Option<PodNetwork> {
    let switch = switch::read(reader, in_pod);
    let on = switch == Switch::On;
    // All of them, also where they have no effect: a mistake is named at once.
    let ipam = reader.parse("ipam", |value| ipam(value, on)).unwrap_or(Ipam::ClusterPool);
    let tcp_flows: u32 = reader.number("bpf-ct-global-tcp-max");
    let conntrack = tcp_flows.saturating_add(reader.number("bpf-ct-global-any-max"));
    let nat: u32 = reader.number("bpf-nat-global-max");
    let new_flows = |flows: u32, a_new_one: u32| (flows / a_new_one).max(LEAST_NEW_FLOWS);
    let prefixes = [
        reader.parse("ipv4-native-routing-cidr", |value| native_cidr(value, true)),
        reader.parse("ipv6-native-routing-cidr", |value| native_cidr(value, false)),
    ];
    let probes = reader.bool("enable-health-checking");
    let health = NodeHealth {
        port: reader.number("cluster-health-port"),
        endpoint: reader.bool("enable-endpoint-health-checking"),
    };
    let network = PodNetwork {
        ipam,
        routing: routing(reader, on),
        mtu: reader.parse("mtu", mtu).unwrap_or_default(),
        native_cidrs: prefixes.into_iter().flatten().flatten().collect(),
        masquerade_v4: reader.bool("enable-ipv4-masquerade"),
        masquerade_v6: reader.bool("enable-ipv6-masquerade"),
        devices: reader.parse("devices", devices).unwrap_or_default(),
        direct_routing_device: reader.parse("direct-routing-device", device).unwrap_or_default(),
        chaining: reader.parse("cni-chaining-mode", |value| chaining(value, on)).unwrap_or(Chaining::None),
        cni_conf: Some(PathBuf::from(reader.text("write-cni-conf-when-ready")))
            .filter(|path| !path.as_os_str().is_empty()),
        sizes: PodSizes {
            conntrack,
            conntrack_new: new_flows(conntrack, FLOWS_A_NEW_ONE),
            nat,
            nat_new: new_flows(nat, NATS_A_NEW_ONE),
            fragments: reader.number("bpf-fragments-map-max"),
            ..PodSizes::DEFAULT
        },
        timeouts: FlowTimeouts {
            tcp: timeout(reader, "bpf-ct-timeout-regular-tcp"),
            tcp_syn: timeout(reader, "bpf-ct-timeout-regular-tcp-syn"),
            tcp_fin: timeout(reader, "bpf-ct-timeout-regular-tcp-fin"),
            any: timeout(reader, "bpf-ct-timeout-regular-any"),
            service_tcp: timeout(reader, "bpf-ct-timeout-service-tcp"),
            service_tcp_grace: timeout(reader, "bpf-ct-timeout-service-tcp-grace"),
            service_any: timeout(reader, "bpf-ct-timeout-service-any"),
        },
        verify_source: reader.bool("enable-source-ip-verification"),
        node_health: probes.then_some(health),
        identities: identities::read(reader),
        hairpin_v4: reader
            .parse("ipv4-service-loopback-address", loopback_v4)
            .unwrap_or(Ipv4Addr::new(169, 254, 42, 1)),
        hairpin_v6: reader
            .parse("ipv6-service-loopback-address", loopback_v6)
            .unwrap_or(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
    };
    if on {
        if matches!(network.routing, Routing::Native { .. }) {
            switch::check_native(reader);
        }
        return Some(network);
    }
    switch::warn_of_no_effect(reader, switch);
    None
}

fn ipam(value: &str, on: bool) -> Result<Ipam, Invalid> {
    match value {
        "kubernetes" => Ok(Ipam::Kubernetes),
        "cluster-pool" => Ok(Ipam::ClusterPool),
        "delegated-plugin" if on => Err(Invalid::new(
            "cluster-pool or kubernetes where enable-pod-network is true",
            "choose one of them, or set enable-pod-network=false and run another CNI",
        )),
        _ if on => Err(Invalid::new(
            "cluster-pool or kubernetes: other sources of addresses are not offered",
            "choose one of them, or set ipam=delegated-plugin and run another CNI",
        )),
        _ if value.contains(|c: char| !c.is_ascii_lowercase() && c != '-') => {
            Err(parse::mend("use cluster-pool (the default)"))
        }
        // Of the pod network that is off: it has a warning.
        _ => Ok(Ipam::ClusterPool),
    }
}

fn routing(reader: &mut Reader<'_>, on: bool) -> Routing {
    let direct_node_routes = reader.bool("auto-direct-node-routes");
    let port = match reader.number("tunnel-port") {
        0 => VXLAN_PORT,
        port => port,
    };
    let Some((key, protocol)) = switch::tunnel(reader) else { return Routing::Native { direct_node_routes } };
    if on && protocol == "geneve" {
        reader.refuse(&[key], "vxlan: geneve is not offered yet", "use vxlan, or routing-mode=native");
    }
    if on && direct_node_routes {
        reader.refuse(
            &["routing-mode", "auto-direct-node-routes"],
            "direct routes only with native routing",
            "set routing-mode=native, or auto-direct-node-routes=false",
        );
    }
    Routing::Tunnel { port }
}

fn mtu(value: &str) -> Result<Option<u16>, Invalid> {
    match value.parse() {
        Ok(0) => Ok(None),
        Ok(mtu) if mtu >= LEAST_MTU => Ok(Some(mtu)),
        Ok(_) | Err(_) => Err(parse::mend("leave it out: it is found out")),
    }
}

fn chaining(value: &str, on: bool) -> Result<Chaining, Invalid> {
    match value {
        "none" => Ok(Chaining::None),
        "generic-veth" => Ok(Chaining::GenericVeth),
        _ if on || value.contains(|c: char| !c.is_ascii_lowercase() && c != '-') => {
            Err(parse::mend("use none (the default) or generic-veth: other modes are not offered"))
        }
        _ => Ok(Chaining::None),
    }
}

fn native_cidr(value: &str, v4: bool) -> Result<Option<Cidr>, Invalid> {
    if value.is_empty() {
        return Ok(None);
    }
    let bad = || parse::mend("write one prefix of that family");
    let cidr = parse::cidr(value).ok().filter(|cidr| cidr.addr().is_ipv4() == v4);
    cidr.map(Some).ok_or_else(bad)
}

fn loopback_v4(value: &str) -> Result<Ipv4Addr, Invalid> {
    match value.parse() {
        Ok(IpAddr::V4(addr)) if !addr.is_unspecified() && !addr.is_multicast() => Ok(addr),
        Ok(_) | Err(_) => Err(parse::mend("use 169.254.42.1 (the default)")),
    }
}

fn loopback_v6(value: &str) -> Result<Ipv6Addr, Invalid> {
    match value.parse() {
        Ok(IpAddr::V6(addr)) if !addr.is_unspecified() && !addr.is_multicast() => Ok(addr),
        Ok(_) | Err(_) => Err(parse::mend("use fe80::1 (the default)")),
    }
}

/// Names of interfaces, separated by commas or spaces; one that begins with `!` is an exception.
fn devices(value: &str) -> Result<DevicePatterns, Invalid> {
    let names = value.split([',', ' ']).filter(|name| !name.is_empty() && *name != "auto");
    let pattern = |name: &str| match name.strip_prefix('!') {
        Some(name) => one_device(name).map(|pattern| (false, pattern)),
        None => one_device(name).map(|pattern| (true, pattern)),
    };
    Ok(DevicePatterns(names.map(pattern).collect::<Result<_, _>>()?))
}

fn device(value: &str) -> Result<Option<DevicePattern>, Invalid> {
    match value {
        "" | "auto" => Ok(None),
        _ => one_device(value).map(Some),
    }
}

/// As the kernel takes names (`dev_valid_name`).
fn one_device(name: &str) -> Result<DevicePattern, Invalid> {
    /// `IFNAMSIZ` without its final zero.
    const LONGEST: usize = 15;
    let is_bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let stem = name.strip_suffix('+').unwrap_or(name);
    if stem.is_empty() || stem.len() > LONGEST || matches!(stem, "." | "..") || stem.contains(is_bad) {
        return Err(parse::mend(&format!("{name:?} is no name of an interface: write e.g. eth0 or eth+")));
    }
    Ok(DevicePattern(name.to_owned()))
}

/// Whole seconds: what programs count in.
fn timeout(reader: &mut Reader<'_>, name: &'static str) -> Duration {
    let least = Duration::from_secs(1);
    let bad = || Invalid::new("a duration of at least 1s, such as 60s or 6h", "write e.g. 60s");
    let parse = |value: &str| {
        let parsed = parse_duration(value).ok().filter(|duration| *duration >= least);
        parsed.filter(|duration| duration.as_secs() <= u64::from(u32::MAX)).ok_or_else(bad)
    };
    reader.parse(name, parse).unwrap_or(least)
}
