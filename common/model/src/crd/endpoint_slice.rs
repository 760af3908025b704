use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Definition, Resource};
use super::{Encryption, EndpointNetworking, ObjectMeta};

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
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
}
