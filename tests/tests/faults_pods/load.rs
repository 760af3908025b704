//! Connections that are held, and 200 new ones a second, between pods, to services and to the world.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use portway_tests::harness::cluster_net::{Pod, PodSpec, WORLD_V4, WORLD_V6};
use portway_tests::harness::fixture::{WEB, web};
use portway_tests::harness::manifest::TARGET;
use portway_tests::harness::probe::ToAddress as _;
use portway_tests::harness::{ClusterNet, Probe};

/// By the two clients together.
const HELD: u32 = 100;
const PER_SECOND: u32 = 200;

/// Twice those that the new connections of a minute to one address take, for which their ends remember them.
const PORTS: &str = "40000 41499";

pub(crate) fn world(v6: bool) -> SocketAddr {
    let addr = if v6 { IpAddr::from(WORLD_V6) } else { WORLD_V4.into() };
    SocketAddr::new(addr, TARGET)
}

/// Two pods that ask without pause: one whose sockets are translated, one whose packets are.
pub(crate) struct Load {
    near: Pod,
    probes: [(&'static str, Probe); 2],
}

impl Load {
    /// On node 1, with servers on both nodes; the agents run.
    pub(crate) fn start(net: &mut ClusterNet) -> Result<Self> {
        let (near, far) = (net.serving_pod(1, "near")?, net.serving_pod(2, "far")?);
        net.publish(&web(), near.endpoints().into_iter().chain(far.endpoints()))?;
        let by_socket = net.pod(1, "client")?;
        let by_packet = net.make(1, &PodSpec::new("raw").without_socket_lb())?;
        // Few ports, so that connections to a service and to its backends have the same ones.
        by_packet.namespace.sysctl("ipv4/ip_local_port_range", PORTS)?;
        net.node(1).wait_programmed()?;
        let mut to: Vec<SocketAddr> = WEB.iter().map(|web| web.to_address()).collect::<Result<_>>()?;
        for v6 in [false, true] {
            to.extend([near.socket(v6), far.socket(v6), world(v6)]);
        }
        let mut probes = [("by socket", net.client(&by_socket)?), ("by packet", net.client(&by_packet)?)];
        for (_, probe) in &mut probes {
            probe.start_load(&to, HELD / 2, PER_SECOND / 2)?;
        }
        Ok(Self { near, probes })
    }

    /// A server on node 1.
    pub(crate) fn near(&self) -> &Pod {
        &self.near
    }

    /// Prints what the clients saw, and fails where they noticed anything.
    pub(crate) fn end(&mut self, what: &str) -> Result<()> {
        for (who, probe) in &mut self.probes {
            let tally = probe.end_load()?;
            println!("{what}, {who}: {}", tally.summary());
            // Half of what was asked for.
            tally.ensure_undisturbed(3, HELD / 2, PER_SECOND / 4).with_context(|| (*who).to_owned())?;
        }
        Ok(())
    }
}
