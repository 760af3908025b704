//! Control groups of a machine: one of its own in every hierarchy, as a kubelet wants them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::harness::{Cgroup, PREFIX, cgroup, complain};

/// Where hierarchies are mounted, on the machine that runs the tests and on those of a lab.
const MOUNTS: &str = "/sys/fs/cgroup";
/// The mount of the version 2 hierarchy beside those of version 1.
pub const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// A group in every hierarchy, below the one that this process is in there. They go away with this guard, with
/// everything that runs in them.
#[derive(Debug)]
pub struct Groups {
    paths: Vec<PathBuf>,
}

impl Groups {
    /// Makes `portway-tests-<pid>-<name>` in every hierarchy.
    ///
    /// # Errors
    ///
    /// Where the only hierarchy is that of version 2: a group of it gets controllers only where none of its
    /// ancestors has processes.
    pub fn new(name: &str) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        if own.lines().count() == 1 {
            bail!("a lab needs hierarchies of version 1 beside {UNIFIED}: this machine has version 2 alone");
        }
        // From here on the guard removes what is made.
        let mut groups = Self { paths: Vec::new() };
        for line in own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                bail!("/proc/self/cgroup has a line of another form: {line}");
            };
            let parent = Path::new(MOUNTS)
                .join(match controllers {
                    "" => "unified",
                    named => named.trim_start_matches("name="),
                })
                .join(path.trim_start_matches('/'));
            cgroup::remove_leftovers(&parent)?;
            let group = parent.join(format!("{PREFIX}{}-{name}", std::process::id()));
            fs::create_dir(&group)
                .with_context(|| format!("make the control group {} (needs root)", group.display()))?;
            if controllers == "cpuset" {
                // A new group has none, and takes no process then.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    fs::copy(parent.join(file), group.join(file))
                        .with_context(|| format!("set {file} of {}", group.display()))?;
                }
            }
            groups.paths.push(group);
        }
        Ok(groups)
    }

    /// Makes `command` run in these groups.
    pub fn place(&self, command: &mut Command) -> Result<()> {
        self.paths.iter().try_for_each(|group| Cgroup::place(group, command))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in &self.paths {
            if let Err(error) = cgroup::remove(path) {
                complain(&format!("left behind: {error:#}"));
            }
        }
    }
}
