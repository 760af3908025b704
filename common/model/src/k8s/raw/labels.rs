//! Objects of which every label counts: Pod and Namespace.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Annotations, Metadata, OnlyObjects, Text, only_from_objects};

/// [`Metadata`] with all labels; of the kinds of this file alone, for each label costs every object of a kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct LabelledMetadata<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    creation_timestamp: Option<Text<'a>>,
    #[serde(borrow)]
    labels: Option<AllLabels<'a>>,
    #[serde(borrow)]
    annotations: Option<Annotations<'a>>,
}

impl<'a> LabelledMetadata<'a> {
    /// What every kind has, and the labels.
    pub(in crate::k8s) fn take(self) -> (Metadata<'a>, AllLabels<'a>) {
        let Self { name, namespace, uid, creation_timestamp, labels, annotations } = self;
        let common =
            Metadata { name, namespace, uid, creation_timestamp, annotations, ..Metadata::default() };
        (common, labels.unwrap_or_default())
    }
}

/// `metadata.labels`, in the order of the text.
#[derive(Default)]
pub(in crate::k8s) struct AllLabels<'a>(pub(in crate::k8s) Vec<(Text<'a>, LabelValue<'a>)>);

/// A label's value: one that is no text is refused without the others.
pub(in crate::k8s) enum LabelValue<'a> {
    Text(Text<'a>),
    /// What it is instead, for people.
    Other(String),
}

#[derive(Deserialize)]
#[serde(expecting = "an object", remote = "Self")]
pub(in crate::k8s) struct Namespace<'a> {
    #[serde(borrow)]
    pub(in crate::k8s) metadata: Option<LabelledMetadata<'a>>,
}

only_from_objects! { LabelledMetadata<'a>, Namespace<'a> }

impl<'de: 'a, 'a> Deserialize<'de> for AllLabels<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsVisitor;

        impl<'de> Visitor<'de> for LabelsVisitor {
            type Value = AllLabels<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut labels = Vec::with_capacity(map.size_hint().unwrap_or(0));
                while let Some(label) = map.next_entry()? {
                    labels.push(label);
                }
                Ok(AllLabels(labels))
            }
        }

        deserializer.deserialize_map(LabelsVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LabelValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;

        fn other<T>(value: impl fmt::Display) -> Result<LabelValue<'static>, T> {
            Ok(LabelValue::Other(value.to_string()))
        }

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = LabelValue<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<LabelValue<'de>, E> {
                Ok(LabelValue::Text(Text(text.into())))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<LabelValue<'de>, E> {
                Ok(LabelValue::Text(Text(text.to_owned().into())))
            }

            // As Go reads it: the API server takes it for an empty value.
            fn visit_unit<E: Error>(self) -> Result<LabelValue<'de>, E> {
                Ok(LabelValue::Text(Text("".into())))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<LabelValue<'de>, E> {
                other(value)
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<LabelValue<'de>, E> {
                other(value)
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<LabelValue<'de>, E> {
                other(value)
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<LabelValue<'de>, E> {
                other(value)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LabelValue<'de>, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                other("[…]")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LabelValue<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                other("{…}")
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}
