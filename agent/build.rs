//! Puts the kernel objects into the agent.
//!
//! They come from the directory `PORTWAY_BPF_OBJECTS` or are built here, where a toolchain for BPF is found. Without one,
//! objects that were built before are taken, or else empty ones: such an agent compiles, for checks and unit tests, and
//! refuses to start. A release build takes neither empty nor outdated objects.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

// The same file that `cargo xtask build-ebpf` runs; xtask as a build dependency would bring all of it along.
#[path = "../xtask/src/ebpf.rs"]
#[expect(dead_code, unreachable_pub, reason = "xtask uses the rest")]
mod ebpf;

/// A directory with every object under its name.
const OBJECTS_VARIABLE: &str = "PORTWAY_BPF_OBJECTS";

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-env-changed={OBJECTS_VARIABLE}");
    println!("cargo::rerun-if-env-changed={}", ebpf::RUSTC_VARIABLE);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("agent/ lies in the workspace")?;
    for source in ebpf::SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let dir = find_objects(root)?;
    for name in ebpf::OBJECTS {
        let object = match &dir {
            Some(dir) => {
                let path = dir.join(name);
                std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?
            }
            None => Vec::new(),
        };
        let copy = out.join(name);
        std::fs::write(&copy, object).with_context(|| format!("writing {}", copy.display()))?;
    }
    Ok(())
}

/// The directory of the objects; `None` where there are none and none is needed.
fn find_objects(root: &Path) -> anyhow::Result<Option<PathBuf>> {
    if let Some(dir) = std::env::var_os(OBJECTS_VARIABLE).map(PathBuf::from) {
        for name in ebpf::OBJECTS {
            let path = dir.join(name);
            println!("cargo::rerun-if-changed={}", path.display());
            if !path.is_file() {
                bail!("{OBJECTS_VARIABLE}={}: there is no file {name} in it", dir.display());
            }
        }
        return Ok(Some(dir));
    }
    let built = ebpf::object_dir(root);
    if ebpf::is_fresh(root)? {
        return Ok(Some(built));
    }
    let Err(missing) = ebpf::find_toolchain().and_then(|_| ebpf::find_linker()) else {
        return ebpf::build(root, false).map(|_| Some(built));
    };
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        bail!("a release build needs up-to-date kernel objects: {missing}");
    }
    // Whoever built them elsewhere may bring others.
    let paths = ebpf::OBJECTS.map(|name| built.join(name));
    for path in &paths {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    if paths.iter().all(|path| path.is_file()) {
        println!(
            "cargo::warning=the kernel objects are older than their sources and are taken as they are: {missing}"
        );
        return Ok(Some(built));
    }
    println!("cargo::warning=this agent has no kernel objects and will refuse to start: {missing}");
    Ok(None)
}
