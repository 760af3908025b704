//! Pods that come at a pace, and when the other nodes of a [`ClusterNet`] know who they are.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cni::{Refused, Runtime};
use super::ipcache::{Ipcache, Watch};
use super::{ClusterNet, Pod, PodSpec};
use crate::harness::{Namespace, eventually};

/// Identities that an address has had, one after the other.
pub type Values = Vec<(Instant, Option<u32>)>;

/// A pod that has come.
#[derive(Debug)]
pub struct Arrival {
    pub pod: Pod,
    /// When the plugin was called, and when it had answered.
    pub called: Instant,
    pub answered: Instant,
    /// What the pod's own node had for its IPv4 and IPv6 address when the plugin had answered.
    pub own: [Option<u32>; 2],
    /// What each other node has had for each, the IPv4 address from before the call on.
    pub elsewhere: Vec<[Values; 2]>,
}

impl Arrival {
    /// From the call to when the last of the other nodes had the last value of both addresses.
    pub fn until_known_everywhere(&self) -> Duration {
        let last = self.elsewhere.iter().flatten().filter_map(|values| values.last()).map(|(at, _)| *at);
        last.max().unwrap_or(self.called).saturating_duration_since(self.called)
    }
}

/// Calls the plugin of node `number` for each of `specs`, one every `apart`, whatever the ones before do, and waits until
/// every other node knows all. Their objects and sandboxes are there before.
pub fn arrive<'a>(
    net: &ClusterNet,
    number: u8,
    specs: impl IntoIterator<Item = &'a PodSpec>,
    apart: Duration,
) -> Result<Vec<Arrival>> {
    let specs: Vec<(PodSpec, Namespace)> = specs
        .into_iter()
        .map(|spec| Ok((net.announce(number, spec)?, Namespace::as_a_runtime_makes_it(&spec.name)?)))
        .collect::<Result<_>>()?;
    let range = (0..=255).map(|host| IpAddr::from([10, 244, number, host]));
    let own = net.node(number);
    let others: Vec<_> = net.nodes().iter().filter(|node| node.name() != own.name()).collect();
    let watches: Vec<Watch> =
        others.iter().map(|node| node.watch_ipcache(range.clone().collect())).collect::<Result<_>>()?;
    let (runtime, ipcache) = (own.runtime(), own.ipcache()?);
    let begin = Instant::now();
    let mut arrivals: Vec<Arrival> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&specs)
            .map(|(turn, (spec, sandbox))| {
                std::thread::sleep((begin + apart * turn).saturating_duration_since(Instant::now()));
                let (runtime, ipcache, watches) = (&runtime, &ipcache, &watches);
                scope.spawn(move || call(runtime, ipcache, watches, spec, sandbox))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Arrival>>| {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked")).flatten()
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    for node in others {
        let ipcache = node.ipcache()?;
        for arrival in &arrivals {
            for addr in [IpAddr::from(arrival.pod.v4), arrival.pod.v6.into()] {
                eventually(Duration::from_secs(10), "the last pods to be known", || {
                    let known = ipcache.identity(addr)?.is_some_and(|identity| identity != 0);
                    ensure!(known, "{} does not know {addr}", node.name());
                    Ok(())
                })?;
            }
        }
    }
    for watch in watches {
        let seen = watch.end()?;
        for arrival in &mut arrivals {
            let values = |addr: IpAddr| seen.get(&addr).cloned().context("nobody has looked");
            arrival.elsewhere.push([values(arrival.pod.v4.into())?, values(arrival.pod.v6.into())?]);
        }
    }
    Ok(arrivals)
}

fn call(
    runtime: &Runtime,
    ipcache: &Ipcache,
    watches: &[Watch],
    spec: &PodSpec,
    sandbox: &Namespace,
) -> Result<Arrival> {
    let called = Instant::now();
    let pod = runtime.add_to(spec, sandbox)?.map_err(Refused::into_error)?;
    let answered = Instant::now();
    let own = [ipcache.identity(pod.v4.into())?, ipcache.identity(pod.v6.into())?];
    watches.iter().try_for_each(|watch| watch.add(pod.v6.into()))?;
    Ok(Arrival { pod, called, answered, own, elsewhere: Vec::new() })
}
