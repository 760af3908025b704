//! What clusters of the tests run, which `tests/cluster/build.sh` builds into the cache folder.

use std::path::Path;
use std::process::Command;

use super::Need;
use crate::command::{probe, run};
use crate::workspace;

/// A part of the build script.
pub(super) struct Build {
    part: &'static str,
    for_need: Need,
    pub(super) what: &'static str,
    pub(super) takes: &'static str,
}

const BUILDS: &[Build] = &[
    Build {
        part: "control-plane",
        for_need: Need::ControlPlane,
        what: "etcd, kube-apiserver, kube-controller-manager, kubectl, kube-proxy",
        takes: "5 to 20 minutes",
    },
    Build {
        part: "nodes",
        for_need: Need::Nodes,
        what: "kubelet, kube-scheduler, CoreDNS and images for pods",
        takes: "2 to 10 minutes",
    },
    Build {
        part: "helm",
        for_need: Need::Helm,
        what: "helm, which renders the chart",
        takes: "1 to 4 minutes",
    },
];

fn build_script() -> Command {
    let mut bash = Command::new("bash");
    bash.arg(workspace::root().join("tests/cluster/build.sh"));
    bash
}

/// The parts for `needs` that are not built, or from other modules than are pinned.
pub(super) fn missing(needs: &[Need]) -> Vec<&'static Build> {
    BUILDS
        .iter()
        .filter(|build| needs.contains(&build.for_need))
        .filter(|build| probe(build_script().args(["--check", build.part])).is_none())
        .collect()
}

/// Builds them with the Go of the folder `go`.
pub(super) fn build(builds: &[&Build], go: &Path) -> anyhow::Result<()> {
    let mut build = build_script();
    build.args(builds.iter().map(|build| build.part)).env("PATH", super::go::path_with(go)?);
    run(&mut build)
}
