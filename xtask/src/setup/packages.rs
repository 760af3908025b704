use std::process::Command;

use anyhow::bail;

use super::Need;
use crate::command::{probe, run};
use crate::workspace;

pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
    for_need: Need,
    /// A command whose presence will do, whoever installed it.
    command: Option<&'static str>,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "rustc-web",
        why: "a Rust compiler whose LLVM has the BPF target",
        for_need: Need::EbpfToolchain,
        command: None,
    },
    Package {
        name: "rust-web-src",
        why: "its library sources: `core` is built for bpfel-unknown-none",
        for_need: Need::EbpfToolchain,
        command: None,
    },
    Package {
        name: "llvm-22-dev",
        why: "LLVM as that compiler has it, to build bpf-linker against",
        for_need: Need::EbpfToolchain,
        command: None,
    },
    Package {
        name: "libpolly-22-dev",
        why: "named by llvm-config's list of libraries",
        for_need: Need::EbpfToolchain,
        command: None,
    },
    Package { name: "libzstd-dev", why: "LLVM links with it", for_need: Need::EbpfToolchain, command: None },
    Package { name: "zlib1g-dev", why: "LLVM links with it", for_need: Need::EbpfToolchain, command: None },
    Package {
        name: "g++",
        why: "LLVM links with the C++ library",
        for_need: Need::EbpfToolchain,
        command: Some("c++"),
    },
    Package {
        name: "iproute2",
        why: "`ip` makes the network namespaces of demo and tests",
        for_need: Need::Namespaces,
        command: Some("ip"),
    },
    Package {
        name: "curl",
        why: "asks the agent of a test for its health",
        for_need: Need::HttpClient,
        command: Some("curl"),
    },
    Package {
        name: "nftables",
        why: "rule sets of others beside the agent, and kube-proxy in a benchmark",
        for_need: Need::RuleSets,
        command: Some("nft"),
    },
    Package {
        name: "qemu-system-x86",
        why: "runs the hook tests on an older kernel",
        for_need: Need::OldKernel,
        command: Some("qemu-system-x86_64"),
    },
    Package {
        name: "busybox-static",
        why: "shell and archiver of that virtual machine",
        for_need: Need::OldKernel,
        command: None,
    },
    Package {
        name: "containerd",
        why: "runs the pods of a test's real nodes",
        for_need: Need::Nodes,
        command: Some("containerd"),
    },
    Package { name: "runc", why: "makes their containers", for_need: Need::Nodes, command: Some("runc") },
    Package {
        name: "containernetworking-plugins",
        why: "`loopback`: containerd wants it for every pod, whatever plugin makes the other link",
        for_need: Need::Nodes,
        command: None,
    },
    Package {
        name: "golang-go",
        why: "downloads the newer Go that builds the tests' control plane",
        for_need: Need::Go,
        command: Some("go"),
    },
    Package {
        name: "binutils",
        why: "`strip`: smaller programs for that virtual machine",
        for_need: Need::OldKernel,
        command: Some("strip"),
    },
];

/// The packages for `needs` that are not installed.
pub(super) fn missing(needs: &[Need]) -> Vec<&'static Package> {
    // Somebody's own compiler, or an installed linker, makes packages needless: ask for what is used, not for names.
    let has_compiler = crate::ebpf::find_toolchain().is_ok();
    let has_linker = super::tools::has_bpf_linker();
    PACKAGES
        .iter()
        .filter(|package| needs.contains(&package.for_need))
        .filter(|package| match package.name {
            "rustc-web" | "rust-web-src" => !has_compiler,
            _ if package.for_need == Need::EbpfToolchain => !has_linker,
            _ => true,
        })
        .filter(|package| match package.command {
            Some(command) => !on_path(command),
            None => !is_installed(package.name),
        })
        .collect()
}

fn is_installed(name: &str) -> bool {
    probe(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", name]))
        .is_some_and(|status| status == "installed")
}

fn on_path(command: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(command).is_file()))
        || ["/usr/sbin", "/sbin"].iter().any(|dir| std::path::Path::new(dir).join(command).is_file())
}

pub(super) fn install(packages: &[&Package]) -> anyhow::Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    if !on_path("apt-get") {
        bail!(
            "there is no apt-get here; install the counterparts of these Debian packages by hand: {}",
            names.join(" ")
        );
    }
    update()?;
    let mut install = apt_get(&["install", "-q", "-y", "--no-install-recommends"])?;
    install.args(&names);
    run(&mut install)
}

/// The package lists of a new machine are empty, those of an old one name versions that are gone.
pub(super) fn update() -> anyhow::Result<()> {
    run(&mut apt_get(&["update", "-q"])?)
}

fn apt_get(args: &[&str]) -> anyhow::Result<Command> {
    let mut command = if workspace::is_root() {
        Command::new("apt-get")
    } else if on_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    } else {
        bail!("installing Debian packages needs root: run `cargo xtask setup` as root, or install sudo");
    };
    command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
    Ok(command)
}
