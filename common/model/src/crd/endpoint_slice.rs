use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::definition::{Definition, Resource};
use super::{Encryption, EndpointNetworking, NamedPort, ObjectMeta};

/// CiliumEndpoints of a namespace, gathered by the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CiliumEndpointSlice {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::definition::any_object")]
    pub metadata: ObjectMeta,
    /// The namespace of all its endpoints.
    pub namespace: String,
    pub endpoints: Vec<CoreCiliumEndpoint>,
}

impl Resource for CiliumEndpointSlice {
    const DEFINITION: Definition = Definition {
        kind: "CiliumEndpointSlice",
        plural: "ciliumendpointslices",
        short_names: &["ces"],
        version: "v2alpha1",
        is_namespaced: false,
        has_status: false,
        required: &["endpoints"],
        columns: &[],
    };
}

/// What other nodes need of a CiliumEndpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CoreCiliumEndpoint {
    /// The name of the CiliumEndpoint.
    pub name: String,
    /// The number of its identity.
    pub id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networking: Option<EndpointNetworking>,
    pub encryption: Encryption,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_ports: Vec<NamedPort>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// When the CiliumEndpoint was made, in seconds since 1970: of two endpoints that have an address the newer one lives.
    /// Portway's alone; absent from what others have written, and where Cilium's definition is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// Of others, and kept.
    #[serde(flatten)]
    #[schemars(skip)]
    pub others: BTreeMap<String, Value>,
}
