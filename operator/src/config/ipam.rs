use portway_runtime::config::Reader;

/// Where nodes have their pods' prefixes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ipam {
    /// From the operator, which cuts them from pools of the cluster.
    ClusterPool(ClusterPools),
    /// From `spec.podCIDRs` of their Nodes.
    Kubernetes,
    /// Somebody else's business.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPools {
    pub v4: Pools,
    pub v6: Pools,
    /// Writes a second for nodes, and how many at once: `limit-ipam-api-qps`, `limit-ipam-api-burst`.
    pub qps: u32,
    pub burst: u32,
}

/// Pools of one family as they were written; without prefixes there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Prefixes separated by commas or spaces.
    pub prefixes: String,
    /// Bits of a node's prefix.
    pub mask: u8,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Ipam {
    let pools = ClusterPools {
        v4: Pools {
            prefixes: reader.text("cluster-pool-ipv4-cidr"),
            mask: reader.number("cluster-pool-ipv4-mask-size"),
        },
        v6: Pools {
            prefixes: reader.text("cluster-pool-ipv6-cidr"),
            mask: reader.number("cluster-pool-ipv6-mask-size"),
        },
        qps: reader.number("limit-ipam-api-qps"),
        burst: reader.number("limit-ipam-api-burst"),
    };
    // A turn's writes are at once, whoever works on them.
    reader.number::<u32>("parallel-alloc-workers");
    match reader.text("ipam").as_str() {
        "cluster-pool" => Ipam::ClusterPool(pools),
        "kubernetes" => Ipam::Kubernetes,
        other => Ipam::Other(other.to_owned()),
    }
}
