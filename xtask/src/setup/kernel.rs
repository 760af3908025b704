//! Debian's 6.1 kernel, which the hook tests also run on in a virtual machine (`portway_tests::harness::vm`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command::{probe, run, say};
use crate::workspace;

/// The image and the one module that the tests need.
const FILES: [&str; 2] = ["vmlinuz", "veth.ko"];

fn folder() -> PathBuf {
    workspace::root().join(".cache/linux-6.1")
}

pub(super) fn is_there() -> bool {
    FILES.iter().all(|file| folder().join(file).is_file())
}

/// Downloads the package and takes the two files out of it. Nothing is installed.
pub(super) fn install() -> anyhow::Result<()> {
    super::packages::update()?;
    let name = package()?;
    let folder = folder();
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).with_context(|| format!("making {}", unpacked.display()))?;
    run(Command::new("apt-get").args(["download", "-q", &name]).current_dir(&folder))?;
    for entry in fs::read_dir(&folder)? {
        let deb = entry?.path();
        if deb.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
            fs::remove_file(&deb)?;
        }
    }
    let version = name.trim_start_matches("linux-image-");
    let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    let module = unpacked.join("lib/modules").join(version).join("kernel/drivers/net/veth.ko");
    for (from, to) in [image, module].iter().zip(FILES) {
        take(from, &folder.join(to))?;
    }
    fs::remove_dir_all(&unpacked).with_context(|| format!("removing {}", unpacked.display()))
}

fn take(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::rename(from, to).with_context(|| format!("moving {} to {}", from.display(), to.display()))
}

/// What Debian's package of the newest 6.1 depends on: `linux-image-6.1.0-<n>-amd64`.
fn package() -> anyhow::Result<String> {
    let depends = probe(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))
        .context("cannot ask apt-cache for Debian's kernel")?;
    let name = depends.split_whitespace().find(|word| word.starts_with("linux-image-6.1."));
    match name {
        Some(name) => Ok(name.to_owned()),
        None => {
            say("apt-cache depends linux-image-amd64 says:");
            say(&depends);
            bail!("this Debian has no 6.1 kernel; put a vmlinuz and its veth.ko into {}", folder().display())
        }
    }
}
