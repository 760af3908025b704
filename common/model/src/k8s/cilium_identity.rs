use portway_datapath::NumericIdentity;
use std::sync::Arc;

use super::decode::{self, Kind, LONGEST_NAME};
use super::field::{Refusals, Shape};
use super::{CiliumIdentity, Names, Object, ObjectKind, Uid, raw};
use crate::labels::{Label, Labels};

impl Kind for CiliumIdentity {
    type Raw<'a> = raw::CiliumIdentity<'a>;
    const KIND: ObjectKind = ObjectKind::CiliumIdentity;
    const API_VERSION: &'static str = "cilium.io/v2";
    // Without one of its labels it would be another identity, so none of them is refused alone.
    const SHAPE: Shape = Shape {
        lists: &[],
        fields: &[
            "metadata.annotations",
            "metadata.creationTimestamp",
            "metadata.namespace",
            "metadata.ownerReferences",
            "metadata.resourceVersion",
            "metadata.uid",
        ],
        never_absent: None,
    };

    fn object(
        mut raw: raw::CiliumIdentity<'_>,
        names: &mut Names,
        refusals: &mut Refusals<'_>,
    ) -> Option<Object> {
        let common = raw.metadata.as_mut().map(raw::CiliumMetadata::take_common);
        let name = decode::own_name(common.as_ref(), LONGEST_NAME, refusals)?;
        let number = number(name, refusals)?;
        let Some(labels) = raw.security_labels.filter(|labels| !labels.is_empty()) else {
            refusals.push("security-labels", "", "is missing: the number means nothing");
            return None;
        };
        let metadata = raw.metadata.as_ref();
        let annotations = metadata.and_then(|m| m.annotations.as_ref());
        let heartbeat = annotations.and_then(|a| a.heartbeat.as_deref());
        let claim = annotations.and_then(|a| a.claim.as_deref());
        let identity = Self {
            name: names.get(name),
            number,
            uid: Uid::new(metadata.and_then(|m| m.uid.as_deref()).unwrap_or("")),
            version: metadata
                .and_then(|m| m.resource_version.as_deref())
                .and_then(|version| version.parse().ok())
                .unwrap_or(0),
            created: decode::created(common.as_ref(), refusals),
            labels: Labels::new(labels.iter().map(|(entry, value)| label(entry, value, names))),
            heartbeat: heartbeat.map(Arc::from),
            claim: claim.map(Arc::from),
        };
        Some(Object::CiliumIdentity(identity.into()))
    }
}

/// Its parts are shared: most labels are many identities'.
fn label(entry: &str, value: &str, names: &mut Names) -> Label {
    let Label { source, key, value } = Label::from_entry(entry, value);
    Label { source: names.get(&source), key: names.get(&key), value: names.get(&value) }
}

/// Decimal without leading zeros, so that a number has one name, and of a range that may be in the cluster's objects: no
/// object gives a reserved number other labels.
fn number(name: &str, refusals: &mut Refusals<'_>) -> Option<NumericIdentity> {
    let (first, last) = (NumericIdentity::CLUSTER_FIRST, NumericIdentity::WIRE_LAST);
    let number = name.parse().ok().filter(|number: &u32| number.to_string() == name);
    match number.filter(|number| (first..=last).contains(number)) {
        Some(number) => Some(NumericIdentity::new(number)),
        None => {
            refusals.push(
                "metadata.name",
                name,
                format!("is no number of an identity: it may be {first} to {last}, in decimal"),
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use portway_datapath::NumericIdentity;

    use crate::k8s::{Decoded, Format, Names, Object, Uid, decode};

    fn read(text: &str) -> Decoded {
        decode(text.as_bytes(), Format::Json, &mut Names::default()).unwrap()
    }

    fn named(name: &str, labels: &str) -> String {
        format!(
            r#"{{"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {{"name": "{name}"}},
            "security-labels": {labels}}}"#
        )
    }

    #[test]
    fn an_identity_is_read_with_what_preconditions_need() {
        let decoded = read(
            r#"{"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": "48861",
                "uid": "798c2fec-5eb1-4906-a301-517607560d90", "resourceVersion": "933",
                "labels": {"io.kubernetes.pod.namespace": "shop"},
                "annotations": {"io.cilium.heartbeat": "2026-11-30T02:15:46.5Z", "portway.io/claim": "new", "x": "y"}},
            "security-labels": {"k8s:io.kubernetes.pod.namespace": "shop", "k8s:app": "web=1", "k8s:empty": ""}}"#,
        );
        let Object::CiliumIdentity(identity) = &decoded.objects[0] else { panic!("{decoded:?}") };
        assert_eq!((&*identity.name, identity.number), ("48861", NumericIdentity::new(48861)));
        assert_eq!(identity.uid, Uid::new("798c2fec-5eb1-4906-a301-517607560d90"));
        assert_eq!((identity.version, identity.heartbeat.as_deref()), (933, Some("2026-11-30T02:15:46.5Z")));
        assert_eq!(identity.claim.as_deref(), Some("new"));
        let labels: Vec<_> = identity.labels.iter().map(ToString::to_string).collect();
        assert_eq!(labels, ["k8s:app=web=1", "k8s:empty", "k8s:io.kubernetes.pod.namespace=shop"]);
        assert_eq!(decoded.rejects, []);
    }

    #[test]
    fn what_is_no_number_names_no_identity() {
        for name in ["0", "1", "2", "255", "0256", "16777216", "4294967297", "1.5", "x"] {
            let decoded = read(&named(name, r#"{"k8s:app": "web"}"#));
            let fields: Vec<_> = decoded.rejects.iter().map(|reject| reject.field.as_str()).collect();
            assert_eq!((decoded.objects.len(), fields), (0, vec!["metadata.name"]), "{name}");
        }
    }

    #[test]
    fn an_identity_with_a_label_that_cannot_be_read_is_refused_whole() {
        for labels in [r#"{"k8s:app": "web", "k8s:tier": 7}"#, "{}", "null", "[]"] {
            let decoded = read(&named("300", labels));
            assert_eq!((decoded.objects.len(), decoded.rejects.len()), (0, 1), "{labels}: {decoded:?}");
        }
    }
}
