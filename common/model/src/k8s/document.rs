//! A file as a list of objects that are not read yet.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::raw::Text;
use super::yaml::{self, YamlError};

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One object or list, or several one after the other.
    Json,
    Yaml,
    /// JSON where it is JSON, else YAML.
    Detect,
}

/// Why a file gives no objects at all.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("not UTF-8 from byte {0} on")]
    Encoding(usize),
    #[error("not JSON: {0}")]
    Json(serde_json::Error),
    #[error("not YAML: {0}")]
    Yaml(YamlError),
}

/// An object in a text.
pub(super) struct Item<'t> {
    /// JSON.
    pub(super) text: &'t str,
    pub(super) head: Head<'t>,
}

/// What an object says it is; values as they are written.
#[derive(Clone, Default)]
pub(super) struct Head<'t> {
    pub(super) kind: Option<Said<'t>>,
    pub(super) api_version: Option<Said<'t>>,
}

/// A value that should be a string.
#[derive(Clone)]
pub(super) enum Said<'t> {
    Text(Cow<'t, str>),
    /// It is something else, as JSON.
    Other(&'t str),
}

impl<'t> Head<'t> {
    /// The kind, if it is said as it should be.
    fn kind(&self) -> Option<&str> {
        match &self.kind {
            Some(Said::Text(kind)) => Some(kind),
            Some(Said::Other(_)) | None => None,
        }
    }

    /// Of a list's element that says nothing: a `ServiceList` in `v1` has Services in `v1`, a `List` says nothing.
    fn or_element_of(self, list: &Self) -> Self {
        let kind = self.kind.or_else(|| match list.kind.as_ref()? {
            Said::Text(kind) => match kind.strip_suffix("List")? {
                "" => None,
                kind => Some(Said::Text(Cow::Owned(kind.to_owned()))),
            },
            Said::Other(_) => None,
        });
        let typed = list.kind().is_some_and(|kind| kind != "List");
        let inherited = || if typed { list.api_version.clone() } else { None };
        Self { kind, api_version: self.api_version.or_else(inherited) }
    }
}

/// Gives the objects of a file to `read`, lists taken apart, in the order of the file. The whole file is checked to be
/// well-formed first. O(file).
pub(super) fn each<R>(
    bytes: &[u8],
    format: Format,
    read: impl FnOnce(Vec<Item<'_>>) -> R,
) -> Result<R, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ManifestError::Encoding(error.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let not_json = match format {
        Format::Json => return Ok(read(items(text).map_err(ManifestError::Json)?)),
        Format::Yaml => None,
        Format::Detect if text.trim_ascii_start().starts_with('{') => match items(text) {
            Ok(items) => return Ok(read(items)),
            Err(error) => Some(error),
        },
        Format::Detect => None,
    };
    let json = yaml::to_json(text).map_err(|error| match not_json {
        Some(not_json) => ManifestError::Json(not_json),
        None => ManifestError::Yaml(error),
    })?;
    // What `to_json` writes is JSON.
    Ok(read(items(&json).map_err(ManifestError::Json)?))
}

fn items(text: &str) -> Result<Vec<Item<'_>>, serde_json::Error> {
    let mut items = Vec::new();
    let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Document<'_>>();
    loop {
        let from = documents.byte_offset();
        let Some(document) = documents.next() else {
            return Ok(items);
        };
        let document = document?;
        let text = text.get(from..documents.byte_offset()).unwrap_or("").trim_ascii();
        push(document, text, None, 0, &mut items)?;
    }
}

/// Lists in lists that are taken apart; a deeper one is an object of an unknown kind.
const DEEPEST_LIST: usize = 4;

fn push<'t>(
    document: Document<'t>,
    text: &'t str,
    list: Option<&Head<'t>>,
    depth: usize,
    items: &mut Vec<Item<'t>>,
) -> Result<(), serde_json::Error> {
    let (head, elements) = match document {
        Document::Null => return Ok(()),
        Document::Array(_) | Document::Other => (Head::default(), None),
        Document::Object { head, items } => (head, items),
    };
    let head = match list {
        Some(list) => head.or_element_of(list),
        None => head,
    };
    let is_list = head.kind().is_some_and(|kind| kind.ends_with("List"));
    if !is_list || depth == DEEPEST_LIST {
        items.push(Item { text, head });
        return Ok(());
    }
    let elements = elements.unwrap_or_default();
    items.reserve(elements.len());
    for element in elements {
        let element = element.get();
        let mut element_head = Head::default();
        peek(element, &mut element_head);
        if element_head.kind().is_some_and(|kind| kind.ends_with("List")) {
            push(serde_json::from_str(element)?, element, Some(&head), depth + 1, items)?;
        } else {
            items.push(Item { text: element, head: element_head.or_element_of(&head) });
        }
    }
    Ok(())
}

/// Reads an object's head and stops there. What is no object has none.
fn peek<'t>(text: &'t str, head: &mut Head<'t>) {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    // The error is how it stops: the text as a whole has been checked already.
    let _ = deserializer.deserialize_any(HeadOnly(head));
}

struct HeadOnly<'h, 't>(&'h mut Head<'t>);

impl<'de> Visitor<'de> for HeadOnly<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Keys)? {
            match key {
                Key::Kind => self.0.kind = Some(Said::from_raw(map.next_value()?)),
                Key::ApiVersion => self.0.api_version = Some(Said::from_raw(map.next_value()?)),
                Key::Items | Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            if self.0.kind.is_some() && self.0.api_version.is_some() {
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

impl<'t> Said<'t> {
    fn from_raw(raw: &'t RawValue) -> Self {
        match serde_json::from_str::<Text<'t>>(raw.get()) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Other(raw.get()),
        }
    }
}

/// A document, as far as it must be known to take it apart.
enum Document<'t> {
    Null,
    Object {
        head: Head<'t>,
        /// `None` where it has none, or no array.
        items: Option<Vec<&'t RawValue>>,
    },
    Array(Vec<&'t RawValue>),
    /// A scalar.
    Other,
}

impl<'de> serde::Deserialize<'de> for Document<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document<'de>, A::Error> {
        let mut head = Head::default();
        let mut items = None;
        while let Some(key) = map.next_key_seed(Keys)? {
            match key {
                Key::Kind => head.kind = Some(Said::from_raw(map.next_value()?)),
                Key::ApiVersion => head.api_version = Some(Said::from_raw(map.next_value()?)),
                Key::Items => {
                    items = match map.next_value()? {
                        Document::Array(elements) => Some(elements),
                        Document::Null | Document::Object { .. } | Document::Other => None,
                    }
                }
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Document::Object { head, items })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Document<'de>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(Document::Array(elements))
    }

    fn visit_unit<E: Error>(self) -> Result<Document<'de>, E> {
        Ok(Document::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Document<'de>, E> {
        Ok(Document::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Document<'de>, E> {
        Ok(Document::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Document<'de>, E> {
        Ok(Document::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Document<'de>, E> {
        Ok(Document::Other)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Document<'de>, E> {
        Ok(Document::Other)
    }
}

enum Key {
    Kind,
    ApiVersion,
    Items,
    Other,
}

struct Keys;

impl<'de> DeserializeSeed<'de> for Keys {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Keys {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            "kind" => Key::Kind,
            "apiVersion" => Key::ApiVersion,
            "items" => Key::Items,
            _ => Key::Other,
        })
    }
}
