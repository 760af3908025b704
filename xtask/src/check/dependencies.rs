use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::rules::CrateRule;

/// A crate of the workspace as it is.
pub(super) struct Member {
    pub(super) package: String,
    /// What its manifest names, optional crates included; not for its tests, not for its build script.
    declares: Vec<String>,
    /// Everything below it where it is built alone, by name, with one path to each.
    tree: BTreeMap<String, String>,
}

/// The packages of the workspace and what each declares, from `cargo metadata --no-deps`.
pub(super) fn members(metadata: &str) -> anyhow::Result<Vec<Member>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata is not JSON")?;
    let mut members = Vec::new();
    for package in array(&metadata, "packages")? {
        let mut declares = Vec::new();
        for dependency in array(package, "dependencies")? {
            // A kind is null, "dev" or "build".
            if dependency.get("kind").is_none_or(Value::is_null) {
                declares.push(text(dependency, "name")?);
            }
        }
        members.push(Member { package: text(package, "name")?, declares, tree: BTreeMap::new() });
    }
    Ok(members)
}

impl Member {
    /// Takes in what `cargo tree --edges normal --prefix depth` prints for this package alone. A graph of the whole
    /// workspace will not do: there, one crate's features are everyone's.
    pub(super) fn set_tree(&mut self, printed: &str) -> anyhow::Result<()> {
        let mut path: Vec<&str> = Vec::new();
        for line in printed.lines().filter(|line| !line.is_empty()) {
            let digits = line.bytes().take_while(u8::is_ascii_digit).count();
            let (depth, rest) = line.split_at(digits);
            let depth: usize = depth.parse().with_context(|| format!("cargo tree: no depth in `{line}`"))?;
            let name =
                rest.split_whitespace().next().with_context(|| format!("cargo tree: no name in `{line}`"))?;
            if depth > path.len() {
                bail!("cargo tree: `{line}` is deeper than the line before by more than one");
            }
            path.truncate(depth);
            path.push(name);
            if depth > 0 {
                self.tree.entry(name.to_owned()).or_insert_with(|| path.join(" -> "));
            }
        }
        Ok(())
    }
}

/// Where the workspace breaks `rules`.
pub(super) fn violations(members: &[Member], rules: &[CrateRule]) -> Vec<String> {
    let is_member = |name: &str| members.iter().any(|member| member.package == name);
    let mut violations = Vec::new();
    for member in members {
        let name = &member.package;
        let Some(rule) = rules.iter().find(|rule| rule.package == name) else {
            violations.push(format!("{name} has no rule: say in xtask/src/check/rules.rs what it may use"));
            continue;
        };
        for used in member.declares.iter().map(String::as_str) {
            if is_member(used) {
                if !rule.may_use.contains(&used) {
                    violations.push(format!("{name} uses {used}, which its rule does not allow"));
                }
            } else if rule.foreign.is_some_and(|foreign| !foreign.contains(&used)) {
                violations.push(format!("{name} uses {used}, which is not among its few foreign crates"));
            } else if rule.never_directly.contains(&used) {
                violations.push(format!("{name} uses {used}, which is another crate's to use"));
            }
        }
        for never in rule.never {
            if let Some(path) = member.tree.get(*never) {
                violations.push(format!("{name} must never have {never} in its tree: {path}"));
            }
        }
    }
    for rule in rules.iter().filter(|rule| !is_member(rule.package)) {
        violations.push(format!("the rule for {} is about no crate of the workspace", rule.package));
    }
    violations
}

fn array<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a Vec<Value>> {
    value.get(key).and_then(Value::as_array).with_context(|| format!("cargo metadata: no array `{key}`"))
}

fn text(value: &Value, key: &str) -> anyhow::Result<String> {
    let found = value.get(key).and_then(Value::as_str).map(str::to_owned);
    found.with_context(|| format!("cargo metadata: no text `{key}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &[CrateRule] = &[
        CrateRule {
            package: "pure",
            may_use: &[],
            foreign: None,
            never_directly: &["kube"],
            never: &["tokio"],
        },
        CrateRule {
            package: "edge",
            may_use: &["pure"],
            foreign: Some(&["anyhow"]),
            never_directly: &[],
            never: &[],
        },
    ];

    /// `(user, used, kind)` as manifests declare them.
    fn workspace(edges: &[(&str, &str, Option<&str>)]) -> Vec<Member> {
        let package = |name: &str| {
            let dependencies: Vec<_> = edges
                .iter()
                .filter(|(user, ..)| *user == name)
                .map(|(_, used, kind)| json!({"name": used, "kind": kind}))
                .collect();
            json!({"name": name, "dependencies": dependencies})
        };
        members(&json!({"packages": [package("pure"), package("edge")]}).to_string()).unwrap()
    }

    fn check(edges: &[(&str, &str, Option<&str>)]) -> Vec<String> {
        violations(&workspace(edges), RULES)
    }

    #[test]
    fn what_the_rules_allow_is_allowed() {
        assert_eq!(
            check(&[("edge", "pure", None), ("edge", "anyhow", None), ("pure", "serde", None)]),
            [""; 0]
        );
    }

    #[test]
    fn a_crate_of_the_workspace_that_is_not_named_is_a_violation() {
        assert_eq!(check(&[("pure", "edge", None)]).len(), 1);
    }

    #[test]
    fn never_reaches_through_other_crates() {
        let mut members = workspace(&[]);
        let tree =
            "0pure v0.1.0 (/x/pure)\n1serde v1.0.0\n2serde_core v1.0.0\n1mio v1.0.0\n2tokio v1.0.0 (*)\n";
        members[0].set_tree(tree).unwrap();
        assert_eq!(
            violations(&members, RULES),
            ["pure must never have tokio in its tree: pure -> mio -> tokio"]
        );
    }

    #[test]
    fn what_is_never_used_directly_may_be_below_others() {
        assert_eq!(check(&[("pure", "kube", None)]).len(), 1);
        let mut members = workspace(&[]);
        members[0].set_tree("0pure v0.1.0 (/x/pure)\n1edge v1.0.0\n2kube v5.0.0\n").unwrap();
        assert_eq!(violations(&members, RULES), [""; 0]);
    }

    #[test]
    fn a_tree_that_is_not_understood_is_an_error() {
        assert!(workspace(&[])[0].set_tree("pure v0.1.0").is_err());
        assert!(workspace(&[])[0].set_tree("0pure v0.1.0\n2serde v1.0.0").is_err());
    }

    #[test]
    fn a_foreign_crate_outside_the_list_is_a_violation() {
        assert_eq!(check(&[("edge", "serde", None)]).len(), 1);
    }

    #[test]
    fn development_dependencies_are_free() {
        assert_eq!(check(&[("pure", "tokio", Some("dev")), ("edge", "serde", Some("dev"))]), [""; 0]);
    }

    #[test]
    fn a_crate_without_a_rule_and_a_rule_without_a_crate_are_violations() {
        let new = json!({"packages": [{"name": "new", "dependencies": []}]});
        assert_eq!(violations(&members(&new.to_string()).unwrap(), RULES).len(), 3);
    }
}
