//! Networks, control groups and processes of a test, each made by a guard that removes it.
//!
//! A [`World`] is a node with pods: network namespaces joined by veth links, without a route to anywhere else, a
//! control group for the clients, a BPF file system in the test's own mount namespace, a directory of manifests,
//! and the real agent on it. Clients are [`Probe`]s: processes in one of the namespaces *and* in the control group,
//! since a socket belongs to the group of the process that made it. Servers are threads of the test in a pod's
//! namespace that answer with their own name.
//!
//! Everything is named after the process, so tests run beside each other; what a killed run has left is removed by
//! the next one. Without root everything fails, nothing is skipped. `PORTWAY_TESTS_KEEP=1` leaves a failed test's
//! world up until Ctrl-C.

pub mod agent;
pub mod backends;
pub mod beside;
pub mod bpf;
pub mod cgroup;
pub mod chart;
pub mod cluster;
pub mod cluster_net;
pub mod demo;
pub mod dns;
pub mod fault;
pub mod fixture;
pub mod frame;
pub mod http;
pub mod identities;
mod judge;
pub mod lab;
pub mod manifest;
pub mod mount;
pub mod namespace;
pub mod operator;
pub mod probe;
pub mod process;
pub mod server;
pub mod socket;
pub mod tamper;
pub mod transfer;
pub mod vm;
pub mod wire;
pub mod witness;
pub mod world;

pub use agent::Agent;
pub use backends::Backends;
pub use beside::{Beside, Ending, meanwhile};
pub use cgroup::Cgroup;
pub use cluster::ControlPlane;
pub use cluster_net::ClusterNet;
pub use fault::FaultProxy;
pub use lab::Lab;
pub use namespace::Namespace;
pub use nix::errno::Errno;
pub use operator::{Operator, Replicas};
pub use probe::{Answer, Outcome, Probe, Tally};
pub use process::{Process, binary};
pub use server::Server;
pub use socket::{canonical, mapped};
pub use world::{Pod, World};

use std::ffi::OsStr;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Everything that the tests make and that outlives a process has a name that begins with this and the process id.
pub const PREFIX: &str = "portway-tests-";

/// Asks `f` again until it succeeds, at most for `limit`; then its last error is the result's, after `what`.
pub fn eventually<T>(limit: Duration, what: &str, mut f: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match f() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= limit => {
                return Err(error).with_context(|| format!("waited {limit:?} for {what}"));
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Whether `name` is `portway-tests-<pid>-…` of a process that is gone.
pub(crate) fn owner_is_dead(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let Some((pid, _)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let Ok(pid) = pid.parse::<u32>() else { return false };
    !std::path::Path::new("/proc").join(pid.to_string()).exists()
}

/// Says what a guard could not do; a guard can't return it, and must not panic.
pub(crate) fn complain(text: &str) {
    // Nothing is left to do where standard error is closed.
    drop(writeln!(std::io::stderr(), "portway-tests: {text}"));
}
