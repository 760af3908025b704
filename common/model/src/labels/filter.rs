//! Which labels make an identity.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use thiserror::Error;

use super::{SOURCE_ANY, SOURCE_RESERVED, SOURCES};

/// Cilium's default (pkg/labelsfilter/filter.go, version 1.19).
const DEFAULT: [&str; 21] = [
    "reserved:.*",
    r"io\.kubernetes\.pod\.namespace",
    r"io\.cilium\.k8s\.namespace\.labels",
    r"app\.kubernetes\.io",
    r"io\.cilium\.k8s\.policy\.cluster",
    r"io\.cilium\.k8s\.policy\.serviceaccount",
    r"!io\.kubernetes",
    r"!kubernetes\.io",
    r"!statefulset\.kubernetes\.io/pod-name",
    r"!apps\.kubernetes\.io/pod-index",
    r"!batch\.kubernetes\.io/job-completion-index",
    r"!batch\.kubernetes\.io/controller-uid",
    r"!.*beta\.kubernetes\.io",
    r"!k8s\.io",
    "!pod-template-generation",
    "!pod-template-hash",
    "!controller-revision-hash",
    "!controller-uid",
    "!annotation.*",
    "!etcd_node",
    r"!topology\.kubernetes\.io",
];
/// The only version of the file's form.
const FILE_VERSION: i64 = 1;
/// Bytes that a compiled pattern may have.
const LARGEST_PATTERN: usize = 1 << 20;

/// Why a filter cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LabelFilterError {
    #[error("{rule:?} has no pattern: write e.g. k8s:app or k8s:!app")]
    NoPattern { rule: String },
    #[error("{rule:?} has `!` before its source: write {mended:?}")]
    MisplacedNot { rule: String, mended: String },
    #[error("{rule:?}: {source_name:?} is no source of labels; there are {}; a pattern with a colon needs one", SOURCES.join(", "))]
    UnknownSource { rule: String, source_name: String },
    #[error("{rule:?} is no regular expression: {problem}")]
    NoExpression { rule: String, problem: String },
    #[error(
        "is not {{\"version\": 1, \"valid-prefixes\": [{{\"prefix\": …, \"source\": …, \"invert\": …}}]}}: {problem}"
    )]
    NoFile { problem: String },
    #[error("version {version} is not read; {FILE_VERSION} is")]
    Version { version: i64 },
    #[error("valid-prefixes[{index}].{field} is empty or missing")]
    EmptyField { index: usize, field: &'static str },
    #[error("valid-prefixes[{index}].source {source_name:?} is no source of labels; there are {}", SOURCES.join(", "))]
    UnknownSourceInFile { index: usize, source_name: String },
}

/// Which labels make an identity: rules that include and rules that ignore.
///
/// A label counts if nothing ignores it and no include was configured, or if the longest match of a rule that includes
/// it is longer than the shortest match of one that ignores it. One include of the user's makes the list a whitelist;
/// those of the default do not. The source `reserved` is always let through: nothing could be told by it otherwise.
#[derive(Clone, Debug)]
pub struct LabelFilter {
    rules: Vec<Rule>,
    is_whitelist: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    /// `None` is every source.
    source: Option<Box<str>>,
    ignores: bool,
    /// As it was written.
    written: Box<str>,
    pattern: Pattern,
}

#[derive(Clone, Debug)]
enum Pattern {
    /// The key begins with it.
    Prefix(Box<str>),
    /// Anchored at the key's start.
    Expression(Regex),
}

/// `label-prefix-file`.
#[derive(Deserialize)]
struct File {
    version: i64,
    #[serde(rename = "valid-prefixes", default)]
    valid_prefixes: Option<Vec<FilePrefix>>,
}

#[derive(Deserialize)]
struct FilePrefix {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    invert: bool,
}

impl Default for LabelFilter {
    fn default() -> Self {
        let rules = DEFAULT.iter().filter_map(|rule| Rule::parse(rule).ok()).collect();
        Self { rules, is_whitelist: false }
    }
}

impl LabelFilter {
    /// The default with the rules of the key `labels` after it: `k8s:app k8s:!internal io\.cilium`, with spaces or commas
    /// between them. A pattern is a regular expression that begins where the key begins.
    pub fn parse(labels: &str) -> Result<Self, LabelFilterError> {
        Self::default().with(labels)
    }

    /// The rules of a `label-prefix-file`, instead of the default. Its prefixes are no regular expressions.
    pub fn from_file(json: &str) -> Result<Self, LabelFilterError> {
        let no_file = |error: serde_json::Error| LabelFilterError::NoFile { problem: error.to_string() };
        let File { version, valid_prefixes } = serde_json::from_str(json).map_err(no_file)?;
        if version != FILE_VERSION {
            return Err(LabelFilterError::Version { version });
        }
        let mut filter = Self { rules: Vec::new(), is_whitelist: false };
        for (index, FilePrefix { prefix, source, invert }) in valid_prefixes.into_iter().flatten().enumerate()
        {
            for (field, value) in [("prefix", &prefix), ("source", &source)] {
                if value.is_empty() {
                    return Err(LabelFilterError::EmptyField { index, field });
                }
            }
            let Ok(source) = source_of(&source) else {
                return Err(LabelFilterError::UnknownSourceInFile { index, source_name: source });
            };
            let pattern = Pattern::Prefix(prefix.as_str().into());
            filter.push(Rule { source, ignores: invert, written: prefix.into(), pattern });
        }
        Ok(filter)
    }

    /// With the rules of the key `labels` after its own.
    pub fn with(mut self, labels: &str) -> Result<Self, LabelFilterError> {
        for rule in rules(labels) {
            self.push(Rule::parse(rule)?);
        }
        Ok(self)
    }

    fn push(&mut self, rule: Rule) {
        self.is_whitelist |= !rule.ignores;
        self.rules.push(rule);
    }

    /// Whether a label counts. O(rules).
    pub fn lets_through(&self, source: &str, key: &str) -> bool {
        let (mut included, mut ignored) = (0, None);
        for rule in &self.rules {
            // What matches nothing of the key says nothing.
            let Some(length) = rule.matches(source, key).filter(|length| *length > 0) else { continue };
            if rule.ignores {
                ignored = Some(ignored.map_or(length, |shortest: usize| shortest.min(length)));
            } else {
                included = included.max(length);
            }
        }
        let is_included = included > ignored.unwrap_or(0);
        is_included || (!self.is_whitelist && ignored.is_none()) || source == SOURCE_RESERVED
    }
}

/// The rules, as `labels` and `label-prefix-file` say them.
impl fmt::Display for LabelFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Rule { source, ignores, written, pattern: _ }) in self.rules.iter().enumerate() {
            let (space, not) = (if n == 0 { "" } else { " " }, if *ignores { "!" } else { "" });
            write!(f, "{space}{}:{not}{written}", source.as_deref().unwrap_or(SOURCE_ANY))?;
        }
        Ok(())
    }
}

/// Equal if they say the same.
impl PartialEq for LabelFilter {
    fn eq(&self, other: &Self) -> bool {
        self.is_whitelist == other.is_whitelist && self.rules == other.rules
    }
}

impl Eq for LabelFilter {}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        let pattern = match (&self.pattern, &other.pattern) {
            (Pattern::Prefix(own), Pattern::Prefix(other)) => own == other,
            // What was written decides.
            (Pattern::Expression(_), Pattern::Expression(_)) => true,
            (Pattern::Prefix(_), Pattern::Expression(_)) | (Pattern::Expression(_), Pattern::Prefix(_)) => {
                false
            }
        };
        self.source == other.source
            && self.ignores == other.ignores
            && self.written == other.written
            && pattern
    }
}

impl Rule {
    /// From `source:pattern`, `source:!pattern`, `pattern` or `!pattern`.
    fn parse(rule: &str) -> Result<Self, LabelFilterError> {
        let (source, pattern) = rule.split_once(':').unwrap_or(("", rule));
        if let Some(source) = source.strip_prefix('!') {
            let mended = format!("{source}:!{}", pattern.strip_prefix('!').unwrap_or(pattern));
            return Err(LabelFilterError::MisplacedNot { rule: rule.to_owned(), mended });
        }
        let (ignores, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        if pattern.is_empty() {
            return Err(LabelFilterError::NoPattern { rule: rule.to_owned() });
        }
        let source = source_of(source).map_err(|()| LabelFilterError::UnknownSource {
            rule: rule.to_owned(),
            source_name: source.to_owned(),
        })?;
        let written = pattern.into();
        let pattern = Pattern::parse(pattern)
            .map_err(|problem| LabelFilterError::NoExpression { rule: rule.to_owned(), problem })?;
        Ok(Self { source, ignores, written, pattern })
    }

    /// How many bytes of the key are matched.
    fn matches(&self, source: &str, key: &str) -> Option<usize> {
        if self.source.as_deref().is_some_and(|of| of != source) {
            return None;
        }
        match &self.pattern {
            Pattern::Prefix(prefix) => key.starts_with(&**prefix).then_some(prefix.len()),
            Pattern::Expression(regex) => regex.find(key.as_bytes()).map(|found| found.end()),
        }
    }
}

impl Pattern {
    fn parse(written: &str) -> Result<Self, String> {
        if let Some(c) = written.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(format!("{c:?} is in no label's key"));
        }
        // Most patterns are a prefix, and no expression is as quick as that.
        if let Some(prefix) = literal(written) {
            return Ok(Self::Prefix(prefix.into()));
        }
        // Keys are ASCII; Go's classes, in which these patterns are written, are too.
        let compiled = RegexBuilder::new(&format!(r"\A(?:{written})"))
            .unicode(false)
            .size_limit(LARGEST_PATTERN)
            .build();
        compiled.map(Self::Expression).map_err(|error| error.to_string())
    }
}

/// What a pattern matches that has no operators but escapes.
fn literal(pattern: &str) -> Option<String> {
    let mut chars = pattern.chars();
    let mut literal = String::with_capacity(pattern.len());
    while let Some(c) = chars.next() {
        match c {
            '\\' => literal.push(chars.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            _ => literal.push(c),
        }
    }
    Some(literal)
}

/// `None` for every source.
fn source_of(name: &str) -> Result<Option<Box<str>>, ()> {
    match name {
        "" | SOURCE_ANY => Ok(None),
        _ if SOURCES.contains(&name) => Ok(Some(name.into())),
        _ => Err(()),
    }
}

/// The rules of a list with spaces or commas between them. A comma in brackets or braces is one of the pattern.
fn rules(labels: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let split = move |c: char| {
        match c {
            '[' | '{' | '(' => depth = depth.saturating_add(1),
            ']' | '}' | ')' => depth = depth.saturating_sub(1),
            _ if c.is_whitespace() => depth = 0,
            _ => {}
        }
        c.is_whitespace() || (c == ',' && depth == 0)
    };
    labels.split(split).filter(|rule| !rule.is_empty())
}

#[cfg(test)]
mod tests;
