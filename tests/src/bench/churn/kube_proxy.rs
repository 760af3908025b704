//! kube-proxy in nftables mode, in a namespace of its own, on the API server of another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::copy;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::harness::cluster::binary;
use crate::harness::world::{NODE, NODE_V4};
use crate::harness::{ControlPlane, Namespace, Process, eventually, process};

const API_SERVER: &str = "127.0.0.1:6443";
const LIST: [&str; 4] = ["list", "table", "ip", "kube-proxy"];

/// A running kube-proxy; its rules go with its namespace.
#[derive(Debug)]
pub(super) struct KubeProxy {
    process: Process,
    namespace: Namespace,
    // Nobody is at the other end.
    _lan: Namespace,
}

impl KubeProxy {
    /// With this `nftables.minSyncPeriod`, or its own default, once it has written its table.
    pub(super) fn start(control_plane: &ControlPlane, min_sync_period: Option<&str>) -> Result<Self> {
        let (namespace, lan) = (Namespace::new("kube-proxy")?, Namespace::new("lan")?);
        namespace.add_veth("eth0", &lan, "eth0")?;
        namespace.add_address("eth0", NODE_V4.into(), 24)?;
        relay(&namespace, control_plane.namespace())?;
        let kubeconfig = control_plane.identity().kubeconfig("admin", &control_plane.url())?;
        let mut config = tempfile::NamedTempFile::new().context("make kube-proxy's configuration")?;
        let nftables = min_sync_period.map_or_else(|| json!({}), |period| json!({"minSyncPeriod": period}));
        serde_json::to_writer(
            &mut config,
            &json!({
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "hostnameOverride": NODE,
                "clientConnection": {"kubeconfig": kubeconfig},
                "healthzBindAddress": "127.0.0.1:10256",
                "metricsBindAddress": "127.0.0.1:10249",
                // Conntrack's limits are the machine's.
                "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
                "nftables": nftables,
            }),
        )?;
        let mut command = namespace.command(binary("kube-proxy")?);
        command.arg(format!("--config={}", config.path().display())).stdin(Stdio::null());
        let mut process = Process::spawn_logged("kube-proxy", command)?;
        eventually(Duration::from_secs(60), "kube-proxy's rules", || {
            if let Some(status) = process.status()? {
                return Ok(Err(anyhow::anyhow!("kube-proxy ended with {status}:\n{}", process.log())));
            }
            process::output(namespace.command("nft").args(LIST)).map(Ok)
        })
        .with_context(|| process.log())??;
        Ok(Self { process, namespace, _lan: lan })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The backends of each service of the benchmark by its number. A service of one backend has it in its own chain:
    ///
    /// ```text
    /// chain service-7U2NYK4G-bench/service-2/tcp/http {
    ///     meta l4proto tcp dnat to 10.128.134.154:8080
    /// }
    /// ```
    pub(super) fn backends(&self) -> Result<BTreeMap<u32, BTreeSet<Ipv4Addr>>> {
        let rules = process::output(self.namespace.command("nft").args(LIST))?;
        let mut all = BTreeMap::<u32, BTreeSet<Ipv4Addr>>::new();
        let mut service = None;
        for line in rules.lines().map(str::trim) {
            if line.starts_with("chain service-") {
                let number = line.split_once("-bench/service-").and_then(|(_, rest)| rest.split_once('/'));
                service = number.and_then(|(number, _)| number.parse().ok());
            } else if line == "}" {
                service = None;
            } else if let (Some(service), Some((_, to))) = (service, line.split_once(" dnat to ")) {
                let to: SocketAddrV4 = to.parse().with_context(|| format!("no backend: {line}"))?;
                all.entry(service).or_default().insert(*to.ip());
            }
        }
        Ok(all)
    }
}

/// Makes the API server of `to` listen in `from`, too. The threads end with the last connection.
fn relay(from: &Namespace, to: &Namespace) -> Result<()> {
    let at: SocketAddr = API_SERVER.parse()?;
    let listener = from.run(|| TcpListener::bind(at).with_context(|| format!("listen on {at}")))?;
    let to = to.clone();
    let spawn =
        |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name("relay".to_owned()).spawn(work);
    spawn(Box::new(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = to.run(|| Ok(TcpStream::connect(at)?)) else { continue };
            for (mut from, mut to) in [pair(&client, &server), pair(&server, &client)].into_iter().flatten() {
                let copying = std::thread::Builder::new().name("relay".to_owned()).spawn(move || {
                    // The end of one direction is the end of the other: whoever is cut off says so.
                    drop(copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Both));
                });
                drop(copying);
            }
        }
    }))
    .context("start a relay")?;
    Ok(())
}

fn pair(from: &TcpStream, to: &TcpStream) -> Option<(TcpStream, TcpStream)> {
    Some((from.try_clone().ok()?, to.try_clone().ok()?))
}
