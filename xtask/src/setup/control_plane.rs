//! etcd, kube-apiserver and kube-controller-manager, which `tests/cluster/build.sh` builds into the cache folder.

use std::path::Path;
use std::process::Command;

use crate::command::{probe, run};
use crate::workspace;

fn build_script() -> Command {
    let mut bash = Command::new("bash");
    bash.arg(workspace::root().join("tests/cluster/build.sh"));
    bash
}

/// Whether what the pinned modules say is built.
pub(super) fn is_there() -> bool {
    probe(build_script().arg("--check")).is_some()
}

/// Builds it with the Go of the folder `go`.
pub(super) fn build(go: &Path) -> anyhow::Result<()> {
    let mut build = build_script();
    build.env("PATH", super::go::path_with(go)?);
    run(&mut build)
}
