//! `deploy/portway`: what helm says of the chart, and what it renders for the value sets of `tests/chart`. The rendered
//! texts are kept beside the sets, where the tests read them without helm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command::{output, run as run_command, say};
use crate::crds::files;
use crate::{setup, workspace};

/// What `.Capabilities` says: the version that the cluster tests run, of `tests/cluster/build.sh`.
const KUBERNETES: &str = "1.37.2";
/// The namespace that the tests' control planes have from their start.
const NAMESPACE: &str = "kube-system";
/// Behind the name of a set.
const VALUES: &str = ".values.yaml";

/// Writes what is rendered.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run(setup::Scope::Check)?;
    let dir = dir();
    let before = files(&dir)?;
    for (name, text) in render(&before)? {
        let change = match before.get(&name) {
            None => "new",
            Some(old) if *old == text => "as it was",
            Some(_) => "changed",
        };
        let path = dir.join(&name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        say(format!("{}: {change}", path.display()));
    }
    Ok(())
}

/// Has helm look at the chart with each set.
pub(crate) fn lint() -> anyhow::Result<()> {
    setup::run(setup::Scope::Check)?;
    for set in sets(&files(&dir())?)? {
        let mut lint = helm()?;
        lint.args(["lint", "--strict", "--quiet"]).arg(chart()).args(["--kube-version", KUBERNETES]);
        run_command(lint.args(["--namespace", NAMESPACE, "--values"]).arg(values(&set)))?;
    }
    Ok(())
}

/// What in the tree is not as helm renders it.
pub(crate) fn drift() -> anyhow::Result<Vec<String>> {
    let tree = files(&dir())?;
    Ok(differences(&tree, &render(&tree)?))
}

fn dir() -> PathBuf {
    workspace::root().join("tests/chart")
}

fn chart() -> PathBuf {
    workspace::root().join("deploy/portway")
}

fn values(set: &str) -> PathBuf {
    dir().join(format!("{set}{VALUES}"))
}

/// What `tests/cluster/build.sh helm` builds.
fn helm() -> anyhow::Result<Command> {
    let cache =
        std::env::var_os("PORTWAY_CACHE").map_or_else(|| Path::new(".cache").to_owned(), PathBuf::from);
    let helm = workspace::root().join(cache).join("bin/helm");
    if !helm.is_file() {
        bail!("there is no {}: `cargo xtask setup check` builds it", helm.display());
    }
    let mut helm = Command::new(helm);
    // Whatever is configured for the person who runs this stays out of it.
    helm.current_dir(workspace::root()).env_clear().env("HOME", workspace::target());
    Ok(helm)
}

fn sets(files: &BTreeMap<String, String>) -> anyhow::Result<Vec<String>> {
    let sets: Vec<_> = files.keys().filter_map(|name| name.strip_suffix(VALUES)).map(str::to_owned).collect();
    if sets.is_empty() {
        bail!("{} has no file of values: NAME{VALUES}", dir().display());
    }
    Ok(sets)
}

/// By the names of files.
fn render(tree: &BTreeMap<String, String>) -> anyhow::Result<BTreeMap<String, String>> {
    let mut rendered = BTreeMap::new();
    for set in sets(tree)? {
        let mut template = helm()?;
        template.args(["template", "portway"]).arg(chart()).args(["--kube-version", KUBERNETES]);
        template.args(["--namespace", NAMESPACE, "--values"]).arg(values(&set));
        rendered.insert(format!("{set}.yaml"), output(&mut template)?);
    }
    Ok(rendered)
}

fn differences(tree: &BTreeMap<String, String>, fresh: &BTreeMap<String, String>) -> Vec<String> {
    let mut found: Vec<_> = fresh
        .iter()
        .filter(|(name, text)| tree.get(*name) != Some(text))
        .map(|(name, _)| {
            format!("tests/chart/{name} is not what helm renders: `cargo xtask chart` writes it")
        })
        .collect();
    let unknown = tree.keys().filter(|name| !name.ends_with(VALUES) && !fresh.contains_key(*name));
    found.extend(unknown.map(|name| format!("tests/chart/{name} is of no set of values: delete it")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_text_that_differs_is_missing_or_is_of_no_set_is_drift() {
        let fresh = of(&[("a.yaml", "1"), ("b.yaml", "2")]);
        let values = [("a.values.yaml", ""), ("b.values.yaml", "")];
        let good = of(&[values.as_slice(), &[("a.yaml", "1"), ("b.yaml", "2")]].concat());
        assert_eq!(differences(&good, &fresh), Vec::<String>::new());
        let found =
            differences(&of(&[values.as_slice(), &[("a.yaml", "0"), ("c.yaml", "3")]].concat()), &fresh);
        let names: Vec<_> = found.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(names, ["tests/chart/a.yaml", "tests/chart/b.yaml", "tests/chart/c.yaml"]);
    }

    #[test]
    fn a_directory_without_values_is_an_error_and_not_a_chart_that_is_fine() {
        assert!(sets(&of(&[("a.yaml", "")])).is_err());
        assert_eq!(sets(&of(&[("a.yaml", ""), ("a.values.yaml", "")])).unwrap(), ["a"]);
    }
}
