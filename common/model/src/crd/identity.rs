use std::collections::BTreeMap;

use portway_datapath::NumericIdentity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObjectMeta;
use super::definition::{Column, Definition, Resource};
use crate::labels::{self, Labels};

/// Which labels a number means. Its name is the number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CiliumIdentity {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::definition::any_object")]
    pub metadata: ObjectMeta,
    /// All labels of the identity: `k8s:app` is a key.
    #[serde(rename = "security-labels")]
    #[schemars(required)]
    pub security_labels: BTreeMap<String, String>,
}

impl Resource for CiliumIdentity {
    const DEFINITION: Definition = Definition {
        kind: "CiliumIdentity",
        plural: "ciliumidentities",
        short_names: &["ciliumid"],
        version: "v2",
        is_namespaced: false,
        has_status: false,
        required: &["security-labels"],
        columns: &[
            Column {
                name: "Namespace",
                kind: "string",
                path: r".metadata.labels.io\.kubernetes\.pod\.namespace",
                description: "The namespace of the pods",
                priority: 0,
            },
            Column::AGE,
        ],
    };
}

impl CiliumIdentity {
    /// Of its labels the namespace alone goes to `metadata.labels`, whose values are limited to 63 characters: others
    /// may be longer (cilium/cilium#39552).
    pub fn new(number: NumericIdentity, labels: &Labels) -> Self {
        let namespace = labels.namespace().filter(|namespace| namespace.len() <= LONGEST_LABEL_VALUE);
        let namespace = namespace.map(|namespace| (labels::NAMESPACE.to_owned(), namespace.to_string()));
        Self {
            api_version: Self::DEFINITION.api_version(),
            kind: Self::DEFINITION.kind.to_owned(),
            metadata: ObjectMeta {
                name: number.get().to_string(),
                labels: namespace.into_iter().collect(),
                ..ObjectMeta::default()
            },
            security_labels: labels.iter().map(|label| (label.entry(), label.value.to_string())).collect(),
        }
    }
}

/// Characters of the value of a label in `metadata.labels`.
const LONGEST_LABEL_VALUE: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::Label;

    #[test]
    fn only_the_namespace_is_a_label_of_the_object() {
        let long = "a".repeat(64);
        let labels = Labels::new([
            Label::new("k8s", "app", "web"),
            Label::new("k8s", labels::SERVICE_ACCOUNT, long.as_str()),
            Label::new("k8s", labels::NAMESPACE, "shop"),
        ]);
        let object = serde_json::to_value(CiliumIdentity::new(NumericIdentity::new(300), &labels)).unwrap();
        let expected = serde_json::json!({
            "apiVersion": "cilium.io/v2",
            "kind": "CiliumIdentity",
            "metadata": {"name": "300", "labels": {"io.kubernetes.pod.namespace": "shop"}},
            "security-labels": {
                "k8s:app": "web",
                "k8s:io.cilium.k8s.policy.serviceaccount": long,
                "k8s:io.kubernetes.pod.namespace": "shop",
            },
        });
        assert_eq!(object, expected);
    }
}
