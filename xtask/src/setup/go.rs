//! A Go that is new enough for Kubernetes.
//!
//! Debian's is too old to build it, but not to download a module; and Go's own toolchains are modules, too. Which ones,
//! and their checksums, stand in `tests/cluster/toolchain.txt`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command::{output, probe};

/// What k8s.io/kubernetes asks for in its go.mod.
const AT_LEAST: [u32; 2] = [1, 26];
/// A line for each: the version of the module golang.org/toolchain, and its checksum as a go.sum has it.
const PINNED: &str = include_str!("../../../tests/cluster/toolchain.txt");
/// Where a Go stands that is on no path.
const USUAL: &str = "/usr/local/go/bin";

/// The folder of a `go` that will do, where there is one.
pub(super) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain([USUAL.into()]).find(|dir| is_new_enough(&dir.join("go")))
}

/// [`find`], or Go's toolchain as a module of Go's.
pub(super) fn find_or_install() -> anyhow::Result<PathBuf> {
    match find() {
        Some(go) => Ok(go),
        None => install(),
    }
}

/// PATH that begins with `dir`.
pub(super) fn path_with(dir: &Path) -> anyhow::Result<OsString> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths([dir.to_owned()].into_iter().chain(std::env::split_paths(&old)))
        .context("PATH has an entry with a colon")
}

fn is_new_enough(go: &Path) -> bool {
    probe(Command::new(go).arg("version").env("GOTOOLCHAIN", "local"))
        .as_deref()
        .and_then(version_in)
        .is_some_and(|version| version >= AT_LEAST)
}

/// Of `go version go1.26.8 linux/amd64`.
fn version_in(answer: &str) -> Option<[u32; 2]> {
    let version = answer.split_whitespace().nth(2)?.strip_prefix("go")?;
    let mut parts = version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some([major, minor]),
        _ => None,
    }
}

/// Version and checksum for this architecture.
fn pinned<'a>(lines: &'a str, architecture: &str) -> Option<(&'a str, &'a str)> {
    lines.lines().filter_map(|line| line.split_once(' ')).find(|(version, _)| version.ends_with(architecture))
}

/// Has any `go` download the toolchain; gives its folder of binaries.
fn install() -> anyhow::Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no Go toolchain is known for {other}: put a Go of at least 1.26 on the path"),
    };
    let (version, wanted) =
        pinned(PINNED, architecture).context("tests/cluster/toolchain.txt has no such line")?;
    let module = format!("golang.org/toolchain@{version}");
    let mut download = Command::new("go");
    // Outside of any module.
    download.current_dir(std::env::temp_dir()).args(["mod", "download", "-json", &module]);
    // The checksum is compared here.
    download.env("GOTOOLCHAIN", "local").env("GONOSUMDB", "golang.org/toolchain");
    let answer: serde_json::Value = serde_json::from_str(&output(&mut download)?)
        .context("`go mod download -json` does not answer with JSON")?;
    let text = |field: &str| answer.get(field).and_then(serde_json::Value::as_str);
    let (Some(dir), Some(sum)) = (text("Dir"), text("Sum")) else {
        bail!("`go mod download {module}` names no folder or no checksum: {answer}");
    };
    if sum != wanted {
        bail!("{module} has the checksum {sum}, not {wanted}");
    }
    let dir = Path::new(dir);
    // A module's files are unpacked without the right to run them.
    for sub in ["bin", "pkg/tool"] {
        make_runnable(&dir.join(sub))?;
    }
    Ok(dir.join("bin"))
}

fn make_runnable(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            make_runnable(&path)?;
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o555))
                .with_context(|| format!("making {} runnable", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_third_word() {
        assert_eq!(version_in("go version go1.26.8 linux/amd64\n"), Some([1, 26]));
        assert_eq!(version_in("go version go1.27rc1 linux/amd64"), None);
        assert_eq!(version_in("go version devel linux/amd64"), None);
        assert!(pinned(PINNED, "amd64").is_some() && pinned(PINNED, "arm64").is_some());
        assert!(version_in("go version go1.19.8 linux/amd64") < Some(AT_LEAST));
    }
}
