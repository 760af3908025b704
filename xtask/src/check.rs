//! `cargo xtask check`: what can be said about the code without running it.

mod dependencies;
mod files;
mod rules;

use anyhow::bail;
use clap::ValueEnum;

use crate::command::{output, run as run_command, say, timed};
use crate::{chart, crds, ebpf, setup, workspace};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// rustfmt, all crates
    Fmt,
    /// clippy for user space, warnings are errors
    Clippy,
    /// clippy for the kernel programs, apart: features of shared crates would be unified
    ClippyEbpf,
    /// rustdoc, warnings are errors
    Docs,
    /// Licences, sources and duplicates of dependencies (deny.toml)
    Deny,
    /// Who may use whom: the table in ARCHITECTURE.md
    Dependencies,
    /// deploy/crds is what the types say
    Crds,
    /// deploy/portway: helm finds no fault, and tests/chart is what it renders
    Chart,
    /// Names, lengths, machine paths and unsafe code in the files of the project
    Files,
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn check(self) -> anyhow::Result<()> {
        match self {
            Self::Fmt => run_command(workspace::cargo()?.args(["fmt", "--all", "--", "--check"])),
            Self::Clippy => run_command(workspace::cargo()?.args([
                "clippy",
                "--locked",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])),
            Self::ClippyEbpf => ebpf::clippy(workspace::root()),
            Self::Docs => run_command(
                workspace::cargo()?.args(["doc", "--locked", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Deny => {
                setup::run(setup::Scope::Check)?;
                // Not `advisories`: they are a database that has to be fetched, and change without the code changing.
                run_command(
                    workspace::cargo()?.args(["deny", "--locked", "check", "bans", "licenses", "sources"]),
                )
            }
            Self::Dependencies => check_dependencies(),
            Self::Crds => verdict(&crds::drift()?),
            Self::Chart => {
                chart::lint()?;
                verdict(&chart::drift()?)
            }
            Self::Files => files::check(),
        }
    }
}

/// Runs `only`, or every part; all of them, also after one has failed.
pub(crate) fn run(only: &[Part]) -> anyhow::Result<()> {
    let parts = if only.is_empty() { Part::value_variants() } else { only };
    let mut failed = Vec::new();
    for part in parts {
        let (result, _) = timed(&format!("check {}", part.name()), || part.check());
        if result.is_err() {
            failed.push(part.name());
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn check_dependencies() -> anyhow::Result<()> {
    let metadata = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let mut members = dependencies::members(&output(workspace::cargo()?.args(metadata))?)?;
    for member in &mut members {
        let mut tree = workspace::cargo()?;
        tree.args([
            "tree",
            "--locked",
            "--edges",
            "normal",
            "--target",
            "all",
            "--prefix",
            "depth",
            "--package",
        ]);
        let printed = output(tree.arg(&member.package))?;
        member.set_tree(&printed)?;
    }
    verdict(&dependencies::violations(&members, rules::CRATES))
}

/// Prints what is wrong, one line each.
fn verdict(violations: &[String]) -> anyhow::Result<()> {
    for violation in violations {
        say(format!("  {violation}"));
    }
    if violations.is_empty() {
        Ok(())
    } else {
        bail!("{} violations of the project's rules", violations.len())
    }
}
