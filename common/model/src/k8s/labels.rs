//! `metadata.labels` of objects of which every label counts.

use std::sync::Arc;

use super::field::Refusals;
use super::raw::{AllLabels, LabelValue};
use super::{Names, raw};

/// Bytes of a label's value and of its key's part after the slash (Kubernetes: labels.md, "Syntax and character set").
const LONGEST_VALUE: usize = 63;
/// Bytes of the key's part before the slash.
const LONGEST_PREFIX: usize = 253;

/// The usable ones, sorted by their keys. An unusable one is left out and named: the API server would have refused the
/// object, so only a manifest in a directory has one.
pub(super) fn labels(
    raw: AllLabels<'_>,
    names: &mut Names,
    refusals: &mut Refusals<'_>,
) -> Box<[(Arc<str>, Arc<str>)]> {
    let AllLabels(raw) = raw;
    let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::with_capacity(raw.len());
    for (key, value) in raw {
        if let Some(value) = usable(&key, &value, refusals) {
            labels.push((names.get(&key), names.get(value)));
        }
    }
    // Of a key that is there twice the last one counts, as the API server's decoder has it.
    labels.reverse();
    labels.sort_by(|a, b| a.0.cmp(&b.0));
    labels.dedup_by(|a, b| a.0 == b.0);
    labels.into()
}

fn usable<'v>(
    key: &raw::Text<'_>,
    value: &'v LabelValue<'_>,
    refusals: &mut Refusals<'_>,
) -> Option<&'v str> {
    let (prefix, name) = key.split_once('/').map_or((None, &**key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = prefix.is_none_or(|prefix| (1..=LONGEST_PREFIX).contains(&prefix.len()));
    let mut refuse = |value: &str, reason: &str| {
        refusals.push(
            format!("metadata.labels[{}]", &**key),
            value,
            format!("{reason}; the label is left out"),
        );
        None
    };
    match value {
        LabelValue::Text(value) if name.is_empty() || !is_prefix || !is_name(name) => refuse(
            value,
            "has a key that is none of Kubernetes' labels: prefix/name, up to 63 letters, digits, `-`, `_` and `.`",
        ),
        LabelValue::Text(value) if !is_name(value) => refuse(
            value,
            "may have up to 63 letters, digits, `-`, `_` and `.`, and begins and ends with a letter or digit",
        ),
        LabelValue::Text(value) => Some(value),
        LabelValue::Other(value) => refuse(value, "is not a string: write it in quotes"),
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    let mut bytes = text.bytes();
    text.len() <= LONGEST_VALUE
        && text.bytes().all(allowed)
        && ends(bytes.next())
        && ends(text.bytes().next_back())
}
