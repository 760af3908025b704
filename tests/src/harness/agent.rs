//! The real agent as a process of a test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Namespace, Process, eventually, process};

/// Where `/healthz` and `/readyz` are, in the agent's namespace.
const HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9879);

/// What an agent of a test is told, besides the flags of the test.
#[derive(Clone, Debug)]
pub struct Places {
    /// The node's namespace: it runs there.
    pub namespace: Namespace,
    pub node_name: String,
    pub manifests: PathBuf,
    /// It follows the API server that this names instead of `manifests`.
    pub kubeconfig: Option<PathBuf>,
    /// It attaches here, and runs here as it would on a node.
    pub cgroup: PathBuf,
    pub bpf_root: PathBuf,
    /// For its state and its socket.
    pub state: PathBuf,
}

impl Places {
    pub fn socket(&self) -> PathBuf {
        self.state.join("portway.sock")
    }

    fn flags(&self) -> Vec<String> {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let source = match &self.kubeconfig {
            Some(kubeconfig) => flag("k8s-kubeconfig-path", kubeconfig),
            None => flag("source-dir", &self.manifests),
        };
        vec![
            source,
            flag("cgroup-root", &self.cgroup),
            flag("bpf-root", &self.bpf_root),
            flag("state-dir", &self.state),
            flag("socket-path", &self.socket()),
            format!("--node-name={}", self.node_name),
        ]
    }
}

/// A running agent. It is killed with this guard; what it has programmed stays.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    namespace: Namespace,
}

impl Agent {
    /// Starts `portway-agent` and waits until it is ready.
    pub fn start(places: &Places, flags: &[&str]) -> Result<Self> {
        let mut agent = Self::spawn(places, flags)?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Starts it and does not wait.
    pub fn spawn(places: &Places, flags: &[&str]) -> Result<Self> {
        let mut command = places.namespace.command(process::binary("portway-agent")?);
        super::Cgroup::place(&places.cgroup, &mut command)?;
        command.args(places.flags()).args(flags);
        // A variable of the harness that looks like a key of the agent's.
        command.env_remove("PORTWAY_BIN_DIR").stdin(Stdio::null());
        let process = Process::spawn_logged("portway-agent", command)?;
        Ok(Self { process, namespace: places.namespace.clone() })
    }

    /// Until `/readyz` says yes. An agent that ended is an error at once.
    pub fn wait_ready(&mut self) -> Result<()> {
        let waited = eventually(Duration::from_secs(20), "the agent to be ready", || {
            if let Some(status) = self.process.status()? {
                return Ok(Err(status));
            }
            self.health().map(Ok)
        });
        match waited {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => bail!("the agent ended with {status}\n{}", self.log()),
            Err(error) => Err(error.context(self.log())),
        }
    }

    /// Until it ends by itself.
    pub fn wait_ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        eventually(limit, "the agent to end", || self.process.status()?.context("it still runs"))
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// SIGTERM; an end that is not clean is an error.
    pub fn stop(mut self) -> Result<()> {
        let status = self.process.stop(Duration::from_secs(10))?;
        ensure!(status.success(), "the agent ended with {status}\n{}", self.log());
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(mut self) -> Result<ExitStatus> {
        self.process.kill()
    }

    fn health(&self) -> Result<()> {
        let answer = self.namespace.http_get(HEALTH, "/readyz")?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "/readyz says {answer}");
        Ok(())
    }
}

/// `portway ARGS`, on this agent's socket and maps.
pub fn cli(places: &Places, args: &[&str]) -> Result<Command> {
    let mut command = places.namespace.command(process::binary("portway")?);
    command.args(args).env("PORTWAY_SOCKET_PATH", places.socket()).env("PORTWAY_BPF_ROOT", &places.bpf_root);
    Ok(command)
}
