use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The addresses of this node's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipam {
    /// The node's prefixes in its order, then those that it has no longer.
    pub pools: Vec<IpamPool>,
    /// What is in use, by address.
    pub addresses: Vec<IpamAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpamPool {
    pub prefix: String,
    /// Addresses that pods may have; the largest number that there is where there are more.
    pub size: u64,
    pub used: u64,
    /// Freed within the last minute: given again only when nothing else is left.
    pub resting: u64,
    /// The node has it no longer; it goes when its last pod has.
    pub is_retired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamAddress {
    pub address: IpAddr,
    /// The number of the endpoint that has it.
    pub endpoint: u16,
    /// The pod's `namespace/name`.
    pub owner: String,
}
