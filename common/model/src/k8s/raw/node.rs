//! Node and CiliumNode.

use serde::Deserialize;
use serde::de::Deserializer;

use super::{List, Metadata, OnlyObjects, Text, only_from_objects};

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct Node<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) spec: Option<NodeSpec<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) status: Option<NodeStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct NodeSpec<'a> {
    #[serde(borrow, rename = "podCIDR")]
    pub(in crate::k8s) pod_cidr: Option<Text<'a>>,
    #[serde(borrow, rename = "podCIDRs")]
    pub(in crate::k8s) pod_cidrs: List<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) taints: List<Taint<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct Taint<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) key: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct NodeStatus<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) addresses: List<NodeAddress<'a>>,
}

/// Of a Node and, with `ip` for `address`, of a CiliumNode.
#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct NodeAddress<'a> {
    #[serde(borrow, rename = "type")]
    pub(in crate::k8s) address_type: Option<Text<'a>>,
    #[serde(borrow, alias = "ip")]
    pub(in crate::k8s) address: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumNode<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) spec: Option<CiliumNodeSpec<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumNodeSpec<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) addresses: List<NodeAddress<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) ipam: Option<CiliumNodeIpam<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) health: Option<CiliumNodeHealth<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumNodeIpam<'a> {
    #[serde(borrow, rename = "podCIDRs")]
    pub(in crate::k8s) pod_cidrs: List<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct CiliumNodeHealth<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) ipv4: Option<Text<'a>>,
    #[serde(borrow)]
    pub(in crate::k8s) ipv6: Option<Text<'a>>,
}

only_from_objects! {
    Node<'a>, NodeSpec<'a>, NodeStatus<'a>, NodeAddress<'a>, CiliumNode<'a>, CiliumNodeSpec<'a>, CiliumNodeIpam<'a>, CiliumNodeHealth<'a>, Taint<'a>
}
