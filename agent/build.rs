//! Puts the kernel object into the agent.
//!
//! The object comes from `PORTWAY_BPF_OBJECT` or is built here, where a toolchain for BPF is found. Without one, an
//! object that was built before is taken, or else an empty one: such an agent compiles, for checks and unit tests, and
//! refuses to start. A release build takes neither an empty nor an outdated object.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

// The same file that `cargo xtask build-ebpf` runs; xtask as a build dependency would bring all of it along.
#[path = "../xtask/src/ebpf.rs"]
#[expect(dead_code, unreachable_pub, reason = "xtask uses the rest")]
mod ebpf;

const OBJECT_VARIABLE: &str = "PORTWAY_BPF_OBJECT";

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    println!("cargo::rerun-if-env-changed={}", ebpf::RUSTC_VARIABLE);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("agent/ lies in the workspace")?;
    for source in ebpf::SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let copy = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?).join("portway");
    let object = match find_object(root)? {
        Some(path) => std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?,
        None => Vec::new(),
    };
    std::fs::write(&copy, object).with_context(|| format!("writing {}", copy.display()))
}

/// `None` where there is none and none is needed.
fn find_object(root: &Path) -> anyhow::Result<Option<PathBuf>> {
    if let Some(path) = std::env::var_os(OBJECT_VARIABLE) {
        let path = PathBuf::from(path);
        println!("cargo::rerun-if-changed={}", path.display());
        if !path.is_file() {
            bail!("{OBJECT_VARIABLE}={}: there is no such file", path.display());
        }
        return Ok(Some(path));
    }
    if ebpf::is_fresh(root)? {
        return Ok(Some(ebpf::object_path(root)));
    }
    let Err(missing) = ebpf::find_toolchain().and_then(|_| ebpf::find_linker()) else {
        return ebpf::build(root, false).map(Some);
    };
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        bail!("a release build needs an up-to-date kernel object: {missing}");
    }
    let object = ebpf::object_path(root);
    // Whoever built it elsewhere may bring another one.
    println!("cargo::rerun-if-changed={}", object.display());
    if object.is_file() {
        println!(
            "cargo::warning=the kernel object is older than its sources and is taken as it is: {missing}"
        );
        return Ok(Some(object));
    }
    println!("cargo::warning=this agent has no kernel object and will refuse to start: {missing}");
    Ok(None)
}
