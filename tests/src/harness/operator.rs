//! The real operator as a process of a test, and several of them on one control plane.
//!
//! ```text
//!  replica 1 ── proxy 1 ──┐
//!  replica 2 ── proxy 2 ──┴── API server ── the test
//! ```
//!
//! Each replica asks by a proxy of its own: what goes wrong for one of them does not for the other, and the API server's
//! record says who of them wrote what.

pub mod agents;
pub mod agreement;
pub mod census;
pub mod health;
pub mod history;
pub mod judge;
pub mod objects;
pub mod replicas;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Namespace, Process, eventually, process};

pub use agents::StandIn;
pub use census::Census;
pub use health::HealthWatch;
pub use replicas::Replicas;

/// Everything that an operator can be told to do, at a pace that a test can wait for.
pub const ALL_WORK: [&str; 10] = [
    "--identity-management-mode=operator",
    "--enable-cilium-endpoint-slice=true",
    r#"--ces-rate-limits=[{"nodes":0,"limit":100,"burst":200}]"#,
    "--ipam=cluster-pool",
    "--cluster-pool-ipv4-cidr=10.1.0.0/16",
    "--cluster-pool-ipv4-mask-size=24",
    "--limit-ipam-api-qps=50",
    "--limit-ipam-api-burst=100",
    "--cilium-endpoint-gc-interval=2s",
    "--nodes-gc-interval=2s",
];

/// Replica `number` has the port `number` after it.
const HTTP_PORT: u16 = 9234;
const METRICS_PORT: u16 = 9963;

/// Where an operator of a test runs.
#[derive(Clone, Debug)]
pub struct Places {
    pub namespace: Namespace,
    /// From 1: gives it ports of its own.
    pub number: u8,
    pub kubeconfig: PathBuf,
}

impl Places {
    fn http(&self) -> SocketAddr {
        loopback(HTTP_PORT + u16::from(self.number))
    }

    fn metrics(&self) -> SocketAddr {
        loopback(METRICS_PORT + u16::from(self.number))
    }

    /// Its program, told where the API server is.
    pub fn command(&self, verb: &[&str]) -> Result<std::process::Command> {
        let mut command = self.namespace.command(process::binary("portway-operator")?);
        command.args(verb);
        command.arg(format!("--k8s-kubeconfig-path={}", self.kubeconfig.display()));
        // A variable of the harness that looks like a key of the operator's.
        command.env_remove("PORTWAY_BIN_DIR").stdin(Stdio::null());
        Ok(command)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A running operator. It is killed with this guard, be it frozen.
#[derive(Debug)]
pub struct Operator {
    process: Process,
    places: Places,
}

impl Operator {
    /// Starts `portway-operator` and does not wait.
    pub fn spawn(places: &Places, flags: &[&str]) -> Result<Self> {
        let mut command = places.command(&[])?;
        command.arg(format!("--operator-api-serve-addr={}", places.http()));
        command.arg(format!("--operator-prometheus-serve-addr={}", places.metrics()));
        command.args(flags);
        let process = Process::spawn_logged("portway-operator", command)?;
        Ok(Self { process, places: places.clone() })
    }

    pub fn number(&self) -> u8 {
        self.places.number
    }

    /// What it says of itself.
    pub fn status(&self) -> Result<Value> {
        let answer = self.get(self.places.http(), "/v1/status")?;
        serde_json::from_str(&answer).with_context(|| format!("read {answer}"))
    }

    /// Whether it says that it leads.
    pub fn is_leading(&self) -> Result<bool> {
        let status = self.status()?;
        let says = status.pointer("/leadership/state").and_then(Value::as_str);
        let says = says.with_context(|| format!("it does not say whether it leads: {status}"))?;
        Ok(says == "leading")
    }

    /// `/healthz` says 200.
    pub fn healthy(&self) -> Result<()> {
        self.get(self.places.http(), "/healthz").map(drop)
    }

    /// The values of the metric `name` by what stands in its braces.
    pub fn metric(&self, name: &str) -> Result<Vec<(String, f64)>> {
        let text = self.get(self.places.metrics(), "/metrics")?;
        let mut values = Vec::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once('}').with_context(|| format!("read {line}"))?,
                None if rest.starts_with(' ') => ("", rest),
                None => continue,
            };
            values.push((labels.to_owned(), value.trim().parse().with_context(|| format!("read {line}"))?));
        }
        Ok(values)
    }

    /// The body of a 200.
    fn get(&self, server: SocketAddr, path: &str) -> Result<String> {
        body(&self.places.namespace, server, path)
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// An error where it has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.process.status()? {
            None => Ok(()),
            Some(status) => bail!("operator {} ended with {status}\n{}", self.number(), self.log()),
        }
    }

    /// `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.process.status()
    }

    /// SIGSTOP: nothing of it runs until [`Self::thaw`].
    pub fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::SIGCONT)
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill().map(drop)
    }

    /// SIGTERM; gives how long it took. An end that is not clean is an error.
    pub fn stop(mut self) -> Result<Duration> {
        let begin = Instant::now();
        let status = self.process.stop(Duration::from_secs(20))?;
        ensure!(status.success(), "the operator ended with {status}\n{}", self.log());
        Ok(begin.elapsed())
    }

    /// Anonymous memory, in bytes.
    pub fn memory(&self) -> Result<u64> {
        let status = Path::new("/proc").join(self.id().to_string()).join("status");
        let text = std::fs::read_to_string(&status).with_context(|| format!("read {}", status.display()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("read {line}"))?;
        Ok(kib * 1024)
    }

    /// Until it answers at all: its HTTP server is there before it leads.
    pub fn wait_up(&mut self) -> Result<()> {
        let waited = eventually(Duration::from_secs(20), "the operator to be up", || {
            if let Some(status) = self.process.status()? {
                return Ok(Err(status));
            }
            self.healthy().map(Ok)
        });
        match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("the operator ended with {status}\n{}", self.log()),
            Err(error) => Err(error.context(self.log())),
        }
    }
}

/// The body of what `server` answers to a GET, if that is a 200.
fn body(namespace: &Namespace, server: SocketAddr, path: &str) -> Result<String> {
    let answer = namespace.http_get(server, path)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("read {answer:?}"))?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{path} says {answer}");
    Ok(body.to_owned())
}
