//! YAML as JSON text, so that both formats take the same path: one line of JSON a document.
//!
//! Scalars are resolved by YAML 1.2's core schema. A number with leading zeros stays a string: YAML 1.1 and 1.2
//! disagree about its value.

use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// Why a text is no YAML that stands for Kubernetes objects.
#[derive(Debug, thiserror::Error)]
pub enum YamlError {
    #[error("line {line}, column {column}: {problem}")]
    Syntax { line: usize, column: usize, problem: String },
    #[error("line {line}: {problem}")]
    Unsupported { line: usize, problem: &'static str },
}

impl YamlError {
    fn syntax(error: &ScanError) -> Self {
        let marker = error.marker();
        Self::Syntax { line: marker.line(), column: marker.col() + 1, problem: error.info().to_string() }
    }
}

/// What [`Writer`] is inside of.
enum Open {
    Sequence {
        empty: bool,
    },
    /// `key`: the next node is one.
    Mapping {
        empty: bool,
        key: bool,
    },
}

struct Writer {
    json: String,
    open: Vec<Open>,
    /// The text of each anchored node that is complete.
    anchors: HashMap<usize, Range<usize>>,
    /// Anchored collections that are not complete: depth, anchor, start.
    unfinished: Vec<(usize, usize, usize)>,
    /// Aliases must not blow a small file up.
    limit: usize,
}

/// One line of JSON for each document that is not empty. O(text), besides what aliases repeat.
pub(super) fn to_json(text: &str) -> Result<String, YamlError> {
    let mut writer = Writer {
        json: String::with_capacity(text.len()),
        open: Vec::new(),
        anchors: HashMap::new(),
        unfinished: Vec::new(),
        limit: text.len().saturating_mul(16).saturating_add(1 << 16),
    };
    let mut parser = Parser::new_from_str(text);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| YamlError::syntax(&error))?;
        writer.event(event, span)?;
    }
    Ok(writer.json)
}

impl Writer {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a feature of the parser decides which kinds of events there are"
    )]
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let key = self.begin(line, true)?;
                let start = self.json.len();
                if key || !self.plain(&text, style, tag.as_deref()) {
                    write_string(&mut self.json, &text);
                }
                if anchor != 0 {
                    self.anchors.insert(anchor, start..self.json.len());
                }
                self.end(key);
            }
            Event::SequenceStart(_, anchor, _) => {
                self.start('[', anchor, line, Open::Sequence { empty: true })?
            }
            Event::MappingStart(_, anchor, _) => {
                self.start('{', anchor, line, Open::Mapping { empty: true, key: true })?;
            }
            Event::SequenceEnd => self.finish(']'),
            Event::MappingEnd => self.finish('}'),
            Event::Alias(anchor) => {
                let key = self.begin(line, false)?;
                let Some(range) = self.anchors.get(&anchor).cloned() else {
                    return Err(YamlError::Unsupported {
                        line,
                        problem: "an alias to a node that contains it",
                    });
                };
                if self.json.len() + range.len() > self.limit {
                    return Err(YamlError::Unsupported {
                        line,
                        problem: "aliases repeat more than 16 times the file",
                    });
                }
                self.json.extend_from_within(range);
                self.end(key);
            }
            Event::DocumentEnd => {
                self.anchors.clear();
                self.json.push('\n');
            }
            _ => {}
        }
        Ok(())
    }

    /// Before a node: whether it is a key.
    fn begin(&mut self, line: usize, scalar: bool) -> Result<bool, YamlError> {
        match self.open.last_mut() {
            None => Ok(false),
            Some(Open::Sequence { empty }) => {
                if !std::mem::replace(empty, false) {
                    self.json.push(',');
                }
                Ok(false)
            }
            Some(Open::Mapping { empty, key: true }) => {
                if !scalar {
                    return Err(YamlError::Unsupported { line, problem: "a mapping key must be a string" });
                }
                if !std::mem::replace(empty, false) {
                    self.json.push(',');
                }
                Ok(true)
            }
            Some(Open::Mapping { key: false, .. }) => Ok(false),
        }
    }

    /// After a node.
    fn end(&mut self, was_key: bool) {
        if let Some(Open::Mapping { key, .. }) = self.open.last_mut() {
            *key = !was_key;
        }
        if was_key {
            self.json.push(':');
        }
    }

    fn start(&mut self, bracket: char, anchor: usize, line: usize, open: Open) -> Result<(), YamlError> {
        self.begin(line, false)?;
        if anchor != 0 {
            self.unfinished.push((self.open.len(), anchor, self.json.len()));
        }
        self.json.push(bracket);
        self.open.push(open);
        Ok(())
    }

    fn finish(&mut self, bracket: char) {
        self.open.pop();
        self.json.push(bracket);
        if let Some((_, anchor, start)) = self.unfinished.pop_if(|(depth, ..)| *depth == self.open.len()) {
            self.anchors.insert(anchor, start..self.json.len());
        }
        self.end(false);
    }

    /// Writes a scalar that is no string; `false` for a string.
    fn plain(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
        let resolved = match tag.map(|tag| tag.core_suffix()) {
            None => style == ScalarStyle::Plain,
            Some(Some("str")) | Some(None) => false,
            Some(Some(_)) => true,
        };
        if !resolved {
            return false;
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => self.json.push_str("null"),
            "true" | "True" | "TRUE" => self.json.push_str("true"),
            "false" | "False" | "FALSE" => self.json.push_str("false"),
            _ => return self.number(text),
        }
        true
    }

    /// Writes a number; `false` for what is none.
    fn number(&mut self, text: &str) -> bool {
        let (sign, digits) = match text.split_at_checked(1) {
            Some(("-", rest)) => ("-", rest),
            Some(("+", rest)) => ("", rest),
            Some(_) | None => ("", text),
        };
        let radix = |prefix, radix| {
            let digits = digits.strip_prefix(prefix)?;
            let digits = digits.bytes().all(|b| b.is_ascii_alphanumeric()).then_some(digits)?;
            u64::from_str_radix(digits, radix).ok().map(|n| n.to_string())
        };
        if let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)) {
            self.json.push_str(sign);
            self.json.push_str(&number);
            return true;
        }
        if !is_json_number(digits) {
            return false;
        }
        self.json.push_str(sign);
        self.json.push_str(digits);
        true
    }
}

/// Whether `text` is a number without a sign as JSON writes them.
fn is_json_number(text: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

fn write_string(json: &mut String, text: &str) {
    json.push('"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        // The byte is ASCII, so both cuts are at character boundaries.
        json.push_str(text.get(from..at).unwrap_or(""));
        from = at + 1;
        match byte {
            b'"' => json.push_str("\\\""),
            b'\\' => json.push_str("\\\\"),
            b'\n' => json.push_str("\\n"),
            b'\t' => json.push_str("\\t"),
            _ => {
                use std::fmt::Write as _;
                // Writing to a String cannot fail.
                let _ = write!(json, "\\u{byte:04x}");
            }
        }
    }
    json.push_str(text.get(from..).unwrap_or(""));
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(yaml: &str, json: &str) {
        let text = to_json(yaml).unwrap();
        let lines: Vec<_> = text.lines().filter(|l| !l.is_empty()).collect();
        for line in &lines {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
        assert_eq!(lines.join("|"), json);
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        check("[1, -2, +3, 0x1f, 0o17, 1.5, 1e3]", "[1,-2,3,31,15,1.5,1e3]");
        check("[true, False, ~, null, yes, no]", r#"[true,false,null,null,"yes","no"]"#);
        check("- \n- !!null\n- ''\n", r#"[null,null,""]"#);
        check(
            r#"["1", '1', !!str 1, 010, 1_000, .5, 1.2.3.4, 0x, 1e, 2026-11-30]"#,
            r#"["1","1","1","010","1_000",".5","1.2.3.4","0x","1e","2026-11-30"]"#,
        );
    }

    #[test]
    fn strings_are_escaped() {
        check("a: \"q\\\"b\\\\s\\nn\\x01é\"", "{\"a\":\"q\\\"b\\\\s\\nn\\u0001é\"}");
        check("a: |\n  one\n  two\n", r#"{"a":"one\ntwo\n"}"#);
    }

    #[test]
    fn documents_are_lines_and_empty_ones_are_null_or_nothing() {
        check("---\na: 1\n---\n---\nb: [x]\n...\n", r#"{"a":1}|null|{"b":["x"]}"#);
        check("# nothing\n", "");
    }

    #[test]
    fn keys_are_strings() {
        check("{1: a, true: b, ? c : d}", r#"{"1":"a","true":"b","c":"d"}"#);
        assert!(to_json("? [a]\n: b\n").unwrap_err().to_string().contains("key"));
    }

    #[test]
    fn aliases_repeat_their_node_within_bounds() {
        check(
            "a: &x {b: [1, 2]}\nc: *x\nd: &y s\ne: *y\n",
            r#"{"a":{"b":[1,2]},"c":{"b":[1,2]},"d":"s","e":"s"}"#,
        );
        let mut bomb = String::from("a0: &a0 [xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx]\n");
        for n in 1..40 {
            bomb.push_str(&format!("a{n}: &a{n} [*a{}, *a{}]\n", n - 1, n - 1));
        }
        assert!(to_json(&bomb).unwrap_err().to_string().contains("16 times"));
        assert!(to_json("a: &x [*x]\n").is_err());
    }

    #[test]
    fn an_error_names_its_line() {
        assert!(to_json("a: 1\nb: [1\n").unwrap_err().to_string().starts_with("line "));
    }
}
