//! Builds the kernel objects: finds a Rust toolchain that can, and calls cargo for `bpfel-unknown-none`.
//!
//! `agent/build.rs` includes this very file, so that `cargo build` and `cargo xtask build-ebpf` do the same. It uses
//! `std` and `anyhow` alone for that reason.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, bail, ensure};

/// Names the compiler to build the kernel object with; its sysroot must hold the sources of `core`.
pub const RUSTC_VARIABLE: &str = "PORTWAY_BPF_RUSTC";

/// The package, and its binaries: the programs of sockets, and of the pod network's packets.
const PACKAGE: &str = "portway-ebpf";
pub const OBJECTS: [&str; 2] = ["portway", "portway-pods"];
const TARGET: &str = "bpfel-unknown-none";

/// What the objects are made of, below the workspace root.
pub const SOURCES: [&str; 5] =
    ["ebpf/src", "ebpf/Cargo.toml", "common/datapath/src", "common/datapath/Cargo.toml", "xtask/src/ebpf.rs"];

/// What the nested cargo must not inherit: it would build with the flags, the compiler or the wrapper (clippy) of the
/// cargo that runs us, or wait for its jobserver. What cargo tells a build script would make crates look changed.
const FOREIGN_VARIABLES: [&str; 18] = [
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MAKEFLAGS",
    "CARGO_TARGET_DIR",
    "DEBUG",
    "HOST",
    "MAKEFLAGS",
    "MFLAGS",
    "NUM_JOBS",
    "OPT_LEVEL",
    "OUT_DIR",
    "PROFILE",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "TARGET",
];
const FOREIGN_PREFIXES: [&str; 4] = ["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_MANIFEST_", "CARGO_PKG_"];

/// Where [`build`] leaves [`OBJECTS`], each under its name.
pub fn object_dir(workspace_root: &Path) -> PathBuf {
    target_dir(workspace_root).join(TARGET).join("release")
}

fn target_dir(workspace_root: &Path) -> PathBuf {
    workspace_root.join("target/bpf")
}

/// A compiler that can build for BPF, and why this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    pub rustc: PathBuf,
    pub origin: &'static str,
}

/// Builds the objects in the release profile and says where they are, in the order of [`OBJECTS`]. Cargo decides whether
/// there is anything to do.
///
/// Errors name the mend: no toolchain or no `bpf-linker` is `cargo xtask setup`'s work.
pub fn build(workspace_root: &Path, verbose: bool) -> anyhow::Result<Vec<PathBuf>> {
    let toolchain = find_toolchain()?;
    let linker = find_linker()?;
    OBJECTS
        .into_iter()
        .map(|object| build_one(workspace_root, object, &toolchain, &linker, verbose))
        .collect()
}

fn build_one(
    workspace_root: &Path,
    object: &str,
    toolchain: &Toolchain,
    linker: &Path,
    verbose: bool,
) -> anyhow::Result<PathBuf> {
    let mut cargo = nested_cargo(workspace_root);
    cargo
        .env("RUSTC", &toolchain.rustc)
        // `-Z build-std`, also with a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        // The linker does link-time optimisation itself; nothing in the kernel unwinds.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        // bpf-linker needs the debug information to make BTF of it.
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .args(["rustc", "--release", "--package", PACKAGE, "--bin", object, "--target", TARGET])
        .args(["-Z", "build-std=core", "--target-dir"])
        .arg(target_dir(workspace_root));
    cargo.arg(if verbose { "--verbose" } else { "--quiet" });
    // Without the last flag, zeroing a struct becomes a loop over its bytes.
    cargo.args(["--", "-C", "link-arg=--btf", "-C", "link-arg=--disable-expand-memcpy-in-order"]);
    run(&mut cargo).with_context(|| {
        format!(
            "building the kernel object {object} with {} ({})",
            toolchain.rustc.display(),
            toolchain.origin
        )
    })?;
    let object = object_dir(workspace_root).join(object);
    // Cargo leaves an object alone whose sources changed in nothing that matters; `is_fresh` shall know it was looked at.
    let file = File::options().append(true).open(&object);
    file.and_then(|file| file.set_modified(SystemTime::now()))
        .with_context(|| format!("cargo succeeded, but touching {} did not", object.display()))?;
    Ok(object)
}

/// Lints the kernel crate. Runs on the host's target, so it needs no BPF toolchain; user space is linted in a run of
/// its own, since the features of shared crates would be unified.
pub fn clippy(workspace_root: &Path) -> anyhow::Result<()> {
    let mut cargo = nested_cargo(workspace_root);
    cargo.args(["clippy", "--quiet", "--package", PACKAGE, "--bins", "--", "-D", "warnings"]);
    run(&mut cargo).context("linting the kernel crate")
}

/// Whether the objects are there and no older than what they are made of.
pub fn is_fresh(workspace_root: &Path) -> anyhow::Result<bool> {
    let newest = newest_source(workspace_root)?;
    for object in OBJECTS {
        let Ok(object) = object_dir(workspace_root).join(object).metadata() else { return Ok(false) };
        if object.modified()? < newest {
            return Ok(false);
        }
    }
    Ok(true)
}

/// When the newest of [`SOURCES`] was changed.
pub fn newest_source(workspace_root: &Path) -> anyhow::Result<SystemTime> {
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut left: Vec<PathBuf> = SOURCES.iter().map(|s| workspace_root.join(s)).collect();
    while let Some(path) = left.pop() {
        let about = path.metadata().with_context(|| format!("reading {}", path.display()))?;
        if about.is_dir() {
            let entries = path.read_dir().with_context(|| format!("reading {}", path.display()))?;
            for entry in entries {
                left.push(entry?.path());
            }
        } else {
            newest = newest.max(about.modified()?);
        }
    }
    Ok(newest)
}

/// The compiler that builds the object: [`RUSTC_VARIABLE`], else rustup's nightly, else the system's.
pub fn find_toolchain() -> anyhow::Result<Toolchain> {
    if let Some(rustc) = std::env::var_os(RUSTC_VARIABLE) {
        let rustc = PathBuf::from(rustc);
        ensure!(
            has_core_sources(&rustc),
            "{RUSTC_VARIABLE}={} does not run, or its sysroot lacks the sources of core \
             (lib/rustlib/src/rust/library); name a compiler that has them, or unset the variable",
            rustc.display()
        );
        return Ok(Toolchain { rustc, origin: RUSTC_VARIABLE });
    }
    if let Some(rustc) = rustup_nightly()
        && has_core_sources(&rustc)
    {
        return Ok(Toolchain { rustc, origin: "rustup's nightly" });
    }
    let system = PathBuf::from("/usr/bin/rustc");
    if has_core_sources(&system) {
        return Ok(Toolchain { rustc: system, origin: "the system's compiler" });
    }
    bail!(
        "no Rust compiler that can build for BPF: looked for {RUSTC_VARIABLE}, a rustup nightly with rust-src and \
         /usr/bin/rustc with its sources; `cargo xtask setup` installs one"
    )
}

fn rustup_nightly() -> Option<PathBuf> {
    let answer = Command::new("rustup")
        .args(["which", "--toolchain", "nightly", "rustc"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = String::from_utf8(answer.stdout).ok()?;
    answer.status.success().then(|| PathBuf::from(path.trim()))
}

fn has_core_sources(rustc: &Path) -> bool {
    let answer = Command::new(rustc).args(["--print", "sysroot"]).stderr(Stdio::null()).output();
    let Ok(answer) = answer else { return false };
    let Ok(sysroot) = String::from_utf8(answer.stdout) else { return false };
    answer.status.success()
        && Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
}

/// `bpf-linker` on the path, or where cargo installs programs.
pub fn find_linker() -> anyhow::Result<PathBuf> {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(cargo_home.map(|home| home.join("bin")))
        .map(|folder| folder.join("bpf-linker"))
        .find(|candidate| candidate.is_file())
        .context(
            "bpf-linker is neither on the PATH nor in cargo's bin folder; `cargo xtask setup` installs it",
        )
}

fn nested_cargo(workspace_root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root).stdin(Stdio::null());
    for variable in FOREIGN_VARIABLES {
        command.env_remove(variable);
    }
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
    command
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("starting {}", command.get_program().display()))?;
    ensure!(status.success(), "{} ended with {status}", command.get_program().display());
    Ok(())
}
