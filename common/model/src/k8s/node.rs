use serde_json::Value;

use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{List, Misfit, Refusals, Shape, misfit};
use super::{Names, Node, Object, raw};

/// What Cluster Autoscaler sets before it deletes a node (cluster-autoscaler/utils/taints/taints.go).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

impl Kind for Node {
    type Raw<'a> = raw::Node<'a>;
    const NAME: &'static str = "Node";
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[List {
            path: &["spec", "taints"],
            misfit: |v| misfit::<raw::Taint<'_>>(v),
            fields: &[],
            read_on: &[],
        }],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.uid",
            "metadata.namespace",
            "spec",
        ],
        never_absent: None,
    };

    fn misfit(value: &Value) -> Option<Misfit> {
        misfit::<raw::Node<'_>>(value)
    }

    fn object(raw: raw::Node<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        let metadata = raw.metadata.as_ref();
        let name = metadata.and_then(|m| m.name.as_deref()).unwrap_or("");
        refusals.name = name.to_owned();
        decode::check_name("metadata.name", name, LONGEST_NAME, refusals)?;
        let zone = metadata.and_then(|m| m.labels.as_ref()).and_then(|l| l.zone.as_deref());
        let zone = zone.filter(|zone| !zone.is_empty()).map(|zone| names.get(zone));
        let taints = raw.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let mut keys = taints.iter().flatten().filter_map(|taint| taint.key.as_deref());
        let is_deleted = metadata.is_some_and(|m| m.deletion_timestamp.is_some());
        let leaving = is_deleted || keys.any(|key| key == TO_BE_DELETED);
        Some(Object::Node(Self { name: names.get(name), zone, leaving }.into()))
    }
}

#[cfg(test)]
mod tests {
    use crate::k8s::{Format, Names, Object, decode};

    #[test]
    fn a_node_that_is_about_to_go_is_known_by_its_deletion_or_the_autoscalers_taint() {
        let node = |metadata: &str, spec: &str| {
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"a"{metadata}}},"spec":{spec}}}"#
            );
            let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
            let Object::Node(node) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
            let fields: Vec<String> = decoded.rejects.iter().map(|reject| reject.field.clone()).collect();
            (node.leaving, fields)
        };
        assert_eq!(node("", r#"{"taints":[{"key":"node.kubernetes.io/unschedulable"}]}"#), (false, vec![]));
        assert_eq!(node(r#","deletionTimestamp":null"#, r#"{"taints":null}"#), (false, vec![]));
        assert_eq!(node(r#","deletionTimestamp":"2026-11-30T07:00:00Z""#, "{}"), (true, vec![]));
        let taints =
            r#"{"taints":[{"key":7},{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}"#;
        assert_eq!(node("", taints), (true, vec!["spec.taints[0].key".to_owned()]));
    }
}
