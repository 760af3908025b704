use proptest::prelude::*;

use super::*;

fn lets_through(filter: &LabelFilter, keys: &[&str]) -> Vec<bool> {
    keys.iter().map(|key| filter.lets_through("k8s", key)).collect()
}

#[test]
fn every_rule_of_the_default_is_one() {
    let filter = LabelFilter::default();
    assert_eq!((filter.rules.len(), filter.is_whitelist), (DEFAULT.len(), false));
}

#[test]
fn the_longest_include_counts_against_the_shortest_ignore() {
    let filter = LabelFilter::parse("k8s:!foo k8s:foo.bar").unwrap();
    assert_eq!(lets_through(&filter, &["foo.bar", "foo.b", "foo", "other"]), [true, false, false, false]);
    for several in ["k8s:!a k8s:!a.bc k8s:a.b", "k8s:!a.bc k8s:!a k8s:a.b", "k8s:a.b k8s:a k8s:!a."] {
        let filter = LabelFilter::parse(several).unwrap();
        assert_eq!(lets_through(&filter, &["a.bc"]), [true], "{several}");
    }
    let as_long = LabelFilter::parse("!foo foo").unwrap();
    assert_eq!(lets_through(&as_long, &["foo", "foo.bar"]), [false, false]);
    let none = LabelFilter::parse("k8s:!x?").unwrap();
    assert_eq!(lets_through(&none, &["x", "y"]), [false, true], "a match of no bytes is none");
}

#[test]
fn a_pattern_begins_where_the_key_begins_and_is_of_its_source() {
    let filter = LabelFilter::parse("k8s:!.*secret k8s:!(a|b)[0-9]{1,2}$ container:!app").unwrap();
    let keys = ["my-secret.key", "a12", "a123", "ca1", "app"];
    assert_eq!(lets_through(&filter, &keys), [false, false, true, true, true]);
    assert!(!filter.lets_through("container", "app"));
}

#[test]
fn any_and_no_source_are_every_source() {
    for labels in ["any:!app", "!app", ":!app"] {
        let filter = LabelFilter::parse(labels).unwrap();
        assert!(!filter.lets_through("k8s", "app") && !filter.lets_through("container", "app"), "{labels}");
    }
}

#[test]
fn reserved_labels_are_let_through_whatever_is_configured() {
    for filter in [LabelFilter::parse("k8s:app reserved:!.*"), LabelFilter::from_file(r#"{"version": 1}"#)] {
        assert!(filter.unwrap().lets_through("reserved", "host"));
    }
}

#[test]
fn rules_are_separated_by_spaces_or_commas() {
    let split = |labels| rules(labels).collect::<Vec<_>>();
    assert_eq!(split(" k8s:app, k8s:!b,c\n"), ["k8s:app", "k8s:!b", "c"]);
    assert_eq!(split("k8s:a{1,2} k8s:[,;]b,k8s:(c c"), ["k8s:a{1,2}", "k8s:[,;]b", "k8s:(c", "c"]);
    assert_eq!(LabelFilter::parse(" , ").unwrap(), LabelFilter::default());
}

#[test]
fn the_file_replaces_the_default_and_its_prefixes_are_no_expressions() {
    let json = r#"{"version": 1, "valid-prefixes": [
        {"prefix": "app.", "source": "k8s"}, {"prefix": "app.x", "source": "k8s", "invert": true}]}"#;
    let filter = LabelFilter::from_file(json).unwrap();
    let keys = ["app.a", "appXa", "app.x", "io.kubernetes.pod.namespace"];
    assert_eq!(lets_through(&filter, &keys), [true, false, false, false]);
    let ignoring = r#"{"version": 1, "valid-prefixes": [{"prefix": "a", "source": "k8s", "invert": true}]}"#;
    let filter = LabelFilter::from_file(ignoring).unwrap();
    assert_eq!(lets_through(&filter, &["ab", "pod-template-hash"]), [false, true]);
    let filter = filter.with("k8s:b+").unwrap();
    assert_eq!(lets_through(&filter, &["ab", "bb", "c"]), [false, true, false]);
    assert_eq!(filter.to_string(), "k8s:!a k8s:b+");
}

#[test]
fn what_is_no_filter_is_named_with_the_mend() {
    let error = |labels| LabelFilter::parse(labels).unwrap_err().to_string();
    assert_eq!(error("k8s:a k8s:"), r#""k8s:" has no pattern: write e.g. k8s:app or k8s:!app"#);
    assert_eq!(error("k8s:!"), r#""k8s:!" has no pattern: write e.g. k8s:app or k8s:!app"#);
    assert_eq!(error("!k8s:app"), r#""!k8s:app" has `!` before its source: write "k8s:!app""#);
    assert!(error("k8:app").starts_with(r#""k8:app": "k8" is no source of labels; there are any, cidr,"#));
    assert!(error("k8s:a(").contains("is no regular expression: regex parse error"), "{}", error("k8s:a("));
    assert!(error("k8s:a{9999}{9999}").contains("is no regular expression"));
    assert!(error("k8s:\u{1}").contains("is in no label's key"));
    let file = |json: &str| LabelFilter::from_file(json).unwrap_err().to_string();
    assert_eq!(file(r#"{"version": 2}"#), "version 2 is not read; 1 is");
    assert!(file("[]").contains("\"valid-prefixes\""), "{}", file("[]"));
    let entry = |entry| {
        file(&format!(r#"{{"version": 1, "valid-prefixes": [{{"prefix": "a", "source": "k8s"}}, {entry}]}}"#))
    };
    assert_eq!(entry(r#"{"source": "k8s"}"#), "valid-prefixes[1].prefix is empty or missing");
    assert_eq!(entry(r#"{"prefix": "a"}"#), "valid-prefixes[1].source is empty or missing");
    assert!(entry(r#"{"prefix": "a", "source": "x"}"#).contains(r#"[1].source "x" is no source of labels"#));
}

#[test]
fn without_any_rule_of_the_default_a_recorded_label_would_be_judged_otherwise() {
    let table = include_str!("../../../tests/labels/table.txt");
    let rows = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.split_ascii_whitespace().collect()).collect();
    // The columns of the default and of `k8s:team`.
    let is_as_in_the_table = |default: &LabelFilter| {
        let team = default.clone().with("k8s:team").unwrap();
        rows.iter().all(|row| {
            let key = row[5].trim_end_matches(':');
            [(row[0], default), (row[2], &team)]
                .iter()
                .all(|(said, filter)| (*said == "yes") == filter.lets_through("k8s", key))
        })
    };
    assert!(is_as_in_the_table(&LabelFilter::default()));
    // No label of a pod or a namespace is reserved.
    for (at, left_out) in DEFAULT.iter().enumerate().skip(1) {
        let mut filter = LabelFilter::default();
        filter.rules.remove(at);
        assert!(!is_as_in_the_table(&filter), "{left_out}");
    }
}

proptest! {
    /// What is compared as a prefix is what the expression would have matched, and no rule brings the agent down.
    #[test]
    fn a_pattern_without_operators_matches_as_the_expression_that_it_is(
        pattern in r"([a-c.]|\\[.!/-]|\.\*|\?|\(|\)|\[|:|,){1,8}",
        key in "[a-c./!-]{0,8}",
    ) {
        if let Ok(rule) = Rule::parse(&format!("k8s:{pattern}")) {
            prop_assert!(!rule.ignores);
            let expression = Regex::new(&format!(r"\A(?:{pattern})")).unwrap();
            let length = expression.find(key.as_bytes()).map(|found| found.end());
            prop_assert_eq!(rule.matches("k8s", &key), length);
        }
        let _ = LabelFilter::parse(&pattern);
    }
}
