use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// cargo in the workspace, with the tools that `setup` installs on its path.
pub(crate) fn cargo() -> anyhow::Result<Command> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).env("PATH", path()?);
    Ok(cargo)
}

/// Where `cargo install` puts binaries.
pub(crate) fn tools() -> anyhow::Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_INSTALL_ROOT").or_else(|| env::var_os("CARGO_HOME")) {
        return Ok(PathBuf::from(home).join("bin"));
    }
    let home = env::home_dir().context("HOME is not set, so the folder of cargo's binaries is unknown")?;
    Ok(home.join(".cargo/bin"))
}

/// PATH with the folder of [`tools`]: the system's cargo does not put it there.
pub(crate) fn path() -> anyhow::Result<OsString> {
    let old = env::var_os("PATH").unwrap_or_default();
    let tools = tools()?;
    if env::split_paths(&old).any(|dir| dir == tools) {
        return Ok(old);
    }
    env::join_paths(env::split_paths(&old).chain([tools])).context("PATH has an entry with a colon")
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
