//! Benchmarks: builds everything optimised and hands names and switches to `portway-bench` of the tests crate.

use anyhow::{Context as _, bail};

use crate::command::{run as run_command, say};
use crate::demo::{as_root, build_binaries, build_object};
use crate::{setup, workspace};

/// Where the benchmarks' entry point is, relative to the workspace.
const SOURCE: &str = "tests/src/bin/portway-bench.rs";

/// Those that run on a real API server, and beside kube-proxy.
const ON_AN_API_SERVER: [&str; 4] = ["apilag", "churn", "identity", "operator"];

pub(crate) fn run(names: &[String], json: bool, long: bool) -> anyhow::Result<()> {
    let folder = SOURCE.trim_end_matches(".rs");
    if !workspace::root().join(SOURCE).exists() && !workspace::root().join(folder).join("main.rs").exists() {
        bail!("there are no benchmarks yet: {SOURCE} does not exist");
    }
    let needs_api_server = names.iter().any(|name| ON_AN_API_SERVER.contains(&name.as_str()));
    setup::run(if needs_api_server { setup::Scope::Bench } else { setup::Scope::Demo })?;
    build_object()?;
    let mut build = build_binaries()?;
    build.arg("--release");
    run_command(&mut build)?;
    let mut bench = as_root(workspace::target().join("release/portway-bench"));
    bench.args(names);
    bench.args(json.then_some("--json")).args(long.then_some("--long"));
    if json {
        say("one JSON object a line: bench, metric, value, unit, bar, ok");
    }
    run_command(&mut bench).context("a figure missed its bar, or a benchmark failed")
}
