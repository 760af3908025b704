//! `deploy/crds`: the CustomResourceDefinitions, written from the Rust types by an example of `portway-model`. xtask
//! itself uses none of the other crates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::command::{run as run_command, say};
use crate::workspace;

/// Writes the files.
pub(crate) fn run() -> anyhow::Result<()> {
    let dir = dir();
    let before = files(&dir)?;
    generate(&dir)?;
    for (name, text) in files(&dir)? {
        let change = match before.get(&name) {
            None => "new",
            Some(old) if *old == text => "as it was",
            Some(_) => "changed",
        };
        say(format!("{}: {change}", dir.join(name).display()));
    }
    Ok(())
}

/// What in the tree is not as the types would have it.
pub(crate) fn drift() -> anyhow::Result<Vec<String>> {
    let fresh = workspace::target().join("crds");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).with_context(|| format!("remove {}", fresh.display()))?;
    }
    generate(&fresh)?;
    Ok(differences(&files(&dir())?, &files(&fresh)?))
}

fn dir() -> PathBuf {
    workspace::root().join("deploy/crds")
}

fn generate(into: &Path) -> anyhow::Result<()> {
    let example = ["run", "--quiet", "--locked", "--package", "portway-model", "--example", "crds", "--"];
    run_command(workspace::cargo()?.args(example).arg(into))
}

/// The texts of a directory, by their names; empty where there is none.
pub(crate) fn files(dir: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    if !dir.exists() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        files.insert(name, text);
    }
    Ok(files)
}

fn differences(tree: &BTreeMap<String, String>, fresh: &BTreeMap<String, String>) -> Vec<String> {
    let mend = "`cargo xtask crds` writes it";
    let mut found: Vec<_> = fresh
        .iter()
        .filter(|(name, text)| tree.get(*name) != Some(text))
        .map(|(name, _)| format!("deploy/crds/{name} is not what the types say: {mend}"))
        .collect();
    let unknown = tree.keys().filter(|name| !fresh.contains_key(*name));
    found.extend(unknown.map(|name| format!("deploy/crds/{name} is of no type: delete it")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_differs_is_missing_or_is_too_many_is_drift() {
        let of = |files: &[(&str, &str)]| -> BTreeMap<_, _> {
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let fresh = of(&[("a.yaml", "1"), ("b.yaml", "2")]);
        assert_eq!(differences(&fresh, &fresh), Vec::<String>::new());
        let found = differences(&of(&[("a.yaml", "0"), ("c.yaml", "3")]), &fresh);
        let files: Vec<_> = found.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(files, ["deploy/crds/a.yaml", "deploy/crds/b.yaml", "deploy/crds/c.yaml"]);
    }
}
