use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectMeta;
use super::definition::{Column, Definition, Resource};

/// A node, with its addresses and the prefixes that its pods' addresses are from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CiliumNode {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::definition::any_object")]
    pub metadata: ObjectMeta,
    pub spec: NodeSpec,
}

impl Resource for CiliumNode {
    const DEFINITION: Definition = Definition {
        kind: "CiliumNode",
        plural: "ciliumnodes",
        short_names: &["cn", "ciliumn"],
        version: "v2",
        is_namespaced: false,
        has_status: true,
        required: &["spec"],
        columns: &[
            Column {
                name: "CiliumInternalIP",
                kind: "string",
                path: r#".spec.addresses[?(@.type=="CiliumInternalIP")].ip"#,
                description: "The address that the node has towards pods",
                priority: 0,
            },
            Column {
                name: "InternalIP",
                kind: "string",
                path: r#".spec.addresses[?(@.type=="InternalIP")].ip"#,
                description: "The address of the node",
                priority: 0,
            },
            Column::AGE,
        ],
    };
}

/// `spec`. Fields that Portway does not know are kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeSpec {
    pub addresses: Vec<NodeAddress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthAddresses>,
    /// The operator's to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipam: Option<NodeIpam>,
    /// Another one after each boot of the machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bootid: String,
}

/// An element of `spec.addresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP`.
    #[serde(rename = "type")]
    pub address_type: String,
    pub ip: String,
}

/// `spec.health`: the endpoint that other nodes probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HealthAddresses {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6: String,
}

/// `spec.ipam`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct NodeIpam {
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}
