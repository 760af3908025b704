use anyhow::{Context as _, bail};

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Of one thing that passed or failed.
    pub(crate) fn one(passed: bool) -> Self {
        Self { passed: u64::from(passed), failed: u64::from(!passed) }
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The counts in the head of a JUnit report: `<testsuites … tests="12" failures="1" errors="0">`.
pub(super) fn counts(report: &str) -> anyhow::Result<Counts> {
    let head =
        report.split_once("<testsuites").and_then(|(_, rest)| rest.split_once('>')).map(|(head, _)| head);
    let Some(head) = head else {
        bail!("the report has no <testsuites> element");
    };
    let tests = number(head, "tests")?;
    let failed = number(head, "failures")? + number(head, "errors")?;
    let passed = tests.checked_sub(failed).context("the report has more failures than tests")?;
    Ok(Counts { passed, failed })
}

fn number(head: &str, attribute: &str) -> anyhow::Result<u64> {
    let value = head
        .split_once(&format!(" {attribute}=\""))
        .and_then(|(_, rest)| rest.split_once('"'))
        .with_context(|| format!("<testsuites> has no attribute {attribute}"))?
        .0;
    value.parse().with_context(|| format!("<testsuites> {attribute}=\"{value}\" is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_errors_both_count_as_failed() {
        let report = r#"<?xml version="1.0"?>
<testsuites name="nextest-run" tests="12" failures="2" errors="1" uuid="x" time="0.1">
  <testsuite name="a" tests="12" failures="2" errors="1">"#;
        assert_eq!(counts(report).unwrap(), Counts { passed: 9, failed: 3 });
    }

    #[test]
    fn a_report_without_counts_is_an_error() {
        assert!(counts("").is_err());
        assert!(counts("<testsuites name=\"x\">").is_err());
        assert!(counts(r#"<testsuites tests="1" failures="2" errors="0">"#).is_err());
    }
}
