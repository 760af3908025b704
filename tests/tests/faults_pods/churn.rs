//! Pods that come and go without pause, by the plugin, whether the agent is there or not.

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use portway_tests::harness::cluster_net::cni::{Refused, Runtime};
use portway_tests::harness::cluster_net::{Pod, PodSpec};
use portway_tests::harness::manifest::Directory;
use portway_tests::harness::{ClusterNet, eventually};

/// What kubelet would wait for before it says that a pod does not start.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Churned {
    /// Pods made, each of which reached another pod at once, and removed.
    pub(crate) made: u32,
    /// Calls that were told to try again.
    pub(crate) again: u32,
}

impl fmt::Display for Churned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pods came and went, {} calls of the plugin were told to try again",
            self.made, self.again
        )
    }
}

/// Threads that make and remove pods on node 1 until its end.
pub(crate) struct Churn {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Churned>>>,
}

impl Churn {
    /// Each new pod must reach `server` at once.
    pub(crate) fn start(net: &ClusterNet, server: &Pod) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let to = [server.socket(false), server.socket(true)];
        let threads = (0..2)
            .map(|number| {
                let (runtime, manifests, stop) =
                    (net.node(1).runtime(), net.manifests().clone(), Arc::clone(&stop));
                std::thread::Builder::new()
                    .name(format!("churn {number}"))
                    .spawn(move || churn(&runtime, &manifests, number, &to, &stop))
                    .context("start a thread")
            })
            .collect::<Result<_>>()?;
        Ok(Self { stop, threads })
    }

    pub(crate) fn end(self) -> Result<Churned> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Churned::default();
        for thread in self.threads {
            let churned = thread.join().map_err(|_| anyhow::anyhow!("a thread of the churn panicked"))??;
            sum.made += churned.made;
            sum.again += churned.again;
        }
        Ok(sum)
    }
}

fn churn(
    runtime: &Runtime,
    manifests: &Directory,
    thread: u32,
    to: &[SocketAddr; 2],
    stop: &AtomicBool,
) -> Result<Churned> {
    let mut churned = Churned::default();
    while !stop.load(Ordering::Relaxed) {
        // As of a StatefulSet: the same name again and again, each time another pod.
        let spec = PodSpec::new(&format!("churn-{thread}-{}", churned.made % 3));
        let file = format!("pod-{}", spec.name);
        manifests.put(&file, [spec.object("node-1", &[])])?;
        let pod = insist(&mut churned, "ADD", || runtime.add(&spec))?;
        manifests.put(&file, [spec.object("node-1", &[pod.v4.into(), pod.v6.into()])])?;
        pod.namespace.run(|| {
            to.iter().try_for_each(|to| {
                TcpStream::connect_timeout(to, Duration::from_secs(3))
                    .map(drop)
                    .with_context(|| format!("the new pod {} connects to {to}", spec.name))
            })
        })?;
        insist(&mut churned, "DEL", || runtime.delete(&pod))?;
        manifests.remove(&file)?;
        churned.made += 1;
    }
    Ok(churned)
}

/// As kubelet: until it works. Only "try again later" is a reason to.
fn insist<T>(
    churned: &mut Churned,
    command: &str,
    mut call: impl FnMut() -> Result<Result<T, Refused>>,
) -> Result<T> {
    let done = eventually(PATIENCE, &format!("{command} to work"), || match call() {
        Ok(Ok(done)) => Ok(Ok(done)),
        Ok(Err(refused)) if refused.code == Refused::TRY_AGAIN => {
            churned.again += 1;
            bail!("{refused:?}")
        }
        Ok(Err(refused)) => Ok(Err(anyhow::anyhow!("{command}: {refused:?}"))),
        Err(error) => Ok(Err(error)),
    })?;
    ensure!(churned.again < 10_000, "the plugin does not wait for the agent");
    done
}
