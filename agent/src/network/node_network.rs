//! `pw_network`: what the packet programs are told of the node.

use std::net::IpAddr;
use std::time::Duration;

use portway_datapath::{Addr, NodeNetwork};

use crate::config::{Chaining, Config, FlowTimeouts, PodNetwork, PortRange};

/// Ports that masquerading needs at least, so that it need not search long.
const LEAST_PORTS: u16 = 4_096;
/// The first port that is nobody's by convention (RFC 6335).
const FIRST_USER_PORT: u16 = 1_024;

/// `tunnel` is the device's index. A tunnel whose device cannot be made is a tunnel all the same: what pods send to other
/// nodes' pods must not leave in the clear, nor may they send what other nodes take for this node's.
pub(crate) fn node_network(config: &Config, network: &PodNetwork, tunnel: Option<u32>) -> NodeNetwork {
    let PodNetwork { timeouts, hairpin_v4, hairpin_v6, .. } = network;
    let switches = [
        (network.tunnel_port().is_some(), NodeNetwork::TUNNEL),
        (config.ipv4 && network.masquerade_v4, NodeNetwork::MASQUERADE_V4),
        (config.ipv6 && network.masquerade_v6, NodeNetwork::MASQUERADE_V6),
        (config.kube_proxy_replacement, NodeNetwork::SERVICES),
        (network.verify_source, NodeNetwork::VERIFY_SOURCE),
        (network.chaining == Chaining::None, NodeNetwork::OWN_LINKS),
    ];
    let FlowTimeouts { tcp, tcp_syn, tcp_fin, any, service_tcp, service_tcp_grace: _, service_any } =
        *timeouts;
    let ports = nat_ports(config.node_port_range);
    NodeNetwork {
        switches: switches.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, switch)| all | switch),
        tunnel: halves(tunnel.unwrap_or(0), network.tunnel_port().unwrap_or(0).into()),
        nat_ports: halves(ports.first.into(), ports.last.into()),
        tcp_timeouts: halves(seconds(tcp), seconds(tcp_syn)),
        other_timeouts: halves(seconds(tcp_fin), seconds(any)),
        service_timeouts: halves(seconds(service_tcp), seconds(service_any)),
        hairpin_v4: Addr::from(IpAddr::from(*hairpin_v4)),
        hairpin_v6: Addr::from(IpAddr::from(*hairpin_v6)),
    }
}

/// The ports that masquerading takes: those past the NodePorts, or where these are few those before.
fn nat_ports(node_ports: PortRange) -> PortRange {
    let after = PortRange { first: node_ports.last.saturating_add(1), last: u16::MAX };
    let before = PortRange { first: FIRST_USER_PORT, last: node_ports.first.saturating_sub(1) };
    let len = |range: PortRange| range.last.saturating_sub(range.first);
    if node_ports.last < u16::MAX && (len(after) >= LEAST_PORTS || len(after) >= len(before)) {
        after
    } else {
        before
    }
}

const fn halves(low: u32, high: u32) -> u64 {
    (low as u64) | ((high as u64) << 32)
}

/// The configuration allows no more than fits.
fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange { first, last }
    }

    #[test]
    fn masquerading_takes_the_ports_past_the_node_ports_unless_these_are_few() {
        assert_eq!(nat_ports(range(30_000, 32_767)), range(32_768, 65_535));
        assert_eq!(nat_ports(range(60_000, 65_535)), range(1_024, 59_999));
        assert_eq!(nat_ports(range(60_000, 65_000)), range(1_024, 59_999));
        assert_eq!(nat_ports(range(1, 65_000)), range(65_001, 65_535));
    }

    #[test]
    fn the_words_are_those_that_programs_read() {
        let arguments =
            ["--source-dir=/m", "--cgroup-root=/c", "--enable-pod-network=true", "--enable-ipv6=false"];
        let invocation = crate::config::Invocation {
            arguments: arguments.map(Into::into).into(),
            ..crate::config::Invocation::default()
        };
        let config = crate::config::load(invocation).unwrap().config;
        let network = config.pod_network.clone().unwrap();
        let words = node_network(&config, &network, Some(7));
        assert!(words.is(NodeNetwork::TUNNEL) && words.is(NodeNetwork::MASQUERADE_V4));
        assert!(!words.is(NodeNetwork::MASQUERADE_V6) && words.is(NodeNetwork::SERVICES));
        assert!(words.is(NodeNetwork::VERIFY_SOURCE) && words.is(NodeNetwork::OWN_LINKS));
        let mut chained = network.clone();
        chained.chaining = Chaining::GenericVeth;
        assert!(!node_network(&config, &chained, Some(7)).is(NodeNetwork::OWN_LINKS));
        assert_eq!((words.tunnel_ifindex(), words.tunnel_port()), (7, 8472));
        assert_eq!(words.nat_ports, 32_768 | 65_535 << 32);
        assert_eq!(words.tcp_timeouts, 8_000 | 60 << 32);
        assert_eq!(words.other_timeouts, 10 | 60 << 32);
        assert_eq!(words.service_timeouts, 21_600 | 60 << 32);
        assert_eq!(words.hairpin_v4.to_string(), "169.254.42.1");
        // Also while its device cannot be made: nothing goes out in the clear.
        let words = node_network(&config, &network, None);
        assert!(words.is(NodeNetwork::TUNNEL));
        assert_eq!((words.tunnel_ifindex(), words.tunnel_port()), (0, 8472));
    }
}
