use std::sync::Arc;

use super::decode::{self, Kind};
use super::field::{Refusals, Shape};
use super::{Names, Object, ObjectKind, labels, raw};

/// What the API server labels every namespace with: its name (Kubernetes: well-known labels).
const METADATA_NAME: &str = "kubernetes.io/metadata.name";
/// Bytes of a namespace's name.
const LONGEST_NAMESPACE: usize = 63;

/// A Namespace v1, as far as identities of its pods are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    /// Sorted by their keys; `kubernetes.io/metadata.name` is always there.
    pub labels: Box<[(Arc<str>, Arc<str>)]>,
}

impl Namespace {
    /// One that nobody has written down: of pods in a directory without it.
    pub fn implied(name: &Arc<str>) -> Self {
        Self { name: Arc::clone(name), labels: Box::new([(Arc::from(METADATA_NAME), Arc::clone(name))]) }
    }
}

impl Kind for Namespace {
    type Raw<'a> = raw::Namespace<'a>;
    const KIND: ObjectKind = ObjectKind::Namespace;
    const API_VERSION: &'static str = "v1";
    const SHAPE: Shape = Shape {
        lists: &[],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.labels",
            "metadata.namespace",
            "metadata.uid",
        ],
        never_absent: None,
    };

    fn object(raw: raw::Namespace<'_>, names: &mut Names, refusals: &mut Refusals<'_>) -> Option<Object> {
        let (metadata, labels) = raw.metadata.map(raw::LabelledMetadata::take).unwrap_or_default();
        let name = names.get(decode::own_name(Some(&metadata), LONGEST_NAMESPACE, refusals)?);
        let mut labels = labels::labels(labels, names, refusals).into_vec();
        labels.retain(|(key, _)| &**key != METADATA_NAME);
        let at = labels.partition_point(|(key, _)| &**key < METADATA_NAME);
        labels.insert(at, (names.get(METADATA_NAME), Arc::clone(&name)));
        Some(Object::Namespace(Self { name, labels: labels.into() }.into()))
    }
}

#[cfg(test)]
mod tests {
    use crate::k8s::{Format, Names, Object, decode};

    fn namespace(metadata: &str) -> (Vec<String>, Vec<String>) {
        let text =
            format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"shop"{metadata}}}}}"#);
        let decoded = decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap();
        let Object::Namespace(namespace) = &decoded.objects[0] else { panic!("{:?}", decoded.objects) };
        let labels = namespace.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (labels, decoded.rejects.iter().map(|reject| reject.field.clone()).collect())
    }

    #[test]
    fn a_namespace_has_its_labels_and_its_name_as_one_of_them() {
        let named = "kubernetes.io/metadata.name=shop".to_owned();
        assert_eq!(namespace(""), (vec![named.clone()], vec![]));
        let written = r#","labels":{"team":"a","kubernetes.io/metadata.name":"x","app":null}"#;
        assert_eq!(namespace(written), (vec!["app=".to_owned(), named, "team=a".to_owned()], vec![]));
    }

    #[test]
    fn labels_that_cannot_be_used_are_named_and_the_rest_lives() {
        let long = "a".repeat(64);
        let written = format!(
            r#","labels":{{"n":1,"b":true,"l":[{{}}],"o":{{"p":1}},"long":"{long}","good":"x_y.z-1","bad":"-x","/k":"v","k/":"v","a b":"v","twice":"1","twice":"2"}}"#
        );
        let (labels, fields) = namespace(&written);
        assert_eq!(labels, ["good=x_y.z-1", "kubernetes.io/metadata.name=shop", "twice=2"]);
        let expected = ["n", "b", "l", "o", "long", "bad", "/k", "k/", "a b"];
        assert_eq!(fields, expected.map(|key| format!("metadata.labels[{key}]")));
    }

    #[test]
    fn labels_that_are_no_object_leave_the_namespace() {
        let (labels, fields) = namespace(r#","labels":["a"],"uid":1"#);
        assert_eq!(labels, ["kubernetes.io/metadata.name=shop"]);
        assert_eq!(fields.len(), 2, "{fields:?}");
    }
}
