//! Everything that a pod has on its node: what is there before a pod comes must be what is there after it went.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster_net::Node;

/// One line for each thing.
#[derive(Debug)]
pub(crate) struct Inventory(BTreeSet<String>);

impl Inventory {
    pub(crate) fn take(node: &Node) -> Result<Self> {
        let mut all = BTreeSet::new();
        // Names alone: what an agent makes for itself, its next one makes anew, with another number.
        for line in node.ip(&["-o", "link", "show"])?.lines() {
            let name = line.split(['@', ':', ' ']).filter(|word| !word.is_empty()).nth(1);
            all.insert(format!("link {}", name.with_context(|| format!("no name in {line:?}"))?));
        }
        let commands: [(&str, &[&str]); 5] = [
            ("route", &["-4", "route", "show", "table", "all"]),
            ("route", &["-6", "route", "show", "table", "all"]),
            ("rule", &["-4", "rule", "show"]),
            ("rule", &["-6", "rule", "show"]),
            ("neighbour", &["neigh", "show", "nud", "permanent"]),
        ];
        for (what, args) in commands {
            all.extend(node.ip(args)?.lines().map(|line| format!("{what} {}", without_mac(line))));
        }
        let tables = node.tables()?;
        all.extend(tables.endpoints()?.keys().map(|addr| format!("pw_endpoints {addr:?}")));
        all.extend(tables.netns()?.keys().map(|cookie| format!("pw_netns {cookie}")));
        let endpoints = node.places().state.join("endpoints");
        for entry in std::fs::read_dir(&endpoints).with_context(|| format!("list {}", endpoints.display()))? {
            all.insert(format!("state {}", entry?.file_name().display()));
        }
        Ok(Self(all))
    }

    /// Names every difference.
    pub(crate) fn compare(&self, node: &Node) -> Result<()> {
        let now = Self::take(node)?;
        let added: Vec<_> = now.0.difference(&self.0).collect();
        let lost: Vec<_> = self.0.difference(&now.0).collect();
        ensure!(added.is_empty() && lost.is_empty(), "left behind: {added:#?}\nlost: {lost:#?}");
        Ok(())
    }
}

fn without_mac(line: &str) -> String {
    let words = line.split_whitespace();
    words.filter(|word| word.len() != 17 || word.matches(':').count() != 5).collect::<Vec<_>>().join(" ")
}
