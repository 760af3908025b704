//! Tests on another kernel: a virtual machine without disk or network that runs the calling test program.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::process::{self, Process, binary};

/// Debian's 6.1, the oldest kernel that Portway supports; `cargo xtask setup` puts it there.
pub const DEBIAN_6_1: &str = "linux-6.1";

/// Software emulation boots in about 20 seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the guest says last.
const PASSED: &str = "portway-tests: guest passed";

/// Runs the tests of this very program whose names contain one of `tests` in a guest with the kernel that stands in
/// `.cache/<kernel>` of the workspace. An error has what the guest said.
pub fn run(kernel: &str, tests: &[&str]) -> Result<()> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache").join(kernel);
    let image = cache.join("vmlinuz");
    ensure!(image.exists(), "no kernel at {}; run `cargo xtask setup`", image.display());
    let dir = tempfile::Builder::new().prefix("portway-tests-vm-").tempdir().context("make a directory")?;
    let root = dir.path().join("root");
    fill(&root, &cache, tests)?;
    let initrd = dir.path().join("initrd");
    pack(&root, &initrd)?;

    let mut command = Command::new("qemu-system-x86_64");
    // A guest of a guest hangs under KVM on some clouds; emulation works everywhere.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2000"]);
    command.args(["-nographic", "-no-reboot", "-nic", "none", "-append", "console=ttyS0 panic=-1 quiet"]);
    command.arg("-kernel").arg(&image).arg("-initrd").arg(&initrd).stdin(Stdio::null());
    let mut guest = Process::spawn_logged("qemu", command)?;
    let ended = super::eventually(PATIENCE, "the guest to end", || guest.status()?.context("it still runs"));
    let said = guest.log();
    ended.with_context(|| said.clone())?;
    if said.contains(PASSED) { Ok(()) } else { bail!("the guest did not pass:\n{said}") }
}

/// The guest's file system: this program and what the harness starts, their libraries, busybox.
fn fill(root: &Path, cache: &Path, tests: &[&str]) -> Result<()> {
    for dir in ["bin", "proc", "sys", "dev", "tmp", "run", "etc"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let busybox = Path::new("/bin/busybox");
    fs::copy(busybox, root.join("bin/busybox")).context("copy busybox (run `cargo xtask setup`)")?;
    for applet in ["sh", "mount", "insmod", "poweroff", "mkdir", "ip"] {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::copy(cache.join("veth.ko"), root.join("veth.ko")).context("copy the module veth")?;
    let own = std::env::current_exe().context("find this program")?;
    let mut programs = vec![(own, "test".to_owned())];
    for name in ["portway-agent", "portway", "portway-probe"] {
        programs.push((binary(name)?, name.to_owned()));
    }
    let mut libraries = BTreeSet::new();
    for (program, name) in programs {
        let to = root.join("bin").join(name);
        // Debug information is most of it, and all of it is unpacked into the guest's memory.
        process::output(Command::new("strip").arg("-o").arg(&to).arg(&program))?;
        libraries.extend(libraries_of(&program)?);
    }
    for library in libraries {
        let to = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a library without a folder")?)?;
        fs::copy(&library, to).with_context(|| format!("copy {}", library.display()))?;
    }
    let init = root.join("init");
    fs::write(&init, init_script(tests))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn init_script(tests: &[&str]) -> String {
    format!(
        "#!/bin/sh\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         mount -t devtmpfs dev /dev\n\
         mount -t tmpfs tmp /tmp\n\
         mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
         insmod /veth.ko\n\
         ip link set lo up\n\
         export PORTWAY_BIN_DIR=/bin RUST_BACKTRACE=0\n\
         /bin/test --exact --test-threads=1 {} && echo '{PASSED}'\n\
         poweroff -f\n",
        tests.join(" ")
    )
}

/// The shared libraries of a program and its loader, as `ldd` finds them.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let listed = process::output(Command::new("ldd").arg(program))?;
    Ok(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Packs `root` as the kernel unpacks it.
fn pack(root: &Path, to: &Path) -> Result<()> {
    let list = process::output(Command::new("find").arg(".").current_dir(root))?;
    let archive = fs::File::create(to)?;
    let mut cpio = Command::new("/bin/busybox")
        .args(["cpio", "-o", "-H", "newc"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(archive)
        .stderr(Stdio::null())
        .spawn()
        .context("start busybox cpio")?;
    cpio.stdin.take().context("cpio has no input")?.write_all(list.as_bytes())?;
    ensure!(cpio.wait()?.success(), "busybox cpio failed");
    Ok(())
}
