//! Pods that come and go without pause, by the plugin, whether the agent is there or not.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use portway_tests::harness::cluster_net::churn::Churned;
use portway_tests::harness::cluster_net::cni::Runtime;
use portway_tests::harness::cluster_net::{Pod, PodSpec};
use portway_tests::harness::manifest::Directory;
use portway_tests::harness::{Beside, ClusterNet, Ending};

/// Threads that make and remove pods on node 1 until its end.
pub(crate) struct Churn(Vec<Beside<Churned>>);

impl Churn {
    /// Each new pod must reach `server` at once.
    pub(crate) fn start(net: &ClusterNet, server: &Pod) -> Result<Self> {
        let to = [server.socket(false), server.socket(true)];
        let thread = |number| {
            let (runtime, manifests) = (net.node(1).runtime(), net.manifests().clone());
            let work = move |end: &Ending| churn(&runtime, &manifests, number, &to, end);
            Beside::start(format!("churn {number}"), work)
        };
        (0..2).map(thread).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn end(self) -> Result<Churned> {
        Ok(Beside::end_all(self.0)?.into_iter().sum())
    }
}

fn churn(
    runtime: &Runtime,
    manifests: &Directory,
    thread: u32,
    to: &[SocketAddr; 2],
    end: &Ending,
) -> Result<Churned> {
    let mut churned = Churned::default();
    while !end.has_come() {
        // As of a StatefulSet: the same name again and again, each time another pod.
        let spec = PodSpec::new(&format!("churn-{thread}-{}", churned.made % 3));
        let file = format!("pod-{}", spec.name);
        manifests.put(&file, [spec.object("node-1", &[])])?;
        let pod = churned.insist("ADD", || runtime.add(&spec))?;
        manifests.put(&file, [spec.object("node-1", &[pod.v4.into(), pod.v6.into()])])?;
        pod.namespace.run(|| {
            to.iter().try_for_each(|to| {
                TcpStream::connect_timeout(to, Duration::from_secs(3))
                    .map(drop)
                    .with_context(|| format!("the new pod {} connects to {to}", spec.name))
            })
        })?;
        churned.insist("DEL", || runtime.delete(&pod))?;
        manifests.remove(&file)?;
        ensure!(churned.again < 10_000, "the plugin does not wait for the agent");
        churned.made += 1;
    }
    Ok(churned)
}
