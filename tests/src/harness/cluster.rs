//! A control plane of a test: etcd and kube-apiserver, more API servers and the controller manager where a test asks.
//!
//! The processes run in a namespace of the test and listen on its loopback, so that several control planes live beside
//! each other on the same ports, and nothing reaches them from outside. Their binaries are what
//! `tests/cluster/build.sh` builds into `$PORTWAY_CACHE/bin` (`.cache/bin` of the checkout).

pub mod api;
pub mod asked;
pub mod audit;
pub mod controllers;
pub mod crds;
pub mod identity;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::manifest::{Endpoint, Service, Slice};
use super::{Namespace, PREFIX, Process, chart, eventually};
pub use api::{ApiClient, portway_client};
pub use audit::Write;
pub use identity::Identity;

/// Ranges of cluster addresses, which hold those of [`super::fixture`].
const SERVICE_RANGES: &str = "10.96.0.0/16,fd00:10:96::/112";
/// The set of values whose roles agent and operator have: that in which the operator may do all that it can.
pub const ROLES: &str = "operator";
const ETCD: &str = "127.0.0.1:2379";
/// The port of the first API server; each further one has the next.
const FIRST_PORT: u16 = 6443;

/// Without a scheduler, a kubelet and (at first) a controller manager these only refuse or delay what tests create.
const ADMISSION_OFF: &str = "LimitRanger,MutatingAdmissionPolicy,MutatingAdmissionWebhook,\
    PersistentVolumeClaimResize,Priority,ResourceQuota,RuntimeClass,ServiceAccount,TaintNodesByCondition,\
    ValidatingAdmissionWebhook";

/// etcd and API servers, ended with this guard.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: who asks, who answers, what they stand on.
    client: ApiClient,
    controllers: Vec<Process>,
    api_servers: Vec<ApiServer>,
    _etcd: Process,
    identity: Identity,
    namespace: Namespace,
    clients: Clients,
    dir: TempDir,
}

/// Who asks a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// The test and its agents, on loopback. No kubelet reports for a node, so admission leaves nodes and pods alone.
    Loopback,
    /// As [`Self::Loopback`], and agents of several nodes at [`identity::FOR_MACHINES`].
    Agents,
    /// Machines with kubelets too, at [`identity::FOR_MACHINES`], and their pods at `kubernetes.default`: with
    /// the admission plugins and the authorization of a real cluster.
    Machines,
}

#[derive(Debug)]
struct ApiServer {
    port: u16,
    process: Option<Process>,
}

impl ControlPlane {
    /// etcd and one API server in `namespace`, ready for requests, with what agent and operator may do.
    ///
    /// # Errors
    ///
    /// Where a binary is missing, ends, or is not ready after a minute.
    pub fn start(namespace: &Namespace) -> Result<Self> {
        Self::start_for(namespace, Clients::Loopback)
    }

    /// As [`Self::start`], for `clients`.
    pub fn start_for(namespace: &Namespace, clients: Clients) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-cluster-", std::process::id()))
            .tempdir()
            .context("make a directory for the control plane")?;
        let identity = Identity::new(dir.path())?;
        let etcd = start_etcd(namespace, dir.path())?;
        let first = ApiServer { port: FIRST_PORT, process: None };
        let client = ApiClient::new(namespace, address(first.port), &identity, identity::ADMIN_TOKEN)?;
        let mut control_plane = Self {
            client,
            controllers: Vec::new(),
            api_servers: vec![first],
            _etcd: etcd,
            identity,
            namespace: namespace.clone(),
            clients,
            dir,
        };
        control_plane.start_api_server()?;
        for object in chart::rules(ROLES)? {
            control_plane.client.create(&object)?;
        }
        Ok(control_plane)
    }

    /// As an administrator, by the first API server, never by a proxy.
    pub fn client(&self) -> &ApiClient {
        &self.client
    }

    /// As the agent.
    pub fn agent_client(&self) -> Result<ApiClient> {
        self.client_with(identity::AGENT_TOKEN)
    }

    /// As the operator.
    pub fn operator_client(&self) -> Result<ApiClient> {
        self.client_with(identity::OPERATOR_TOKEN)
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// As an administrator, by a client of its own: for another thread.
    pub fn new_client(&self) -> Result<ApiClient> {
        self.client_with(identity::ADMIN_TOKEN)
    }

    fn client_with(&self, token: &str) -> Result<ApiClient> {
        ApiClient::new(&self.namespace, address(FIRST_PORT), &self.identity, token)
    }

    /// Who is who: certificates, tokens, kubeconfigs.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// `https://127.0.0.1:6443`.
    pub fn url(&self) -> String {
        url(address(FIRST_PORT))
    }

    /// The first API server as machines reach it: the same port on the link between them.
    pub fn url_for_machines(&self) -> String {
        url((identity::FOR_MACHINES, FIRST_PORT).into())
    }

    /// The agent's kubeconfig for the first API server.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        self.kubeconfig_of("agent")
    }

    /// The kubeconfig of `user` (`agent`, `operator`, `admin` or a machine) for the first API server.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf> {
        self.identity.kubeconfig(user, &self.url())
    }

    /// `kill -9` of the first API server: connections are reset, new ones refused.
    pub fn stop_api_server(&mut self) -> Result<()> {
        self.stop(0)
    }

    /// Starts the first API server (again) and waits until it is ready.
    pub fn start_api_server(&mut self) -> Result<()> {
        self.start_at(0)
    }

    /// One more API server on the same etcd; gives its URL once it is ready.
    pub fn add_api_server(&mut self) -> Result<String> {
        let index = self.api_servers.len();
        let port = FIRST_PORT + u16::try_from(index)?;
        self.api_servers.push(ApiServer { port, process: None });
        self.start_at(index)?;
        Ok(url(address(port)))
    }

    /// `kill -9` of the API server number `index`; the first is 0.
    pub fn stop(&mut self, index: usize) -> Result<()> {
        let server = self.api_servers.get_mut(index).with_context(|| format!("no API server {index}"))?;
        server.process.take().with_context(|| format!("the API server {index} does not run"))?.kill()?;
        Ok(())
    }

    /// Starts the API server number `index` and waits until it is ready.
    pub fn start_at(&mut self, index: usize) -> Result<()> {
        let server = self.api_servers.get_mut(index).with_context(|| format!("no API server {index}"))?;
        if server.process.is_some() {
            bail!("the API server {index} runs already");
        }
        let mut process = spawn_api_server(&self.namespace, self.dir.path(), server.port, self.clients)?;
        let ready =
            ApiClient::new(&self.namespace, address(server.port), &self.identity, identity::ADMIN_TOKEN)?;
        wait_for(&mut process, "the API server to be ready", || ready.readyz())?;
        server.process = Some(process);
        Ok(())
    }

    /// Puts `service` with these endpoints into the cluster; a slice of a family without endpoints goes.
    pub fn publish(&self, service: &Service, endpoints: impl IntoIterator<Item = Endpoint>) -> Result<()> {
        let objects = service.clone().with_endpoints(endpoints);
        for object in &objects {
            self.client.apply(object)?;
        }
        for suffix in ["v4", "v6"] {
            let slice: Value = Slice::new(service.name(), suffix).into();
            if !objects
                .iter()
                .any(|object| object.pointer("/metadata/name") == slice.pointer("/metadata/name"))
            {
                self.client.delete_if_there(&slice)?;
            }
        }
        Ok(())
    }

    /// What etcd and the API servers have written; for a failed test.
    pub fn log(&self) -> String {
        let of = |server: &ApiServer| server.process.as_ref().map_or_else(String::new, Process::log);
        self.api_servers.iter().map(of).collect()
    }
}

fn start_etcd(namespace: &Namespace, dir: &Path) -> Result<Process> {
    let peer = "http://127.0.0.1:2380";
    let client = format!("http://{ETCD}");
    let mut command = namespace.command(binary("etcd")?);
    command.arg(flag("data-dir", dir.join("etcd").display()));
    // A machine that stops ends the test, too.
    command.args(["--unsafe-no-fsync", "--log-level=error"]);
    command.args([flag("listen-client-urls", &client), flag("advertise-client-urls", &client)]);
    command.args([flag("listen-peer-urls", peer), flag("initial-advertise-peer-urls", peer)]);
    command.arg(format!("--initial-cluster=default={peer}"));
    let mut process = spawn("etcd", command)?;
    let at: SocketAddr = ETCD.parse()?;
    wait_for(&mut process, "etcd to listen", || {
        namespace.run(|| Ok(TcpStream::connect_timeout(&at, Duration::from_secs(1)).map(drop)?))
    })?;
    Ok(process)
}

fn spawn_api_server(namespace: &Namespace, dir: &Path, port: u16, clients: Clients) -> Result<Process> {
    let file = |name: &str| dir.join(name).display().to_string();
    let mut command = namespace.command(binary("kube-apiserver")?);
    command.arg(format!("--etcd-servers=http://{ETCD}"));
    match clients {
        Clients::Loopback => {
            command.args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]);
            // Or it refuses to advertise a loopback address.
            command.arg("--endpoint-reconciler-type=none");
            command.arg("--authorization-mode=RBAC");
            command.arg(flag("disable-admission-plugins", ADMISSION_OFF));
        }
        Clients::Agents => {
            at_machines(&mut command);
            command.arg("--authorization-mode=RBAC");
            command.arg(flag("disable-admission-plugins", ADMISSION_OFF));
        }
        Clients::Machines => {
            at_machines(&mut command);
            command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
        }
    }
    audit::flags(&mut command, dir, port)?;
    command.arg(flag("secure-port", port));
    command.args([
        flag("tls-cert-file", file(identity::SERVER_CERTIFICATE)),
        flag("tls-private-key-file", file(identity::SERVER_KEY)),
        flag("token-auth-file", file(identity::TOKENS)),
        flag("service-account-key-file", file(identity::SERVICE_ACCOUNT_PUBLIC_KEY)),
        flag("service-account-signing-key-file", file(identity::SERVICE_ACCOUNT_KEY)),
    ]);
    command.arg("--service-account-issuer=https://kubernetes.default.svc");
    command.arg(flag("service-cluster-ip-range", SERVICE_RANGES));
    command.args(["--allow-privileged=true", "--profiling=false"]);
    // Memory is cheaper here than the two processors that all share.
    command.env("GOGC", "300");
    spawn("kube-apiserver", command)
}

/// Where machines find it.
fn at_machines(command: &mut Command) {
    command.arg("--bind-address=0.0.0.0").arg(flag("advertise-address", identity::FOR_MACHINES));
}

fn spawn(name: &str, mut command: Command) -> Result<Process> {
    command.stdin(Stdio::null());
    Process::spawn_logged(name, command)
}

/// Waits for `f`; a process that ended meanwhile is an error at once.
fn wait_for(process: &mut Process, what: &str, mut f: impl FnMut() -> Result<()>) -> Result<()> {
    let waited = eventually(Duration::from_secs(60), what, || match process.status()? {
        Some(status) => Ok(Err(status)),
        None => f().map(Ok),
    });
    match waited {
        Ok(Ok(())) => Ok(()),
        Ok(Err(status)) => bail!("waiting for {what}: it ended with {status}\n{}", process.log()),
        Err(error) => Err(error.context(process.log())),
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn url(server: SocketAddr) -> String {
    format!("https://{server}")
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// What `tests/cluster/build.sh` has built.
pub fn binary(name: &str) -> Result<PathBuf> {
    let cache = std::env::var_os("PORTWAY_CACHE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(".cache"), PathBuf::from);
    let path = cache.join("bin").join(name);
    if path.is_file() {
        Ok(path)
    } else {
        bail!("no {}: build it with `cargo xtask setup test` or tests/cluster/build.sh", path.display())
    }
}
