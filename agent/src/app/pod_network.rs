//! What is shown of the pod network, and the probes between nodes.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use portway_datapath::{Addr, Family};
use portway_model::node::{ClusterNode, ClusterView};
use portway_runtime::shutdown::Drain;
use tokio::sync::watch;

use super::metrics::Metrics;
use crate::api::{self, AddressPool, Masquerading, PodNetworkStatus, Routing, counted};
use crate::config::{self, Chaining, Config, PodNetwork};
use crate::endpoints::{Endpoints, HealthLinkError};
use crate::health::{self, Connect, ConnectError, Health, Probed};
use crate::ipam::PoolUse;
use crate::ipcache::{Comparison, IpcacheEntry, IpcacheStatus};
use crate::maps::{MapError, PodMapId};
use crate::network::Flows;

/// What there is to show where there is a pod network.
pub(super) struct Pods {
    network: PodNetwork,
    cluster: watch::Receiver<Arc<ClusterView>>,
    endpoints: Arc<OnceLock<Endpoints>>,
    flows: Arc<OnceLock<Flows>>,
    probed: Probed,
    /// `None` where nodes are not probed.
    health: Option<Health>,
}

impl Pods {
    /// Begins to probe.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start(
        config: &Config,
        network: &PodNetwork,
        cluster_name: &str,
        cluster: watch::Receiver<Arc<ClusterView>>,
        endpoints: Arc<OnceLock<Endpoints>>,
        metrics: &Metrics,
        drain: Drain,
    ) -> anyhow::Result<Self> {
        let probed = Probed {
            ipv4: config.ipv4,
            ipv6: config.ipv6,
            // Another plugin's addresses are not ours to take one of.
            endpoint: network.node_health.is_some_and(|health| health.endpoint)
                && network.chaining == Chaining::None,
        };
        let start = |health: config::NodeHealth| {
            let settings = health::Settings {
                cluster_name: cluster_name.to_owned(),
                node_name: config.node_name.clone(),
                port: health.port,
                probed,
            };
            Health::start(
                settings,
                cluster.clone(),
                connect(Arc::clone(&endpoints)),
                &metrics.registry,
                drain,
            )
        };
        let health = network.node_health.map(start).transpose()?;
        let flows = Arc::clone(&metrics.flows);
        Ok(Self { network: network.clone(), cluster, endpoints, flows, probed, health })
    }

    pub(super) fn health(&self) -> Option<&Health> {
        self.health.as_ref()
    }

    /// This node first, then by name.
    pub(super) fn nodes(&self) -> Vec<api::Node> {
        let view = Arc::clone(&self.cluster.borrow());
        let this = view.this.as_ref().map(|node| (node, true));
        let nodes = this.into_iter().chain(view.remote.values().map(|node| (node, false)));
        nodes.map(|(node, is_this_node)| self.node(node, is_this_node)).collect()
    }

    fn node(&self, node: &ClusterNode, is_this_node: bool) -> api::Node {
        let addr = |addr: Addr| IpAddr::from(addr).to_string();
        api::Node {
            name: node.name.to_string(),
            is_this_node,
            internal_addresses: node.addresses.iter().copied().map(addr).collect(),
            pod_cidrs: node.pod_cidrs.iter().map(ToString::to_string).collect(),
            health_addresses: health::endpoint_addresses(node, self.probed).map(addr).collect(),
            state: self.health.as_ref().map(|health| health.state(&node.name)).unwrap_or_default().to_owned(),
        }
    }

    /// The maps of the pod network.
    pub(super) fn maps(&self) -> Vec<api::MapUse> {
        let Some(flows) = self.flows.get() else { return Vec::new() };
        let mut used = flows.conntrack.status().used;
        used.insert(PodMapId::Ipcache, flows.ipcache.status().entries);
        let facts = flows.reader.facts().into_iter().map(|fact| api::MapUse {
            name: fact.id.name().to_owned(),
            used: used.get(&fact.id).copied(),
            size: fact.max.into(),
            bytes: fact.kernel_bytes.unwrap_or_default(),
        });
        facts.collect()
    }

    /// Who is where, as it should be in the kernel; empty before the maps are there.
    pub(super) fn ipcache(&self) -> Vec<IpcacheEntry> {
        self.flows.get().map(|flows| flows.ipcache.list()).unwrap_or_default()
    }

    /// Compares the kernel's table of who is where with what it should be, and with `fix` puts it right.
    pub(super) fn audit_ipcache(&self, fix: bool) -> Result<api::Audit, MapError> {
        let Some(flows) = self.flows.get() else { return Ok(api::Audit::default()) };
        let Comparison { differences, refused } = flows.ipcache.compare(fix)?;
        let found: Vec<_> = differences.iter().map(api::Difference::from).collect();
        let remaining = if fix && refused.is_none() { Vec::new() } else { found.clone() };
        Ok(api::Audit { found, remaining, ..api::Audit::default() })
    }

    /// What is wrong with that table.
    pub(super) fn ipcache_warnings(&self) -> Vec<String> {
        let status = self.flows.get().map(|flows| flows.ipcache.status());
        status.map(|status| ipcache_warnings(&status)).unwrap_or_default()
    }

    pub(super) fn status(&self) -> PodNetworkStatus {
        let PodNetwork { routing, masquerade_v4, masquerade_v6, native_cidrs, .. } = &self.network;
        let pools = self.endpoints.get().map(|endpoints| endpoints.pools()).unwrap_or_default();
        let health = self.own_health_addresses();
        PodNetworkStatus {
            ipam: [Family::V4, Family::V6]
                .into_iter()
                .filter_map(|family| pool(family, &pools, &health))
                .collect(),
            routing: match routing {
                config::Routing::Tunnel { port } => Routing {
                    inter_host_routing_mode: "Tunnel".to_owned(),
                    tunnel_protocol: Some("vxlan".to_owned()),
                    tunnel_port: Some(*port),
                    direct_node_routes: false,
                },
                config::Routing::Native { direct_node_routes } => Routing {
                    inter_host_routing_mode: "Native".to_owned(),
                    direct_node_routes: *direct_node_routes,
                    ..Routing::default()
                },
            },
            masquerading: Masquerading {
                ipv4: *masquerade_v4,
                ipv6: *masquerade_v6,
                native_cidrs: native_cidrs
                    .iter()
                    .map(|cidr| format!("{}/{}", cidr.addr(), cidr.bits()))
                    .collect(),
            },
            cluster_health: self.health.as_ref().map(Health::show),
        }
    }

    fn own_health_addresses(&self) -> Vec<Addr> {
        let view = self.cluster.borrow();
        view.this.iter().flat_map(|node| health::endpoint_addresses(node, self.probed)).collect()
    }
}

/// All prefixes of a family that the node has; those that it has no longer add what pods still use. The health endpoint's
/// address is counted, as Cilium does.
fn pool(family: Family, pools: &[PoolUse], health: &[Addr]) -> Option<AddressPool> {
    let of_family = |pool: &&PoolUse| pool.prefix.family() == family;
    let mut shown = AddressPool {
        family: match family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
        .to_owned(),
        ..AddressPool::default()
    };
    for PoolUse { prefix, size, used, resting: _, is_retired } in pools.iter().filter(of_family) {
        let of_health = health.iter().filter(|addr| prefix.contains(**addr)).count() as u64;
        shown.allocated += *used as u64 + of_health;
        if !is_retired {
            let size = u64::try_from(*size).unwrap_or(u64::MAX).saturating_add(of_health);
            shown.total = shown.total.saturating_add(size);
            shown.prefixes.push(prefix.to_string());
        }
    }
    (!shown.prefixes.is_empty()).then_some(shown)
}

/// Links for the health endpoint, as pods get them.
fn connect(endpoints: Arc<OnceLock<Endpoints>>) -> Connect {
    Arc::new(move |netns: &OwnedFd, addresses: &[Addr]| {
        let endpoints = endpoints.get().ok_or(ConnectError::NotYet)?;
        endpoints.connect_health(netns, addresses).map_err(|error| match error {
            HealthLinkError::NotServing => ConnectError::NotYet,
            HealthLinkError::Busy(_) | HealthLinkError::Taken { .. } | HealthLinkError::Endpoint(_) => {
                ConnectError::Refused(error.to_string())
            }
        })
    })
}

fn ipcache_warnings(status: &IpcacheStatus) -> Vec<String> {
    let IpcacheStatus { outstanding, last_error, missing, kept, .. } = status;
    let refused = last_error.as_ref().filter(|_| *outstanding > 0).map(|error| {
        let entries = counted(*outstanding, "entry", "entries");
        format!("{entries} of pw_ipcache are not as they should be, and are tried again: {error}")
    });
    let silent: Vec<_> = missing.iter().map(ToString::to_string).collect();
    let held = (!silent.is_empty() && *kept > 0).then(|| {
        let entries = counted(*kept, "entry", "entries");
        format!(
            "{entries} of pw_ipcache of the agent before may stay until everything is known of {}",
            silent.join(", ")
        )
    });
    refused.into_iter().chain(held).collect()
}

#[cfg(test)]
mod tests {
    use portway_model::ipcache::Source;
    use portway_model::node::Prefix;

    use super::*;

    #[test]
    fn what_an_agent_before_left_in_the_ipcache_is_a_warning_as_long_as_a_source_is_silent() {
        let missing = vec![Source::Endpoints, Source::ApiServer];
        let status = |kept| IpcacheStatus { missing: missing.clone(), kept, ..IpcacheStatus::default() };
        assert_eq!(ipcache_warnings(&status(0)), Vec::<String>::new());
        assert_eq!(
            ipcache_warnings(&status(2)),
            [
                "2 entries of pw_ipcache of the agent before may stay until everything is known of CiliumEndpoints, \
              the API server's addresses"
            ]
        );
        let refused =
            IpcacheStatus { outstanding: 1, last_error: Some("full".to_owned()), ..IpcacheStatus::default() };
        assert_eq!(
            ipcache_warnings(&refused),
            ["1 entry of pw_ipcache are not as they should be, and are tried again: full"]
        );
    }

    fn used(prefix: &str, size: u128, used: usize, is_retired: bool) -> PoolUse {
        PoolUse { prefix: Prefix::parse(prefix).unwrap(), size, used, resting: 3, is_retired }
    }

    #[test]
    fn addresses_are_counted_by_family_and_the_health_endpoints_is_one_of_them() {
        let pools = [
            used("10.0.1.0/24", 253, 11, false),
            used("10.0.9.0/24", 253, 2, false),
            used("10.7.0.0/24", 254, 1, true),
            used("fd00::/48", u128::MAX, 11, false),
        ];
        let health: Vec<_> = ["10.0.1.1", "fd00::1"].map(|a| Addr::from(a.parse::<IpAddr>().unwrap())).into();
        let v4 = pool(Family::V4, &pools, &health).unwrap();
        assert_eq!(
            (v4.allocated, v4.total, v4.prefixes.join(" ")),
            (15, 507, "10.0.1.0/24 10.0.9.0/24".into())
        );
        let v6 = pool(Family::V6, &pools, &health).unwrap();
        assert_eq!((v6.allocated, v6.total), (12, u64::MAX));
        assert_eq!(pool(Family::V6, &pools[..3], &health), None);
        assert_eq!(pool(Family::V4, &pools[..1], &[]).unwrap().total, 253);
    }
}
