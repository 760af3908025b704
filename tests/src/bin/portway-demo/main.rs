//! Watch Kubernetes services work without kube-proxy and without a cluster: a node with pods in network namespaces
//! of the demo's own, the agent on a directory of manifests, and real connections through it.
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
use portway_tests::harness::demo::set_up;
use portway_tests::harness::{Pod, World, process};

use interrupt::Interrupt;
use screen::Screen;

/// Watch Kubernetes services work without kube-proxy and without a cluster
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
    screen.title("Portway: Kubernetes services without kube-proxy")?;
    let mut demo = Demo::set_up(screen)?;
    if args.without_programs {
        demo.world.kill_agent()?;
        demo.world.portway(&["cleanup", "--yes"])?;
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

/// The node and what is on it.
struct Demo {
    world: World,
    /// A pod that serves nothing.
    client: Pod,
}

impl Demo {
    fn set_up(screen: &mut Screen) -> Result<Self> {
        let mut world = World::new("demo")?;
        set_up(&mut world)?;
        let client = world.pod("client")?;
        screen.fact("node-1", "172.18.0.10 and fd00:172:18::10, in network namespaces of the demo's own")?;
        screen.fact("web", "pods web-1 and web-2, IPv4 and IPv6, NodePort 30080")?;
        screen.fact("cart", "pod cart-1, IPv4")?;
        screen.fact("client", "a pod that connects")?;
        let start = Instant::now();
        world.start_agent(&[])?;
        let ready = format!(
            "ready after {} ms on {}",
            start.elapsed().as_millis(),
            world.manifests().path().display()
        );
        screen.fact("agent", &ready)?;
        screen.line("")?;
        Ok(Self { world, client })
    }

    /// How to play with it.
    fn explain(&self, screen: &mut Screen) -> Result<()> {
        let places = self.world.places();
        let portway = process::binary("portway")?;
        let shell = |namespace: &portway_tests::harness::Namespace| {
            format!(
                "sh -c 'echo $$ > {}/cgroup.procs; exec {} --mount=/proc/{}/ns/mnt bash'",
                places.cgroup.display(),
                namespace.enter_command(),
                std::process::id()
            )
        };
        screen.title("It stays up until Ctrl-C. As root:")?;
        screen.fact("a pod", &shell(&self.client.namespace))?;
        screen.fact("the node", &shell(self.world.node()))?;
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

/// The output of `portway ARGS`, each line moved in.
fn portway(world: &World, args: &[&str]) -> Result<String> {
    let output = world.portway(args).with_context(|| format!("portway {}", args.join(" ")))?;
    Ok(output.lines().map(|line| format!("    {line}\n")).collect())
}
