//! Watch Kubernetes services and pods work without kube-proxy and without a cluster: two nodes in network namespaces of
//! the demo's own, pods made by the CNI plugin, the agents on a directory of manifests, and real connections.
//!
//! Each step prints the answer of the pod that was reached and is checked; the exit code is 1 if one fails.

mod interrupt;
mod screen;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use portway_tests::harness::cluster_net::{Pod, Routing};
use portway_tests::harness::demo::set_up_cluster;
use portway_tests::harness::{ClusterNet, Namespace, process};

use interrupt::Interrupt;
use screen::Screen;

/// Watch Kubernetes services and pods work without kube-proxy and without a cluster
///
/// Needs root, for network namespaces, a control group and BPF. Nothing outside of those is touched, and no packet
/// leaves them.
#[derive(Debug, Parser)]
#[command(name = "portway-demo", version)]
struct Args {
    /// Leave everything up to play with, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Take the programs out of the kernel before the first step; the demo must then fail
    #[arg(long)]
    without_programs: bool,
    /// Where `portway-agent`, `portway` and `portway-probe` are; beside this program unless told
    #[arg(long, env = "PORTWAY_BIN_DIR", value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut screen = Screen::new();
    match demo(&args, &mut screen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            screen.failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn demo(args: &Args, screen: &mut Screen) -> Result<()> {
    if let Some(dir) = &args.bin_dir {
        process::use_binaries_in(dir);
    }
    let interrupt = Interrupt::catch()?;
    let start = Instant::now();
    screen.title("Portway: Kubernetes pods and services without kube-proxy")?;
    let mut demo = Demo::set_up(screen)?;
    if args.without_programs {
        let node = demo.net.node_mut(1);
        node.kill_agent()?;
        node.portway(&["cleanup", "--yes"])?;
        screen.fact("programs", "taken out of the kernel")?;
    }
    let result = steps::run(&mut demo, screen, &interrupt);
    if result.is_ok() {
        screen.title(&format!("All of it worked, in {:.1} s.", start.elapsed().as_secs_f64()))?;
    }
    if args.keep && !interrupt.came() {
        if let Err(error) = &result {
            screen.failure(error);
        }
        demo.explain(screen)?;
        interrupt.wait();
    }
    result
}

/// The nodes and what is on them.
struct Demo {
    net: ClusterNet,
    /// Pods that serve.
    pods: Vec<Pod>,
    /// A pod that serves nothing, on the first node.
    client: Pod,
}

impl Demo {
    fn set_up(screen: &mut Screen) -> Result<Self> {
        let mut net = ClusterNet::new("demo", 2)?;
        for node in net.nodes() {
            let [v4, v6] = node.pod_cidrs();
            screen.fact(node.name(), &format!("{} and {}, pods in {v4} and {v6}", node.v4(), node.v6()))?;
        }
        screen.fact("world", "198.51.100.2, behind a router that knows no pod; all in network namespaces")?;
        let start = Instant::now();
        // Nodes probe each other only once in a while: longer than the demo takes.
        net.start_agents(Routing::Tunnel, &["--enable-health-checking=false"])?;
        let ready = start.elapsed().as_millis();
        screen.fact("agents", &format!("ready after {ready} ms on {}", net.manifests().path().display()))?;
        let start = Instant::now();
        let pods = set_up_cluster(&mut net)?;
        let client = net.pod(1, "client")?;
        let took = start.elapsed().as_millis();
        for pod in pods.iter().chain([&client]) {
            screen.fact(pod.name(), &format!("{} and {} on {}", pod.v4, pod.v6, pod.node))?;
        }
        screen.fact("pods", &format!("{} made by the CNI plugin in {took} ms", pods.len() + 1))?;
        screen.line("")?;
        Ok(Self { net, pods, client })
    }

    /// A pod that serves.
    fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods.iter().find(|pod| pod.name() == name).with_context(|| format!("there is no pod {name}"))
    }

    /// How to play with it.
    fn explain(&self, screen: &mut Screen) -> Result<()> {
        let node = self.net.node(1);
        let places = node.places();
        let portway = process::binary("portway")?;
        let shell = |namespace: &Namespace| {
            format!(
                "sh -c 'echo $$ > {}/cgroup.procs; exec {} --mount=/proc/{}/ns/mnt bash'",
                places.cgroup.display(),
                namespace.enter_command(),
                std::process::id()
            )
        };
        screen.title("It stays up until Ctrl-C. As root:")?;
        screen.fact("a pod", &shell(&self.client.namespace))?;
        screen.fact("the node", &shell(node.namespace()))?;
        screen.fact("in there", "head -1 < /dev/tcp/10.96.0.10/80")?;
        screen.fact("services", &format!("edit {} and ask again", places.manifests.display()))?;
        let socket = format!("--socket-path={}", places.socket().display());
        screen.fact("status", &format!("{} {socket} service list", relative(&portway).display()))?;
        screen.line("")
    }
}

/// `path` as one would type it here.
fn relative(path: &Path) -> &Path {
    match std::env::current_dir() {
        Ok(here) => path.strip_prefix(here).unwrap_or(path),
        Err(_) => path,
    }
}

/// The output of `portway ARGS` on the first node, each line moved in.
fn portway(net: &ClusterNet, args: &[&str]) -> Result<String> {
    let output = net.node(1).portway(args).with_context(|| format!("portway {}", args.join(" ")))?;
    Ok(output.lines().map(|line| format!("    {line}\n")).collect())
}
