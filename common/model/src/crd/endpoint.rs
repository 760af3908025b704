use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectMeta;
use super::definition::{Column, Definition, Resource};

/// Where a pod is and which identity it has. Its name and namespace are the pod's, who owns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CiliumEndpoint {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::definition::any_object")]
    pub metadata: ObjectMeta,
    /// No subresource: it is written with the rest.
    pub status: EndpointStatus,
}

impl Resource for CiliumEndpoint {
    const DEFINITION: Definition = Definition {
        kind: "CiliumEndpoint",
        plural: "ciliumendpoints",
        short_names: &["cep", "ciliumep"],
        version: "v2",
        is_namespaced: true,
        has_status: false,
        required: &[],
        columns: &[
            Column {
                name: "Security Identity",
                kind: "integer",
                path: ".status.identity.id",
                description: "The number of the identity",
                priority: 0,
            },
            Column {
                name: "Ingress Enforcement",
                kind: "string",
                path: ".status.policy.ingress.state",
                description: "Whether policies apply to what comes",
                priority: 1,
            },
            Column {
                name: "Egress Enforcement",
                kind: "string",
                path: ".status.policy.egress.state",
                description: "Whether policies apply to what goes",
                priority: 1,
            },
            Column {
                name: "Endpoint State",
                kind: "string",
                path: ".status.state",
                description: "The state of the endpoint",
                priority: 0,
            },
            Column {
                name: "IPv4",
                kind: "string",
                path: ".status.networking.addressing[0].ipv4",
                description: "The IPv4 address",
                priority: 0,
            },
            Column {
                name: "IPv6",
                kind: "string",
                path: ".status.networking.addressing[0].ipv6",
                description: "The IPv6 address",
                priority: 0,
            },
        ],
    };
}

/// `status`: everything there is of an endpoint. Fields that Portway does not write are kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct EndpointStatus {
    /// The number that the endpoint has on its node.
    pub id: i64,
    /// `waiting-for-identity`, `regenerating`, `ready` and others of Cilium's.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<EndpointIdentity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networking: Option<EndpointNetworking>,
    pub external_identifiers: ExternalIdentifiers,
    pub encryption: Encryption,
    /// Ports of the pod's containers that have names. Cilium writes them; Portway carries them on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named_ports: Vec<NamedPort>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
}

/// An element of `status.named-ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamedPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub port: i64,
    /// `TCP`, `UDP`, `SCTP` or `ANY`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// `status.identity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EndpointIdentity {
    /// The number of the CiliumIdentity.
    pub id: i64,
    /// Its labels, sorted: `k8s:app=web`.
    pub labels: Vec<String>,
}

/// `status.networking`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EndpointNetworking {
    #[schemars(required)]
    pub addressing: Vec<AddressPair>,
    /// The address of the node, for tunnels.
    pub node: String,
}

/// An address of each family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AddressPair {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv4: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipv6: String,
}

/// `status.external-identifiers`: what others call the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ExternalIdentifiers {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    pub k8s_namespace: String,
    pub k8s_pod_name: String,
    /// `namespace/name`.
    pub pod_name: String,
}

/// How packets of the node are encrypted. Portway does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Encryption {
    /// The index of the key; 0 is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
