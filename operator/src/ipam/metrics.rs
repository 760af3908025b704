use portway_datapath::Family;
use prometheus::{GaugeVec, Opts, Registry};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) nodes: usize,
    /// They wait for a CIDR.
    pub(super) in_deficit: usize,
    /// There is none for them.
    pub(super) at_capacity: usize,
    pub(super) of_pools: Vec<PoolFigures>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PoolFigures {
    pub(super) family: Family,
    /// Addresses of CIDRs that are free.
    pub(super) available: f64,
    /// Addresses of CIDRs that are not.
    pub(super) used: f64,
    /// Addresses of the CIDRs that nodes wait for.
    pub(super) needed: f64,
}

/// Of the pools, as of the last plan. Clones count together.
#[derive(Clone)]
pub struct Metrics {
    nodes: GaugeVec,
    available: GaugeVec,
    used: GaugeVec,
    needed: GaugeVec,
}

impl Metrics {
    /// # Errors
    /// A metric of one of the names is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, label: &str| {
            let gauge = GaugeVec::new(Opts::new(format!("cilium_operator_ipam_{name}"), help), &[label])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            nodes: gauge(
                "nodes",
                "CiliumNodes, those that wait for CIDRs, those that there is none for",
                "category",
            )?,
            available: gauge("available_ips", "Addresses of the pools' CIDRs that no node has", "family")?,
            used: gauge(
                "used_ips",
                "Addresses of the pools' CIDRs that nodes have or that cannot be given",
                "family",
            )?,
            needed: gauge("needed_ips", "Addresses of the CIDRs that nodes wait for", "family")?,
        })
    }

    pub(super) fn clear(&self) {
        let Self { nodes, available, used, needed } = self;
        [nodes, available, used, needed].into_iter().for_each(GaugeVec::reset);
    }

    pub(super) fn set(&self, figures: &Figures) {
        let Figures { nodes, in_deficit, at_capacity, of_pools } = figures;
        for (category, count) in [("total", nodes), ("in-deficit", in_deficit), ("at-capacity", at_capacity)]
        {
            self.nodes.with_label_values(&[category]).set(*count as f64);
        }
        for pool in of_pools {
            let family = match pool.family {
                Family::V4 => "ipv4",
                Family::V6 => "ipv6",
            };
            self.available.with_label_values(&[family]).set(pool.available);
            self.used.with_label_values(&[family]).set(pool.used);
            self.needed.with_label_values(&[family]).set(pool.needed);
        }
    }
}
